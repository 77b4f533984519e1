"""Queries of a memory graph of 100,000 sessions, in the process and over HTTP by a real server. Spec §4.2."""

import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from sqlalchemy import insert, text
from sqlmodel import Session as DbSession

from benchmarks.figure_reports import Figure, at_most, quantile
from benchmarks.memory.planted import PlantedSession, plant_sessions
from benchmarks.seeds import new_settings
from benchmarks.servers import Server, serving
from recorder import clock, ids
from recorder.access.workspaces import create_workspace
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.similarity import index_similarity
from recorder.memory.storage.indexing import GraphIndexer
from recorder.models.session import SessionMetadataRow, SessionRow, TagRow
from recorder.models.workflow import WorkflowRow
from recorder.runtime import Runtime
from recorder.settings import Settings
from recorder.tenant import GraphScope, Tenant

WORKFLOW = "planted"
_SESSIONS, _QUICK_SESSIONS = 100_000, 20_000
_AT_ONCE = 10_000
_ROUNDS = 3
_LIMIT = 20
#: Asked beside the two that have a goal, for information.
_OTHERS: dict[str, dict[str, str]] = {
    "outliers": {},
    "recovery_points": {},
    "graph": {"format": "svg", "min_frequency": "0.01"},
    "diff": {"since": "30d", "against_until": "30d"},
}


@dataclass(frozen=True)
class Filled:
    """A workspace with a large graph: its key, and some of its sessions."""

    key: str
    scope: GraphScope
    session_ids: list[str]


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the slowest of a hundred answers, in three rounds each."""
    sessions, count = (_QUICK_SESSIONS, 100) if quick else (_SESSIONS, 300)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        settings = new_settings(Path(folder))
        filled = fill(settings, sessions)
        return [in_process(settings, filled, sessions, count), *over_http(settings, filled, sessions, count)]


def in_process(settings: Settings, filled: Filled, sessions: int, count: int) -> Figure:
    """Return the twenty sessions most like one, without HTTP and SQL."""
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=False) as db:
        began = time.perf_counter()
        columns = read_newest_columns(db, filled.scope)
        read_ms = (time.perf_counter() - began) * 1e3
    runtime.close()
    began = time.perf_counter()
    index = index_similarity(columns)
    made_ms = (time.perf_counter() - began) * 1e3
    rows = random.Random(5).sample(range(len(columns.trace)), min(count, len(columns.trace)))
    times, cpu_times = [], []
    for _ in range(_ROUNDS):
        both = [_ms(partial(index.nearest, row, _LIMIT)) for row in rows]
        times.append([wall for wall, _ in both])
        cpu_times.append([cpu for _, cpu in both])
    return Figure(
        name=f"similar top-{_LIMIT} of {sessions:,} sessions in process, p99",
        unit="ms",
        ours=[quantile(samples, 0.99) for samples in times],
        goal=at_most(5.0),
        detail={
            **_described(columns),
            "p50, ms": [float(np.median(samples)) for samples in times],
            # What the process itself took: of interest where others run beside it.
            "CPU p99, ms": [quantile(samples, 0.99) for samples in cpu_times],
            "reading the graph from SQL, ms": read_ms,
            "making the index, ms": made_ms,
        },
    )


def over_http(settings: Settings, filled: Filled, sessions: int, count: int) -> list[Figure]:
    """Return the paths and similar sessions as a client gets them, one request after the other."""
    rng = random.Random(7)
    with serving(settings) as server, _client(server, filled.key) as client:

        def similar() -> httpx.Response:
            body = {"session_id": rng.choice(filled.session_ids), "limit": _LIMIT}
            return client.post("/v1/memory/similar", json=body)

        def query(what: str, **filters: str) -> Callable[[], httpx.Response]:
            return lambda: client.get(f"/v1/memory/{what}", params={"workflow": WORKFLOW, **filters})

        others = {
            f"{what} p50, ms": ask(query(what, **filters), min(count, 9)) for what, filters in _OTHERS.items()
        }
        timed = {
            "paths": [ask(query("paths"), count) for _ in range(_ROUNDS)],
            "similar": [ask(similar, count) for _ in range(_ROUNDS)],
        }
    return [
        Figure(
            name=f"{what} over HTTP at {sessions:,} sessions, p99",
            unit="ms",
            ours=[quantile(latencies, 0.99) for latencies in rounds],
            goal=at_most(50.0),
            detail={"p50, ms": [float(np.median(latencies)) for latencies in rounds]}
            | (
                {name: float(np.median(samples)) for name, samples in others.items()}
                if what == "paths"
                else {}
            ),
        )
        for what, rounds in timed.items()
    ]


def ask(request: Callable[[], httpx.Response], times: int) -> list[float]:
    """Return the milliseconds of each answer, after three to warm up."""
    results = []
    for turn in range(times + 3):
        began = time.perf_counter()
        answer = request()
        took = time.perf_counter() - began
        if answer.status_code != 200:
            raise RuntimeError(f"The service answered {answer.status_code}: {answer.text}")
        if turn >= 3:
            results.append(took * 1e3)
    return results


def fill(settings: Settings, count: int) -> Filled:
    """Return a workspace whose only workflow has so many planted sessions of the last 60 days."""
    runtime = Runtime.open(settings)
    with runtime.database.transaction(write=True) as db:
        made = create_workspace(
            db, "benchmark", region=settings.region, secret=settings.secret, tier="unlimited"
        )
        scope = GraphScope(Tenant(made.workspace_id, "live"), WORKFLOW)
        now = clock.now()
        db.add(WorkflowRow(**_place(scope), session_count=count, created_at=now, updated_at=now))
    indexer = GraphIndexer()
    session_ids: list[str] = []
    planted = _plant_rows(scope, count)
    while batch := list(islice(planted, _AT_ONCE)):
        with runtime.database.transaction(write=True) as db:
            _add(db, indexer, batch)
        session_ids += [row.id for _, row in batch]
    with runtime.database.transaction(write=True) as db:
        db.connection().execute(text("ANALYZE"))
    runtime.close()
    return Filled(made.key, scope, session_ids[:: max(1, count // 1_000)])


def _plant_rows(scope: GraphScope, count: int) -> Iterator[tuple[PlantedSession, SessionRow]]:
    first = clock.now() - timedelta(days=60)
    step = timedelta(days=60) / count
    rng = random.Random(11)
    for number, session in enumerate(plant_sessions(count, seed=3)):
        moment = clock.truncate_to_ms(first + number * step)
        row = SessionRow(
            **_place(scope),
            id=f"ses_{ids.encode_ulid((clock.to_ms(moment) << 80) | rng.getrandbits(80))}",
            status="sealed",
            actor_id="someone",
            actor_kind="human",
            created_at=moment,
            started_at=moment,
            stopped_at=moment + timedelta(milliseconds=session.duration_ms),
            sealed_at=moment + timedelta(minutes=10),
            duration_ms=session.duration_ms,
            outcome=session.outcome,
            seal_seq=number + 1,
            lake_date=moment.strftime("%Y-%m-%d"),
            is_hot=False,
        )
        yield session, row


def _add(db: DbSession, indexer: GraphIndexer, batch: Sequence[tuple[PlantedSession, SessionRow]]) -> None:
    rows = [row for _, row in batch]
    prepared = indexer.prepare(db, rows, {row.id: session.steps for session, row in batch})
    indexer.commit(db, prepared, rows)
    connection = db.connection()
    connection.execute(insert(SessionRow), [row.model_dump() for row in rows])
    metadata = [{"session_id": row.id, "metadata": {"case": row.seal_seq}} for row in rows]
    connection.execute(insert(SessionMetadataRow), metadata)
    connection.execute(insert(TagRow), list(_tags(batch)))


def _tags(batch: Sequence[tuple[PlantedSession, SessionRow]]) -> Iterator[dict[str, Any]]:
    for session, row in batch:
        marks = {"error": session.failed_ms, session.outcome: session.duration_ms}
        for name, t_ms in marks.items():
            if t_ms is not None:
                yield {
                    "id": ids.new_id("tag"),
                    "session_id": row.id,
                    "workspace_id": row.workspace_id,
                    "mode": row.mode,
                    "name": name,
                    "t_ms": t_ms,
                    "position": 1,
                    "created_at": row.created_at,
                }


def _place(scope: GraphScope) -> dict[str, Any]:
    return {"workspace_id": scope.workspace_id, "mode": scope.mode, "workflow": scope.workflow}


def _client(server: Server, key: str) -> httpx.Client:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=60)


def _described(columns: GraphColumns) -> dict[str, int]:
    return {
        "nodes": len(columns.nodes),
        "variants": len(columns.variant_path),
        "paths": len(columns.paths),
        "graph version": columns.version,
    }


def _ms(call: Callable[[], object]) -> tuple[float, float]:
    """Return milliseconds on the wall, and of this thread's work."""
    began, worked = time.perf_counter(), time.thread_time()
    call()
    return (time.perf_counter() - began) * 1e3, (time.thread_time() - worked) * 1e3
