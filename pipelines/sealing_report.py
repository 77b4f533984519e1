"""Metadata of sealing drain runs in Dagster: counts during a run; totals, lags, a picture at its end."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import dagster as dg

from recorder.sealing import SealedBatch

ReportEntry = tuple[str, Mapping[str, Any]]

_NAMES_SHOWN = 20


def describe_sealing_progress(batches: Sequence[SealedBatch]) -> Iterator[ReportEntry]:
    """Yield the metadata of a few batches by asset; an asset without new rows is left out."""
    if not batches:
        return
    sessions = _sum_counts_of_sealing_batches(batches, "sessions")
    workflows = _list_workflows_of_batches(batches)
    lags = {
        "lag_p50_s": _compute_lag_quantile(_list_sealing_lags(batches), 0.5),
        "lag_p95_s": _compute_lag_quantile(_list_sealing_lags(batches), 0.95),
    }
    yield "sealed_sessions", {"sessions": sessions, "batches": len(batches), **lags, "workflows": workflows}
    for asset, count in _list_reported_assets(batches):
        yield asset, {count: _sum_counts_of_sealing_batches(batches, count), "workflows": workflows}
    if workflows:
        # Beside it a picture's `sessions` counts those of its whole graph.
        yield "memory_graphs", {"added_sessions": sessions, "workflows": workflows}


def describe_sealing_run(batches: Sequence[SealedBatch], ending: str) -> Iterator[ReportEntry]:
    """Yield the metadata of a whole run by asset.

    The names begin with `run_`, so that the UI's plots of a count over time keep to the single reports.
    """
    if not batches:
        return
    sessions = _sum_counts_of_sealing_batches(batches, "sessions")
    yield (
        "sealed_sessions",
        {
            "run_sessions": sessions,
            "run_batches": len(batches),
            "run_ended_by": ending,
            "run_lags": _make_lag_table(batches),
            "run_picture": dg.MetadataValue.md(draw_sealing_run(batches)),
        },
    )
    for asset, count in _list_reported_assets(batches):
        yield asset, {f"run_{count}": _sum_counts_of_sealing_batches(batches, count)}
    if workflows := _list_workflows_of_batches(batches):
        yield "memory_graphs", {"run_sessions": sessions, "run_workflows": workflows}


def _list_reported_assets(batches: Sequence[SealedBatch]) -> list[tuple[str, str]]:
    pairs = [("session_events", "events"), ("session_frames", "frames")]
    return [(asset, count) for asset, count in pairs if _sum_counts_of_sealing_batches(batches, count)]


def _sum_counts_of_sealing_batches(batches: Sequence[SealedBatch], count: str) -> int:
    return sum(getattr(batch, count) for batch in batches)


def _list_workflows_of_batches(batches: Sequence[SealedBatch]) -> list[str]:
    names = sorted({workflow for batch in batches for workflow in batch.workflows})
    more = len(names) - _NAMES_SHOWN
    return names if more <= 0 else [*names[:_NAMES_SHOWN], f"… and {more} more"]


def _list_sealing_lags(batches: Sequence[SealedBatch]) -> list[float]:
    return [lag for batch in batches for lag in batch.lags_s]


def _compute_lag_quantile(values: Sequence[float], share: float) -> float | None:
    """Return the quantile of some values; None if there are none (imports have no lag)."""
    return round(sorted(values)[ceil(share * len(values)) - 1], 3) if values else None


def _make_lag_table(batches: Sequence[SealedBatch]) -> dg.TableMetadataValue:
    rows = {
        "stopped → sealed": _list_sealing_lags(batches),
        "one batch": [batch.seconds for batch in batches],
    }
    shares = {"p50_s": 0.5, "p95_s": 0.95, "max_s": 1.0}
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {
                    "what": what,
                    **{name: _compute_lag_quantile(values, share) for name, share in shares.items()},
                }
            )
            for what, values in rows.items()
            if values
        ]
    )


_WIDTH, _ROW, _GAP = 640, 90, 26
_COLUMNS = 120
_INK, _FAINT = "#1f6feb", "#a8c7fa"


def draw_sealing_run(batches: Sequence[SealedBatch]) -> str:
    """Return a picture as Markdown: above, the longest and the median lag; below, the sessions of a batch."""
    step = -(-len(batches) // _COLUMNS)
    columns = [batches[start : start + step] for start in range(0, len(batches), step)]
    lags = [sorted(lag for batch in column for lag in batch.lags_s) or [0.0] for column in columns]
    longest = [column[-1] for column in lags]
    median = [column[len(column) // 2] for column in lags]
    sizes = [sum(batch.sessions for batch in column) / len(column) for column in columns]
    body = [
        _draw_sealing_bar_strip(0, f"lag, at most {max(longest):.2f} s", [(longest, _FAINT), (median, _INK)]),
        _draw_sealing_bar_strip(1, f"sessions, at most {max(sizes):.0f}", [(sizes, _INK)]),
    ]
    height = 2 * (_ROW + _GAP)
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}">{"".join(body)}</svg>'
    return f"![lags and batch sizes](data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()})"


def _draw_sealing_bar_strip(number: int, label: str, series: Sequence[tuple[Sequence[float], str]]) -> str:
    """Return one strip of bars; all its series share the scale of the largest value."""
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
