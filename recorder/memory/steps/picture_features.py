"""Features of a picture: its clear rises and falls of luminance, fine and coarse. Decision 0046.

The fine cells keep screens apart, the coarse ones hold screens together that differ in a detail: a clock, the
cursor, a line of text. Both come from the cells that a picture is read into once, at seal.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

from recorder.memory.steps.action_tokens import hash_texts

#: Rises when equal pictures would get other features than before.
PICTURE_VERSION = 2
_COLUMNS, _ROWS = 9, 8
_COARSE_COLUMNS, _COARSE_ROWS = 6, 4
#: Half cells of the fine grid that make up a coarse one.
_PARTS = 6
#: Least difference of luminance, of 255 levels, between two cells that counts.
_CLEAR_STEP = 8


def picture_features(cells: bytes) -> tuple[int, ...]:
    """Return each clear rise or fall of luminance from a cell to the one on its right or below it, sorted.

    Steps of less than `_CLEAR_STEP` levels are noise: another encoding or scale of a picture flips them.
    Pictures that share six of ten rises and falls are alike enough for one node. A plain one has one feature.

    Args:
        cells: luminance of 9 × 8 cells, row by row.
    """
    features = {
        _make_picture_feature("picture", *step)
        for step in _list_luminance_steps(cells, _COLUMNS, _CLEAR_STEP)
    }
    coarse_steps = _list_luminance_steps(_merge_cells(cells), _COARSE_COLUMNS, _PARTS * _CLEAR_STEP)
    features |= {_make_picture_feature("coarse picture", *step) for step in coarse_steps}
    return tuple(sorted(features)) or (_make_picture_feature("picture", 0, -1, 0),)


def _list_luminance_steps(
    cells: Sequence[int], columns: int, clear_step: int
) -> Iterator[tuple[int, int, int]]:
    """Yield the clear steps: 1 if it goes down, else 0; the cell it begins at; 1 if it rises, else 0."""
    for index, shade in enumerate(cells):
        for is_below, other in ((0, index + 1), (1, index + columns)):
            if other >= len(cells) or (not is_below and other % columns == 0):
                continue
            step = cells[other] - shade
            if abs(step) >= clear_step:
                yield is_below, index, int(step > 0)


def _merge_cells(cells: bytes) -> list[int]:
    """Return six times the mean luminance of 6 × 4 cells, each 1.5 cells wide and 2 high."""
    merged = []
    for top in range(0, _ROWS, _ROWS // _COARSE_ROWS):
        pairs = [
            cells[top * _COLUMNS + column] + cells[(top + 1) * _COLUMNS + column]
            for column in range(_COLUMNS)
        ]
        for left in range(0, _COLUMNS, 3):
            first, middle, last = pairs[left : left + 3]
            merged += [2 * first + middle, middle + 2 * last]
    return merged


@lru_cache(maxsize=1_024)
def _make_picture_feature(grid: str, is_below: int, index: int, is_rise: int) -> int:
    return hash_texts(grid, str(is_below), str(index), str(is_rise))
