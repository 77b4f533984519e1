"""`GET /v1/sessions` among 200,000 sessions, for combinations of filters, over HTTP. Spec §4.1."""

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import insert, text

from benchmarks.figure_reports import Figure
from benchmarks.seeds import new_settings
from benchmarks.servers import Server, serving
from recorder import clock, ids
from recorder.access.workspaces import create_workspace
from recorder.models.session import SessionMetadataRow, SessionRow, TagRow
from recorder.runtime import Runtime
from recorder.settings import Settings

_SESSIONS = 200_000
_QUICK_SESSIONS = 50_000
_AT_ONCE = 10_000
_COMBINATIONS: dict[str, dict[str, str]] = {
    "no filter": {},
    "limit 500": {"limit": "500"},
    "workflow": {"workflow": "flow_3"},
    "status": {"status": "sealed"},
    "rare status": {"status": "recording"},
    "outcome": {"outcome": "error"},
    "actor.kind": {"actor.kind": "model"},
    "tag": {"tag": "checkpoint"},
    "rare tag": {"tag": "rare"},
    "since 1d": {"since": "1d"},
    "workflow + outcome": {"workflow": "flow_3", "outcome": "error"},
    "workflow + tag": {"workflow": "flow_3", "tag": "checkpoint"},
    "status + outcome + actor.kind": {"status": "sealed", "outcome": "error", "actor.kind": "script"},
}


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the median and worst time of a page of 100, for information."""
    sessions, count = (_QUICK_SESSIONS, 15) if quick else (_SESSIONS, 50)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        key = fill(settings, sessions)
        with serving(settings) as server:
            times = {name: ask(server, key, query, count) for name, query in _COMBINATIONS.items()}
    return [
        Figure(
            name=f"a page of 100 of {sessions:,} sessions, p50 of {len(times)} filters",
            unit="ms",
            ours=[statistics.median(samples) for samples in times.values()],
            detail={f"{name}, ms": samples for name, samples in times.items()},
        )
    ]


def fill(settings: Settings, count: int) -> str:
    """Return a workspace with so many sessions of the last 60 days; returns its key."""
    runtime = Runtime.open(settings)
    rng = random.Random(11)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(
            db, "benchmark", region=settings.region, secret=settings.secret, tier="unlimited"
        )
    first = clock.now() - timedelta(days=60)
    step = timedelta(days=60) / count
    for begin in range(0, count, _AT_ONCE):
        numbers = range(begin, min(begin + _AT_ONCE, count))
        rows = [_session(made.workspace_id, first + n * step, rng) for n in numbers]
        metadata = [{"session_id": row["id"], "metadata": {"case": n}} for n, row in enumerate(rows)]
        with runtime.database.transaction(write=True) as db:
            db.connection().execute(insert(SessionRow), rows)
            db.connection().execute(insert(SessionMetadataRow), metadata)
            db.connection().execute(insert(TagRow), list(_tags(rows, rng)))
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(text("ANALYZE"))
    runtime.close()
    return made.key


def _session(workspace_id: str, created_at: datetime, rng: random.Random) -> dict[str, Any]:
    moment = clock.truncate_to_ms(created_at)
    status = rng.choices(("sealed", "stopped", "recording"), (97, 2, 1))[0]
    outcome = rng.choices(("success", "error", "abandoned"), (85, 10, 5))[0]
    return {
        "id": f"ses_{ids.encode_ulid((clock.to_ms(moment) << 80) | rng.getrandbits(80))}",
        "workspace_id": workspace_id,
        "mode": "live",
        "workflow": f"flow_{rng.randrange(20)}",
        "status": status,
        "actor_id": f"person {rng.randrange(50)}",
        "actor_kind": rng.choices(("human", "model", "script"), (80, 15, 5))[0],
        "created_at": moment,
        "started_at": moment,
        "stopped_at": None if status == "recording" else moment,
        "sealed_at": moment if status == "sealed" else None,
        "outcome": None if status == "recording" else outcome,
        "event_count": 100,
        "frame_count": 10,
        "is_hot": False,
    }


def _tags(rows: list[dict[str, Any]], rng: random.Random) -> Iterator[dict[str, Any]]:
    for row in rows:
        chance = rng.random()
        if chance < 0.1:
            yield {
                "id": ids.new_id("tag"),
                "session_id": row["id"],
                "workspace_id": row["workspace_id"],
                "mode": "live",
                "name": "rare" if chance < 0.0005 else "checkpoint",
                "t_ms": 10,
                "position": 1,
                "created_at": row["created_at"],
            }


def ask(server: Server, key: str, query: dict[str, str], times: int) -> list[float]:
    """Return the milliseconds of each answer, after three to warm up."""
    results = []
    with httpx.Client(headers={"Authorization": f"Bearer {key}"}, trust_env=False, timeout=60) as client:
        for turn in range(times + 3):
            began = time.perf_counter()
            answer = client.get(f"{server.url}/v1/sessions", params=query)
            took = time.perf_counter() - began
            if answer.status_code != 200 or not answer.json()["data"]:
                raise RuntimeError("A list that should hold sessions is empty or was refused.")
            if turn >= 3:
                results.append(took * 1e3)
    return results
