"""Slots of sealing lanes: which workflows of a workspace and mode are sealed in one order. Design §3."""

import hashlib
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import fsspec
import orjson
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock, limits
from recorder.errors import Conflict
from recorder.models.workspace import DeploymentRow, WorkspaceRow
from recorder.settings import REGIONS, Settings, UnknownRegion
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.upsert import insert_if_missing


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


log = logging.getLogger("recorder.storage")

#: Object that marks a store as one of this deployment; the first start writes it.
STORE_MARK = "deployment.json"
_BY_CONTINENT = {"us": "us", "eu": "eu", "ap": "apac"}
# `eu-west-1`, `us-gov-east-1`: other stores name places of their own, which tell us nothing.
_LOCATION = re.compile(r"([a-z]{2})-[a-z-]+-[0-9]+")


class WrongRegion(Conflict):
    """A store holds, or is to hold, data of another region."""

    code = "wrong_region"

    def __init__(self, what: str, *, found: str, region: str) -> None:
        super().__init__(
            f"{what} belongs to the region {found}, and RECORDER_REGION is {region}. Data stay in their "
            f"region: set RECORDER_REGION to {found}, or choose stores of {region}."
        )


def check_region(settings: Settings, database: Database, blobs: Blobs, lake: Lake) -> None:
    """Find every store to be of the deployment's region, and mark those that are new.

    Raises:
        UnknownRegion: if the setting names none.
        WrongRegion: if a store belongs to another one.
        SlotsDiffer: if the setting names another number of sealing slots.
        Unavailable: if the database does not answer.
    """
    region = settings.region
    if region not in REGIONS:
        raise UnknownRegion
    _check_database(database, region, settings.seal_slots)
    stores = {"The store of frames": blobs, "The store of exports": Blobs(settings.export_url)}
    if settings.cold_url is not None:
        stores["The store of archived frames"] = Blobs(settings.cold_url)
    for what, store in stores.items():
        with _where_it_answers(what):
            _check_location(what, url=store.url, region=region)
            _check_store(what, store, region)
    with _where_it_answers("The lake"):
        _check_location("The lake", url=lake.url, region=region)
        _require(lake.mark_region(region), what="The lake", region=region)


def require_region(db: DbSession, region: str) -> None:
    """Let only workspaces of the deployment's region be made.

    Raises:
        WrongRegion: if this is another one.
    """
    deployment = db.get(DeploymentRow, 1)
    if deployment is not None:
        _require(deployment.region, what="The deployment", region=region)


@contextmanager
def _where_it_answers(what: str) -> Iterator[None]:
    """Go on without a store that is away, as the service does: `/readyz` names it, the next start asks it."""
    try:
        yield
    except WrongRegion:
        raise
    except Exception as error:  # clients of object stores have errors of their own
        log.warning("%s does not answer (%s); its region was not checked", what, type(error).__name__)


def _check_database(database: Database, region: str, slots: int | None) -> None:
    with database.transaction(write=False) as db:
        marked = db.get(DeploymentRow, 1)
        # Databases that are older than the mark tell it by their workspaces.
        foreign = select(WorkspaceRow.region).where(col(WorkspaceRow.region) != region)
        found = db.exec(foreign.limit(1)).first() or (None if marked is None else marked.region)
    if marked is not None and slots not in (None, marked.seal_slots):
        raise SlotsDiffer(marked.seal_slots)
    if found is not None:
        _require(found, what="The database", region=region)
        return
    mark = {"id": 1, "region": region, "seal_slots": slots or limits.SEAL_SLOTS, "created_at": clock.now()}
    with database.transaction(write=True) as db:
        insert_if_missing(db, DeploymentRow, mark)
        # Of two that start at once for the first time, the first one's region holds.
        _require(db.get_one(DeploymentRow, 1).region, what="The database", region=region)


def _check_store(what: str, store: Blobs, region: str) -> None:
    try:
        found = orjson.loads(store.get(STORE_MARK))["region"]
    except KeyError:
        store.put(STORE_MARK, orjson.dumps({"region": region}))
        return
    _require(found, what=what, region=region)


def _check_location(what: str, *, url: str, region: str) -> None:
    location = _bucket_location(url)
    match = _LOCATION.fullmatch(location or "")
    if location is not None and match:
        _require(_BY_CONTINENT.get(match[1], location), what=f"{what} (its bucket)", region=region)


def _bucket_location(url: str) -> str | None:
    """Where an S3 bucket says that it lies; None for other stores, and where it may not be asked."""
    if urlsplit(url).scheme not in ("s3", "s3a"):
        return None
    store, path = fsspec.core.url_to_fs(url)
    try:
        told = store.call_s3("get_bucket_location", Bucket=path.split("/")[0]).get("LocationConstraint")
    except Exception:  # not everybody may ask: then the mark alone tells
        return None
    if told == "EU":
        return "eu-west-1"
    # Amazon says nothing for its first region; other stores say nothing when they know nothing.
    is_amazon = urlsplit(store.s3.meta.endpoint_url).hostname.endswith(".amazonaws.com")
    return told or ("us-east-1" if is_amazon else None)


def _require(found: str, *, what: str, region: str) -> None:
    if found != region:
        raise WrongRegion(what, found=found, region=region)
