"""The made-up runs of the demo: deterministic, valid, with the shares they promise."""

import io
from collections import Counter

import msgspec
import orjson
import pytest
from PIL import Image

from examples import approve_invoice
from examples.app_screens import SIZE
from examples.demo_workflows import ENDS_AT, demo_recordings
from recorder.importers.upload import ImportedRecording
from recorder.limits import FRAME_BYTES
from recorder.models.event import EventItem
from recorder.models.frame import FrameItem


@pytest.fixture(scope="module")
def recordings() -> list[ImportedRecording]:
    """Return the default demo."""
    return list(demo_recordings())


def test_the_same_seed_gives_the_same_runs(recordings: list[ImportedRecording]) -> None:
    assert list(demo_recordings()) == recordings
    assert list(demo_recordings(40, seed=8)) != list(demo_recordings(40, seed=7))


def test_both_workflows_have_successes_failures_and_runs_left(recordings: list[ImportedRecording]) -> None:
    outcomes = Counter((recording.workflow, _outcome(recording)) for recording in recordings)
    assert len(recordings) == 300
    assert {outcome for _, outcome in outcomes} == {"success", "error", "abandoned"}
    assert outcomes["approve_invoice", "success"] > 150 > outcomes["onboard_customer", "success"] > 50


def test_some_runs_recover_from_the_server_error(recordings: list[ImportedRecording]) -> None:
    failed = [recording for recording in recordings if "server_error" in _names(recording)]
    assert Counter(_outcome(recording) for recording in failed) == {"success": 9, "error": 6}


def test_the_second_approver_appears_only_late(recordings: list[ImportedRecording]) -> None:
    late = [
        n
        for n, recording in enumerate(recordings)
        if any("Second" in frame.item["url"] or "/second" in frame.item["url"] for frame in recording.frames)
    ]
    assert len(late) == 8
    assert min(late) > len(recordings) / 2


def test_runs_lie_in_order_within_the_time(recordings: list[ImportedRecording]) -> None:
    begins = [recording.started_at for recording in recordings]
    assert begins == sorted(begins)
    assert all(begin.microsecond % 1000 == 0 for begin in begins)
    assert max(begins) < ENDS_AT


def test_items_are_what_the_service_takes(recordings: list[ImportedRecording]) -> None:
    for recording in recordings[::10]:
        msgspec.json.decode(orjson.dumps(recording.events), type=list[EventItem])
        msgspec.json.decode(orjson.dumps([frame.item for frame in recording.frames]), type=list[FrameItem])
        times = [event["t_ms"] for event in recording.events]
        assert times == sorted(times)


def test_every_action_names_a_frame_of_its_run_and_an_element_on_it(
    recordings: list[ImportedRecording],
) -> None:
    acted = 0
    for recording in recordings:
        shown = {frame.item["id"]: orjson.dumps(frame.item["dom"]).decode() for frame in recording.frames}
        for event in recording.events:
            if "target" in event:
                assert f'"id":"{event["target"]["attrs"]["id"]}"' in shown[event["frame_id"]]
                acted += 1
    assert acted > 2_000


def test_ids_are_unique_on_every_screen(recordings: list[ImportedRecording]) -> None:
    for frame in recordings[0].frames:
        ids = orjson.dumps(frame.item["dom"]).decode().split('"id":"')[1:]
        named = [text.split('"')[0] for text in ids]
        assert len(named) == len(set(named))


def test_screens_are_pictures_of_their_size(recordings: list[ImportedRecording]) -> None:
    frame = recordings[0].frames[-1]
    assert Image.open(io.BytesIO(frame.image)).size == SIZE == (frame.item["width"], frame.item["height"])
    assert len(frame.image) < FRAME_BYTES / 100


def test_passwords_are_never_kept(recordings: list[ImportedRecording]) -> None:
    typed = [
        event["input"]
        for recording in recordings
        for event in recording.events
        if event.get("target", {}).get("name") == "Password"
    ]
    assert typed
    assert all(value == {"value": None, "masked": True, "secret_ref": "password"} for value in typed)


def test_the_shares_of_a_workflow_are_whole() -> None:
    assert sum(way.share for way in approve_invoice.WAYS) == pytest.approx(1)


def _names(recording: ImportedRecording) -> list[str]:
    return [tag["name"] for tag in recording.tags]


def _outcome(recording: ImportedRecording) -> str:
    marks = [name for name in _names(recording) if name in ("success", "error")]
    return marks[-1] if marks else "abandoned"
