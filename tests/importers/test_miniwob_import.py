"""Demonstration files as recordings. Design §2 (importers), contract §2 (imports)."""

import gzip
import io
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import orjson
import pytest
from PIL import Image

from recorder.ids import is_client_id
from recorder.importers.miniwob.demonstration import (
    demonstration_files,
    demonstration_sources,
    make_miniwob_workflow_slug,
    read_demonstration,
)
from recorder.importers.miniwob.format import join_demonstration_action_halves, read_demonstration_file
from recorder.importers.upload import ImportedRecording, NothingToImport, UnreadableRecording
from recorder.models.event import EventItem
from recorder.models.frame import FrameItem
from tests.support.demonstrations import (
    REAL,
    button,
    click_states,
    element,
    key,
    mouse,
    needs_real,
    page,
    state,
    text_field,
    write_demonstration,
)

START = datetime(2018, 1, 1, tzinfo=UTC)


def recording_of(path: Path) -> ImportedRecording:
    """Return the recording of a file at the usual instant."""
    return read_demonstration(path, started_at=START)


def test_a_demonstration_is_one_session_of_its_task(tmp_path: Path) -> None:
    recording = recording_of(write_demonstration(tmp_path, click_states(), task="click-test.2"))
    assert recording.workflow == "click_test_2"
    assert recording.actor == {"id": "miniwob", "kind": "human"}
    assert recording.metadata == {
        "task": "click-test.2",
        "utterance": "Click the button.",
        "raw_reward": 1,
        "source": "000.json.gz",
    }


def test_all_tasks_may_go_into_one_workflow(tmp_path: Path) -> None:
    path = write_demonstration(tmp_path, [], task="click-test")
    recording = read_demonstration(path, started_at=START, workflow="web_tasks")
    prefixed = read_demonstration(path, started_at=START, workflow_prefix="miniwob_")
    assert (recording.workflow, recording.metadata["task"]) == ("web_tasks", "click-test")
    assert prefixed.workflow == "miniwob_click_test"


@pytest.mark.parametrize(
    ("task", "slug"), [("flight.Alaska-auto", "flight_alaska_auto"), ("a b", "a_b"), ("Über", "_ber")]
)
def test_a_task_becomes_a_slug(task: str, slug: str) -> None:
    assert make_miniwob_workflow_slug(task) == slug


def test_a_task_that_makes_no_slug_is_named() -> None:
    with pytest.raises(UnreadableRecording, match="makes no workflow"):
        make_miniwob_workflow_slug("x" * 65)


@pytest.mark.parametrize(
    ("reward", "name"), [(1, "success"), (0.75, "success"), (0, "error"), (-1, "error"), (-0.25, "error")]
)
def test_the_raw_reward_decides_the_outcome(tmp_path: Path, reward: float, name: str) -> None:
    recording = recording_of(write_demonstration(tmp_path, click_states(), reward=reward))
    assert recording.tags == [{"name": name, "data": {"raw_reward": reward}, "t_ms": 983}]


def test_a_demonstration_without_states_is_a_session_with_its_tag(tmp_path: Path) -> None:
    recording = recording_of(write_demonstration(tmp_path, [], reward=-1))
    assert recording.events == recording.frames == []
    assert recording.tags[0]["t_ms"] == 0


def test_a_frame_stands_for_every_change_of_the_page(tmp_path: Path) -> None:
    recording = recording_of(write_demonstration(tmp_path, click_states()))
    assert [frame.item["t_ms"] for frame in recording.frames] == [0, 983]
    first, second = recording.frames
    assert first.image != second.image
    assert first.item["dom"]["html"][2][2] == ["button", {"id": "subbtn"}, "Submit"]


def test_the_mark_of_the_element_acted_on_is_no_change(tmp_path: Path) -> None:
    states = [state(0, page(button())), state(5, page(button(recordingTarget=True)), mouse("mousedown", 1))]
    assert len(recording_of(write_demonstration(tmp_path, states)).frames) == 1


def test_the_focus_is_a_change_that_shows(tmp_path: Path) -> None:
    states = [state(0, page(text_field())), state(5, page(text_field(focused=True)))]
    first, second = recording_of(write_demonstration(tmp_path, states)).frames
    assert first.image != second.image
    assert first.item["dom"] == second.item["dom"]


def test_an_event_is_bound_to_the_page_before_the_action_was_handled(tmp_path: Path) -> None:
    recording = recording_of(write_demonstration(tmp_path, click_states()))
    before, _ = (frame.item["id"] for frame in recording.frames)
    assert [(event["type"], event["t_ms"]) for event in recording.events] == [
        ("pointer_down", 900),
        ("pointer_up", 980),
        ("click", 981),
    ]
    assert {event["frame_id"] for event in recording.events} == {before}


def test_a_half_after_the_handling_alone_is_bound_to_the_page_before_it(tmp_path: Path) -> None:
    states = [state(0, page(button())), state(9, page(button("Done")), mouse("click", 3))]
    recording = recording_of(write_demonstration(tmp_path, states))
    assert recording.events[0]["frame_id"] == recording.frames[0].item["id"]


def test_the_target_is_the_element_acted_on(tmp_path: Path) -> None:
    click = recording_of(write_demonstration(tmp_path, click_states())).events[-1]
    assert click["target"] == {
        "role": "button",
        "name": "Submit",
        "tag": "button",
        "text": "Submit",
        "attrs": {"id": "subbtn"},
        "rect": [20, 100, 90, 30],
        "selectors": [
            'aria/Submit[role="button"]',
            "#subbtn",
            "text/Submit",
            "xpath///body/div[1]/button[1]",
        ],
    }
    assert click["input"] == {"point": [40, 110]}


def test_a_field_without_a_name_is_near_the_text_beside_it(tmp_path: Path) -> None:
    year, genre = (
        element("DIV", (2, top, 60, 13), text=name) for top, name in ((50, "Year:"), (90, "Genre"))
    )
    marked = text_field(recordingTarget=True)
    entries = (
        element("DIV", (0, 0, 90, 90), marked, year),
        element("DIV", (0, 90, 90, 90), text_field(), genre),
    )
    beside = recording_of(write_demonstration(tmp_path, [state(0, page(*entries), mouse("click", 1))]))
    assert beside.events[0]["target"]["near"] == "Year:"
    apart = recording_of(
        write_demonstration(tmp_path, [state(0, page(marked, text_field(), genre), mouse("click", 1))])
    )
    assert "near" not in apart.events[0]["target"]


def test_a_checkbox_has_the_name_of_its_label(tmp_path: Path) -> None:
    box = element("INPUT_checkbox", (2, 50, 13, 13), value=True, recordingTarget=True)
    text = {
        "tag": "t",
        "left": 20,
        "top": 50,
        "width": 30,
        "height": 11,
        "ref": -1,
        "text": "Pizza",
        "children": [],
    }
    label = element("LABEL", (2, 50, 60, 13), box, text)
    states = [state(0, page(label), mouse("click", 1))]
    recording = recording_of(write_demonstration(tmp_path, states))
    assert recording.events[0]["target"]["name"] == "Pizza"
    assert recording.frames[0].item["dom"]["html"][2][2] == [
        "label",
        {},
        ["input", {"type": "checkbox", "__c": True}],
        "Pizza",
    ]


def test_a_password_is_shown_as_dots(tmp_path: Path) -> None:
    field = element("INPUT_password", (2, 50, 100, 20), value="s3cret", text="")
    (frame,) = recording_of(write_demonstration(tmp_path, [state(0, page(field))])).frames
    assert frame.item["dom"]["html"][2][2] == ["input", {"type": "password", "__v": "••••••"}]


def test_equal_files_give_equal_recordings(tmp_path: Path) -> None:
    recording = recording_of(write_demonstration(tmp_path, click_states(), name="a"))
    other = recording_of(write_demonstration(tmp_path, click_states(), name="b"))
    assert recording.frames == other.frames
    assert recording.events == other.events


def test_items_are_what_the_service_takes(tmp_path: Path) -> None:
    states = [*click_states(), state(1200, page(text_field(recordingTarget=True)), key("keydown", 1, 65))]
    recording = recording_of(write_demonstration(tmp_path, states))
    events = [msgspec.json.decode(orjson.dumps(event), type=EventItem) for event in recording.events]
    frames = [msgspec.json.decode(orjson.dumps(frame.item), type=FrameItem) for frame in recording.frames]
    assert len(events) == 4
    assert all(isinstance(frame.id, str) and is_client_id(frame.id, "frm") for frame in frames)


def _zip(content: bytes) -> bytes:
    """Return the content as a file holds it, always the same bytes: they are part of the names of tests."""
    return gzip.compress(content, mtime=0)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"plain text", "not gzip"),
        (_zip(b"{}" * 400)[:20], "cut off"),
        (_zip(b'{"states": ['), "not JSON"),
        (_zip(b"[]"), "not a demonstration"),
        (_zip(b'{"utterance": "x", "rawReward": 1}'), "not a demonstration"),
        (_zip(b'{"utterance": "x", "rawReward": true, "states": []}'), "not a demonstration"),
        (_zip(b'{"utterance":"x","rawReward":1,"states":[{"time":-1,"dom":{"tag":"A"}}]}'), "time"),
        (_zip(b'{"utterance": "\xff", "rawReward": 1, "states": []}'), "not JSON"),
        (_zip(b"[" * 100_000), "not a demonstration|not JSON|too deep"),
        (b"", "not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_says_why(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "x.json.gz"
    path.write_bytes(content)
    with pytest.raises(UnreadableRecording, match=reason):
        recording_of(path)


def test_pages_nested_too_deep_are_refused_in_words(tmp_path: Path) -> None:
    dom = element("DIV", (0, 0, 1, 1))
    for _ in range(100):
        dom = element("DIV", (0, 0, 1, 1), dom)
    assert recording_of(write_demonstration(tmp_path, [state(0, dom)])).frames
    opening = b'{"tag":"A","children":[' * 700
    body = b'{"utterance":"x","rawReward":1,"states":[{"time":0,"dom":' + opening + b"]}" * 700 + b"}]}"
    path = tmp_path / "deep.json"
    path.write_bytes(body)
    with pytest.raises(UnreadableRecording, match="too deep"):
        recording_of(path)


def test_files_are_found_in_folders_of_folders_in_a_fixed_order(tmp_path: Path) -> None:
    for task, name in (("b-task", "001"), ("a-task", "002"), ("a-task", "001")):
        write_demonstration(tmp_path, [], task=task, name=name)
    sources = list(demonstration_sources(demonstration_files(tmp_path)))
    assert [source.name for source in sources] == [
        "a-task/001.json.gz",
        "a-task/002.json.gz",
        "b-task/001.json.gz",
    ]
    assert [source.read().started_at - START for source in sources] == [
        timedelta(minutes=n) for n in range(3)
    ]


def test_a_folder_without_demonstrations_is_said_to_be_empty(tmp_path: Path) -> None:
    with pytest.raises(NothingToImport, match="There are no"):
        demonstration_files(tmp_path)


@needs_real
def test_every_real_demonstration_is_read_with_every_action_once() -> None:
    empty = actions = 0
    files = demonstration_files(REAL)
    for path in files:  # one at a time: together they take gigabytes
        states = read_demonstration_file(path)[0].states
        empty += not states
        actions += len(join_demonstration_action_halves(states))
    assert (len(files), empty, actions) == (1298, 9, 23_767)


@needs_real
def test_real_demonstrations_of_every_task_make_valid_items() -> None:
    files = demonstration_files(REAL)[::15]
    for recording in (source.read() for source in demonstration_sources(files)):
        msgspec.json.decode(orjson.dumps(recording.events), type=list[EventItem])
        msgspec.json.decode(orjson.dumps([frame.item for frame in recording.frames]), type=list[FrameItem])
        is_success = recording.metadata["raw_reward"] > 0
        assert recording.tags[0]["name"] == ("success" if is_success else "error")


@needs_real
def test_a_real_screen_is_drawn_as_large_as_its_task() -> None:
    login = recording_of(REAL / "login-user" / "000.json.gz")
    assert {Image.open(io.BytesIO(frame.image)).size for frame in login.frames} == {(160, 210)}
    typed = [event["input"]["key"] for event in login.events if event["type"] == "key_press"]
    assert "".join(typed) == "joye5s"
