"""Changing the number of sealing slots of a deployment. Design §3."""

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import Conflict
from recorder.models.operations import SealCounterRow
from recorder.models.session import SessionRow
from recorder.models.workspace import DeploymentRow
from recorder.sealing.batches import open_batches
from recorder.sealing.lanes import held_lanes
from recorder.storage.slots import slot_of


class LanesOpen(Conflict):
    """A lane is being worked on, or a batch of it is open."""

    code = "lanes_open"

    def __init__(self) -> None:
        super().__init__(
            "The slots cannot be changed while a batch is open. Let the service run until all stopped "
            "sessions are sealed, stop it, and try again."
        )


def change_slots(db: DbSession, slots: int) -> int:
    """Divide the workflows of each workspace and mode into another number of slots.

    The numbers of the new lanes go on above those of all old lanes of their workspace and mode, so that
    `seal_seq` rises within a workflow and the lake takes each batch.

    Returns:
        The number of slots before.

    Raises:
        LanesOpen: if a run works on a lane, or a batch is open.
    """
    deployment = db.get_one(DeploymentRow, 1, with_for_update=True)
    if held_lanes(db) or open_batches(db, limit=1):
        raise LanesOpen
    before, deployment.seal_slots = deployment.seal_slots, slots
    db.add(deployment)
    counters = list(db.exec(select(SealCounterRow)))
    for place in {(counter.workspace_id, counter.mode) for counter in counters}:
        own = [counter for counter in counters if (counter.workspace_id, counter.mode) == place]
        batch_number = max(counter.batch_number for counter in own)
        seal_seq = max(counter.seal_seq for counter in own)
        for counter in own:
            db.delete(counter)
        db.flush()
        for slot in range(slots):
            fresh = SealCounterRow(
                workspace_id=place[0], mode=place[1], slot=slot, batch_number=batch_number, seal_seq=seal_seq
            )
            db.add(fresh)
    for row in db.exec(select(SessionRow).where(col(SessionRow.waiting_since).is_not(None))):
        row.seal_slot = slot_of(row.workflow, slots)
        db.add(row)
    return before
