"""Panics of libraries that are written in Rust."""

import deltalake
import polars as pl

__all__ = ["make_panics"]


def make_panics() -> list[BaseException]:
    """Return one panic of each library; delta-rs does not export its class."""
    assert deltalake.__version__ and pl.exceptions.PanicException
    kinds = [kind for kind in BaseException.__subclasses__() if kind.__name__ == "PanicException"]
    assert len(kinds) > 1
    return [kind("a damaged file") for kind in kinds]
