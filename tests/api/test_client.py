"""The client against the real service. Spec §4.1, contract §2–§3."""

import io
from datetime import UTC, datetime
from types import MappingProxyType

import pytest
from PIL import Image

from recorder.client import ApiError, CapturedFrame, Client, SessionRecorder
from tests.support.client_fixtures import client, service
from tests.support.http_service import RunningService

__all__ = ["client", "service"]

ADA = {"id": "ada", "kind": "human"}


def picture(shade: int = 0) -> bytes:
    """Return a small PNG file."""
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


def test_a_session_goes_through_its_states(client: Client) -> None:
    session = client.create_session("states", metadata={"n": 1}, actor=ADA)
    assert session["status"] == "created"
    assert client.start(session["id"])["status"] == "recording"
    assert client.stop(session["id"])["status"] == "stopped"
    assert client.stop(session["id"])["status"] == "stopped"


def test_events_come_back_in_order_over_many_pages(client: Client) -> None:
    session_id = client.create_session("many_events", start=True)["id"]
    sent = [{"t_ms": n, "type": "click", "data": {"n": n}} for n in range(620)]
    assert client.add_events(session_id, sent) == 620
    assert [event["data"]["n"] for event in client.list_events(session_id)] == list(range(620))


def test_events_of_some_types_and_times_come_back(client: Client) -> None:
    session_id = client.create_session("chosen_events", start=True)["id"]
    types = ("click", "fill", "scroll")
    client.add_events(session_id, [{"t_ms": n, "type": types[n % 3]} for n in range(30)])
    events = client.list_events(session_id, types=["click", "fill"], from_t_ms=3, to_t_ms=10)
    assert [event["t_ms"] for event in events] == [3, 4, 6, 7, 9]


def test_frames_come_back_to_the_byte(client: Client) -> None:
    session_id = client.create_session("many_frames", start=True)["id"]
    sent = [CapturedFrame.of(picture(n), t_ms=n, url="https://a.example") for n in range(70)]
    stored = client.add_frames(session_id, sent)
    assert [frame["id"] for frame in client.list_frames(session_id)] == [frame["id"] for frame in stored]
    assert client.frame_image(session_id, stored[63]["id"]) == sent[63].image


def test_many_sessions_stop_at_once_and_are_listed(client: Client) -> None:
    made = [client.create_session("many_sessions", start=True)["id"] for _ in range(3)]
    results = client.batch_stop(made)
    assert [item["result"] for item in results] == ["stopped"] * 3
    assert {
        session["id"] for session in client.list_sessions(workflow="many_sessions", status="stopped")
    } == set(made)


def test_a_recording_made_elsewhere_keeps_its_time(client: Client) -> None:
    began = datetime(2020, 2, 2, 8, 30, tzinfo=UTC)
    session_id = client.create_session("elsewhere", start=True, started_at=began)["id"]
    client.add_events(session_id, [{"t_ms": 1500, "type": "click"}])
    session = client.stop(session_id)
    assert (session["started_at"], session["duration_ms"]) == ("2020-02-02T08:30:00.000Z", 1500)


def test_a_deleted_session_is_gone(client: Client) -> None:
    session_id = client.create_session("gone")["id"]
    client.delete_session(session_id)
    with pytest.raises(ApiError, match="404 not_found"):
        client.get_session(session_id)


def test_a_wrong_key_is_refused_in_words(service: RunningService) -> None:
    with Client(service.url, "nsk_local_wrong") as stranger, pytest.raises(ApiError) as raised:
        stranger.create_session("approve_invoice")
    assert raised.value.status == 401
    assert "recorder workspaces create" in str(raised.value)


def test_a_refused_item_is_pointed_at(client: Client) -> None:
    session_id = client.create_session("refused", start=True)["id"]
    with pytest.raises(ApiError) as raised:
        client.add_events(session_id, [{"t_ms": 0, "type": "click"}, {"t_ms": -1, "type": "click"}])
    assert raised.value.errors[0]["pointer"].startswith("/events/")
    assert client.get_session(session_id)["event_count"] == 0


def test_a_block_is_recorded_and_stopped(client: Client) -> None:
    with SessionRecorder(client, "recorded_block", actor=ADA) as session:
        shown = session.frame(picture(), url="https://erp.example/invoices")
        session.event("click", frame_id=shown, target={"role": "button", "name": "Approve"})
        session.tag("success", amount=12)
    kept = client.get_session(session.id, include=["events", "tags"])
    assert (kept["status"], kept["outcome"], kept["frame_count"]) == ("stopped", "success", 1)
    assert kept["events"][0]["frame_id"] == shown
    assert kept["tags"][0]["data"] == {"amount": 12}


def test_what_fills_a_batch_is_sent_before_the_end(client: Client) -> None:
    with SessionRecorder(client, "flushed") as session:
        for _ in range(150):
            session.event("click")
        for shade in range(60):
            session.frame(picture(shade))
        during = client.get_session(session.id)
    after = client.get_session(session.id)
    assert (during["event_count"], during["frame_count"]) == (150, 50)
    assert (after["event_count"], after["frame_count"]) == (150, 60)


def test_an_error_in_the_block_is_recorded_and_goes_on(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), SessionRecorder(client, "broken_block") as session:
        session.event("click")
        _ = 1 / 0
    kept = client.get_session(session.id, include=["tags"])
    assert (kept["status"], kept["outcome"], kept["event_count"]) == ("stopped", "error", 1)
    assert kept["tags"][0]["data"] == {"type": "ZeroDivisionError"}


def test_a_block_whose_last_events_are_refused_is_stopped_with_the_tag_error(client: Client) -> None:
    with pytest.raises(ApiError) as raised, SessionRecorder(client, "refused_at_the_end") as session:
        session.frame(picture())
        for number in range(9):
            session.event("click", target={"role": "button" if number < 5 else 7})
    kept = client.get_session(session.id, include=["tags"])
    assert (kept["status"], kept["outcome"], kept["event_count"]) == ("stopped", "error", 5)
    assert kept["tags"][0]["data"] == {"type": "ApiError"}
    assert raised.value.errors[0]["pointer"].startswith("/events/5/target")


def test_a_block_that_fails_is_stopped_although_its_events_are_refused(client: Client) -> None:
    with pytest.raises(ZeroDivisionError) as raised, SessionRecorder(client, "failed_twice") as session:
        session.event("click", target={"role": 7})
        _ = 1 / 0
    kept = client.get_session(session.id, include=["tags"])
    assert (kept["status"], kept["tags"][0]["data"]) == ("stopped", {"type": "ZeroDivisionError"})
    assert "/events/0/target" in raised.value.__notes__[0]


def test_an_event_that_cannot_be_sent_is_refused_at_its_call(client: Client) -> None:
    with SessionRecorder(client, "refused_at_the_call") as session:
        with pytest.raises(TypeError, match="target takes a dict, not a value of type str"):
            session.event("click", target="#approve")
        with pytest.raises(ValueError, match=r"/data/sums/1: NaN and Infinity are not JSON; send null"):
            session.event("log", data={"sums": [None, float("nan")]})
        session.event("log", data={"sum": None}, target=None)
    assert client.get_session(session.id)["event_count"] == 1


def test_members_of_a_session_and_its_events_may_be_any_mappings(client: Client) -> None:
    members = MappingProxyType({"n": 1})
    with SessionRecorder(client, "mappings") as session:
        session.event("log", data=members)
    assert [event["data"] for event in client.list_events(session.id)] == [{"n": 1}]
    assert client.create_session("mappings", metadata=members)["metadata"] == {"n": 1}


def test_an_event_is_sent_as_it_was_at_its_call(client: Client) -> None:
    data = {"step": 1}
    with SessionRecorder(client, "changed_later") as session:
        session.event("log", data=data)
        data["step"] = 2
    assert [event["data"] for event in client.list_events(session.id)] == [{"step": 1}]


def test_an_interruption_leaves_the_run_abandoned(client: Client) -> None:
    with pytest.raises(KeyboardInterrupt), SessionRecorder(client, "interrupted") as session:
        session.event("click")
        raise KeyboardInterrupt
    assert client.get_session(session.id)["outcome"] == "abandoned"


def test_settings_are_read_and_changed(client: Client) -> None:
    changed = client.update_workflow("set_up", tags=["a"], outcome_rules={"error_tags": ["rejected"]})
    assert client.get_workflow("set_up") == changed and changed["tags"] == ["a"]
    assert "set_up" in [workflow["workflow"] for workflow in client.list_workflows()]
    workspace = client.update_workspace(retention={"frames_days": 7})
    assert client.get_workspace() == workspace and workspace["retention"]["frames_days"] == 7
    with pytest.raises(ApiError) as refused:
        client.update_workspace(retention={"frames_days": 0})
    assert refused.value.errors[0]["pointer"] == "/retention/frames_days"


def test_the_quota_is_read(client: Client) -> None:
    session_id = client.create_session("counted", start=True, started_at=datetime(2024, 2, 29, tzinfo=UTC))[
        "id"
    ]
    before = client.get_quota()
    client.add_events(session_id, [{"t_ms": 3 * 60_000, "type": "click"}])
    assert client.get_quota()["captured_minutes"] == before["captured_minutes"] + 3


def test_a_webhook_is_made_listed_given_a_new_secret_and_removed(client: Client) -> None:
    made = client.create_webhook("https://hooks.invalid/in", ["session.sealed"], description="tests")
    assert [(webhook["id"], webhook["description"]) for webhook in client.list_webhooks()] == [
        (made["id"], "tests")
    ]
    changed = client.update_webhook(made["id"], events=["session.tagged"], description="changed")
    assert (changed["url"], changed["events"]) == (made["url"], ["session.tagged"])
    assert [webhook["description"] for webhook in client.list_webhooks()] == ["changed"]
    fresh = client.rotate_secret(made["id"])["secret"]
    assert fresh.startswith("whsec_") and fresh != made["secret"]
    assert list(client.list_deliveries(made["id"])) == []
    client.delete_webhook(made["id"])
    assert list(client.list_webhooks()) == []
