"""Sealing: stopped sessions become lake rows and graph nodes, exactly once. Spec §3.1, design §3."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recorder.sealing.lane import LeaseLost, has_work, is_sealing
    from recorder.sealing.sealer import SealedBatch, Sealer
    from recorder.sealing.upkeep import Maintenance

__all__ = ["LeaseLost", "Maintenance", "SealedBatch", "Sealer", "has_work", "is_sealing"]

_MODULES = {
    "LeaseLost": "lane",
    "Maintenance": "upkeep",
    "SealedBatch": "sealer",
    "Sealer": "sealer",
    "has_work": "lane",
    "is_sealing": "lane",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used.

    Processes that digest pictures are in this package: they start without database and lake in 0.2 s.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
