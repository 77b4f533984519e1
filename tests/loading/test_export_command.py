"""`recorder export` with its bar, its download and its options; `recorder verify`. Contract §9."""

import io
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recorder.cli import main
from recorder.client import Client
from tests.support.hosted_exports import Host


class Ended(NamedTuple):
    """Return the exit code of a command and its output."""

    code: int | str
    out: str
    err: str


@pytest.fixture
def run(
    host: Host, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ended]:
    """Run the command, as the shell sees it."""
    monkeypatch.setenv("RECORDER_URL", host.url)
    monkeypatch.setenv("RECORDER_KEY", host.key)

    def called(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["recorder", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capsys.readouterr())

    return called


def newest(host: Host) -> dict[str, Any]:
    """Return the export that was asked for last."""
    with Client(host.url, host.key) as client:
        result: dict[str, Any] = client._get("/v1/exports", {"limit": 1})["data"][0]
        return result


def test_a_watched_export_is_downloaded_and_verified(
    host: Host, tmp_path: Path, run: Callable[..., Ended]
) -> None:
    with host.working():
        done = run("export", "checkout", "--format", "jsonl", "--download", str(tmp_path))
    export = newest(host)
    folder = tmp_path / export["id"]
    assert (done.code, done.out) == (0, f"{folder}\n"), done.err
    assert f"{export['id']} completed: {export['rows']} rows" in done.err
    assert (folder / "README.md").is_file()
    checked = run("verify", str(folder), "--json")
    assert (checked.code, json.loads(checked.out)["is_valid"]) == (0, True)
    next(folder.rglob("*.jsonl")).write_text("{}\n")
    broken = run("verify", str(folder))
    assert (broken.code, "another SHA-256" in broken.out) == (1, True)


@pytest.mark.parametrize("form", ["with a slash", "by another name"])
def test_a_download_needs_no_address_of_the_services_own_form(
    host: Host, tmp_path: Path, run: Callable[..., Ended], form: str
) -> None:
    url = f"{host.url}/" if form == "with a slash" else host.url.replace("127.0.0.1", "localhost")
    with host.working():
        done = run("export", "checkout", "--format", "jsonl", "--url", url, "--download", str(tmp_path))
    assert (done.code, done.out) == (0, f"{tmp_path / newest(host)['id']}\n"), done.err


def test_an_empty_dataset_is_named_with_its_reason(host: Host, run: Callable[..., Ended]) -> None:
    with host.working():
        done = run("export", "checkout", "--where", "outcome=error", "--where", "tag=none", "--watch")
    assert (done.code, newest(host)["rows"]) == (0, 0), done.err
    assert done.err.endswith("The dataset is empty: no sealed session of the filter has events.\n")


def test_options_are_what_is_asked_for(host: Host, run: Callable[..., Ended]) -> None:
    session_id = "ses_01k00000000000000000000000"
    words = """export checkout refund --format webdataset --where outcome=success --where min_duration_ms=10
        --where min_replayability=0.5 --split actor:0.2:0.3 --sampling every_n_ms --interval-ms 500
        --keep-action-frames --tag v7"""
    done = run(*words.split(), "--where", f"exclude_session_ids={session_id}")
    export = newest(host)
    assert (done.code, done.out) == (0, f"{export['id']}\n"), done.err
    assert (export["workflow"], export["format"], export["tag"]) == (
        ["checkout", "refund"],
        "webdataset",
        "v7",
    )
    kept = {name: value for name, value in export["filter"].items() if name != "until"}
    least = {"min_duration_ms": 10, "min_replayability": 0.5}
    assert kept == {"outcome": "success", "exclude_session_ids": [session_id], **least}
    assert export["frame_sampling"] == {"mode": "every_n_ms", "interval_ms": 500, "keep_action_frames": True}
    assert export["split"] == {"by": "actor", "validation": 0.2, "test": 0.3}


@pytest.mark.parametrize(
    "words",
    [
        "--sampling every_n_ms",
        "--interval-ms 500",
        "--role-arn arn:aws:iam::1:role/x",
        "--to gs://bucket/x --region us",
        "--to ftp://somewhere",
        "--to somewhere --download here",
        "--where outcome",
        "--where min_duration_ms=long",
        "--where min_replayability=high",
        "--split actor:x:y",
    ],
)
def test_options_that_make_no_sense_are_wrong_usage(run: Callable[..., Ended], words: str) -> None:
    ended = run("export", "checkout", *words.split())
    assert (ended.code, ended.out) == (2, ""), ended


def test_a_failed_export_ends_the_watch_with_its_reason(host: Host, run: Callable[..., Ended]) -> None:
    with host.working():
        unknown = run("export", "nowhere", "--watch")
    assert (unknown.code, "not_found" in unknown.err) == (1, True)


@pytest.mark.parametrize(("answer", "status"), [(None, "queued"), ("y", "queued"), ("n", "failed")])
def test_ctrl_c_asks_whether_the_export_shall_go_on_where_somebody_can_answer(
    host: Host, run: Callable[..., Ended], monkeypatch: pytest.MonkeyPatch, answer: str | None, status: str
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("recorder.client.transport.time", Clock(interrupted))
    if answer is not None:
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{answer}\n"))
        for stream in (sys.stdin, sys.stderr):
            monkeypatch.setattr(stream, "isatty", lambda: True)
    ended = run("export", "checkout", "--watch")
    export = newest(host)
    assert (ended.code, ended.out.strip(), export["status"]) == (1, "", status)
    words = "goes on" if status == "queued" else "is cancelled"
    assert f"{export['id']} {words}" in ended.err


class Clock(NamedTuple):
    """The clock of the bar, with another sleep."""

    sleep: Callable[[float], None]
    monotonic: Callable[[], float] = time.monotonic
