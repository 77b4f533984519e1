"""Attempts from claim to result, under a clock that the test turns. Spec §6.3, contract §6."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

import pytest
from sqlmodel import delete, update

from recorder import clock
from recorder.access.workspaces import create_workspace
from recorder.audit.log import Origin
from recorder.errors import NotFound
from recorder.ids import new_id
from recorder.models.operations import OutboxRow
from recorder.models.recovery import RecoveryRow
from recorder.models.replay import ReplayRow
from recorder.models.session import SessionRow
from recorder.models.webhook import DeliveryRow, WebhookSecretRow, WebhookUpdate
from recorder.models.workspace import WorkspaceRow
from recorder.net.outbound_client import OutboundExchange
from recorder.storage.database import Database
from recorder.tenant import Tenant
from recorder.webhooks.deliveries import find_delivery, list_deliveries, redeliver
from recorder.webhooks.delivery_attempts import (
    LEASE_MS,
    DeliveryClaim,
    DeliveryResult,
    claim_delivery_attempts,
    list_due_queues,
    settle_delivery_attempts,
)
from recorder.webhooks.delivery_scheduling import MAX_ATTEMPTS, WAITS_S, DeliverySchedule
from recorder.webhooks.dispatcher import OutboxDispatcher
from recorder.webhooks.signing import verify_signature
from recorder.webhooks.subscriptions import (
    WebhookSecretBox,
    delete_webhook,
    rotate_webhook_secret,
    update_webhook,
)
from tests.support.delivery_loop import BOX, attempts, make_webhook, put_event

URL = "http://127.0.0.1:9/hooks"
SENT = OutboundExchange(status=204)
REFUSED = OutboundExchange(status=500, body=b"no", duration_ms=7)


@dataclass
class Desk:
    """A webhook of a workspace of its own, and a worker whose clock does not advance."""

    database: Database
    workspace_id: str
    webhook_id: str
    secret: str
    now: datetime = field(default_factory=clock.now)

    def put(self, count: int = 1, *, subject_id: str | None = None) -> list[str]:
        """Store and dispatch events; return their ids."""
        members = {"workspace_id": self.workspace_id, "subject_id": subject_id}
        ids = [put_event(self.database, **members) for _ in range(count)]
        with self.database.transaction(write=True) as db:
            while OutboxDispatcher().dispatch(db):
                pass
        self.now = max(self.now, clock.now())
        return ids

    def claim(self, count: int = 10, *, box: WebhookSecretBox = BOX) -> list[DeliveryClaim]:
        """Return the attempts of this webhook that a worker claims now."""
        with self.database.transaction(write=True) as db:
            queues = list_due_queues(db, now_ms=clock.to_ms(self.now))
            wanted = {queue.webhook_id: count for queue in queues if queue.webhook_id == self.webhook_id}
            return claim_delivery_attempts(db, box, DeliverySchedule(), wanted, now=self.now).claims

    def settle(self, claims: Sequence[DeliveryClaim], exchange: OutboundExchange) -> None:
        """Write down the same result for all of them."""
        outcomes = [DeliveryResult(claim.id, claim.begun_ms, exchange) for claim in claims]
        with self.database.transaction(write=True) as db:
            settle_delivery_attempts(db, DeliverySchedule(), outcomes, now=self.now)

    def wait(self, seconds: float) -> None:
        """Turn the clock."""
        self.now += timedelta(seconds=seconds)

    def rows(self) -> list[DeliveryRow]:
        """Return all records, oldest first."""
        return attempts(self.database, self.webhook_id)

    @property
    def origin(self) -> Origin:
        """Origin of the changes."""
        return Origin.system(self.workspace_id, "tests")


@pytest.fixture
def desk(database: Database) -> Desk:
    """Return a webhook of its own for each test."""
    with database.transaction(write=True) as db:
        workspace_id = create_workspace(db, new_id("wsp"), region="us", secret=b"tests").workspace_id
    webhook = make_webhook(database, URL, workspace_id=workspace_id, events=("session.created",))
    assert webhook.secret is not None
    return Desk(database, workspace_id, webhook.id, webhook.secret)


def told(rows: Sequence[DeliveryRow]) -> list[tuple[int, str]]:
    """Return the number and status of attempts."""
    return [(row.attempt, row.status) for row in rows]


def test_a_success_ends_it(desk: Desk) -> None:
    desk.put()
    desk.settle(desk.claim(), SENT)
    desk.wait(86_400)
    assert (told(desk.rows()), desk.claim()) == ([(1, "succeeded")], [])


def test_a_failure_is_attempted_again_after_the_waits_of_the_specification(desk: Desk) -> None:
    desk.put()
    for wait_s in WAITS_S[: MAX_ATTEMPTS - 1]:
        desk.settle(desk.claim(), REFUSED)
        planned = desk.rows()[-2].next_attempt_at
        assert planned is not None
        assert wait_s <= (planned - desk.now).total_seconds() <= wait_s * 1.1
        desk.wait(wait_s - 0.001)
        assert desk.claim() == []
        desk.wait(wait_s * 0.1 + 0.002)
    desk.settle(desk.claim(), REFUSED)
    desk.wait(10**6)
    assert told(desk.rows()) == [*((n, "failed") for n in range(1, 7)), (7, "exhausted")]
    assert (desk.claim(), desk.rows()[-1].next_attempt_at) == ([], None)


def test_deliveries_that_fail_for_the_last_time_are_logged_once_an_hour(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.put(3)
    for wait_s in (*WAITS_S[: MAX_ATTEMPTS - 1], 0.0):
        desk.settle(desk.claim(), REFUSED)
        desk.wait(wait_s * 1.1 + 0.001)
    assert [row.status for row in desk.rows()].count("exhausted") == 3
    assert count_log_lines(caplog, "a delivery failed for the last time") == 1


def count_log_lines(caplog: pytest.LogCaptureFixture, beginning: str) -> int:
    """Return the number of log lines with a beginning."""
    return sum(record.message.startswith(beginning) for record in caplog.records)


def test_every_attempt_has_an_id_of_its_own_and_the_same_body(desk: Desk) -> None:
    desk.put()
    [first] = desk.claim()
    desk.settle([first], REFUSED)
    desk.wait(10)
    [second] = desk.claim()
    assert (first.body, first.headers["webhook-id"]) == (second.body, second.headers["webhook-id"])
    assert first.headers["Service-Delivery-Id"] == first.id != second.id
    assert first.headers["Service-Signature"] != second.headers["Service-Signature"]


def test_the_oldest_goes_first(desk: Desk) -> None:
    ids = desk.put(5)
    claims = [claim for _ in range(3) for claim in desk.claim(2)]
    events = {row.id: row.event_id for row in desk.rows()}
    assert [events[claim.id] for claim in claims] == ids


def test_what_one_worker_claimed_no_other_does(desk: Desk) -> None:
    desk.put(3)
    assert len(desk.claim(2)) == 2
    assert len(desk.claim(2)) == 1
    assert desk.claim(2) == []
    assert told(desk.rows()) == [(1, "pending")] * 3


def test_what_is_due_later_is_not_claimed_with_what_is_due_now(desk: Desk) -> None:
    desk.put()
    desk.settle(desk.claim(), REFUSED)
    desk.put()
    assert len(desk.claim()) == 1
    desk.wait(10)
    assert len(desk.claim()) == 1


def test_an_attempt_whose_worker_died_counts_and_the_next_one_is_planned(desk: Desk) -> None:
    desk.put()
    [lost] = desk.claim()
    desk.wait(LEASE_MS / 1000 + 0.001)
    assert desk.claim() == []  # the wait of a failure comes first
    desk.wait(6)
    [next_one] = desk.claim()
    before, after = desk.rows()
    assert (before.id, before.status, before.error, before.response) == (lost.id, "failed", None, None)
    assert (after.id, after.attempt) == (next_one.id, 2)


def test_a_worker_that_is_killed_each_time_uses_up_seven_attempts_and_no_more(desk: Desk) -> None:
    desk.put()
    claims = []
    for _ in range(20):
        claims += desk.claim()
        desk.wait(86_400)
    assert len(claims) == len({claim.id for claim in claims}) == MAX_ATTEMPTS
    assert told(desk.rows())[-1] == (7, "exhausted")


def test_a_result_that_comes_after_the_lease_changes_nothing(desk: Desk) -> None:
    desk.put()
    late = desk.claim()
    desk.wait(LEASE_MS / 1000 + 1)
    desk.claim()
    desk.settle(late, SENT)
    assert told(desk.rows()) == [(1, "failed"), (2, "pending")]


def test_a_worker_that_was_replaced_does_not_settle_the_attempt_of_another(desk: Desk) -> None:
    desk.put()
    (claim,) = desk.claim()
    # The same record, claimed at another moment: by a worker whose claim was taken from it.
    stale = replace(claim, begun_ms=claim.begun_ms - 1)
    desk.settle([stale], SENT)
    assert told(desk.rows()) == [(1, "pending")]
    desk.settle([claim], SENT)
    assert told(desk.rows()) == [(1, "succeeded")]


def test_a_result_is_written_down_once(desk: Desk) -> None:
    desk.put()
    claims = desk.claim()
    desk.settle(claims, REFUSED)
    desk.settle(claims, REFUSED)
    assert told(desk.rows()) == [(1, "failed"), (2, "pending")]


def test_a_redelivery_sends_the_same_payload_on_a_schedule_of_its_own(desk: Desk) -> None:
    desk.put()
    [first] = desk.claim()
    desk.settle([first], SENT)
    with desk.database.transaction(write=True) as db:
        again = redeliver(
            db, Tenant(desk.origin.workspace_id, "live"), desk.origin, desk.webhook_id, first.id
        )
    desk.now = max(desk.now, clock.now())
    [second] = desk.claim()
    desk.settle([second], REFUSED)
    assert (second.id, second.body, again.redelivery_of) == (again.id, first.body, first.id)
    assert [(row.attempt, row.trigger, row.redelivery_of) for row in desk.rows()[1:]] == [
        (1, "manual", first.id),
        (2, "manual", first.id),
    ]


def test_after_a_rotation_both_secrets_sign_for_a_day(desk: Desk) -> None:
    with desk.database.transaction(write=True) as db:
        fresh = rotate_webhook_secret(
            db, BOX, Tenant(desk.origin.workspace_id, "live"), desk.origin, desk.webhook_id
        ).secret
    assert fresh is not None and fresh != desk.secret
    desk.put(2)
    [claim] = desk.claim(1)
    signature, at = claim.headers["Service-Signature"], desk.now.timestamp()
    assert all(verify_signature(claim.body, signature, item, now=at) for item in (fresh, desk.secret))
    desk.wait(24 * 3600 + 1)
    [later] = [delivery for delivery in desk.claim() if delivery.body != claim.body]
    signature, at = later.headers["Service-Signature"], desk.now.timestamp()
    assert verify_signature(later.body, signature, fresh, now=at)
    assert not verify_signature(later.body, signature, desk.secret, now=at)


def test_several_rotations_within_a_day_leave_all_secrets_valid(desk: Desk) -> None:
    secrets = [desk.secret]
    for _ in range(3):
        with desk.database.transaction(write=True) as db:
            secrets.append(
                rotate_webhook_secret(
                    db, BOX, Tenant(desk.origin.workspace_id, "live"), desk.origin, desk.webhook_id
                ).secret
                or ""
            )
    desk.put()
    [claim] = desk.claim()
    signature, at = claim.headers["Service-Signature"], desk.now.timestamp()
    assert signature.count("v1=") == len(claim.headers["webhook-signature"].split()) == 4
    assert all(verify_signature(claim.body, signature, secret, now=at) for secret in secrets)


def test_secrets_are_kept_encrypted(desk: Desk) -> None:
    with desk.database.transaction(write=False) as db:
        row = db.get_one(WebhookSecretRow, (desk.webhook_id, 1))
    assert desk.secret.encode() not in row.ciphertext
    assert (BOX.decrypt_secret(row), row.key_id) == (desk.secret, BOX.key_id)


def test_a_secret_opens_for_its_own_webhook_alone(desk: Desk) -> None:
    with desk.database.transaction(write=False) as db:
        row = db.get_one(WebhookSecretRow, (desk.webhook_id, 1))
    moved = WebhookSecretRow(**{**row.model_dump(), "webhook_id": "whk_other"})
    assert BOX.decrypt_secret(moved) is None


def test_what_cannot_be_signed_waits_and_uses_up_no_attempt(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    desk.put()
    for _ in range(3):
        assert desk.claim(box=WebhookSecretBox(b"another deployment secret")) == []
    assert count_log_lines(caplog, "a webhook's secret cannot be read") == 1
    assert told(desk.rows()) == [(1, "pending")]
    assert len(desk.claim()) == 1


@pytest.mark.parametrize("status", ["suspended", "expired"])
def test_a_disabled_workspace_keeps_its_deliveries_until_it_is_active_again(desk: Desk, status: str) -> None:
    def put_status(status: str) -> None:
        with desk.database.transaction(write=True) as db:
            db.exec(update(WorkspaceRow).filter_by(id=desk.workspace_id).values(status=status))

    desk.put()
    put_status(status)
    assert desk.claim() == []
    put_status("active")
    assert len(desk.claim()) == 1


def test_nothing_more_is_planned_for_a_webhook_that_was_deleted_meanwhile(desk: Desk) -> None:
    desk.put(2)
    [claim] = desk.claim(1)
    with desk.database.transaction(write=True) as db:
        delete_webhook(db, Tenant(desk.origin.workspace_id, "live"), desk.origin, desk.webhook_id)
    desk.settle([claim], REFUSED)
    desk.wait(10)
    assert (told(desk.rows()), desk.claim()) == ([(1, "pending")] * 2, [])


def test_a_record_shows_the_url_that_its_attempt_was_sent_to(desk: Desk) -> None:
    desk.put()
    [claim] = desk.claim()
    tenant, change = Tenant(desk.workspace_id, "live"), WebhookUpdate(url=f"{URL}/moved")
    with desk.database.transaction(write=True) as db:
        update_webhook(db, tenant, desk.origin, desk.webhook_id, change)
    desk.settle([claim], REFUSED)
    with desk.database.transaction(write=False) as db:
        page = list_deliveries(db, tenant, desk.webhook_id, before_id=None, limit=10)
    assert [(each.status, each.request.url) for each in page.items] == [
        ("pending", f"{URL}/moved"),
        ("failed", URL),
    ]
    desk.wait(10)
    [claim] = desk.claim()
    with desk.database.transaction(write=False) as db:
        assert find_delivery(db, tenant, desk.webhook_id, claim.id).request.url == f"{URL}/moved"


def test_an_erased_event_is_not_sent(desk: Desk) -> None:
    [erased, kept] = desk.put(2)
    with desk.database.transaction(write=True) as db:
        db.exec(delete(OutboxRow).filter_by(id=erased))
    [claim] = desk.claim()
    assert [row.event_id for row in desk.rows()] == [kept]
    assert erased.encode() not in claim.body


def add_subject(desk: Desk, kind: str) -> tuple[str, str]:
    """Add a session, and a replay or recovery of it; return the ids of the subject and of the session."""
    session_id, subject_id = new_id("ses"), new_id({"session": "ses", "recovery": "rcv"}.get(kind, "rpl"))
    common = {"workspace_id": desk.workspace_id, "mode": "live", "workflow": "w", "created_at": desk.now}
    of_replay = {"sandbox": "dry", "kind": "full", "spec": {}, "input_names": [], "decisions": {}}
    of_replay |= {"session_id": session_id, "status": "completed"}
    match kind:
        case "replay":
            row = ReplayRow(**common | of_replay, id=subject_id)
        case "replay against it":
            other = {"session_id": new_id("ses"), "against_session_id": session_id}
            row = ReplayRow(**common | of_replay | other, id=subject_id)
        case "recovery":
            members = {"session_id": session_id, "failed_at_ms": 0, "sandbox": "dry", "status": "failed"}
            row = RecoveryRow(**common | members, id=subject_id, replay_ids=[])
        case _:
            row, subject_id = None, session_id
    with desk.database.transaction(write=True) as db:
        db.add_all([SessionRow(**common, id=session_id, status="sealed"), *([row] if row else [])])
    return subject_id, session_id


@pytest.mark.parametrize("kind", ["session", "replay", "replay against it", "recovery"])
def test_nothing_about_a_deleted_session_is_shown_or_sent(desk: Desk, kind: str) -> None:
    subject_id, session_id = add_subject(desk, kind)
    desk.put()
    desk.put(subject_id=subject_id)
    kept, hidden = desk.claim()
    desk.settle([kept, hidden], REFUSED)
    tenant = Tenant(desk.workspace_id, "live")

    def list_ids() -> set[str]:
        with desk.database.transaction(write=False) as db:
            page = list_deliveries(db, tenant, desk.webhook_id, before_id=None, limit=100)
        return {delivery.event_id for delivery in page.items}

    assert len(list_ids()) == 2
    with desk.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id).deleted_at = desk.now
    assert list_ids() == {kept.headers["webhook-id"]}
    with desk.database.transaction(write=True) as db:
        for find in (find_delivery, partial(redeliver, origin=desk.origin)):
            with pytest.raises(NotFound):
                find(db, tenant=tenant, webhook_id=desk.webhook_id, delivery_id=hidden.id)
    desk.wait(10)
    assert [claim.headers["webhook-id"] for claim in desk.claim()] == [kept.headers["webhook-id"]]


def test_a_page_ends_after_many_records_of_deleted_sessions(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.webhooks.deliveries.SCANNED_RECORDS", 3)
    subject_id, session_id = add_subject(desk, "session")
    kept = desk.put(2)
    for _ in range(4):
        desk.put(subject_id=subject_id)
    with desk.database.transaction(write=True) as db:
        db.get_one(SessionRow, session_id).deleted_at = desk.now
    tenant = Tenant(desk.workspace_id, "live")
    with desk.database.transaction(write=False) as db:
        fetch = partial(list_deliveries, db, tenant, desk.webhook_id, limit=100)
        pages = [page := fetch(before_id=None)]
        while page.position is not None:
            pages.append(page := fetch(before_id=page.position))
    assert [[delivery.event_id for delivery in page.items] for page in pages] == [[], kept[::-1], []]


RESPONSES = {
    "text": (b"caf\xc3\xa9", "café", False),
    "no UTF-8": (b"\xff\xfea", "\ufffd\ufffda", False),
    "NUL": (b"a\0b", "a\ufffdb", False),
    "grown past its length": (b"\xff" * 4_096, "\ufffd" * 1_365, True),
    "cut off": (b"a" * 4_096, "a" * 4_096, True),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_is_kept_as_text(desk: Desk, name: str) -> None:
    body, text, is_truncated = RESPONSES[name]
    desk.put()
    [claim] = desk.claim()
    exchange = OutboundExchange(
        status=200, headers={"a": "b"}, body=body, duration_ms=12, body_truncated=name == "cut off"
    )
    desk.settle([claim], exchange)
    with desk.database.transaction(write=False) as db:
        result = find_delivery(db, Tenant(desk.workspace_id, "live"), desk.webhook_id, claim.id)
    assert result.response is not None
    assert (result.response.body, result.response.body_truncated) == (text, is_truncated)
    assert (result.response.headers, result.duration_ms, result.request.headers) == (
        {"a": "b"},
        12,
        claim.headers,
    )
