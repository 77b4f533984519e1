"""Sealing: stopped sessions become lake rows and graph nodes, exactly once. Spec §3.1, design §3."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recorder.sealing.cleanup import CleanupCounts, has_sealing_work
    from recorder.sealing.lanes import compute_longest_wait_s, list_sealing_runs
    from recorder.sealing.sealer import SealedBatch, Sealer, open_sealer

__all__ = [
    "CleanupCounts",
    "SealedBatch",
    "Sealer",
    "compute_longest_wait_s",
    "has_sealing_work",
    "list_sealing_runs",
    "open_sealer",
]

_MODULES = {
    "CleanupCounts": "cleanup",
    "SealedBatch": "sealer",
    "Sealer": "sealer",
    "has_sealing_work": "cleanup",
    "list_sealing_runs": "lanes",
    "compute_longest_wait_s": "lanes",
    "open_sealer": "sealer",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used.

    Processes that digest pictures are in this package: they start without database and lake in 0.2 s.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
