"""Histories for drift tests: a letter is a session on the path of that letter, and goes through its node."""

from collections.abc import Sequence

import numpy as np

from recorder.memory.drift.drift_subjects import list_drift_subjects
from recorder.memory.drift.history import DAY_MS, History

_HOUR_MS = 3_600_000


def make_history(
    letters: str, *, actors: Sequence[int] | None = None, started_ms: Sequence[int] | None = None
) -> History:
    """Make one session an hour, by two actors in turn unless given; sealed with the numbers 1, 2, …"""
    variants = np.array([number_of(letter) for letter in letters], dtype=np.int64)
    sessions = np.arange(len(variants), dtype=np.int64)
    nodes = np.arange(128, dtype=np.int64)
    return History(
        seal_seq=sessions + 1,
        variant=variants,
        started_ms=sessions * _HOUR_MS if started_ms is None else np.array(started_ms, dtype=np.int64),
        actor=sessions % 2 if actors is None else np.array(actors, dtype=np.int64),
        subjects=list_drift_subjects(nodes, np.arange(129), nodes),
    )


def number_of(letter: str) -> int:
    """Return the number of a letter's path, variant and node."""
    return ord(letter)


def at_days(*days: int) -> list[int]:
    """Return the beginnings of sessions, in milliseconds, from the days on which they began."""
    return [day * DAY_MS for day in days]
