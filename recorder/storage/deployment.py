"""Deployment record in the database: region, sealing slots, check of the secret. Spec §1; design §3.

The first start stores the region. A process of another region does not start, see `store_regions` for the
stores. The workflows of a workspace and mode are divided into slots; those of one slot are sealed in one
order.
"""

import hashlib
from datetime import datetime
from pathlib import Path

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.errors import Conflict
from recorder.hashing import compute_keyed_digest
from recorder.models.session import SessionRow
from recorder.models.workspace import DeploymentRow, WorkspaceRow
from recorder.setting_parsers import REGIONS, UnknownRegion
from recorder.settings import Settings
from recorder.storage.database import Database
from recorder.storage.upsert import insert_if_missing

#: Of the hex digits of a keyed hash.
_CHECK_CHARACTERS = 32


class SealingSlotsDiffer(Conflict):
    """The setting differs from the number of slots in the database."""

    code = "slots_differ"

    def __init__(self, stored: int) -> None:
        super().__init__(
            f"This deployment has {stored} sealing slots. Set RECORDER_SEAL_SLOTS to {stored}, or stop the "
            "service and run `recorder db reslot` to change them."
        )


def compute_sealing_slot(workflow: str, slots: int) -> int:
    """Return the slot of a workflow, 0 to `slots` - 1."""
    return int.from_bytes(hashlib.sha256(workflow.encode()).digest()[:4], "big") % slots


def read_sealing_slot_count(db: DbSession) -> int:
    """Return the number of slots of this deployment; it stays so until the transaction ends."""
    statement = select(DeploymentRow).where(DeploymentRow.id == 1)
    row = db.exec(statement.with_for_update(read=True, key_share=True)).one_or_none()
    return limits.SEAL_SLOTS if row is None else row.seal_slots


def queue_session_in_deployment_slot(db: DbSession, row: SessionRow, at: datetime) -> None:
    """Let a session wait to be sealed, in the lane of its workflow."""
    row.waiting_since, row.seal_slot = at, compute_sealing_slot(row.workflow, read_sealing_slot_count(db))
    db.add(row)


class WrongRegion(Conflict):
    """A store belongs to another region than the deployment."""

    code = "wrong_region"

    def __init__(self, what: str, *, stored: str, region: str) -> None:
        super().__init__(
            f"{what} belongs to the region {stored}, and RECORDER_REGION is {region}. Data stay in their "
            f"region: set RECORDER_REGION to {stored}, or choose stores of {region}."
        )


def check_deployment_record(settings: Settings, database: Database) -> None:
    """Check that the settings are those of the deployment's record, and store a new one.

    Raises:
        UnknownRegion: if the setting is no region.
        WrongRegion: if the database belongs to another region.
        SealingSlotsDiffer: if the setting names another number of sealing slots.
        Unavailable: if the database does not answer.
    """
    region, slots = settings.region, settings.seal_slots
    if region not in REGIONS:
        raise UnknownRegion
    with database.transaction(write=False) as db:
        marked = db.get(DeploymentRow, 1)
        # A database without the mark shows its region by its workspaces.
        foreign = select(WorkspaceRow.region).where(col(WorkspaceRow.region) != region)
        stored = db.exec(foreign.limit(1)).first() or (None if marked is None else marked.region)
    if marked is not None and slots not in (None, marked.seal_slots):
        raise SealingSlotsDiffer(marked.seal_slots)
    if stored is not None:
        check_deployment_region(stored, what="The database", region=region)
        return
    mark = {"id": 1, "region": region, "seal_slots": slots or limits.SEAL_SLOTS, "created_at": clock.now()}
    with database.transaction(write=True) as db:
        insert_if_missing(db, DeploymentRow, mark)
        # If two processes start for the first time at once, the region of the first one is stored.
        check_deployment_region(db.get_one(DeploymentRow, 1).region, what="The database", region=region)


class OtherSecret(Conflict):
    """The secret of this process is not the deployment's."""

    code = "secret_differs"

    def __init__(self, data: Path) -> None:
        super().__init__(
            "The secret is not the one with which this deployment was used: no API key would be valid, and "
            "no webhook secret readable. Set RECORDER_SECRET to the deployment's secret, or copy that to "
            f"{data / 'secret'}. If it is lost or was changed on purpose, stop the service and run "
            "`recorder db accept-secret`."
        )


def check_deployment_secret(settings: Settings, database: Database, *, store: bool) -> None:
    """Check that the secret of the settings is the deployment's.

    Args:
        settings: the deployment.
        database: its database, with the deployment's record.
        store: store the check of the secret where the record has none, or where no workspace depends on it.

    Raises:
        OtherSecret: if it is another one.
        Unavailable: if the database does not answer.
    """
    check = _compute_secret_check(settings.secret)
    with database.transaction(write=False) as db:
        stored = _read_secret_check(db)
    if store and stored != check:
        with database.transaction(write=True) as db:
            stored = _read_secret_check(db, for_update=True)
            if stored is None or db.exec(select(WorkspaceRow.id).limit(1)).first() is None:
                _store_secret_check(db, stored := check)
    if stored not in (None, check):
        raise OtherSecret(settings.data_dir)


def accept_deployment_secret(settings: Settings, database: Database) -> bool:
    """Take the secret of the settings as the deployment's; return whether it was another one before."""
    check = _compute_secret_check(settings.secret)
    with database.transaction(write=True) as db:
        before = _read_secret_check(db, for_update=True)
        _store_secret_check(db, check)
    return before not in (None, check)


def _compute_secret_check(secret: bytes) -> str:
    return compute_keyed_digest(secret, "deployment-secret", b"").hex()[:_CHECK_CHARACTERS]


def _read_secret_check(db: DbSession, *, for_update: bool = False) -> str | None:
    statement = select(DeploymentRow.secret_check).where(DeploymentRow.id == 1)
    return db.exec(statement.with_for_update() if for_update else statement).one_or_none()


def _store_secret_check(db: DbSession, check: str) -> None:
    db.get_one(DeploymentRow, 1).secret_check = check


def require_deployment_region(db: DbSession, region: str) -> None:
    """Check that a new workspace's region is the deployment's.

    Raises:
        WrongRegion: if it is another region.
    """
    deployment = db.get(DeploymentRow, 1)
    if deployment is not None:
        check_deployment_region(deployment.region, what="The deployment", region=region)


def check_deployment_region(stored: str, *, what: str, region: str) -> None:
    """Check that the region with which a database or store is marked is the deployment's.

    Raises:
        WrongRegion: if it is another one.
    """
    if stored != region:
        raise WrongRegion(what, stored=stored, region=region)
