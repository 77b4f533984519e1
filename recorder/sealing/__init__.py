"""Sealing: stopped sessions become lake rows and graph nodes, exactly once. Spec §3.1, design §3."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recorder.sealing.cleanup import Maintenance, has_work
    from recorder.sealing.lanes import is_sealing, list_sealing_runs, longest_wait_s
    from recorder.sealing.sealer import SealedBatch, Sealer, open_sealer

__all__ = [
    "Maintenance",
    "SealedBatch",
    "Sealer",
    "has_work",
    "is_sealing",
    "list_sealing_runs",
    "longest_wait_s",
    "open_sealer",
]

_MODULES = {
    "Maintenance": "cleanup",
    "SealedBatch": "sealer",
    "Sealer": "sealer",
    "has_work": "cleanup",
    "is_sealing": "lanes",
    "list_sealing_runs": "lanes",
    "longest_wait_s": "lanes",
    "open_sealer": "sealer",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used.

    Processes that digest pictures are in this package: they start without database and lake in 0.2 s.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
