"""Panics of libraries that are written in Rust, as ordinary errors.

A panic is raised as a class that derives from `BaseException` alone: it would end a worker that sets aside
whatever else fails. Each library has a class of its own with this name, which not all of them export.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_PANIC = "PanicException"


class LibraryPanic(Exception):
    """A library panicked, as delta-rs and polars do over some damaged files."""


@contextmanager
def convert_panics() -> Iterator[None]:
    """Convert panics of the block to `LibraryPanic`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != _PANIC:
            raise
        raise LibraryPanic(str(error)) from error
