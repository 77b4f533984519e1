"""Outcome marks of a stored session: read from its tags and events, applied to its row. Contract §2."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchRow
from recorder.models.session import SessionRow, TagRow
from recorder.models.workflow import WorkflowRow
from recorder.recording.outcomes import OutcomeMark, OutcomeRules, last_outcome_mark, outcome_of_mark
from recorder.recording.stored_events import decode_event_heads, decompress_stored_events

log = logging.getLogger("recorder.recording")

# Rows of batches held at once.
_PAYLOADS = 16


@dataclass(frozen=True)
class OutcomeMarkSearch:
    """Result of a search for outcome marks in the hot events of a session, up to a position."""

    rules: OutcomeRules
    last_position: int
    mark: OutcomeMark | None


def search_outcome_marks(
    db: DbSession, row: SessionRow, earlier: OutcomeMarkSearch | None = None
) -> OutcomeMarkSearch:
    """Search the hot events of a session for outcome marks.

    Decodes every batch whose bytes name such a type: a large session takes seconds. Search before the
    transaction that stops the session, and again inside it for what came since.

    Args:
        db: a transaction.
        row: the session.
        earlier: an earlier search; only batches after it are read, unless the rules changed.
    """
    rules = read_outcome_detection_rules(db, row)
    if earlier is None or earlier.rules != rules:
        earlier = OutcomeMarkSearch(rules, -1, None)
    last_position, mark = earlier.last_position, earlier.mark
    for first_position, marks in _detect_event_marks(db, row.id, rules, earlier.last_position):
        last_position = max(last_position, first_position)
        mark = last_outcome_mark([*marks, mark] if mark is not None else marks)
    return OutcomeMarkSearch(rules, last_position, mark)


def rederive_outcome(
    db: DbSession, row: SessionRow, *, search: OutcomeMarkSearch | None = None
) -> OutcomeMark | None:
    """Set `outcome` from the last mark among tags and events.

    Args:
        db: a transaction.
        row: the session.
        search: what the events say; it is kept, so that a late tag need not read the lake. None: what was
            kept before serves.

    Returns:
        The mark, where the outcome is an error that was not reported before.
    """
    if search is not None:
        event_mark = search.mark
        row.event_mark = (
            None if event_mark is None else {**event_mark.as_json(), "outcome": event_mark.outcome}
        )
    tag_mark = _find_last_tag_mark(db, row.id, read_outcome_detection_rules(db, row))
    stored_mark = None if row.event_mark is None else OutcomeMark(**row.event_mark)
    mark = last_outcome_mark(each for each in (tag_mark, stored_mark) if each is not None)
    row.outcome = outcome_of_mark(mark)
    db.add(row)
    if mark is None or mark.outcome != "error" or row.has_error_event:
        return None
    row.has_error_event = True
    return mark


def read_outcome_detection_rules(db: DbSession, row: SessionRow) -> OutcomeRules:
    """Return the outcome rules of a session's workflow."""
    workflow = db.get(WorkflowRow, (row.workspace_id, row.mode, row.workflow))
    return OutcomeRules.of(workflow.outcome_rules if workflow else None)


def _find_last_tag_mark(db: DbSession, session_id: str, rules: OutcomeRules) -> OutcomeMark | None:
    """Return the last tag of a session that marks an outcome, by one row of an index that holds the names."""
    tag = TagRow
    marking = (tag.session_id == session_id, col(tag.name).in_(sorted(rules.tag_names)))
    statement = select(tag.t_ms, tag.id, tag.name).where(*marking)
    last = db.exec(statement.order_by(col(tag.t_ms).desc(), col(tag.id).desc()).limit(1)).first()
    if last is None:
        return None
    t_ms, tag_id, name = last
    outcome = rules.of_tag(name)
    assert outcome is not None
    return OutcomeMark(t_ms, tag_id, outcome, "tag", name)


def _detect_event_marks(
    db: DbSession, session_id: str, rules: OutcomeRules, after_position: int
) -> Iterator[tuple[int, list[OutcomeMark]]]:
    """Yield the position and the marks of each batch; only those whose bytes name such a type are decoded."""
    names = [f'"{type}"'.encode() for type in rules.event_types]
    batch = EventBatchRow
    statement = select(batch.first_position, batch.first_id, batch.payload).where(
        batch.session_id == session_id, col(batch.first_position) > after_position
    )
    with closing(db.execute(statement.execution_options(yield_per=_PAYLOADS))) as batches:
        for first_position, first_id, payload in batches:
            try:
                marks = list(_detect_batch_marks(payload, first_id, rules, names))
            except Exception as error:
                # The session can be stopped all the same: sealing finds the damage and sets it aside.
                log.error("a batch of session %s cannot be read (%s)", session_id, type(error).__name__)
                marks = []
            yield first_position, marks


def _detect_batch_marks(
    payload: bytes, first_id: str, rules: OutcomeRules, names: list[bytes]
) -> Iterator[OutcomeMark]:
    """Yield the outcome marks of a stored event batch: events whose type decides the outcome."""
    body = decompress_stored_events(payload)
    # A type may be spelled with escapes too.
    if b"\\u" not in body and not any(name in body for name in names):
        return
    for head, event_id in decode_event_heads(body, first_id):
        outcome = rules.of_event(head.type)
        if outcome:
            yield OutcomeMark(head.t_ms, event_id, outcome, "event", head.type)
