"""Garbage collection in processes that hold many objects for long."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

#: Young objects that start a collection in a process that answers many small requests.
MANY_REQUESTS = 10_000
#: The same in a process that works on batches: a memory graph has a million objects, none of them garbage,
#: and visiting them took two fifths of the time of sealing.
LARGE_BATCHES = 100_000


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Collect no garbage while modules are imported.

    Imports make many objects that stay, and visiting them again and again takes a fifth of the time.
    """
    is_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_enabled:
            gc.enable()


@contextmanager
def reduced_garbage_collection(young: int, older: int = 20) -> Iterator[None]:
    """Exclude the objects that exist now from garbage collection, and collect more rarely.

    A process that froze its objects before, such as a test run with many services, keeps them frozen.

    Args:
        young: number of new objects that start a collection.
        older: number of collections of one generation that start one of the next.
    """
    thresholds, is_frozen = gc.get_threshold(), _was_frozen_at_first_use() or gc.get_freeze_count() > 0
    if not is_frozen:
        gc.collect()
        gc.freeze()
    gc.set_threshold(young, older, older)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if not is_frozen:
            gc.unfreeze()


@cache
def _was_frozen_at_first_use() -> bool:
    """Return whether the process froze its objects, counted once: to count millions takes 0.1 s each time."""
    return gc.get_freeze_count() > 0
