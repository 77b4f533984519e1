"""Sealing: stopped sessions become lake rows and graph nodes, exactly once. Spec §3.1, design §3."""

from recorder.sealing.lane import LeaseLost, has_work, is_sealing
from recorder.sealing.sealer import SealedBatch, Sealer
from recorder.sealing.upkeep import Maintenance

__all__ = ["LeaseLost", "Maintenance", "SealedBatch", "Sealer", "has_work", "is_sealing"]
