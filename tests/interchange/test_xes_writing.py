"""Writing XES and directly-follows graphs: what was written is read again, whatever it holds."""

import gzip
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from recorder.interchange.event_logs import LogEvent, LogTrace, directly_follows, event_log_rows, write_dfg
from recorder.interchange.session_traces import session_trace
from recorder.interchange.xes_reader import read_xes_traces
from recorder.interchange.xes_writer import write_xes
from recorder.memory.graph.directly_follows import aggregate_log
from tests.support.event_logs import REAL, claims_text, needs_real, write_log

NOON = datetime(2026, 3, 2, 12, 0, 0, 5_000, tzinfo=UTC)


def written(folder: Path, *traces: LogTrace, name: str = "out.xes") -> list[LogTrace]:
    """Return the traces as they are read again, without their lines."""
    write_xes(folder / name, traces, name="log")
    return without_lines(read_xes_traces(folder / name))


def without_lines(traces: Iterator[LogTrace]) -> list[LogTrace]:
    traces_read = list(traces)
    for trace in traces_read:
        trace.line = None
        for event in trace.events:
            event.line = None
            event.attributes.pop("lifecycle:transition", None)
    return traces_read


@pytest.mark.parametrize("name", ["out.xes", "out.xes.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    traces = without_lines(read_xes_traces(write_log(tmp_path, claims_text())))
    assert written(tmp_path, *traces, name=name) == traces


ODD_PAIRS = [
    {"value": 1, "attributes": "abc"},
    {"value": 1, "attributes": ["a"]},
    {"value": {"k": 1}, "attributes": {"a": 1}},
    {"value": ["a"], "attributes": {"a": 1}},
]


@pytest.mark.parametrize("value", ODD_PAIRS)
def test_what_only_looks_like_a_value_with_attributes_comes_back_as_it_was(
    tmp_path: Path, value: object
) -> None:
    trace = LogTrace("a", {"x": value}, [LogEvent("go", NOON, {"x": value})])
    assert written(tmp_path, trace) == [trace]


def nested(kind: str, levels: int) -> object:
    """Return metadata with so many levels of nesting."""
    inner: object = {"big": 10**30, "half": "\ud800"}
    for _ in range(levels):
        pair = {"value": 1, "attributes": {"k": inner}}
        inner = {"list": [inner], "container": {"k": inner}, "pair": pair}[kind]
    return inner


@pytest.mark.parametrize("levels", [*range(6, 24), 40, 60])
@pytest.mark.parametrize("kind", ["list", "container", "pair"])
def test_what_is_nested_without_end_is_written_so_that_it_is_read_again(
    tmp_path: Path, kind: str, levels: int
) -> None:
    value = nested(kind, levels)
    (trace,) = written(tmp_path, LogTrace("a", {"x": value}, [LogEvent("go", NOON, {"x": value})]))
    assert trace.attributes.keys() == trace.events[0].attributes.keys() == {"x"}
    assert str(10**30) in str(trace.attributes) and str(10**30) in str(trace.events)


def test_what_is_nested_too_deep_is_canonical_json_text(tmp_path: Path) -> None:
    value: object = {"b": 1, "a": [2]}
    for _ in range(18):
        value = {"k": value}
    (trace,) = written(tmp_path, LogTrace("a", {"x": value}))
    value = trace.attributes["x"]
    while isinstance(value, dict):
        value = value["k"]
    assert value == '{"a":[2],"b":1}'


HOSTILE_TEXTS = [
    '"><event/><x y="',
    "</log>",
    "&amp; &lt; &#0; &x;",
    "]]><!-- <![CDATA[",
    "line\nbreak\ttab\rreturn",
    "  spaces  ",
    "ü → 𝒳 \u202e",
    "2026-03-02T12:00:00Z",
    "é" * 5_000,
]


@pytest.mark.parametrize("text", HOSTILE_TEXTS)
def test_any_text_comes_back_as_it_was(tmp_path: Path, text: str) -> None:
    trace = LogTrace(text, {f"k{text}": f"v{text}"}, [LogEvent(text, NOON, {text: f"v{text}"})])
    assert written(tmp_path, trace) == [trace]


@pytest.mark.parametrize("text", ["a\0b", "a\x1bb", "a\ud800b", "a\ufffeb"])
def test_what_xml_cannot_hold_is_replaced(tmp_path: Path, text: str) -> None:
    (trace,) = written(tmp_path, LogTrace("a", {}, [LogEvent(text, NOON)]))
    assert trace.events[0].activity == "a\ufffdb"


def test_values_of_every_type_come_back(tmp_path: Path) -> None:
    inner = {"value": "v", "attributes": {"deep": {"value": 1, "attributes": {"deeper": True}}}}
    attributes = {
        "i": -7,
        "f": 0.1,
        "b": False,
        "d": NOON,
        "n": inner,
        "l": [1, "x"],
        "k": {"m": 2, "o": "p"},
    }
    trace = LogTrace("a", attributes, [LogEvent("go", NOON, dict(attributes))])
    assert written(tmp_path, trace) == [trace]


def test_attributes_never_stand_in_for_a_name_or_an_instant(tmp_path: Path) -> None:
    posing = {"concept:name": "other", "time:timestamp": "1970-01-01T00:00:00Z"}
    (trace,) = written(tmp_path, LogTrace("a", dict(posing), [LogEvent("go", NOON, dict(posing))]))
    assert (trace.name, trace.events) == ("a", [LogEvent("go", NOON)])


def test_the_standard_s_parts_are_there_in_their_order(tmp_path: Path) -> None:
    write_xes(tmp_path / "out.xes", [LogTrace("a", {}, [LogEvent("go", NOON)])], name="my log")
    root = ElementTree.parse(tmp_path / "out.xes").getroot()
    tags = [child.tag.rpartition("}")[2] for child in root]
    assert tags == ["extension"] * 6 + ["global"] * 2 + ["classifier", "string", "trace"]
    (event,) = root.iter("{http://www.xes-standard.org/}event")
    assert {child.get("key"): child.get("value") for child in event} == {
        "concept:name": "go",
        "time:timestamp": "2026-03-02T12:00:00.005Z",
        "lifecycle:transition": "complete",
    }


def test_equal_logs_are_equal_files(tmp_path: Path) -> None:
    for name in ("one.xes.gz", "two.xes.gz"):
        write_xes(tmp_path / name, [LogTrace("a", {}, [LogEvent("go", NOON)])], name="log")
    assert (tmp_path / "one.xes.gz").read_bytes() == (tmp_path / "two.xes.gz").read_bytes()
    assert gzip.decompress((tmp_path / "one.xes.gz").read_bytes()).endswith(b"</log>\n")


def test_a_log_that_breaks_off_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    def broken() -> Iterator[LogTrace]:
        yield LogTrace("a")
        raise RuntimeError("the service went away")

    (tmp_path / "out.xes").write_text("before")
    with pytest.raises(RuntimeError, match="went away"):
        write_xes(tmp_path / "out.xes", broken(), name="log")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("out.xes", "before")]


def test_two_writers_of_one_file_write_whole_ones_beside_other_files(tmp_path: Path) -> None:
    path, other = tmp_path / "out.xes", tmp_path / "out.xes.part"
    other.write_text("a file of the user")

    def write_again() -> Iterator[LogTrace]:
        yield LogTrace("first", {}, [LogEvent("go", NOON)])
        write_xes(path, [LogTrace("second")], name="log")
        assert [trace.name for trace in read_xes_traces(path)] == ["second"]

    write_xes(path, write_again(), name="log")
    assert [trace.name for trace in read_xes_traces(path)] == ["first"]
    assert other.read_text() == "a file of the user"
    assert {file.name for file in tmp_path.iterdir()} == {path.name, other.name}


def test_the_parts_of_killed_writers_are_removed_by_the_next_one(tmp_path: Path) -> None:
    path = tmp_path / "out.xes"
    other = tmp_path / ".part-0123456789abcdef-0123456789abcdef"
    other.write_text("a part of another file")
    killed = (
        "import os, sys; from pathlib import Path; from recorder.interchange.xes_writer import write_xes; "
        "write_xes(Path(sys.argv[1]), (os.kill(os.getpid(), 9) for _ in range(1)), name='log')"
    )
    for _ in range(2):
        assert subprocess.run([sys.executable, "-c", killed, path], check=False).returncode == -signal.SIGKILL
        assert len([*tmp_path.iterdir()]) == 2
    write_xes(path, [LogTrace("whole")], name="log")
    assert {file.name for file in tmp_path.iterdir()} == {path.name, other.name}


def test_a_session_that_imports_did_not_make_may_say_anything_in_its_metadata() -> None:
    session = {"id": "ses_1", "started_at": "2026-03-02T12:00:00.000Z", "actor": None, "outcome": None}
    odd = {"case": 7, "attributes": ["x"]}
    events = [{"id": "evt_1", "t_ms": 5, "type": "activity", "data": {"name": 3, "attributes": "x"}}]
    trace = session_trace({**session, "metadata": odd}, events)
    assert (trace.name, trace.attributes) == ("ses_1", {"recorder:session": "ses_1"})
    assert [(event.activity, event.time) for event in trace.events] == [("Activity", NOON)]


def test_a_graph_s_lines_hold_every_activity_once(tmp_path: Path) -> None:
    rows = event_log_rows(
        [LogTrace("a", {}, [LogEvent("two\nlines", NOON), LogEvent("x", NOON)]), LogTrace("b")]
    )
    write_dfg(tmp_path / "graph.dfg", directly_follows(aggregate_log(rows)))
    assert (tmp_path / "graph.dfg").read_text().splitlines() == [
        "2",
        "two lines",
        "x",
        "1",
        "0x1",
        "1",
        "1x1",
        "0>1x1",
    ]


def test_names_that_differ_in_white_space_are_one_activity_of_the_lines(tmp_path: Path) -> None:
    # PM4Py keeps counts by name, and of two equal names the last: 3 payments of 5 were lost.
    ways = [["pay\n", "x"]] * 3 + [["pay", "x"]] * 2 + [["y", "x"]] * 4
    traces = [
        LogTrace(f"case {number}", {}, [LogEvent(name, NOON) for name in names])
        for number, names in enumerate(ways)
    ]
    write_dfg(tmp_path / "graph.dfg", directly_follows(aggregate_log(event_log_rows(traces))))
    assert (tmp_path / "graph.dfg").read_text().splitlines() == [
        *("3", "pay", "x", "y"),
        *("2", "0x5", "2x4"),
        *("1", "1x9"),
        *("0>1x5", "2>1x4"),
    ]


@needs_real
def test_a_real_log_s_graph_is_known(tmp_path: Path) -> None:
    log = aggregate_log(event_log_rows(read_xes_traces(REAL / "running-example.xes")), collapse=False)
    write_dfg(tmp_path / "graph.json", directly_follows(log))
    graph = json.loads((tmp_path / "graph.json").read_text())
    assert graph["start_activities"] == {"register request": 6}
    assert graph["end_activities"] == {"pay compensation": 3, "reject request": 3}
    assert ["check ticket", "decide", 6] in graph["dfg"]
    assert len(graph["dfg"]) == 16
