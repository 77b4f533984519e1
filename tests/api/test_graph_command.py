"""`recorder graph` against the real service: formats, files, and what it says when it cannot. Contract §9."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from recorder.cli import main
from recorder.cli.graphs import _FORMATS
from recorder.memory.views.formats import FORMATS
from tests.support.factories import Caller
from tests.support.http_graph_sessions import sealed_walks, stopped_walk
from tests.support.http_service import serving
from tests.support.sealing import seal_all


class Ended(NamedTuple):
    """The exit code and the output of a command."""

    code: int | str
    out: str
    err: str


@pytest.fixture
def url(caller: Caller) -> Iterator[str]:
    """Yield the service on a port, with sessions in its graph."""
    sealed_walks(caller, "abc", "abc", "abc", "axc")
    with serving(caller.service.app, lifespan="off") as port:
        yield f"http://127.0.0.1:{port}"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Return the command, as the shell sees it."""

    def called(*words: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["recorder", "graph", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return Ended(ended.value.code or 0, *capsys.readouterr())

    return called


def test_a_graph_is_printed_or_written(
    caller: Caller, url: str, tmp_path: Path, run: Callable[..., Ended]
) -> None:
    options = ["checkout", "--url", url, "--key", caller.key.key]
    printed = run(*options, "--format", "json", "--min-frequency", "0.5")
    assert printed.code == 0, printed.err
    assert [node["sessions"] for node in json.loads(printed.out)["nodes"][2:]] == [4, 4, 3]
    file = tmp_path / "graph.svg"
    written = run(*options, "--out", str(file))
    assert (written.code, written.out) == (0, f"{file}\n")
    assert file.read_text().startswith("<svg ")
    drawing = tmp_path / "graph.mmd"
    assert run(*options, "--out", str(drawing)).code == 0
    assert drawing.read_text().startswith("flowchart ")


def test_a_file_whose_ending_names_no_format_is_refused(tmp_path: Path, run: Callable[..., Ended]) -> None:
    file = tmp_path / "graph.png"
    refused = run("checkout", "--url", "http://127.0.0.1:9", "--key", "k", "--out", str(file))
    assert refused.code == 2
    assert "or name a --format" in " ".join(refused.err.replace("│", " ").split())
    assert not file.exists()


def test_the_text_lists_structure_and_paths(caller: Caller, url: str, run: Callable[..., Ended]) -> None:
    sealed_walks(caller, "", tag="abandoned")
    printed = run("checkout", "--url", url, "--key", caller.key.key, "--format", "text")
    assert printed.code == 0, printed.err
    lines = printed.out.splitlines()
    assert lines[0] == "5 sessions, 1 of them without steps"
    assert lines[1] == "4 nodes"
    assert lines[2] == "likeliest path: Click a › Click b › Click c"
    assert lines[3] == "required for success: -"
    assert lines[5].split() == ["frequency", "exactly", "so", "variants", "sessions"]
    assert lines[6].split() == ["60.0%", "60.0%", "1", "3"], printed.out
    assert lines[7] == "    Click a › Click b › Click c"
    assert "    after Click a: − Click b + Click" in lines, printed.out
    assert max(map(len, lines)) <= 80
    stopped_walk(caller, "a", tag="error")
    seal_all(caller.service.runtime)
    printed = run(
        "checkout", "--url", url, "--key", caller.key.key, "--format", "text", "--where", "outcome=error"
    )
    assert printed.out.splitlines()[:2] == ["1 session", "1 node"]


def test_refusals_are_one_sentence_and_an_exit_code(
    caller: Caller, url: str, tmp_path: Path, run: Callable[..., Ended]
) -> None:
    options = ["--url", url, "--key", caller.key.key]
    unknown = run("nothing", *options)
    assert (unknown.code, unknown.out) == (1, "") and len(unknown.err.splitlines()) == 1
    assert run("checkout", *options, "--where", "outcome=lost").code == 1
    assert run("checkout", "--url", url, "--key", "nsk_local_none").code == 4
    for wrong in (["--format", "png"], ["--out", str(tmp_path / "no" / "g.svg")], ["--min-frequency", "2"]):
        assert run("checkout", *options, *wrong).code == 2
    for name in ("workflow", "format", "min_frequency"):
        refused = run("checkout", *options, "--format", "text", "--where", f"{name}=1")
        assert refused.code == 2 and f"{name} is no filter here" in " ".join(refused.err.split())


def test_the_command_knows_every_format() -> None:
    assert set(_FORMATS) == {*FORMATS, "text"}
