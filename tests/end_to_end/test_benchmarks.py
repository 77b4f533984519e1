"""The benchmarks' machinery, in its smallest form: what they measure with must itself be right."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import orjson
import polars as pl
import pytest
from starlette.testclient import TestClient

from benchmarks import drift, erasure, gate, lists, memory_queries, miniwob, streams, webhooks
from benchmarks.compare import compare_runs
from benchmarks.drift_plants import How, Kind, plant_change
from benchmarks.drift_streams import plant_sessions
from benchmarks.events import event_bodies, event_items
from benchmarks.figure_reports import Figure, Skipped, at_least, at_most
from benchmarks.fsync import build_slow_fsync
from benchmarks.ingest import nothing_is_lost
from benchmarks.otlp import TraceRequests, encode_spans, trace_id
from benchmarks.screens import SIZE, session_screens
from benchmarks.seeds import new_key, new_settings
from benchmarks.servers import serving
from benchmarks.soak.load import EVERY_MINUTE, IN_TURN
from benchmarks.soak.samples import Sample
from benchmarks.soak.verdicts import judge
from benchmarks.sqlmodel_peer import count_events, create_peer, peer_sessions
from pipelines.definitions import defs
from recorder.access.keys import Caller
from recorder.recording.event_batches import check_and_pack_event_batch
from recorder.recording.frame_validation import validate_frame_picture
from recorder.runtime import Runtime
from recorder.settings import make_child_environment
from recorder.tenant import Tenant
from tests.support.demonstrations import click_states, write_demonstration


def test_a_ratio_is_judged_by_its_median() -> None:
    figure = Figure(name="x", unit="s", ours=[1.0, 6.0, 3.0], peer=[10.0, 10.0, 10.0], goal=at_least(0.3))
    assert (figure.ratios, figure.is_reached) == ([0.1, 0.6, 0.3], True)


def test_without_a_peer_the_value_itself_is_judged() -> None:
    assert Figure(name="x", unit="ms", ours=[70.0, 90.0, 95.0], goal=at_most(80)).is_reached is False


def test_bodies_are_batches_of_a_hundred_that_the_service_takes() -> None:
    caller = Caller(Tenant("wsp", "live"), "key")
    bodies = event_bodies(5)
    batches = [
        check_and_pack_event_batch(caller, "ses", body, content_type="application/json", batch_key=None)
        for body in bodies
    ]
    assert [batch.n for batch in batches] == [100] * 5
    assert all(15_000 < len(body) < 35_000 for body in bodies) and len(set(bodies)) == 5


def test_screens_are_pictures_that_differ_from_each_other() -> None:
    screens = session_screens(4, seed=1)
    assert [validate_frame_picture(screen, "image/webp", index=0) for screen in screens] == [SIZE] * 4
    assert len(set(screens)) == 4


def test_no_acknowledged_event_is_missed_after_the_kill() -> None:
    figure = nothing_is_lost(event_bodies(3), sessions=8, seconds=0.5)
    assert figure.is_reached and figure.detail["acknowledged"] >= 100


def test_the_peer_stores_a_row_for_each_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = new_settings(tmp_path)
    [target] = peer_sessions(settings, sessions=1, keys=1)
    monkeypatch.setenv("RECORDER_DATA_DIR", str(tmp_path))
    with TestClient(create_peer(), headers={"Authorization": f"Bearer {target.key}"}) as client:
        answer = client.post(target.path, json=orjson.loads(event_bodies(1)[0]))
    assert (answer.status_code, answer.json()["event_count"], count_events(settings)) == (202, 100, 100)


def test_a_lost_row_and_a_double_one_are_found(tmp_path: Path) -> None:
    write_demonstration(tmp_path / "sent", click_states(), task="click-test", name="001")
    events, frames = (list(rows.elements()) for rows in miniwob.sent_rows(tmp_path / "sent"))
    got = tmp_path / "got"
    got.mkdir()
    (got / "sources.json").write_text(json.dumps({"ses": "click-test/001.json.gz"}))
    event_columns = ["session_id", "t_ms", "type", "frame_id", "payload"]
    frame_columns = ["session_id", "t_ms", "frame_id", "sha256"]
    for kind, columns, rows in (
        ("events", event_columns, [*events, events[-1]]),
        ("frames", frame_columns, frames[1:]),
    ):
        table = pl.DataFrame([("ses", *row[1:]) for row in rows], schema=columns, orient="row")
        table.write_parquet(got / f"{kind}-0.parquet")
    assert miniwob.compare(tmp_path / "sent", got).ours == [2]


def test_fsync_is_slowed(tmp_path: Path) -> None:
    try:
        library = build_slow_fsync(tmp_path)
    except Skipped as reason:
        pytest.skip(str(reason))
    script = (
        "import os, time; file = os.open('f', os.O_CREAT | os.O_WRONLY); began = time.perf_counter(); "
        "os.fsync(file); os.fdatasync(file); print(time.perf_counter() - began)"
    )
    environment = make_child_environment(new_settings(tmp_path), {"LD_PRELOAD": str(library)})
    run = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert float(run.stdout) >= 0.008


def test_filtered_lists_are_asked_for_among_made_up_sessions(tmp_path: Path) -> None:
    settings = new_settings(tmp_path)
    key = lists.fill(settings, 3_000)
    with serving(settings) as server:
        assert len(lists.ask(server, key, {"workflow": "flow_3", "outcome": "error"}, 2)) == 2


def test_the_memory_graph_is_asked_about_planted_sessions(tmp_path: Path) -> None:
    settings = new_settings(tmp_path)
    filled = memory_queries.fill(settings, 120)
    in_process = memory_queries.in_process(settings, filled, 120, 10)
    figures = memory_queries.over_http(settings, filled, 120, 2)
    assert len(filled.session_ids) == 120 and in_process.detail["nodes"] > 10
    assert [len(figure.ours) for figure in (in_process, *figures)] == [3, 3, 3]


def test_a_trace_for_the_peer_holds_a_span_for_each_event() -> None:
    items = event_items(100, seed=1)
    requests = TraceRequests([encode_spans(items)], address="127.0.0.1:1", experiment="0", count=2)
    assert [request.count(trace_id(turn)) for turn, request in enumerate(requests)] == [100, 100]
    assert requests[0].replace(trace_id(0), trace_id(1)) == requests[1]
    assert all(item["type"].encode() in requests[0] for item in items)


def test_the_gate_is_measured_with_requests_that_pass_it(tmp_path: Path) -> None:
    settings = new_settings(tmp_path)
    key = new_key(settings)
    runtime = Runtime.open(settings)
    result = asyncio.run(gate.measure_gate(runtime, key, turns=1))
    with pytest.raises(RuntimeError, match="refused"):
        asyncio.run(gate.measure_gate(runtime, key + "0", turns=1))
    runtime.close()
    assert len(result) == 4 and min(result.values()) > 0


@pytest.mark.parametrize("kind", ["path", "node", "edge"])
@pytest.mark.parametrize("how", ["stopped", "halved", "new"])
def test_what_is_put_into_a_stream_is_what_drift_reports(kind: Kind, how: How) -> None:
    sample = plant_sessions().sample(2_500, seed=3)
    planted = plant_change(sample, kind, how, at=1_000, seed=3, is_eligible=lambda share: 0.15 < share < 0.4)
    assert planted is not None and planted.sample.routes[:1_000] == sample.routes[:1_000]
    assert planted.sample.routes != sample.routes and drift.judge(sample).alarms == []
    [alarm] = drift.judge(planted.sample).alarms
    assert 1_000 <= alarm.position < 2_500


def test_deliveries_and_bare_posts_are_both_counted(tmp_path: Path) -> None:
    settings = new_settings(tmp_path)
    with serving(settings, "benchmarks.webhooks:receiver") as server:
        url = f"{server.url}/hooks"
        paces = [webhooks.deliveries_of(settings, url, count=20), webhooks.posts_of(url, count=20)]
    assert all(pace.per_second > 0 and pace.cpu_us > 0 for pace in paces)


def test_every_message_to_every_reader_is_counted() -> None:
    cost = streams.message_cost("sse", rounds=1, seconds=0.2, keys=2, readers_per_key=3)
    assert cost.detail["messages delivered"] == 24


def test_a_message_that_is_lost_or_comes_twice_is_found() -> None:
    whole = streams.Received("ses", messages=5, first=3, last=7)
    assert streams._check([whole], 5) == 5
    for wrong in (streams.Received("ses", messages=4, first=3, last=7, misplaced=1), streams.Received("ses")):
        with pytest.raises(RuntimeError, match="out of place"):
            streams._check([wrong], None)


def test_an_erasure_and_a_search_are_timed() -> None:
    erased = erasure.time_erasures(events=20_000, rounds=1)
    searched = erasure.time_search(sessions=1_000, rounds=1)
    assert erased.detail["events touched"] == 2_000
    assert erased.ours[0] > 0 and searched.ours[0] > 0


@pytest.mark.parametrize("grown", ["memory", "open files", "WAL", "lake log", "commits", None])
def test_a_soak_finds_what_grows(grown: str | None) -> None:
    missed = [verdict.name for verdict in judge(make_samples(grown)) if verdict.is_reached is False]
    assert len(missed) == (grown is not None) and all(grown in name for name in missed if grown)


def test_a_soak_calls_the_job_of_every_schedule() -> None:
    scheduled = {schedule.job_name for schedule in defs.schedules or []}
    assert scheduled <= {*EVERY_MINUTE, *IN_TURN} <= {job.name for job in defs.jobs or []}


def make_samples(grown: str | None) -> list[Sample]:
    """Return samples of a minute, in the last third of which one thing has grown."""
    samples, commit_s, lake_log = [], 0.0, 0.0
    for at in range(61):
        is_more = {name: 2.0 if name == grown and at >= 40 else 1.0 for name in (grown, "-")}
        factor = {name: is_more.get(name, 1.0) for name in ("memory", "open files", "WAL", "commits")}
        commit_s += 0.5 * factor["commits"]
        lake_log += 2.0 if grown == "lake log" and at > 40 else 1.0
        files = {
            "WAL": 4 * factor["WAL"],
            "lake log": lake_log,
            "Dagster's files": at,
            "database": at,
            "logs": 1,
        }
        samples.append(
            Sample(
                at=at,
                sessions=5 * at,
                commits=100 * at,
                commit_seconds=commit_s,
                memory_mb={"api": 100 * factor["memory"], "dagster, children": 100 + 10 * at},
                open_files={"api": round(50 * factor["open files"])},
                files_mb=files,
                largest_log_mb=1.0,
            )
        )
    return samples


def test_a_change_counts_beyond_what_the_earlier_commit_differs_from_itself() -> None:
    def runs(*values: tuple[float, float, float]) -> list[tuple[dict[str, float], ...]]:
        return [tuple({"x": value} for value in each) for each in values]

    (steady,) = compare_runs(runs((10, 10.4, 10), (10, 10.6, 10.1), (10, 10.3, 9.9)))
    assert steady.is_unchanged
    (slower,) = compare_runs(runs((10, 12, 10), (10, 12.5, 10.2), (10, 11.8, 9.9)))
    assert not slower.is_unchanged and round(slower.changes[0], 3) == 1.2
    (noisy,) = compare_runs(runs((10, 12, 10), (10, 12.5, 13), (10, 11.8, 9.9)))
    assert noisy.is_unchanged and noisy.spread[1] == 1.3
