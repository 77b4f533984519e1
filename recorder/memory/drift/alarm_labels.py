"""Labels in drift alarms and their events, after a purge of sessions that gave nodes a text. Contract §4, §7.

An alarm keeps labels as they were. A text that too few of the remaining sessions share is removed from them:
the label is then the action and kind of element, as that of any node without a shared text.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import func
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select, update

from recorder.memory.graph.node_labels import MIN_ACTORS, MIN_SESSIONS
from recorder.memory.steps.action_tokens import text_template_of
from recorder.memory.steps.step_labels import make_step_label
from recorder.memory.storage.versions import in_scope
from recorder.models.drift import DriftAlarmRow
from recorder.models.memory import GraphLabelRow, GraphNodeRow
from recorder.models.operations import IdempotencyRow, OutboxRow
from recorder.models.webhook import DeliveryRow
from recorder.tenant import GraphScope
from recorder.webhooks.outbox import encode_outbox_event


def replace_unshared_alarm_labels(
    db: DbSession, scope: GraphScope, session_ids: Collection[str], *, unnamed: Collection[str] = ()
) -> int:
    """Replace labels in a graph's alarms whose texts too few of the remaining sessions share.

    Call it before the texts of these sessions are deleted.

    Args:
        db: a write transaction.
        scope: the graph.
        session_ids: the sessions that leave the graph.
        unnamed: ids of nodes whose names were removed.

    Returns:
        The number of alarms that changed.
    """
    statement = select(DriftAlarmRow).where(*in_scope(DriftAlarmRow, scope)).with_for_update()
    alarms = db.exec(statement.order_by(col(DriftAlarmRow.event_id))).all()
    shown = {text_template_of(label) for alarm in alarms for label in _list_labels(alarm.data)}
    texts = _find_unshared_alarm_texts(db, scope, session_ids, shown) if shown else set()
    changed = 0
    for alarm in alarms if texts or unnamed else ():
        data = _replace_labels(db, scope, alarm.data, texts, unnamed)
        if data == alarm.data:
            continue
        alarm.data = data
        db.add(alarm)
        _replace_alarm_event(db, alarm.event_id, data)
        changed += 1
    return changed


def _list_labels(data: dict[str, Any]) -> list[str]:
    """Return the labels in the data of an alarm."""
    return list(data["path"]["labels"]) if "path" in data else [data["node"]["label"]]


def _find_unshared_alarm_texts(
    db: DbSession, scope: GraphScope, session_ids: Collection[str], shown: Collection[str]
) -> set[str]:
    """Return the texts of sessions, as templates, that alarms show and too few others give to any node.

    All texts of the graph are read only where an alarm shows one of these sessions, so that most deletions
    hold the database as briefly as without alarms.
    """
    label = GraphLabelRow
    given = select(label.text).where(*in_scope(label, scope), col(label.session_id).in_(session_ids))
    sent = {text_template_of(text) for text in db.exec(given)}
    templates = {template for template in sent if any(template in label for label in shown)}
    if not templates:
        return set()
    others = (*in_scope(label, scope), col(label.session_id).not_in(session_ids))
    actors = db.exec(select(func.count(func.distinct(label.actor))).where(*others)).one()
    sessions_by_text: dict[str, set[str]] = {template: set() for template in templates}
    actors_by_text: dict[str, set[int]] = {template: set() for template in templates}
    for text, other_id, actor in db.exec(select(label.text, label.session_id, label.actor).where(*others)):
        template = text_template_of(text)
        if template in templates:
            sessions_by_text[template].add(other_id)
            actors_by_text[template].add(actor)
    return {
        template
        for template in templates
        if len(sessions_by_text[template]) < MIN_SESSIONS
        or len(actors_by_text[template]) < min(actors, MIN_ACTORS)
    }


def _replace_labels(
    db: DbSession, scope: GraphScope, data: dict[str, Any], texts: Collection[str], unnamed: Collection[str]
) -> dict[str, Any]:
    """Return the data of an alarm without labels that hold one of the texts, and those of unnamed nodes."""

    def replace(node_id: str, label: str) -> str:
        shown = text_template_of(label)
        is_gone = node_id in unnamed or any(text in shown for text in texts)
        return _read_bare_label(db, scope, node_id) if is_gone else label

    if "path" in data:
        path = data["path"]
        labels = [
            replace(node_id, label) for node_id, label in zip(path["node_ids"], path["labels"], strict=True)
        ]
        return {**data, "path": {**path, "labels": labels}}
    node = data["node"]
    return {**data, "node": {**node, "label": replace(node["node_id"], node["label"])}}


def _read_bare_label(db: DbSession, scope: GraphScope, node_id: str) -> str:
    """Return the label of a node without any text of a page; empty for a node that no longer exists."""
    columns = select(GraphNodeRow.label, GraphNodeRow.kind).where(*in_scope(GraphNodeRow, scope))
    row = db.exec(columns.where(GraphNodeRow.node_id == node_id)).first()
    return "" if row is None else row[0] or make_step_label(row[1], "")


def _replace_alarm_event(db: DbSession, event_id: str, data: dict[str, Any]) -> None:
    """Replace the data of an event, and remove answers that repeat it: of receivers, and to redeliveries."""
    locked = select(OutboxRow).where(OutboxRow.id == event_id).with_for_update()
    event = db.exec(locked.execution_options(populate_existing=True)).first()
    if event is None:
        return
    event.data = data
    if event.body is not None:
        event.body = encode_outbox_event(event)
    db.add(event)
    db.exec(delete(IdempotencyRow).where(col(IdempotencyRow.resource_id) == event_id))
    answered = (DeliveryRow.event_id == event_id, col(DeliveryRow.response).is_not(None))
    attempts = select(DeliveryRow.id).where(*answered).order_by(col(DeliveryRow.id)).with_for_update()
    ids = list(db.exec(attempts))
    db.exec(update(DeliveryRow).where(col(DeliveryRow.id).in_(ids)).values(response=None))
