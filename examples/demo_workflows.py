"""Simulated runs of two invented workflows for demonstrations. Design §5 (demo).

Deterministic: the same count, seed and end give the same recordings to the byte. The people, companies and
addresses are invented, the pictures are drawn.
"""

import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple

from examples import approve_invoice, onboard_customer
from examples.simulated_run import Run, Way, Worker
from recorder import clock
from recorder.importers.upload import ImportedRecording, RecordingSource

#: Default end of the last runs.
ENDS_AT = datetime(2026, 5, 4, 17, 0, tzinfo=UTC)
_DAYS = 30
#: New variants appear only in this last part of the time.
_NEW_PART = 0.25
_INVOICE_SHARE = 0.7
_WORKERS = (
    Worker("ada", "human", 2300),
    Worker("grace", "human", 1900),
    Worker("linus", "human", 2700),
    Worker("mei", "human", 2100),
    Worker("clerk-agent-2", "model", 900),
    Worker("night-batch", "script", 150),
)
_WORKER_WEIGHTS = (24, 22, 16, 14, 20, 4)


class _Planned(NamedTuple):
    """Run to simulate; `moment` is its relative time, 0 to 1."""

    moment: float
    workflow: str
    way: Way


def demo_recordings(
    count: int = 300, *, seed: int = 7, ends_at: datetime = ENDS_AT
) -> Iterator[ImportedRecording]:
    """Yield runs of approve_invoice and onboard_customer, oldest first, in the 30 days before `ends_at`.

    The shares of the variants are exact up to rounding; `seed` decides order, workers, data and pauses.
    """
    rng = random.Random(seed)
    invoices = round(count * _INVOICE_SHARE)
    plan = _plan_runs(rng, approve_invoice.WORKFLOW, approve_invoice.WAYS, invoices)
    plan += _plan_runs(rng, onboard_customer.WORKFLOW, onboard_customer.WAYS, count - invoices)
    # The last hour is left free, so that no run ends later.
    first, span = ends_at - timedelta(days=_DAYS), timedelta(days=_DAYS) - timedelta(hours=1)
    for n, planned in enumerate(sorted(plan, key=lambda planned: planned.moment)):
        worker = rng.choices(_WORKERS, _WORKER_WEIGHTS)[0]
        run = Run(worker, random.Random(rng.random()), f"demo{seed}x{n:05d}x")
        metadata = {**planned.way.simulate(run), "demo": True}
        started_at = clock.truncate_to_ms(first + span * planned.moment)
        yield run.recording(planned.workflow, started_at=started_at, metadata=metadata)


def demo_sources(
    count: int = 300, *, seed: int = 7, ends_at: datetime = ENDS_AT
) -> Iterator[RecordingSource]:
    """Yield the same runs as sources of `recorder.importers.upload.upload_recordings`."""
    for n, recording in enumerate(demo_recordings(count, seed=seed, ends_at=ends_at)):
        yield RecordingSource(f"{recording.workflow} {n}", partial(_return_recording, recording))


def _return_recording(recording: ImportedRecording) -> ImportedRecording:
    return recording


def _plan_runs(rng: random.Random, workflow: str, ways: tuple[Way, ...], count: int) -> list[_Planned]:
    planned = []
    for way, times in zip(ways, _divide_count([way.share for way in ways], count), strict=True):
        earliest = 1 - _NEW_PART if way.is_new else 0.0
        planned += [_Planned(rng.uniform(earliest, 1.0), workflow, way) for _ in range(times)]
    return planned


def _divide_count(shares: list[float], count: int) -> list[int]:
    """Return whole numbers that sum to `count` and keep the shares (largest remainders)."""
    exact = [share * count for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda n: counts[n] - exact[n])
    for n in by_remainder[: count - sum(counts)]:
        counts[n] += 1
    return counts
