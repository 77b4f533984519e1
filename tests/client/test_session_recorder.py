"""Recording over a broken line, with interruptions and refused items. Contract §3, docs/client.md."""

import io
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from PIL import Image

from recorder.client import ApiError, BufferFull, Client, SessionRecorder, Unreachable
from tests.support.client_fixtures import client, service
from tests.support.http_service import RunningService
from tests.support.unreliable_connections import SwitchedLine, switched_line

__all__ = ["client", "service"]


@contextmanager
def lined(service: RunningService, *, patience_s: float = 0.3) -> Iterator[tuple[Client, SwitchedLine]]:
    """Yield a client with little patience, and the line that it reaches the service over."""
    with (
        switched_line(service.url) as line,
        Client(line.url, service.key, patience_s=patience_s) as client,
    ):
        yield client, line


def picture(shade: int = 0) -> bytes:
    """Return a small PNG file."""
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


def stored(client: Client, session_id: str) -> dict[str, Any]:
    """Return the members of the session that these tests check."""
    session = client.get_session(session_id)
    return {name: session[name] for name in ("status", "event_count", "frame_count")}


def test_what_a_dead_line_kept_back_is_sent_with_the_next_flush(
    service: RunningService, client: Client
) -> None:
    with lined(service) as (far, line), SessionRecorder(far, "dead_line") as run:
        for number in range(99):
            run.event("click", t_ms=number)
        line.is_on = False
        with pytest.raises(Unreachable):
            run.event("click", t_ms=99)
        for number in range(100, 150):
            run.event("click", t_ms=number)
        line.is_on = True
        run.flush()
        assert stored(client, run.id)["event_count"] == 150
    times = [event["t_ms"] for event in client.list_events(run.id)]
    assert times == list(range(150))


def test_what_waits_on_a_dead_line_is_bounded_and_nothing_that_waits_is_lost(
    service: RunningService, client: Client
) -> None:
    with lined(service) as (far, line), SessionRecorder(far, "full_buffer", buffer_bytes=6_000) as run:
        line.is_on = False
        recorded = []
        for number in range(400):
            try:
                run.event("click", t_ms=number)
            except BufferFull as error:
                assert "was not recorded" in str(error) and isinstance(error.__cause__, Unreachable)
                break
            except Unreachable:
                pass  # It waits.
            recorded.append(number)
        assert 100 < len(recorded) < 400
        with pytest.raises(BufferFull):
            run.frame(picture())
        line.is_on = True
        run.event("click", t_ms=500)
    times = [event["t_ms"] for event in client.list_events(run.id)]
    assert times == [*recorded, 500]
    assert stored(client, run.id)["frame_count"] == 0


def test_a_batch_whose_answer_was_lost_is_stored_once(service: RunningService, client: Client) -> None:
    with lined(service) as (far, line), SessionRecorder(far, "lost_answers") as run:
        shown = run.frame(picture(), t_ms=0)
        run.event("click", t_ms=1, frame_id=shown)
        line.loses_answers = True
        for _ in range(3):
            with pytest.raises(Unreachable):
                run.flush()
            run.event("click")
        line.loses_answers = False
    assert stored(client, run.id) == {"status": "stopped", "event_count": 4, "frame_count": 1}


def test_a_recording_that_ended_over_a_dead_line_can_be_finished(
    service: RunningService, client: Client
) -> None:
    with lined(service) as (far, line):
        with pytest.raises(Unreachable), SessionRecorder(far, "late_line") as run:
            run.event("click")
            run.frame(picture())
            line.is_on = False
        assert stored(client, run.id) == {"status": "recording", "event_count": 0, "frame_count": 0}
        line.is_on = True
        run.flush()
        far.stop(run.id)
    assert stored(client, run.id) == {"status": "stopped", "event_count": 1, "frame_count": 1}


def test_a_flush_that_ctrl_c_interrupts_is_made_up_for_at_the_end(
    service: RunningService, client: Client
) -> None:
    def interrupt() -> None:
        line.is_on = True
        signal.raise_signal(signal.SIGINT)

    with lined(service, patience_s=30) as (far, line):
        timer = threading.Timer(0.5, interrupt)
        with pytest.raises(KeyboardInterrupt), SessionRecorder(far, "ctrl_c") as run:
            for number in range(99):
                run.event("click", t_ms=number)
            line.is_on = False
            timer.start()
            run.event("click", t_ms=99)
        timer.join()
    assert stored(client, run.id) == {"status": "stopped", "event_count": 100, "frame_count": 0}


def test_a_frame_that_cannot_be_sent_is_refused_at_its_call(client: Client) -> None:
    with SessionRecorder(client, "odd_frames") as run:
        run.frame(picture(1))
        with pytest.raises(ValueError, match="/dom/width: NaN and Infinity"):
            run.frame(picture(2), dom={"width": float("nan")})
        run.frame(picture(3))
    assert stored(client, run.id)["frame_count"] == 2


def test_a_frame_is_sent_as_it_was_at_its_call(client: Client) -> None:
    rectangle = [0, 0, 1, 1]
    with SessionRecorder(client, "changed_frames") as run:
        run.frame(picture(), active_rect=rectangle)
        rectangle[:] = [1, 1, 2, 2]
    assert [frame["active_rect"] for frame in client.list_frames(run.id)] == [[0, 0, 1, 1]]


BROKEN = b"\x89PNG\r\n\x1a\nbroken"


@pytest.mark.parametrize("broken", [{3}, {0, 4, 5, 11}, set(range(12))])
def test_frames_beside_broken_ones_are_stored(client: Client, broken: set[int]) -> None:
    with pytest.raises(ApiError, match="invalid_image") as raised, SessionRecorder(client, "broken") as run:
        for number in range(12):
            run.frame(BROKEN if number in broken else picture(number), t_ms=number)
        run.event("click")
    assert {frame["t_ms"] for frame in client.list_frames(run.id)} == set(range(12)) - broken
    assert stored(client, run.id)["event_count"] == 1
    assert f"{len(broken)} refused item" in raised.value.__notes__[0]


def test_events_beside_refused_ones_are_stored_in_order(client: Client) -> None:
    refused = {*range(10, 40, 2), *range(60, 90)}
    with SessionRecorder(client, "refused_events") as run:
        with pytest.raises(ApiError, match="/events/10/target/role"):
            for number in range(100):
                run.event("click", t_ms=number, target={"role": 7 if number in refused else "button"})
        run.event("click", t_ms=100)
    kept = [event["t_ms"] for event in client.list_events(run.id)]
    assert kept == [number for number in range(101) if number not in refused]


def test_an_event_that_is_refused_without_its_number_costs_no_other(client: Client) -> None:
    deep: dict[str, Any] = {}
    for _ in range(80):
        deep = {"in": deep}
    with pytest.raises(ApiError, match="levels deep"), SessionRecorder(client, "deep_events") as run:
        for number in range(5):
            run.event("log", t_ms=number, data=deep if number == 2 else {})
    assert [event["t_ms"] for event in client.list_events(run.id)] == [0, 1, 3, 4]


def test_events_of_a_stopped_session_are_refused_at_once(client: Client) -> None:
    with pytest.raises(ApiError, match="409 invalid_state"), SessionRecorder(client, "stopped_early") as run:
        run.event("click")
        client.stop(run.id)
    assert stored(client, run.id)["event_count"] == 0


def test_events_that_threads_record_at_once_are_stored_once(client: Client) -> None:
    with SessionRecorder(client, "threads") as run:
        threads = [
            threading.Thread(target=lambda: [run.event("click", t_ms=number) for number in range(130)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert stored(client, run.id)["event_count"] == 520


def test_items_outside_the_block_are_refused_instead_of_lost(client: Client) -> None:
    recorder = SessionRecorder(client, "no_block")
    for record in (lambda: recorder.event("click"), lambda: recorder.frame(picture())):
        with pytest.raises(RuntimeError, match="records only inside its block"):
            record()
    with recorder as run:
        run.event("click")
    with pytest.raises(RuntimeError, match="Nothing was recorded"):
        recorder.event("too_late")
    with pytest.raises(RuntimeError, match="Nothing was recorded"):
        recorder.tag("too_late")
    assert stored(client, run.id)["event_count"] == 1


def test_a_recorder_records_one_session(client: Client) -> None:
    with SessionRecorder(client, "one_block") as run:
        run.event("click")
    with pytest.raises(RuntimeError, match=f"has recorded {run.id}"), run:
        pass
    assert [session["id"] for session in client.list_sessions(workflow="one_block")] == [run.id]
