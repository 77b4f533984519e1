"""Memory of sealing as a session grows: the peak of a fresh process that seals one session.

The batches of the session follow each other, or all of them overlap.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, run
from typing import Any

import orjson
import zstandard

from benchmarks.events import event_items
from benchmarks.figure_reports import Figure, at_most
from benchmarks.seeds import new_settings
from recorder import clock
from recorder.ids import encode_ulid, new_id, reserve_ulid_values
from recorder.models.event import EventBatchRow
from recorder.models.session import SessionMetadataRow, SessionRow, SessionStatusRow
from recorder.runtime import Runtime
from recorder.sealing import Sealer
from recorder.settings import Settings

_SIZES, _QUICK_SIZES = (20_000, 300_000, 1_000_000), (20_000, 100_000)
_BATCH = 100
_INSERTED = 500
_GOAL_MB = 800


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the peak memory and seconds for sessions of growing size."""
    sizes = _QUICK_SIZES if quick else _SIZES
    results = [_measure(size, is_overlapping=False) for size in sizes]
    results.append(_measure(sizes[-1], is_overlapping=True))
    return [
        Figure(
            name=f"peak memory, sealing {item['events']:,} events{item['kind']}",
            unit="MB",
            ours=[item["peak_mb"]],
            goal=at_most(_GOAL_MB),
            detail={name: item[name] for name in ("before_mb", "seconds", "cpu_s", "cpu_us_an_event")},
        )
        for item in results
    ]


def _measure(events: int, *, is_overlapping: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        record_session(settings, events, is_overlapping=is_overlapping)
        command = [sys.executable, "-m", "benchmarks.seal_memory", folder]
        answer = run(command, stdout=PIPE, check=True, cwd=Path(__file__).parents[1])
    output: dict[str, Any] = orjson.loads(answer.stdout.splitlines()[-1])
    if output["events"] != events:
        raise RuntimeError("The session was not sealed whole.")
    return output | {"kind": ", all batches overlapping" if is_overlapping else ""}


def record_session(settings: Settings, events: int, *, is_overlapping: bool = False) -> None:
    """Store a stopped session as ingest would have."""
    runtime = Runtime.open(settings)
    session_id, now, size = new_id("ses"), clock.now(), 0
    rows: list[dict[str, Any]] = []
    try:
        for row, body_bytes in _batches(session_id, events, is_overlapping=is_overlapping):
            rows.append(row)
            size += body_bytes
            if len(rows) == _INSERTED or row["first_position"] + _BATCH > events:
                with runtime.database.transaction(write=True) as db:
                    db.connection().execute(EventBatchRow.__table__.insert(), rows)  # type: ignore[attr-defined]
                rows = []
        with runtime.database.transaction(write=True) as db:
            times = {"created_at": now, "started_at": now, "stopped_at": now, "waiting_since": now}
            counts = {"event_count": events, "event_bytes": size, "last_position": events + 1, "seal_slot": 0}
            lane = {"workspace_id": new_id("wsp"), "mode": "live", "workflow": "pay"}
            db.add(SessionRow(id=session_id, status="stopped", **lane, **times, **counts))
            db.add(SessionMetadataRow(session_id=session_id, metadata_={}))
            db.add(SessionStatusRow(session_id=session_id, position=events + 1, status="stopped", at=now))
    finally:
        runtime.close()


def _batches(session_id: str, events: int, *, is_overlapping: bool) -> Iterator[tuple[dict[str, Any], int]]:
    items, packer = event_items(_BATCH, seed=1), zstandard.ZstdCompressor(level=1)
    count = events // _BATCH
    for batch in range(count):
        times = [n * count + batch if is_overlapping else batch * _BATCH + n for n in range(_BATCH)]
        body = orjson.dumps(
            {"events": [item | {"t_ms": t_ms} for item, t_ms in zip(items, times, strict=True)]}
        )
        row = {
            "session_id": session_id,
            "first_position": batch * _BATCH + 1,
            "n": _BATCH,
            "t_min": times[0],
            "t_max": times[-1],
            "first_id": f"evt_{encode_ulid(reserve_ulid_values(_BATCH))}",
            "received_ms": 0,
            "payload": packer.compress(body),
        }
        yield row, len(body)


def seal_all(runtime: Runtime) -> int:
    """Seal what waits in a deployment; return the number of events."""
    sealer = Sealer(runtime, owner="bench")
    sealer.take()
    events = 0
    while (batch := sealer.seal_batch()) is not None:
        events += batch.events
    sealer.release()
    return events


def _seal(folder: Path) -> dict[str, Any]:
    """Seal the one session of a deployment; the figures of this process."""
    runtime = Runtime.open(Settings.from_env({}, data_dir=folder))
    before = read_peak_mb()
    began, cpu = time.perf_counter(), time.process_time()
    events = seal_all(runtime)
    seconds, cpu_s = time.perf_counter() - began, time.process_time() - cpu
    runtime.close()
    return {
        "events": events,
        "peak_mb": read_peak_mb(),
        "before_mb": before,
        "seconds": seconds,
        "cpu_s": cpu_s,
        "cpu_us_an_event": cpu_s / max(events, 1) * 1e6,
    }


def read_peak_mb() -> float:
    """Return the most memory that this process has had."""
    # Not `ru_maxrss`: that begins with the parent's memory.
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    sys.stdout.buffer.write(orjson.dumps(_seal(Path(sys.argv[1]))) + b"\n")
