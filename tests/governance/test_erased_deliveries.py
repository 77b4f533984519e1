"""Erasures of persons whose events were delivered: copies of receivers are counted. Contract §7."""

from tests.governance.test_erasure import erase
from tests.support.completed_work import delivering, make_webhook
from tests.support.factories import Caller
from tests.support.purges import recorded_canary
from tests.support.waiting import wait_for
from tests.support.webhook_receiver import Answer, running_receiver
from tests.support.webhooks import count_undelivered

EVENTS = ["session.created", "session.sealed"]


def test_events_that_receivers_accepted_are_counted(caller: Caller) -> None:
    with (
        running_receiver(Answer(200)) as accepting,
        running_receiver(Answer(500)) as refusing,
        delivering(caller),
    ):
        for receiver in (accepting, refusing):
            make_webhook(caller, url=receiver.url, events=EVENTS)
        canary, other = recorded_canary(caller), recorded_canary(caller)
        wait_for(lambda: not count_undelivered(caller))
    # Attempts that a receiver refused count for nothing, however many there were.
    assert len(refusing.received) > len(accepting.received) == 4
    assert sum(canary.session_id.encode() in request.body for request in accepting.received) == 2
    erasure = erase(caller, canary.word)
    assert (erasure["status"], erasure["counts"]["sessions"]) == ("completed", 1)
    assert erasure["counts"]["deliveries"] == 2
    assert erase(caller, other.word)["counts"]["deliveries"] == 2


def test_each_receiver_of_an_event_counts(caller: Caller) -> None:
    with running_receiver(Answer(204)) as receiver, delivering(caller):
        for path in ("one", "two", "three"):
            make_webhook(caller, url=f"{receiver.url}/{path}", events=EVENTS)
        canary = recorded_canary(caller)
        wait_for(lambda: not count_undelivered(caller))
    assert len(receiver.received) == erase(caller, canary.word)["counts"]["deliveries"] == 6


def test_events_of_other_persons_and_waiting_ones_do_not_count(caller: Caller) -> None:
    with running_receiver(Answer(200)) as receiver, delivering(caller):
        make_webhook(caller, url=receiver.url, events=EVENTS)
        recorded_canary(caller)
        wait_for(lambda: not count_undelivered(caller))
    # Nothing delivers any more.
    canary = recorded_canary(caller)
    assert len(receiver.received) == 2
    assert erase(caller, canary.word)["counts"]["deliveries"] == 0
