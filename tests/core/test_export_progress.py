"""What `recorder export --watch` shows on a terminal of 80 columns. Contract §9."""

import io
from typing import Any

import pytest
from rich.console import Console

from recorder.client.progress import _Bar

ID = "exp_01m82sb8nh935gws0wr5avwtr5"


def export(status: str, **members: Any) -> dict[str, Any]:
    """An export as the interface shows it."""
    figures = {"rows": None, "frames": None, "shards": None, "error": None}
    progress = {"shards_done": 0, "shards_total": None}
    return {"id": ID, "status": status, "progress": progress, **figures, **members}


def shown(*states: tuple[dict[str, Any], float]) -> list[str]:
    """The lines that a terminal of 80 columns shows last, after these states."""
    file = io.StringIO()
    console = Console(file=file, width=80, force_terminal=True, color_system=None, legacy_windows=False)
    bar = _Bar(console, ID)
    for state, waited_s in states:
        bar.update(state, waited_s)
    with console.capture() as captured:
        console.print(bar._progress.get_renderable())
    bar.__exit__()
    return [line.rstrip() for line in (captured.get() + file.getvalue()).splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("state", "waited_s", "words"),
    [
        (export("queued"), 12.4, ["queued", "0:12"]),
        (export("running"), 3.0, ["planning", "0:03"]),
        (
            export("running", progress={"shards_done": 12_345, "shards_total": 98_765}),
            3599.0,
            ["12,345 of 98,765 files", "59:59", "left"],
        ),
    ],
    ids=["queued", "planning", "running"],
)
def test_a_state_is_one_line_that_is_not_cut(
    state: dict[str, Any], waited_s: float, words: list[str]
) -> None:
    (line,) = shown((state, waited_s))
    assert len(line) <= 80 and "…" not in line
    assert all(word in line for word in [ID, *words])


def test_the_outcome_is_whole_however_long_it_is() -> None:
    figures = {"rows": 123_456_789, "frames": 12_345_678, "shards": 98_765}
    done = export("completed", progress={"shards_done": 98_765, "shards_total": 98_765}, **figures)
    text = " ".join(shown((done, 4000.0)))
    assert f"{ID} completed: 123,456,789 rows, 12,345,678 frames in 98,765 files (1 h 06 m)" in text


def test_who_waits_long_is_told_once_what_to_look_at() -> None:
    lines = shown((export("queued"), 31.0), (export("queued"), 32.0))
    assert sum("recorder status" in line for line in lines) == 1
