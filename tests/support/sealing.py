"""Sealing of all waiting sessions, as the drain run does it."""

from typing import Any

from recorder.runtime import Runtime
from recorder.sealing import SealedBatch, Sealer, open_sealer


def seal_all(runtime: Runtime, *, owner: str = "test", **options: Any) -> list[SealedBatch]:
    """Seal all waiting sessions of a deployment and return the sealed batches.

    Args:
        runtime: the deployment; no other run may hold its run leases.
        owner: name of the run.
        options: as `open_sealer` takes them.
    """
    with open_sealer(runtime, owner, **options) as sealer:
        assert sealer is not None
        return seal_waiting(sealer)


def seal_waiting(sealer: Sealer) -> list[SealedBatch]:
    """Seal all waiting sessions with an open run and return the sealed batches."""
    return list(iter(sealer.seal_batch, None))
