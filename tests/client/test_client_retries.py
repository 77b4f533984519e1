"""Requests that the client repeats, and those that it never does. Contract §1 (errors, idempotency)."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from recorder.client import ApiError, CapturedFrame, Client, TookTooLong, Unreachable
from recorder.client.service_address import read_address_and_key
from recorder.client.transport import Transport, TransportCall
from recorder.errors.access import TooManyStreams
from tests.support.ports import find_free_port
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, Received, running_receiver

KEY = "nsk_local_secretsecret"
TAKEN = {"accepted": 1, "duplicates": 0, "event_count": 1, "data": [], "frame_count": 1}
SESSION = {"id": "ses_1", "status": "recording"}
BUSY = Answer(429, {"code": "rate_limited", "detail": "Slower.", "request_id": "req_1"}, {"Retry-After": "1"})
AWAY = Answer(503, {"code": "unavailable", "detail": "The database does not answer."})
BROKEN = Answer(None)
PNG = b"\x89PNG\r\n\x1a\n" + b"rest"


@contextmanager
def served(*answers: Answer, patience_s: float = 60.0) -> Iterator[tuple[Client, list[Received]]]:
    """Yield a client of a receiver with these answers, and what the receiver got."""
    with running_receiver(*answers) as receiver, Client(receiver.url, KEY, patience_s=patience_s) as client:
        yield client, receiver.received


def test_a_batch_is_sent_again_with_the_same_id_and_the_same_bytes() -> None:
    with served(BROKEN, AWAY, Answer(202, TAKEN)) as (client, received):
        assert client.add_events("ses_1", [{"t_ms": 1, "type": "click"}]) == 1
    assert len({(request.headers["idempotency-key"], request.body) for request in received}) == 1
    assert len(received) == 3


def test_a_repeated_upload_of_frames_has_the_same_bytes_too() -> None:
    with served(BROKEN, Answer(202, TAKEN)) as (client, received):
        client.add_frames("ses_1", [CapturedFrame.of(PNG, t_ms=1)])
    first, second = received
    assert first.body == second.body
    assert first.headers["content-type"] == second.headers["content-type"]


def test_every_batch_has_its_own_id_and_they_rise() -> None:
    events = [{"t_ms": n, "type": "click"} for n in range(250)]
    with served(Answer(202, TAKEN)) as (client, received):
        client.add_events("ses_1", events)
    ids = [request.headers["idempotency-key"] for request in received]
    assert len(ids) == 3
    assert ids == sorted(set(ids))


def test_a_create_is_repeated_after_429_and_503_for_nothing_was_stored() -> None:
    with served(BUSY, AWAY, Answer(201, SESSION)) as (client, received):
        assert client.create_session("approve_invoice") == SESSION
    assert len(received) == 3


CREATES: dict[str, Callable[[Client], object]] = {
    "session": lambda client: client.create_session("approve_invoice", start=True),
    "tag": lambda client: client.tag("ses_1", "seen"),
    "export": lambda client: client.create_export("approve_invoice"),
}


@pytest.mark.parametrize("create", CREATES)
def test_a_create_that_may_have_been_stored_is_repeated_under_its_key(create: str) -> None:
    running = Answer(409, {"code": "idempotency_in_progress", "detail": "Wait."}, {"Retry-After": "0"})
    with served(BROKEN, running, Answer(201, SESSION)) as (client, received):
        assert CREATES[create](client) == SESSION
    assert len({(request.headers["idempotency-key"], request.body) for request in received}) == 1
    assert len(received) == 3


def test_every_create_has_a_key_of_its_own() -> None:
    with served(Answer(201, SESSION)) as (client, received):
        for create in [*CREATES.values(), *CREATES.values()]:
            create(client)
    assert len({request.headers["idempotency-key"] for request in received}) == 6


def test_a_delete_that_may_have_been_done_is_not_repeated() -> None:
    with (
        served(BROKEN, Answer(204)) as (client, received),
        pytest.raises(Unreachable, match="may have been carried out") as raised,
    ):
        client.delete_session("ses_1")
    assert raised.value.may_be_done
    assert len(received) == 1


def test_retry_after_is_waited_for() -> None:
    with served(BUSY, Answer(200, SESSION)) as (client, received):
        began = time.monotonic()
        client.stop("ses_1")
    assert time.monotonic() - began >= 1.0
    assert len(received) == 2


def test_a_wait_beyond_patience_is_not_begun() -> None:
    asks_much = Answer(429, {"code": "rate_limited", "detail": "Slower."}, {"Retry-After": "3600"})
    with served(asks_much) as (client, received), pytest.raises(ApiError) as raised:
        client.stop("ses_1")
    assert raised.value.retry_after_s == 3600
    assert len(received) == 1


def test_a_busy_service_is_asked_again_as_long_as_patience_lasts() -> None:
    busy = Answer(429, {"code": "rate_limited", "detail": "Slower."}, {"Retry-After": "0"})
    with served(*[busy] * 12, Answer(200, SESSION)) as (client, received):
        assert client.stop("ses_1") == SESSION
    assert len(received) == 13


def test_threads_that_share_a_client_have_no_more_requests_under_way_than_a_key_may_have() -> None:
    hold = threading.Event()
    answers: list[Any] = []
    with running_receiver(Answer(200, SESSION), hold=hold) as receiver, Client(receiver.url, KEY) as client:
        threads = [
            threading.Thread(target=lambda: answers.append(client.get_session("ses_1"))) for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(receiver.received) == 32)
        time.sleep(0.2)
        assert len(receiver.received) == 32
        hold.set()
        for thread in threads:
            thread.join()
    assert answers == [SESSION] * 40


def test_open_streams_leave_room_for_requests() -> None:
    with served(Answer(200, SESSION)) as (client, _), ExitStack() as streams:
        for _ in range(40):
            streams.enter_context(client._transport.streamed("/v1/sessions/ses_1", {}, {}, silence_s=5))
        assert client.get_session("ses_1") == SESSION


def test_patience_ends() -> None:
    with served(AWAY, patience_s=0.5) as (client, received), pytest.raises(ApiError, match="503 unavailable"):
        client.get_session("ses_1")
    assert 1 <= len(received) <= 8


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (401, "invalid_api_key"),
        (403, "insufficient_scope"),
        (422, "validation_failed"),
        (429, "quota_exceeded"),
    ],
)
def test_a_refusal_is_not_repeated(status: int, code: str) -> None:
    refusal = Answer(status, {"code": code, "detail": "No."})
    with served(refusal) as (client, received), pytest.raises(ApiError) as raised:
        client.add_events("ses_1", [{"t_ms": 1, "type": "click"}])
    assert (raised.value.status, raised.value.code) == (status, code)
    assert len(received) == 1


def test_an_error_tells_place_request_and_what_to_try() -> None:
    problem = {
        "code": "insufficient_scope",
        "detail": "This needs the scope write.",
        "request_id": "req_01",
        "errors": [{"in": "body", "pointer": "/x", "code": "y", "message": "wrong"}],
    }
    with served(Answer(403, problem)) as (client, _), pytest.raises(ApiError) as raised:
        client.stop("ses_1")
    assert "req_01" in str(raised.value)
    assert "/x: wrong" in str(raised.value)
    assert "Use a key that may do this" in str(raised.value)


def test_an_error_says_each_sentence_once() -> None:
    sentence = "A local destination must be below RECORDER_LOCAL_EXPORT_ROOT."
    errors = [{"in": "body", "pointer": "/destination/path", "code": "x", "message": sentence}]
    error = ApiError(422, "destination_not_allowed", sentence, errors=errors)
    assert str(error) == f"422 destination_not_allowed: {sentence}"
    detail = "No such workflow in this workspace; check its id, and the mode of the key."
    assert str(ApiError(404, "not_found", detail)) == f"404 not_found: {detail}"


def test_a_spent_quota_and_full_streams_have_a_next_step_of_their_own() -> None:
    quota = str(ApiError(429, "quota_exceeded", "The period's captured_minutes are used up."))
    assert quota.endswith("used up. Wait for the next month, or ask the operator for another tier.")
    detail = str(TooManyStreams("in this workspace", 10))
    assert detail.endswith("close a stream first.")
    assert str(ApiError(429, "too_many_streams", detail)) == f"429 too_many_streams: {detail}"


def test_an_error_lists_the_wrong_places_once_and_counts_the_rest() -> None:
    errors = [{"in": "body", "pointer": f"/{name}", "message": "Takes text."} for name in "abcde"]
    error = ApiError(422, "validation_failed", "5 problems: /a, /b, /c, /d, /e.", errors=errors)
    assert str(error) == (
        "422 validation_failed: /a: Takes text. /b: Takes text. /c: Takes text. 2 more problems."
    )
    whole = [{"in": "body", "pointer": "", "message": "Takes no body."}]
    assert str(ApiError(422, "validation_failed", "1 problem: body.", errors=whole)) == (
        "422 validation_failed: body: Takes no body."
    )


def test_an_error_page_of_something_else_is_still_an_error() -> None:
    with served(Answer(404)) as (client, _), pytest.raises(ApiError, match="404 unknown"):
        client.get_session("ses_1")


def test_a_server_that_is_not_there_is_unreachable_and_says_what_to_do() -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    with (
        Client(url, KEY, patience_s=0.3) as client,
        pytest.raises(Unreachable, match="recorder up") as raised,
    ):
        client.create_session("approve_invoice")
    assert not raised.value.may_be_done


def test_a_service_that_never_answered_is_not_waited_for_as_long_as_one_that_restarts() -> None:
    transport = Transport("http://127.0.0.1:1", KEY, timeout_s=5, patience_s=60, first_answer_s=0.1)
    began = time.monotonic()
    with pytest.raises(Unreachable, match="no connection"):
        transport.send(TransportCall("GET", "/v1/sessions/ses_1"))
    assert time.monotonic() - began < 20
    transport.close()


def test_the_key_shows_nowhere() -> None:
    with Client("http://127.0.0.1:1", KEY, patience_s=0.1) as client:
        with pytest.raises(Unreachable) as raised:
            client.get_session("ses_1")
        shown = f"{client!r} {client} {raised.value!r} {raised.value} {vars(raised.value)}"
    assert KEY not in shown


@pytest.mark.parametrize("key", ["", "two words", "nsk_\n", "schlüssel"])
def test_a_key_that_no_header_can_carry_is_refused_without_an_echo(key: str) -> None:
    with pytest.raises(ValueError, match="key takes an API key") as raised:
        Client("http://127.0.0.1:1", key)
    assert not key or key not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        (7, "none is given"),
        ("", "none is given"),
        ("127.0.0.1:8700", "must begin with http:// or https://"),
        ("localhost:8700", "must begin with http:// or https://"),
        ("ftp://host", "must begin with http:// or https://"),
        ("http://user:pass@host", "without a user"),
        ("http://", "with a host"),
        ("http://host:port", "cannot be read"),
    ],
)
def test_an_address_that_is_none_is_refused(url: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"base_url takes an address.*{reason}") as raised:
        Client(url, KEY)
    assert "pass@" not in str(raised.value)


def test_address_and_key_are_by_default_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RECORDER_KEY", "nsk_of_the_environment")
    monkeypatch.delenv("RECORDER_URL", raising=False)
    assert read_address_and_key(None, None) == ("http://127.0.0.1:8700", "nsk_of_the_environment")
    monkeypatch.setenv("RECORDER_URL", "http://127.0.0.1:1")
    assert read_address_and_key("http://127.0.0.1:2", KEY) == ("http://127.0.0.1:2", KEY)
    with Client() as client:
        assert repr(client) == "Client('http://127.0.0.1:1')"


@pytest.mark.parametrize("variable", [None, ""])
def test_a_client_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    monkeypatch.delenv("RECORDER_KEY", raising=False)
    if variable is not None:
        monkeypatch.setenv("RECORDER_KEY", variable)
    with pytest.raises(ValueError, match="pass it as key, or set RECORDER_KEY"):
        Client("http://127.0.0.1:1")


def test_lists_follow_their_cursors() -> None:
    pages = [
        Answer(200, {"data": [{"id": 1}], "next_cursor": "c1", "has_more": True}),
        Answer(200, {"data": [{"id": 2}], "next_cursor": None, "has_more": False}),
    ]
    with served(*pages) as (client, received):
        result = list(client.list_sessions(workflow=["a1", "b2"], actor_kind="human"))
    assert [item["id"] for item in result] == [1, 2]
    assert "workflow=a1&workflow=b2&actor.kind=human" in received[0].path
    assert "cursor=c1" in received[1].path


def test_a_list_takes_no_limit_since_it_yields_everything() -> None:
    with served(Answer(200, {"data": [], "has_more": False})) as (client, received):
        for method in (client.list_sessions, client.list_exports, client.audit):
            with pytest.raises(TypeError, match=r"yields everything and takes no limit.*itertools\.islice"):
                method(limit="1")
    assert received == []


def test_waiting_ends_with_what_to_check() -> None:
    stopped = Answer(200, {"id": "ses_1", "status": "stopped", "seal_error": None})
    with served(stopped) as (client, _), pytest.raises(TookTooLong, match="Check that Dagster runs"):
        client.wait_sealed("ses_1", timeout_s=0.3)


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"status": "recording"}, "It is recording, and only stopped sessions are sealed: stop it."),
        (
            {"status": "stopped", "seal_error": {"code": "rows_differ"}},
            "It was set aside (rows_differ); the operator's command: recorder sessions quarantined.",
        ),
    ],
)
def test_waiting_for_a_session_that_cannot_be_sealed_says_why(state: dict[str, Any], sentence: str) -> None:
    answer = Answer(200, {"id": "ses_1", "seal_error": None, **state})
    with served(answer) as (client, _), pytest.raises(TookTooLong) as raised:
        client.wait_sealed("ses_1", timeout_s=0.1)
    assert str(raised.value) == f"ses_1 is not sealed within 0.1 s. {sentence}"


def test_a_503_that_waiting_does_not_help_is_not_repeated() -> None:
    detail = "The service has no identity. Ask its operator."
    answer = Answer(503, {"code": "unavailable", "detail": detail}, {"Retry-After": "3600"})
    with served(answer) as (client, received), pytest.raises(ApiError) as raised:
        client.create_export("approve_invoice")
    assert len(received) == 1
    assert str(raised.value) == "503 unavailable: The service has no identity. Ask its operator."


def test_an_answer_of_another_program_is_named_as_one() -> None:
    with served(Answer(401, {})) as (client, _), pytest.raises(ApiError) as raised:
        client.get_workspace()
    sentence = "401 unknown: Unauthorized. Another program than the service answered; check the address."
    assert str(raised.value) == sentence


def test_a_failure_of_tls_is_named_as_one() -> None:
    with running_receiver(Answer(200, {})) as receiver:
        url = receiver.url.replace("http://", "https://")
        with Client(url, KEY, patience_s=0.1) as client, pytest.raises(Unreachable, match="TLS failed"):
            client.get_workspace()


def test_retries_print_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    with served(AWAY, Answer(200, SESSION)) as (client, received):
        client.get_session("ses_1")
    assert len(received) == 2
    assert capfd.readouterr() == ("", "")
