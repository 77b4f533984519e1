"""Event logs into the real service and out of it again. Decision 0022; contract §9 (recorder import)."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import CliRunner

from recorder.cli import app
from recorder.client import ApiError, Client
from recorder.importers.trace_recordings import import_xes_log, parse_outcome_rules
from recorder.interchange.event_logs import UnreadableLog
from recorder.interchange.session_traces import NothingToExport, write_session_traces
from recorder.interchange.xes_reader import read_xes_traces
from tests.support.client_fixtures import client, service
from tests.support.event_logs import (
    CLAIMS,
    REAL,
    claims_text,
    contents,
    event_text,
    log_text,
    needs_real,
    trace_text,
    write_log,
)
from tests.support.http_service import RunningService, running_service

__all__ = ["client", "service"]


def brought_in(service: RunningService, path: Path, workflow: str, **options: object) -> None:
    report = import_xes_log(
        path,
        url=service.url,
        key=service.key,
        workflow=workflow,
        progress=False,
        **options,  # type: ignore[arg-type]
    )
    assert report.failed == []


def test_every_trace_becomes_a_stopped_session_that_began_when_its_first_event_was(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    brought_in(service, write_log(tmp_path, claims_text()), "whole_log")
    sessions = {
        session["metadata"]["case"]: session for session in client.list_sessions(workflow="whole_log")
    }
    assert sorted(sessions) == list(CLAIMS)
    first = sessions["1"]
    assert (first["status"], first["started_at"], first["duration_ms"], first["event_count"]) == (
        "stopped",
        "2026-03-02T09:00:00.250Z",
        30 * 60_000,
        4,
    )
    assert first["metadata"] == {"case": "1", "log": "claims.xes", "attributes": {"amount": 100}}
    assert first["actor"] == {"id": "event_log", "kind": "script"}
    assert sessions["2"]["actor"] == {"id": "Mike", "kind": "human"}


def test_traces_wait_for_sealing_in_the_order_of_their_starts(tmp_path: Path) -> None:
    days = [7, 3, 9, 1, 8, 2, 6, 4, 5]
    traces = [trace_text(str(day), event_text("a", f"2026-03-0{day}T10:00:00Z")) for day in days]
    with running_service(tmp_path / "service") as running:
        brought_in(running, write_log(tmp_path, log_text(*traces)), "in_order", parallel=4)
        [file] = (tmp_path / "service").rglob("recorder.db")
        with closing(sqlite3.connect(file)) as db:
            rows = db.execute("SELECT started_at FROM sessions ORDER BY waiting_since, id").fetchall()
        with Client(running.url, running.key) as client:
            write_session_traces(client, "in_order", tmp_path / "out.xes")
    assert len(rows) == 9 and rows == sorted(rows)
    assert [trace.name for trace in read_xes_traces(tmp_path / "out.xes")] == [*map(str, sorted(days))]


def test_an_outcome_is_told_by_an_activity_or_an_attribute(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    rules = parse_outcome_rules(["concept:name=pay"], ["amount=300"])
    brought_in(service, write_log(tmp_path, claims_text()), "outcomes", rules=rules)
    outcomes = {
        session["metadata"]["case"]: session["outcome"]
        for session in client.list_sessions(workflow="outcomes")
    }
    assert outcomes == {"1": "success", "2": "abandoned", "3": "error"}


def test_what_comes_in_goes_out_equal(service: RunningService, client: Client, tmp_path: Path) -> None:
    path = write_log(tmp_path, claims_text(), "claims.xes.gz")
    brought_in(service, path, "round_trip")
    out = tmp_path / "out.xes.gz"
    report = write_session_traces(client, "round_trip", out)
    assert (report.sessions, report.events) == (3, 10)
    assert contents(read_xes_traces(out)) == contents(read_xes_traces(path))
    first = next(trace for trace in read_xes_traces(out) if trace.name == "1")
    assert first.attributes["amount"] == 100
    assert first.events[0].attributes == {
        "lifecycle:transition": "complete",
        "org:resource": "Pete",
        "costs": 0,
    }


@needs_real
def test_a_real_log_goes_in_and_out_equal(service: RunningService, client: Client, tmp_path: Path) -> None:
    path = REAL / "running-example.xes"
    brought_in(service, path, "real_log")
    write_session_traces(client, "real_log", tmp_path / "out.xes")
    assert contents(read_xes_traces(tmp_path / "out.xes")) == contents(read_xes_traces(path))


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(claims_text().replace("</log>", ""), id="cut off"),
        pytest.param(claims_text().replace('value="reject"', 'value=""'), id="the last event has no name"),
        pytest.param(claims_text().replace("2026-03-02T10:06", "2099-03-02T10:06"), id="a trace of 73 years"),
        pytest.param(claims_text().replace("<log", '<!DOCTYPE log [<!ENTITY a "b">]><log', 1), id="entities"),
    ],
)
def test_a_log_that_is_broken_anywhere_brings_nothing_in(
    service: RunningService, client: Client, tmp_path: Path, broken: str
) -> None:
    path = write_log(tmp_path, broken)
    with pytest.raises(UnreadableLog, match=r"claims\.xes, line \d+: "):
        import_xes_log(path, url=service.url, key=service.key, workflow="broken", progress=False)
    with pytest.raises(ApiError, match="404 not_found"):
        client.get_workflow("broken")


def test_activities_that_differ_by_a_number_stay_two_steps(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    path = write_log(tmp_path, log_text(trace_text("a", event_text("Task 1"), event_text("Task 2"))))
    brought_in(service, path, "numbers")
    (session,) = client.list_sessions(workflow="numbers")
    keys = [event["state_key"] for event in client.list_events(session["id"])]
    assert keys == ["Task 1", "Task 2"]


def test_attributes_that_do_not_fit_are_left_out_and_counted(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    long = "".join(f'<string key="k{n}" value="{"x" * 9_000}"/>' for n in range(10))
    path = write_log(tmp_path, log_text(trace_text("a", event_text("go", None, long), more=long)))
    brought_in(service, path, "large")
    (session,) = client.list_sessions(workflow="large")
    (event,) = client.list_events(session["id"])
    assert (session["metadata"]["left_out"], event["data"]["left_out"]) == (9, 4)


def test_what_was_recorded_here_is_written_with_actions_and_targets(client: Client, tmp_path: Path) -> None:
    session = client.create_session("ours", actor={"id": "ada", "kind": "human"}, start=True)
    pay = {"role": "button", "name": "Pay", "attrs": {"id": "pay"}}
    field = {"role": "textbox", "name": "Sum", "attrs": {"id": "sum"}}
    client.add_events(
        session["id"],
        [
            {"t_ms": 5, "type": "pointer_move"},
            *({"t_ms": 10 + n, "type": "key_down", "target": field, "input": {"key": "1"}} for n in range(3)),
            {"t_ms": 50, "type": "click", "target": pay, "app": {"name": "Bank"}},
            {"t_ms": 60, "type": "click", "target": pay},
        ],
    )
    client.stop(session["id"])
    write_session_traces(client, "ours", tmp_path / "ours.xes")
    (trace,) = read_xes_traces(tmp_path / "ours.xes")
    assert (trace.name, trace.attributes["recorder:outcome"]) == (session["id"], "abandoned")
    assert [event.activity for event in trace.events] == ["Type into Sum", "Click Pay", "Click Pay"]
    assert trace.events[1].attributes == {
        "lifecycle:transition": "complete",
        "org:resource": "ada",
        "ui:action": "click",
        "ui:target": "button id=pay",
        "ui:application": "Bank",
    }


def test_the_graph_is_written_as_json_and_as_lines(
    service: RunningService, client: Client, tmp_path: Path
) -> None:
    brought_in(service, write_log(tmp_path, claims_text()), "graphs")
    write_session_traces(client, "graphs", tmp_path / "graph.json", format="dfg")
    write_session_traces(client, "graphs", tmp_path / "graph.dfg", format="dfg")
    graph = json.loads((tmp_path / "graph.json").read_text())
    assert sorted(map(tuple, graph["dfg"])) == [
        ("check ticket", "check ticket", 1),
        ("check ticket", "decide", 1),
        ("decide", "pay", 1),
        ("decide", "reject", 1),
        ("register request", "check ticket", 2),
        ("register request", "decide", 1),
    ]
    assert graph["start_activities"] == {"register request": 3}
    assert graph["end_activities"] == {"check ticket": 1, "pay": 1, "reject": 1}
    assert (tmp_path / "graph.dfg").read_text().splitlines()[:6] == [
        "5",
        "check ticket",
        "decide",
        "pay",
        "register request",
        "reject",
    ]


def test_an_export_that_finds_nothing_leaves_no_file(client: Client, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="404 not_found"):
        write_session_traces(client, "never_seen", tmp_path / "out.xes")
    client.create_session("only_begun", start=True)
    with pytest.raises(NothingToExport, match="only_begun has no session"):
        write_session_traces(client, "only_begun", tmp_path / "out.xes")
    assert list(tmp_path.iterdir()) == []


def test_the_commands_bring_a_log_in_and_out(service: RunningService, tmp_path: Path) -> None:
    path, out = write_log(tmp_path, claims_text()), tmp_path / "out.xes"
    reach = ["--url", service.url, "--key", service.key, "--json"]
    run = CliRunner()
    done = run.invoke(
        app, ["import", str(path), "--workflow-prefix", "team_", "--success", "concept:name=pay", *reach]
    )
    assert (done.exit_code, json.loads(done.stdout)["sessions"]) == (0, 3)
    wanted = ["team_claims", "--format", "xes", "--out", str(out), "--where", "outcome=success"]
    done = run.invoke(app, ["log", "export", *wanted, *reach])
    assert (done.exit_code, json.loads(done.stdout)) == (0, {"file": str(out), "sessions": 1, "events": 4})


@pytest.mark.parametrize(
    "arguments",
    [
        ["import", "LOG", "--success", "paid"],
        ["log", "export", "any", "--out", "x.xes", "--format", "csv"],
        ["log", "export", "any", "--out", "nowhere/x.xes"],
        ["log", "export", "any", "--out", "x.xes", "--where", "outcome"],
        ["log", "export", "any", "--out", "x.xes", "--where", "workflow=other"],
    ],
)
def test_wrong_usage_is_told_before_anything_is_done(arguments: list[str], tmp_path: Path) -> None:
    path = write_log(tmp_path, claims_text())
    given = [str(path) if argument == "LOG" else argument for argument in arguments]
    done = CliRunner().invoke(app, [*given, "--key", "nsk_x", "--url", "http://127.0.0.1:1"])
    assert done.exit_code == 2, done.output


def test_a_log_is_looked_into_without_a_service(tmp_path: Path) -> None:
    path = write_log(tmp_path, claims_text())
    text_run = CliRunner().invoke(app, ["log", "summary", str(path)])
    assert text_run.stdout.startswith("3 sessions · 10 events · 3 variants\n")
    assert "register request → check ticket → decide → pay" in text_run.stdout
    summary = json.loads(CliRunner().invoke(app, ["log", "summary", str(path), "--json"]).stdout)
    assert summary["nodes"][0] == {"label": "register request", "visits": 3, "sessions": 3}
    assert summary["start_activities"] == {"register request": 3}
    some = write_log(tmp_path, log_text(trace_text("a", event_text("go")), trace_text("b")), "some.xes")
    one_run = CliRunner().invoke(app, ["log", "summary", str(some)])
    assert one_run.stdout.startswith("2 sessions · 1 event · 1 variant\n")
