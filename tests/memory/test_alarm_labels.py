"""Labels of drift alarms and their events lose texts of sessions that left the graph. Contract §4, §7."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest
from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder.ids import new_id
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED, read_alarms, store_drift_alarm
from recorder.memory.storage.graph_session_removal import (
    are_names_current,
    find_unvisited_names,
    purge_sessions_from_graph,
)
from recorder.memory.storage.graph_store import remove_session_from_graph
from recorder.memory.storage.indexing import GraphIndexer
from recorder.memory.storage.versions import scope_columns
from recorder.models.memory import GraphNodeRow, GraphVariantRow
from recorder.models.operations import IdempotencyRow, OutboxRow
from recorder.models.session import SessionRow
from recorder.models.webhook import DeliveryRow
from recorder.storage.database import Database
from recorder.tenant import GraphScope
from recorder.webhooks.outbox import encode_outbox_event
from tests.support.databases import database
from tests.support.graph_sessions import START, make_row, make_scope, make_step
from tests.support.query_plans import noted_statements

__all__ = ["database"]

Removal = Callable[[DbSession, GraphScope, SessionRow], object]


@dataclass
class Alarmed:
    """A graph of which two alarms quote labels."""

    scope: GraphScope
    rows: list[SessionRow]
    path: OutboxRow
    node: OutboxRow


def add_sessions(database: Database, scope: GraphScope, names: Sequence[tuple[str, str]]) -> list[SessionRow]:
    """Take in sessions that go through two nodes, each with the names that it gives to them."""
    rows = [make_row(scope, seal_seq=number + 1) for number in range(len(names))]
    steps = {
        row.id: [
            replace(make_step(word, at), names=(name,))
            for at, (word, name) in enumerate(zip(("1a", "2b"), given, strict=True))
        ]
        for row, given in zip(rows, names, strict=True)
    }
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
    return rows


def add_alarms(database: Database, names: Sequence[tuple[str, str]]) -> Alarmed:
    """Record sessions, and alarms about their path and their last node, of which one was delivered."""
    with database.transaction(write=True) as db:
        scope = make_scope(db)
    rows = add_sessions(database, scope, names)
    with database.transaction(write=True) as db:
        nodes = {
            row.label: row.node_id
            for row in db.exec(select(GraphNodeRow).filter_by(workspace_id=scope.workspace_id))
        }
        first, last = nodes["Click a"], nodes["Click b"]
        path = {"path_id": "path_1", "node_ids": [first, last], "labels": ["Pay Ada 7", "Send"]}
        node = {"node_id": first, "label": "Pay Ada # (button)", "kind": "click"}
        events = [
            add_alarm(db, scope, PATH_DISAPPEARED, {"workflow": "checkout", "path": path}),
            add_alarm(db, scope, NEW_NODE, {"workflow": "checkout", "node": node}),
        ]
        events[0].body = encode_outbox_event(events[0])
        db.add(make_delivery(events[0]))
        db.add(make_kept_answer(events[0]))
    return Alarmed(scope, rows, *events)


def add_alarm(db: DbSession, scope: GraphScope, type: str, data: dict[str, Any]) -> OutboxRow:
    """Store an alarm with its event."""
    event = OutboxRow(
        id=new_id("evt"),
        workspace_id=scope.workspace_id,
        mode=scope.mode,
        type=type,
        subject_id="path_1",
        data=data,
        created_at=START,
    )
    db.add(event)
    store_drift_alarm(db, scope, event, 1)
    return event


def make_delivery(event: OutboxRow) -> DeliveryRow:
    """Return an attempt whose receiver sent the event back."""
    return DeliveryRow(
        id=new_id("dlv"),
        webhook_id="whk_1",
        event_id=event.id,
        event_type=event.type,
        status="succeeded",
        due_ms=0,
        response={"status": 200, "body": "Pay Ada 7"},
        created_at=START,
    )


def make_kept_answer(event: OutboxRow) -> IdempotencyRow:
    """Return the stored answer to a redelivery, which shows the event."""
    return IdempotencyRow(
        workspace_id=event.workspace_id,
        mode=event.mode,
        method="POST",
        path="/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver",
        key="k",
        body_digest=b"",
        answer=b"Pay Ada 7",
        resource_id=event.id,
        created_at=START,
    )


def purge(db: DbSession, scope: GraphScope, row: SessionRow) -> None:
    """Purge a session, as an erasure does."""
    purge_sessions_from_graph(db, scope, [row.id])


def delete(db: DbSession, scope: GraphScope, row: SessionRow) -> None:
    """Subtract a session, as a user's deletion does."""
    remove_session_from_graph(db, row)


@pytest.mark.parametrize("remove", [purge, delete])
def test_alarms_and_their_events_lose_a_text_that_sessions_no_longer_share(
    database: Database, remove: Removal
) -> None:
    names = [("Pay Ada 7", "Once"), *[("Pay Ada 7", "Send")] * 2, ("Other", "Send")]
    alarmed = add_alarms(database, names)
    with database.transaction(write=True) as db:
        remove(db, alarmed.scope, alarmed.rows[0])
    with database.transaction(write=False) as db:
        by_type = {alarm.type: alarm.data for alarm in read_alarms(db, alarmed.scope)}
        path_event, node_event = (db.get_one(OutboxRow, row.id) for row in (alarmed.path, alarmed.node))
        delivery = db.exec(select(DeliveryRow).filter_by(event_id=alarmed.path.id)).one()
        kept_answers = db.exec(select(IdempotencyRow).filter_by(resource_id=alarmed.path.id)).all()
    assert kept_answers == []
    assert by_type[PATH_DISAPPEARED]["path"]["labels"] == ["Click a", "Send"]
    assert by_type[NEW_NODE]["node"]["label"] == "Click a"
    assert (path_event.data, node_event.data) == (by_type[PATH_DISAPPEARED], by_type[NEW_NODE])
    assert path_event.body is not None and orjson.loads(path_event.body)["data"] == path_event.data
    assert node_event.body is None
    assert delivery.response is None


def test_alarms_lose_the_name_of_an_activity_that_no_remaining_session_visits(database: Database) -> None:
    with database.transaction(write=True) as db:
        scope = make_scope(db)
    rows = [make_row(scope, seal_seq=number) for number in (1, 2)]
    greet, close = (
        replace(make_step(word, at), action="activity", label=label, names=())
        for at, (word, label) in enumerate((("1a", "Greet Ada"), ("2b", "Close case")))
    )
    indexer, steps = GraphIndexer(), {rows[0].id: [greet, close], rows[1].id: [close]}
    with database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
        nodes = {
            node.label: node.node_id
            for node in db.exec(select(GraphNodeRow).filter_by(**scope_columns(scope)))
        }
        path = {"path_id": "path_1", "node_ids": list(nodes.values()), "labels": list(nodes)}
        add_alarm(db, scope, PATH_DISAPPEARED, {"workflow": "checkout", "path": path})
    for row, expected in zip(rows, ({"Activity", "Close case"}, {"Activity"}), strict=True):
        with database.transaction(write=True) as db:
            purge_sessions_from_graph(db, scope, [row.id])
        with database.transaction(write=False) as db:
            (alarm,) = read_alarms(db, scope)
            ids = db.exec(select(GraphNodeRow.node_id).filter_by(**scope_columns(scope))).all()
        assert set(alarm.data["path"]["labels"]) == expected
        assert set(ids) == set(nodes.values())


@pytest.mark.parametrize("between", ["nothing", "a session", "a purge"])
def test_names_that_were_read_before_the_transaction_are_those_of_its_time(
    database: Database, between: str
) -> None:
    with database.transaction(write=True) as db:
        scope = make_scope(db)
    rows = [make_row(scope, seal_seq=number) for number in (1, 2, 3)]
    greet = replace(make_step("1a", 0), action="activity", label="Greet Ada", names=())
    is_shared = between == "a purge"
    first, steps = rows[: 1 + is_shared], {row.id: [greet] for row in rows}
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, first, steps), first)
    with database.transaction(write=False) as db:
        names = find_unvisited_names(db, scope, [rows[0].id])
        assert bool(names.nodes) is not is_shared
    with database.transaction(write=True) as db:
        if between == "a session":
            indexer.commit(db, indexer.prepare(db, rows[2:], steps), rows[2:])
        elif between == "a purge":
            purge_sessions_from_graph(db, scope, [rows[1].id])
    with database.transaction(write=True) as db:
        assert are_names_current(db, scope, names) is not is_shared
        with noted_statements() as noted:
            purge_sessions_from_graph(db, scope, [rows[0].id], names)
        (label,) = db.exec(select(GraphNodeRow.label).filter_by(**scope_columns(scope)))
    assert label == ("Greet Ada" if between == "a session" else "")
    reads = [statement for statement, _ in noted if "FROM graph_variants" in statement]
    if not is_shared:
        # Those of newer sessions alone.
        assert [statement.count("version >") for statement in reads] == [1]


def test_a_node_that_was_merged_into_one_without_a_name_loses_its_own(database: Database) -> None:
    with database.transaction(write=True) as db:
        scope = make_scope(db)
    rows = [make_row(scope, seal_seq=number) for number in (1, 2)]
    steps = {
        row.id: [replace(make_step(word, 0), action="activity", label=label, names=())]
        for row, word, label in zip(rows, ("1a", "2b"), ("Greet Ada", "Greet Bob"), strict=True)
    }
    indexer = GraphIndexer()
    with database.transaction(write=True) as db:
        indexer.commit(db, indexer.prepare(db, rows, steps), rows)
    nodes = select(GraphNodeRow).filter_by(**scope_columns(scope)).order_by("number")
    with database.transaction(write=True) as db:
        purge_sessions_from_graph(db, scope, [rows[0].id])
        ada, bob = sorted(db.exec(nodes), key=lambda node: node.label)
        assert (ada.label, bob.label) == ("", "Greet Bob")
        # As an anchored rebuild merges them.
        bob.merged_into = ada.number
        for variant in db.exec(select(GraphVariantRow).filter_by(**scope_columns(scope))):
            variant.nodes = [ada.number for _ in variant.nodes]
            db.add(variant)
        db.add(bob)
    with database.transaction(write=True) as db:
        purge_sessions_from_graph(db, scope, [rows[1].id])
        assert [node.label for node in db.exec(nodes)] == ["", ""]


def test_alarms_keep_a_text_that_enough_other_sessions_share(database: Database) -> None:
    alarmed = add_alarms(database, [("Pay Ada 7", "Send")] * 3)
    other = add_sessions(database, alarmed.scope, [("Once", "Never")])[0]
    with database.transaction(write=True) as db:
        purge_sessions_from_graph(db, alarmed.scope, [other.id])
    with database.transaction(write=False) as db:
        data = [alarm.data for alarm in read_alarms(db, alarmed.scope)]
        delivery = db.exec(select(DeliveryRow).filter_by(event_id=alarmed.path.id)).one()
    assert sorted(map(repr, data)) == sorted(map(repr, [alarmed.path.data, alarmed.node.data]))
    assert delivery.response is not None
