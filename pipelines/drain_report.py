"""What the Dagster UI shows of a drain run: counts while it runs, totals, lags and a picture at its end."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

import dagster as dg

from pipelines.drain_picture import draw_run
from recorder.sealing import SealedBatch

Entry = tuple[str, Mapping[str, Any]]

_NAMES_SHOWN = 20


def progress(batches: Sequence[SealedBatch]) -> Iterator[Entry]:
    """Asset by asset, what a few batches added; an asset that got nothing is left out."""
    sessions = _total(batches, "sessions")
    workflows = _workflows(batches)
    lags = {"lag_p50_s": _quantile(_lags(batches), 0.5), "lag_p95_s": _quantile(_lags(batches), 0.95)}
    yield "sealed_sessions", {"sessions": sessions, "batches": len(batches), **lags, "workflows": workflows}
    for asset, count in _row_counts(batches):
        yield asset, {count: _total(batches, count), "workflows": workflows}
    yield "memory_graphs", {"sessions": sessions, "workflows": workflows}


def summary(batches: Sequence[SealedBatch], ending: str) -> Iterator[Entry]:
    """Asset by asset, what a whole run added.

    The names begin with `run_`, so that the UI's plots of a count over time keep to the single reports.
    """
    if not batches:
        return
    sessions = _total(batches, "sessions")
    yield (
        "sealed_sessions",
        {
            "run_sessions": sessions,
            "run_batches": len(batches),
            "run_ended_by": ending,
            "run_lags": _lag_table(batches),
            "run_picture": dg.MetadataValue.md(draw_run(batches)),
        },
    )
    for asset, count in _row_counts(batches):
        yield asset, {f"run_{count}": _total(batches, count)}
    yield "memory_graphs", {"run_sessions": sessions, "run_workflows": _workflows(batches)}


def _row_counts(batches: Sequence[SealedBatch]) -> list[tuple[str, str]]:
    pairs = [("session_events", "events"), ("session_frames", "frames")]
    return [(asset, count) for asset, count in pairs if _total(batches, count)]


def _total(batches: Sequence[SealedBatch], count: str) -> int:
    return sum(getattr(batch, count) for batch in batches)


def _workflows(batches: Sequence[SealedBatch]) -> list[str]:
    names = sorted({workflow for batch in batches for workflow in batch.workflows})
    more = len(names) - _NAMES_SHOWN
    return names if more <= 0 else [*names[:_NAMES_SHOWN], f"… and {more} more"]


def _lags(batches: Sequence[SealedBatch]) -> list[float]:
    return [lag for batch in batches for lag in batch.lags_s]


def _quantile(values: Sequence[float], share: float) -> float | None:
    """The value that `share` of them do not exceed; None of nothing (imports have no lag)."""
    return round(sorted(values)[ceil(share * len(values)) - 1], 3) if values else None


def _lag_table(batches: Sequence[SealedBatch]) -> dg.TableMetadataValue:
    rows = {"stopped → sealed": _lags(batches), "one batch": [batch.seconds for batch in batches]}
    shares = {"p50_s": 0.5, "p95_s": 0.95, "max_s": 1.0}
    return dg.MetadataValue.table(
        [
            dg.TableRecord(
                {"what": what, **{name: _quantile(values, share) for name, share in shares.items()}}
            )
            for what, values in rows.items()
            if values
        ]
    )
