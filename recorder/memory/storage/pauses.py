"""Pausing a memory graph: sessions sealed in between enter it neither now nor at a rebuild. Spec §4.2."""

from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder.memory.grouping.nodes import GraphScope
from recorder.memory.storage.versions import in_scope, place_of, read_head
from recorder.models.memory import GraphPauseRow
from recorder.models.operations import SealBatchRow, SealCounterRow
from recorder.models.workflow import WorkflowRow
from recorder.storage.deployment import read_slots, slot_of


def set_memory_graph(db: DbSession, scope: GraphScope, is_on: bool) -> None:
    """Pause or resume the graph of a workflow; a workflow that is so already stays as it is.

    The range of seal numbers is kept, since a rebuild must leave the same sessions out.
    """
    head = read_head(db, scope, lock=True)
    if head is None or head.memory_graph == is_on:
        return
    last_seq = _last_sealed(db, scope)
    if is_on:
        _end_pause(db, scope, last_seq)
    else:
        db.add(GraphPauseRow(**place_of(scope), from_seq=last_seq + 1, to_seq=None))
    db.execute(update(WorkflowRow).where(*in_scope(WorkflowRow, scope)).values(memory_graph=is_on))


def _last_sealed(db: DbSession, scope: GraphScope) -> int:
    """The last number whose session is sealed, read under the lock: what comes later heeds what is set now.

    A batch takes its numbers before it is sealed, so those of an open one have yet to come.
    """
    slot = slot_of(scope.workflow, read_slots(db))
    counter = db.get(SealCounterRow, (scope.workspace_id, scope.mode, slot), populate_existing=True)
    last_seq = 0 if counter is None else counter.seal_seq
    batch = SealBatchRow
    is_open = (
        batch.workspace_id == scope.workspace_id,
        batch.mode == scope.mode,
        batch.slot == slot,
        batch.state != "done",
    )
    firsts = db.exec(select(batch.first_seal_seq).where(*is_open))
    return min([last_seq, *(first - 1 for first in firsts)])


def _end_pause(db: DbSession, scope: GraphScope, last_seq: int) -> None:
    is_open = (*in_scope(GraphPauseRow, scope), col(GraphPauseRow.to_seq).is_(None))
    pause = db.exec(select(GraphPauseRow).where(*is_open)).one_or_none()
    if pause is None:
        return
    if pause.from_seq > last_seq:
        db.delete(pause)  # nothing was sealed meanwhile
        return
    pause.to_seq = last_seq
    db.add(pause)
