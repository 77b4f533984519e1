"""Outcome marks of a stored session: read from its tags and events, applied to its row. Contract §2."""

from collections.abc import Iterator
from contextlib import closing

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.models.event import EventBatchRow
from recorder.models.session import SessionRow
from recorder.models.tag import TagRow
from recorder.models.workflow import WorkflowRow
from recorder.recording.hot_events import decode_heads, decompress
from recorder.recording.outcomes import Mark, OutcomeRules, last_mark, outcome_of

# Rows of batches held at once.
_PAYLOADS = 16


def rederive_outcome(db: DbSession, row: SessionRow, *, search_events: bool = False) -> Mark | None:
    """Set `outcome` from the last mark among tags and events.

    Args:
        search_events: look through the hot batches and keep what they say; afterwards the kept mark serves,
            so that a late tag need not read the lake.

    Returns:
        The mark, where the outcome is an error that was not reported before.
    """
    rules = read_rules(db, row)
    if search_events:
        found = last_mark(_event_marks(db, row.id, rules))
        row.event_mark = None if found is None else {**found.as_json(), "outcome": found.outcome}
    marks = _tag_marks(db, row.id, rules)
    if row.event_mark is not None:
        marks.append(Mark(**row.event_mark))
    mark = last_mark(marks)
    row.outcome = outcome_of(mark)
    db.add(row)
    if mark is None or mark.outcome != "error" or row.has_error_event:
        return None
    row.has_error_event = True
    return mark


def read_rules(db: DbSession, row: SessionRow) -> OutcomeRules:
    """The outcome rules of a session's workflow."""
    workflow = db.get(WorkflowRow, (row.workspace_id, row.mode, row.workflow))
    return OutcomeRules.of(workflow.outcome_rules if workflow else None)


def _tag_marks(db: DbSession, session_id: str, rules: OutcomeRules) -> list[Mark]:
    tags = db.exec(select(TagRow).where(col(TagRow.session_id) == session_id))
    outcomes = ((tag, rules.of_tag(tag.name)) for tag in tags)
    return [Mark(tag.t_ms, tag.id, outcome, "tag", tag.name) for tag, outcome in outcomes if outcome]


def _event_marks(db: DbSession, session_id: str, rules: OutcomeRules) -> Iterator[Mark]:
    """Marks among the hot events; only batches whose bytes name such a type are decoded, one at a time."""
    names = [f'"{type}"'.encode() for type in rules.event_types]
    statement = select(EventBatchRow.first_id, EventBatchRow.payload).where(
        EventBatchRow.session_id == session_id
    )
    with closing(db.execute(statement.execution_options(yield_per=_PAYLOADS))) as batches:
        for first_id, payload in batches:
            body = decompress(payload)
            # A type may be spelled with escapes too.
            if b"\\u" not in body and not any(name in body for name in names):
                continue
            for head, event_id in decode_heads(body, first_id):
                outcome = rules.of_event(head.type)
                if outcome:
                    yield Mark(head.t_ms, event_id, outcome, "event", head.type)
