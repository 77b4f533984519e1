"""The figure `exports`: files beside floors and peers, and the memory they are made in."""

from benchmarks.exports import archives, growth, pictures, rows
from benchmarks.figure_reports import Figure


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the figures of all parts.

    Raises:
        Skipped: if a peer is not installed.
    """
    return [figure for part in (rows, pictures, archives, growth) for figure in part.measure(quick=quick)]
