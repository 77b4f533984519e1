"""Reading XES: logs as they occur in practice, and hostile files. Decision 0022."""

import gzip
import re
import zlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from recorder.importers.trace_recordings import TraceOutcomeRule, parse_outcome_rules, recording_of_trace
from recorder.interchange import xes_reader
from recorder.interchange.event_logs import LogEvent, LogTrace, UnreadableLog, event_log_rows
from recorder.interchange.xes_reader import read_xes_traces
from recorder.memory.steps.session_steps import session_steps
from tests.support.event_logs import (
    CLAIMS,
    REAL,
    claims_text,
    event_text,
    log_text,
    needs_real,
    trace_text,
    write_log,
)
from tests.support.time_zones import far_time_zone

__all__ = ["far_time_zone"]


def read(folder: Path, text: str, **options: object) -> list[LogTrace]:
    return list(read_xes_traces(write_log(folder, text), **options))  # type: ignore[arg-type]


def read_event(folder: Path, more: str) -> dict[str, object]:
    """Return the attributes of one event that has these."""
    (trace,) = read(folder, log_text(trace_text("a", event_text("go", None, more))))
    return trace.events[0].attributes


@pytest.mark.parametrize("name", ["claims.xes", "claims.xes.gz", "packed_but_not_named_so.xes"])
def test_traces_come_with_their_events_in_order(tmp_path: Path, name: str) -> None:
    path = write_log(tmp_path, claims_text(), name)
    if name.startswith("packed"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    traces = list(read_xes_traces(path))
    assert [trace.name for trace in traces] == list(CLAIMS)
    assert [event.activity for event in traces[0].events] == [name for name, *_ in CLAIMS["1"]]
    assert traces[0].events[0].time == datetime(2026, 3, 2, 9, 0, 0, 250_000, tzinfo=UTC)
    assert traces[0].attributes == {"amount": 100}
    assert traces[0].events[1].attributes == {"org:resource": "Mike", "costs": 5}


@pytest.mark.parametrize("root", ['log xmlns="http://www.xes-standard.org/"', "log"])
def test_a_namespace_may_be_there_or_not(tmp_path: Path, root: str) -> None:
    text = log_text(trace_text("a", event_text("go"))).replace("<log ", f"<{root} ")
    assert [trace.name for trace in read(tmp_path, text)] == ["a"]


def test_a_prefixed_namespace_is_read(tmp_path: Path) -> None:
    plain = log_text(trace_text("a", event_text("go")))
    text = re.sub(r"<(/?)(?=[a-z])", r"<\1x:", plain).replace("<x:log", '<x:log xmlns:x="urn:x"')
    assert read(tmp_path, text)[0].events[0].activity == "go"


def test_values_have_their_types_and_odd_ones_stay_text(tmp_path: Path) -> None:
    event = read_event(
        tmp_path,
        '<int key="i" value="7"/><float key="f" value="2.5"/><boolean key="b" value="true"/>'
        '<id key="id" value="x-1"/><date key="d" value="2026-03-02T10:00:00+01:00"/>'
        '<int key="i2" value="many"/><float key="f2" value="nan"/><date key="d2" value="soon"/>'
        f'<int key="i3" value="{"9" * 5_000}"/><boolean key="b2" value="perhaps"/>',
    )
    instant = datetime(2026, 3, 2, 9, tzinfo=UTC)
    assert event == {
        **{"i": 7, "f": 2.5, "b": True, "id": "x-1", "d": instant},
        **{"i2": "many", "f2": "nan", "i3": "9" * 5_000, "b2": "perhaps", "d2": "soon"},
    }


@pytest.mark.parametrize("kind", ["int", "float"])
@pytest.mark.parametrize("text", ["1_000", "1_0", "\u0661\u0662"])
def test_numbers_of_python_alone_stay_text(kind: str, text: str) -> None:
    assert xes_reader.parse_xes_value(kind, text) == text
    assert xes_reader.parse_xes_value(kind, " -12 ") == -12


def test_attributes_may_have_attributes_and_lists(tmp_path: Path) -> None:
    event = read_event(
        tmp_path,
        '<string key="a" value="1"><int key="b" value="2"><int key="c" value="3"/></int></string>'
        '<list key="l"><values><int key="l" value="1"/><int key="l" value="2"/></values></list>'
        '<container key="k"><int key="m" value="1"/></container>',
    )
    inner = {"value": 2, "attributes": {"c": 3}}
    assert event == {"a": {"value": "1", "attributes": {"b": inner}}, "l": [1, 2], "k": {"m": 1}}


def test_what_the_log_says_of_all_events_stands_in(tmp_path: Path) -> None:
    head = '<global scope="event"><string key="concept:name" value="unknown step"/></global>'
    (trace,) = read(tmp_path, log_text(trace_text("a", event_text(None)), head=head))
    assert [event.activity for event in trace.events] == ["unknown step"]


def test_what_the_log_says_of_other_scopes_is_not_kept(tmp_path: Path) -> None:
    head = "".join(
        f'<global scope="{scope}"><string key="concept:name" value="unknown"/></global>'
        for scope in ("trace", "event", "", *(f"scope {number}" for number in range(100)))
    )
    path = write_log(tmp_path, log_text(trace_text("a", event_text(None)), head=head))
    reader = xes_reader._TraceParser(path.name, (xes_reader.ACTIVITY,))
    (trace,) = reader.feed(path.read_bytes(), is_last=True)
    assert [event.activity for event in trace.events] == ["unknown"]
    assert set(reader._globals) == {"trace", "event"}


def test_what_the_log_says_of_itself_is_passed_over(tmp_path: Path) -> None:
    nested = '<string key="s" value="1"><int key="t" value="2"/></string>'
    head = f'<extension name="X"/><classifier keys="a b"/>{nested}'
    (trace,) = read(tmp_path, log_text(trace_text("a", event_text("go")), head=head))
    assert trace.attributes == {}


def test_an_event_without_an_instant_has_that_of_the_one_before(tmp_path: Path) -> None:
    events = (event_text("a"), event_text("b", "2026-03-02T10:00:00Z"), event_text("c"), event_text("d", " "))
    (trace,) = read(tmp_path, log_text(trace_text("x", *events)))
    assert [event.activity for event in trace.events] == ["a", "b", "c", "d"]
    assert {event.time for event in trace.events} == {datetime(2026, 3, 2, 10, tzinfo=UTC)}


@pytest.mark.usefixtures("far_time_zone")
def test_an_instant_without_a_zone_is_in_utc(tmp_path: Path) -> None:
    (trace,) = read(tmp_path, log_text(trace_text("x", event_text("a", "2026-03-02T10:00:00"))))
    assert trace.events[0].time == datetime(2026, 3, 2, 10, tzinfo=UTC)


def test_events_are_put_in_order_of_time(tmp_path: Path) -> None:
    late, early = (event_text(name, f"2026-03-02T{name}:00:00Z") for name in ("11", "10"))
    (trace,) = read(tmp_path, log_text(trace_text("x", late, early)))
    assert [event.activity for event in trace.events] == ["10", "11"]


def test_an_activity_may_be_named_by_several_attributes(tmp_path: Path) -> None:
    events = [
        event_text("go", None, f'<string key="lifecycle:transition" value="{step}"/>')
        for step in ("start", "end")
    ]
    (trace,) = read(
        tmp_path, log_text(trace_text("x", *events)), activity=("concept:name", "lifecycle:transition")
    )
    assert [event.activity for event in trace.events] == ["go+start", "go+end"]


def test_traces_of_one_name_or_none_stay_apart(tmp_path: Path) -> None:
    traces = (trace_text(name, event_text("go")) for name in ("a", "a", None))
    assert event_log_rows(read(tmp_path, log_text(*traces)))["case"].to_list() == ["a", "a (2)", "trace 3"]


@pytest.mark.parametrize(
    ("names", "cases"),
    [
        (["a", "a", "a (2)"], ["a", "a (2)", "a (2) (2)"]),
        (["a (2)", "a", "a", "a"], ["a (2)", "a", "a (3)", "a (4)"]),
    ],
)
def test_a_name_that_looks_numbered_is_no_second_trace(names: list[str], cases: list[str]) -> None:
    traces = [LogTrace(name, {}, [LogEvent("go", None)]) for name in names]
    assert event_log_rows(traces)["case"].to_list() == cases


def test_other_encodings_are_read(tmp_path: Path) -> None:
    text = log_text(trace_text("a", event_text("prüfen"))).replace("UTF-8", "ISO-8859-1")
    path = tmp_path / "latin.xes"
    path.write_bytes(text.encode("latin-1"))
    assert next(read_xes_traces(path)).events[0].activity == "prüfen"


def bomb(levels: int = 30) -> str:
    """Return a log with nested entities that expand a billion times."""
    entities = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, levels))
    return f'<!DOCTYPE log [<!ENTITY l0 "ha">{entities}]><log><trace>&l{levels - 1};</trace></log>'


HOSTILE = {
    "a billion laughs": (bomb(), r"line 1: a document type .* is not taken"),
    "an external entity": (
        '<!DOCTYPE log [<!ENTITY x SYSTEM "file:///etc/passwd">]><log><trace>&x;</trace></log>',
        "a document type",
    ),
    "an external document type": (
        '<!DOCTYPE log SYSTEM "http://127.0.0.1:9/x.dtd"><log/>',
        "a document type",
    ),
    "an entity nobody declared": (log_text("<trace>&x;</trace>"), "not well-formed XML .undefined entity"),
    "deep attributes": (log_text("<trace>" + '<int key="a" value="1">' * 10_000), "nested deeper than 24"),
    "a text without an end": (
        log_text(f'<trace><string key="a" value="{"x" * 3_000_000}'),
        "a text of more than",
    ),
    "a comment without an end": (log_text("<!-- " + "x" * 3_000_000), "a text of more than 1,048,576 bytes"),
    "another root": ("<html><body/></html>", "not an XES log: its root is <html>, not <log>"),
    "a log inside": ("<a><log><trace/></log></a>", "its root is <a>"),
    "no trace": ("<log/>", "the log holds no trace"),
    "nothing": ("", "not well-formed XML .no element found"),
    "no XML": ("case,activity\n1,a\n", "not well-formed XML"),
    "cut off": (claims_text()[:-40], "not well-formed XML"),
    "two roots": ("<log><trace/></log><log/>", "not well-formed XML .junk after document element"),
    "an event outside a trace": ("<log>\n<event/></log>", "line 2: an event outside a trace"),
    "a trace in a trace": ("<log><trace><trace/></trace></log>", "a trace inside another element"),
    "no name": (log_text(trace_text("a", event_text(None))), "an event without concept:name; name another"),
    "a blank name": (log_text(trace_text("a", event_text(" "))), "an event without concept:name"),
    "no instant": (
        log_text(trace_text("a", event_text("go", "last Monday"))),
        "time:timestamp is no instant",
    ),
    "an instant before time": (
        log_text(trace_text("a", event_text("go", "0001-01-01T00:00:00+14:00"))),
        "time:timestamp is no instant",
    ),
    "an unknown encoding": ('<?xml version="1.0" encoding="klingon"?><log/>', "its encoding is not known"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_is_no_log_is_refused_with_its_name_and_line(tmp_path: Path, case: str) -> None:
    text, words = HOSTILE[case]
    with pytest.raises(UnreadableLog, match=r"^claims\.xes, line \d+: ") as refused:
        read(tmp_path, text)
    assert refused.match(words)


def test_a_trace_longer_than_the_memory_it_may_take_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, log_text(*[trace_text("a", event_text("go"))] * 3_000))
    assert len(list(read_xes_traces(path, most_trace_bytes=200_000))) == 3_000
    path = write_log(tmp_path, log_text(trace_text("a", *[event_text("go")] * 6_000)))
    with pytest.raises(UnreadableLog, match="a trace of more than 200,000 bytes"):
        list(read_xes_traces(path, most_trace_bytes=200_000))


def test_a_zip_bomb_is_refused_soon(tmp_path: Path) -> None:
    packer = zlib.compressobj(9, wbits=31)
    path = tmp_path / "bomb.xes.gz"
    with path.open("wb") as file:
        file.write(packer.compress(b"<log>"))
        for _ in range(80):
            file.write(packer.compress(b" " * 1024 * 1024))
        file.write(packer.flush())
    with pytest.raises(UnreadableLog, match=r"^bomb\.xes\.gz: holds more than 67,108,864 bytes"):
        list(read_xes_traces(path))


def test_a_file_that_holds_more_than_any_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match="holds more than 1,000 bytes"):
        read(tmp_path, claims_text(), most_bytes=1_000)


@pytest.mark.parametrize("kept", [10, 60, -5])
def test_packed_data_that_is_cut_off_is_refused(tmp_path: Path, kept: int) -> None:
    path = write_log(tmp_path, claims_text(), "claims.xes.gz")
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UnreadableLog, match=r"^claims\.xes\.gz: the gzip data is (cut off|damaged)"):
        list(read_xes_traces(path))


def test_packed_data_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, claims_text(), "claims.xes.gz")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 255
    path.write_bytes(bytes(content))
    with pytest.raises(UnreadableLog, match=r"damaged|well-formed"):
        list(read_xes_traces(path))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnreadableLog, match=r"none\.xes: cannot be read .FileNotFoundError"):
        list(read_xes_traces(tmp_path / "none.xes"))


def test_each_activity_is_one_step_and_is_called_what_it_is(tmp_path: Path) -> None:
    names = ["Task 1", "Task 1", "task 1", "Task 2", "Ärger", "A_SUBMITTED"]
    (trace,) = read(tmp_path, log_text(trace_text("a", *map(event_text, names))))
    recording = recording_of_trace(trace, log="a.xes", workflow="a")
    steps = session_steps([{"id": f"evt_{n}", **event} for n, event in enumerate(recording.events)], ())
    assert len({step.micro_key for step in steps}) == len(set(names)) == len(steps)
    assert [step.label for step in steps][-2:] == ["Ärger", "A_SUBMITTED"]


@pytest.mark.parametrize(
    ("key", "value", "tags"),
    [
        ("concept:name", "pay", [{"name": "success", "t_ms": 30 * 60_000}]),
        ("concept:name", "check ticket", [{"name": "success", "t_ms": 5 * 60_000}]),
        ("costs", "9", [{"name": "success", "t_ms": 9 * 60_000}]),
        ("amount", "100", [{"name": "success", "t_ms": 30 * 60_000}]),
        ("amount", "7", []),
    ],
)
def test_an_outcome_is_tagged_where_it_is_told(
    tmp_path: Path, key: str, value: str, tags: list[object]
) -> None:
    first = read(tmp_path, claims_text())[0]
    rules = [TraceOutcomeRule(key, value, "success")]
    assert recording_of_trace(first, log="claims.xes", workflow="claims", rules=rules).tags == tags


def test_the_last_event_that_tells_an_outcome_decides(tmp_path: Path) -> None:
    first = read(tmp_path, claims_text())[0]
    rules = parse_outcome_rules(["concept:name=check ticket"], ["concept:name=decide"])
    (tag,) = recording_of_trace(first, log="claims.xes", workflow="claims", rules=rules).tags
    assert tag["name"] == "error"


@needs_real
@pytest.mark.parametrize(
    ("name", "cases", "events"),
    [("running-example.xes", 6, 42), ("03_repairExample.xes.gz", 1_104, 11_855)],
)
def test_real_logs_are_read_whole(name: str, cases: int, events: int) -> None:
    rows = event_log_rows(read_xes_traces(REAL / name))
    assert (rows["case"].n_unique(), len(rows)) == (cases, events)
