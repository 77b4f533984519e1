"""Sealing: stopped sessions become lake rows and graph nodes, exactly once. Spec §3.1, design §3."""

from recorder.sealing.lanes import LeaseLost, longest_wait_s
from recorder.sealing.maintenance import Maintenance, has_work
from recorder.sealing.places import is_sealing, list_runs
from recorder.sealing.sealer import SealedBatch, Sealer, open_sealer

__all__ = [
    "LeaseLost",
    "Maintenance",
    "SealedBatch",
    "Sealer",
    "has_work",
    "is_sealing",
    "list_runs",
    "longest_wait_s",
    "open_sealer",
]
