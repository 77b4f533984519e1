"""To which part of a dataset a session belongs: `train`, `validation` or `test`. Spec §4.3 (determinism)."""

import hashlib

from recorder.models.export_request import SplitRule

_RANGE = 2**64


def split_of(unit: str, rule: SplitRule) -> str:
    """The part of all sessions of a unit, by hash: the same in every export, whatever else it holds.

    Growing a share moves units out of `train` only: `test` is dealt from one end of the range, then
    `validation`.

    Args:
        unit: the id that must not be in two parts: a session's, or an actor's within its workspace.
    """
    place = int.from_bytes(hashlib.sha256(b"split:" + unit.encode()).digest()[:8]) / _RANGE
    if place < rule.test:
        return "test"
    return "validation" if 1 - place <= rule.validation else "train"
