"""A small drawing of a drain run for Dagster's pages: lags and batch sizes from its start to its end."""

import base64
from collections.abc import Sequence

from recorder.sealing import SealedBatch

_WIDTH, _ROW, _GAP = 640, 90, 26
_COLUMNS = 120
_INK, _FAINT = "#1f6feb", "#a8c7fa"


def draw_run(batches: Sequence[SealedBatch]) -> str:
    """A picture as Markdown: above, the longest and the median lag; below, the sessions of a batch."""
    step = -(-len(batches) // _COLUMNS)
    columns = [batches[start : start + step] for start in range(0, len(batches), step)]
    lags = [sorted(lag for batch in column for lag in batch.lags_s) or [0.0] for column in columns]
    longest = [column[-1] for column in lags]
    median = [column[len(column) // 2] for column in lags]
    sizes = [sum(batch.sessions for batch in column) / len(column) for column in columns]
    body = [
        _row(0, f"lag, at most {max(longest):.2f} s", [(longest, _FAINT), (median, _INK)]),
        _row(1, f"sessions, at most {max(sizes):.0f}", [(sizes, _INK)]),
    ]
    height = 2 * (_ROW + _GAP)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}">{"".join(body)}</svg>'
    return f"![lags and batch sizes](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _row(number: int, label: str, series: Sequence[tuple[Sequence[float], str]]) -> str:
    """One strip of bars; all its series share the scale of the largest value."""
    bottom = number * (_ROW + _GAP) + _GAP + _ROW
    largest = max(max(values) for values, _ in series) or 1.0
    width = _WIDTH / max(len(series[0][0]), 12)
    bars = [
        f'<rect x="{position * width:.1f}" y="{bottom - _ROW * value / largest:.1f}" '
        f'width="{width * 0.8:.1f}" height="{_ROW * value / largest:.1f}" fill="{colour}"/>'
        for values, colour in series
        for position, value in enumerate(values)
    ]
    text = f'<text x="0" y="{bottom - _ROW - 8}" font-family="sans-serif" font-size="12">{label}</text>'
    return text + "".join(bars)
