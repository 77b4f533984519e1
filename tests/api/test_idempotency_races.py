"""Requests with one key that meet, in one process and in two: one is carried out. Contract §1, case 89."""

import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from starlette.testclient import TestClient

from api.app import create_app
from recorder.models.session import SessionRow
from tests.support.factories import Caller, Service, assert_problem
from tests.support.recorded_sessions import outbox_types
from tests.support.repeated_requests import CHECKOUT, REPLAYED, SESSIONS, assert_replayed, sessions_of


def at_once(act: Callable[[int], Any], count: int) -> list[Any]:
    """Return the results of an act that begins in many threads at once."""
    barrier = threading.Barrier(count)
    results: list[Any] = []

    def run(number: int) -> None:
        barrier.wait()
        results.append(act(number))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_forty_requests_with_one_key_make_one_session(caller: Caller) -> None:
    for number in range(3):
        answers = at_once(lambda _, key=f"k-{number}": caller.post(SESSIONS, CHECKOUT, key=key), 40)
        counts = Counter((item.headers.get(REPLAYED), item.json().get("code")) for item in answers)
        assert counts[None, None] == 1
        assert set(counts) <= {(None, None), ("true", None), (None, "idempotency_in_progress")}
        assert {item.headers["retry-after"] for item in answers if item.status_code == 409} <= {"1"}
        [answer] = {item.content for item in answers if item.status_code == 201}
        made = json.loads(answer)["id"]
        assert made in sessions_of(caller) and len(sessions_of(caller)) == number + 1
        assert outbox_types(caller.service.runtime, made) == ["session.created", "session.started"]


def test_keys_that_differ_do_not_wait_for_each_other(caller: Caller) -> None:
    answers = at_once(lambda number: caller.post(SESSIONS, CHECKOUT, key=f"k-{number % 10}"), 40)
    assert Counter(REPLAYED in answer.headers for answer in answers if answer.status_code == 201)[False] == 10
    assert len(sessions_of(caller)) == 10


@contextmanager
def held(caller: Caller, session_id: str) -> Iterator[None]:
    """Lock the session, so that requests that change it wait."""
    with caller.service.runtime.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id, with_for_update=True)
        yield


def running(service: Service) -> int:
    """Return the number of requests with a key that run in a process."""
    return len(service.app.state.running_keys._running)


def test_a_request_whose_first_still_runs_is_told_to_wait(caller: Caller) -> None:
    session_id = caller.make_session()
    address = f"{SESSIONS}/{session_id}/stop"
    answers: list[Any] = []
    first = threading.Thread(target=lambda: answers.append(caller.post(address, key="k")))
    with held(caller, session_id):
        first.start()
        while not running(caller.service):
            first.join(0.005)
        second = caller.post(address, key="k")
    first.join()
    assert_problem(second, 409, "idempotency_in_progress")
    assert second.headers["retry-after"] == "1"
    assert_replayed(answers[0], caller.post(address, key="k"))


def test_another_process_does_not_carry_it_out_too(caller: Caller) -> None:
    service, session_id = caller.service, caller.make_session()
    address = f"{SESSIONS}/{session_id}/stop"
    other_app = create_app(service.runtime.settings)
    answers: list[Any] = []
    with TestClient(other_app, raise_server_exceptions=False) as client:
        other = Caller(Service(other_app, client, other_app.state.runtime), caller.key)
        other.get(f"{SESSIONS}/{session_id}")
        acts = [
            threading.Thread(target=lambda item=instance: answers.append(item.post(address, key="k")))
            for instance in (caller, other)
        ]
        with held(caller, session_id):
            for act, item in zip(acts, (service, other.service), strict=True):
                act.start()
                while not running(item) and act.is_alive():
                    act.join(0.005)
                act.join(0.2)
        for act in acts:
            act.join()
        again = other.post(address, key="k")
    counts = Counter((answer.status_code, REPLAYED in answer.headers) for answer in answers)
    assert counts[200, False] == 1 and sum(counts.values()) == 2
    assert set(counts) <= {(200, False), (200, True), (409, False)}
    assert again.headers[REPLAYED] == "true"
    assert outbox_types(service.runtime, session_id).count("session.stopped") == 1
