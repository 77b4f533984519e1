"""Slots of sealing lanes: which workflows of a workspace and mode are sealed in one order. Design §3."""

import hashlib

from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import limits
from recorder.errors import Conflict
from recorder.models.workspace import DeploymentRow


class SlotsDiffer(Conflict):
    """The setting names another number of slots than the database was divided into."""

    code = "slots_differ"

    def __init__(self, stored: int) -> None:
        super().__init__(
            f"This deployment has {stored} sealing slots. Set RECORDER_SEAL_SLOTS to {stored}, or stop the "
            "service and run `recorder db reslot` to change them."
        )


def slot_of(workflow: str, slots: int) -> int:
    """Return the slot of a workflow, 0 to `slots` - 1."""
    return int.from_bytes(hashlib.sha256(workflow.encode()).digest()[:4], "big") % slots


def read_slots(db: DbSession) -> int:
    """Return the number of slots of this deployment; it stays so until the transaction ends."""
    statement = select(DeploymentRow).where(DeploymentRow.id == 1)
    row = db.exec(statement.with_for_update(read=True, key_share=True)).one_or_none()
    return limits.SEAL_SLOTS if row is None else row.seal_slots
