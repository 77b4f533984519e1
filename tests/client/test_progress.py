"""The progress of an export on a terminal of 80 columns: nothing is cut off, whatever the figures are."""

import re
import time
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from recorder.client import Client
from recorder.client.errors import ExportFailed
from recorder.client.progress import (
    _format_progress_duration,
    _ProgressBar,
    _ProgressLines,
    byte_progress_bar,
    describe_export_state,
    watch_export_progress,
)

EXPORT_ID = "exp_01m82rdvtw8j5xwrm3pyx42bds"
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def export(status: str, done: int = 0, total: int | None = None, **members: Any) -> dict[str, Any]:
    """Return an export as GET gives it."""
    progress = {"shards_done": done, "shards_total": total}
    return {"status": status, "progress": progress, "error": None, **members}


COMPLETED = export("completed", 9_876, 9_876, rows=123_456_789, frames=12_345_678, shards=9_876)


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize(
    ("result", "waited_s", "expected"),
    [
        (export("queued"), 8, "queued, 0:08"),
        (export("running"), 75, "running, planning, 1:15"),
        (export("running", 0, 4), 75, "0 of 4 files"),
        (export("running", 2, 4), 3_675, "1:01:15"),
        (export("running", 4_938, 9_876), 36_000, "4,938 of 9,876 files"),
    ],
)
def test_a_state_fits_on_one_line_with_the_time_it_took(
    result: dict[str, Any], waited_s: float, expected: str, width: int
) -> None:
    bar = _ProgressBar(Console(width=width, file=StringIO(), force_terminal=True), EXPORT_ID)
    line = bar._format_progress_line(result, waited_s)
    assert (
        line.plain.startswith(EXPORT_ID)
        and expected in line.plain
        and _format_progress_duration(waited_s) in line.plain
    )
    if width >= 80:  # the spinner takes two
        assert len(line.plain) <= width - 2


def test_the_bar_shows_the_share_and_the_time_left() -> None:
    bar = _ProgressBar(Console(width=80, file=StringIO(), force_terminal=True), EXPORT_ID)
    bar.update(export("running", 0, 4), 8.0)
    line = bar._format_progress_line(export("running", 1, 4), 18.0)
    assert line.plain.endswith(" 0:18, 0:30 left")
    full, empty = (len(line.plain[span.start : span.end]) for span in line.spans)
    assert 0 < full < empty and 3 * full <= empty + 2


def test_the_outcome_and_a_long_wait_are_whole_lines() -> None:
    console = Console(width=80, file=StringIO(), force_terminal=True)
    bar = _ProgressBar(console, EXPORT_ID, "recorder status --data demo")
    with bar:
        bar.update(export("queued"), 31)
        bar.update(export("queued"), 32)
        bar.update(COMPLETED, 40)
    assert isinstance(console.file, StringIO)
    printed = _CONTROL.sub("", console.file.getvalue())
    outcome = "completed: 123,456,789 rows, 12,345,678 frames in 9,876 files, 0:40"
    assert f"{EXPORT_ID} {outcome}\n" in printed and "…" not in printed
    assert printed.count("Is Dagster running? `recorder status --data demo` shows it.") == 1


def test_without_a_terminal_there_is_a_line_for_each_state() -> None:
    console = Console(width=80, file=StringIO())
    lines = _ProgressLines(console, EXPORT_ID)
    for item, waited_s in ((export("queued"), 1), (export("queued"), 2), (export("running"), 3)):
        lines.update(item, waited_s)
    lines.update(COMPLETED, 40)
    assert isinstance(console.file, StringIO)
    printed = console.file.getvalue().splitlines()
    assert [line.removeprefix(f"{EXPORT_ID} ")[:7] for line in printed] == ["queued", "running", "complet"]
    assert "\x1b" not in console.file.getvalue()


@pytest.mark.parametrize(
    ("number", "words"), [(0, "0 files"), (1, "1 file"), (2, "2 files"), (1_234, "1,234 files")]
)
def test_one_file_is_no_plural(number: int, words: str) -> None:
    assert describe_export_state(export("completed", rows=1, frames=0, shards=number)).endswith(
        f" in {words}"
    )


@pytest.mark.parametrize("last", [COMPLETED, export("failed", id=EXPORT_ID)])
def test_a_watched_export_is_read_until_it_has_ended(
    last: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    states = iter([export("queued"), export("running", 0, 4), last])
    with Client("http://127.0.0.1:8700", "rec_live_key") as client:
        monkeypatch.setattr(client, "get_export", lambda _: next(states))
        if last is COMPLETED:
            assert watch_export_progress(client, EXPORT_ID) is COMPLETED
        else:
            with pytest.raises(ExportFailed):
                watch_export_progress(client, EXPORT_ID)
    shown = [line.split()[1].rstrip(",:") for line in capsys.readouterr().err.splitlines()]
    assert shown == ["queued", "running", last["status"]]


def test_a_bar_over_bytes_appears_once_the_size_is_known(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("FORCE_COLOR", "1")
    with byte_progress_bar("verifying") as move:
        time.sleep(0.3)  # the bar is drawn ten times a second
        before = _CONTROL.sub("", capsys.readouterr().err)
        move(512, 1_024)
    after = _CONTROL.sub("", capsys.readouterr().err)
    assert "verifying" not in before and "?" not in before
    assert "verifying" in after and "0.5/1.0 kB" in after
