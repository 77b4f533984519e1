"""Deployment record: region and number of sealing slots, checked at each start. Spec §1; design §3.

A deployment belongs to one region. The first start marks database, frames, archived frames, hosted exports
and lake with it. A process of another region, or with settings that point at stores of another region, does
not start. For Amazon's buckets the location is checked too. The workflows of a workspace and mode are
divided into slots; those of one slot are sealed in one order.
"""

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
from recorder.setting_values import REGIONS, UnknownRegion
from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.upsert import insert_if_missing

log = logging.getLogger("recorder.storage")

#: Object that marks a store as one of this deployment; the first start writes it.
STORE_MARK = "deployment.json"
_BY_CONTINENT = {"us": "us", "eu": "eu", "ap": "apac"}
# `eu-west-1`, `us-gov-east-1`: the locations of other stores have no known region.
_LOCATION = re.compile(r"([a-z]{2})-[a-z-]+-[0-9]+")


class SlotsDiffer(Conflict):
    """The setting differs from the number of slots in the database."""

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


class WrongRegion(Conflict):
    """A store belongs to another region than the deployment."""

    code = "wrong_region"

    def __init__(self, what: str, *, stored: str, region: str) -> None:
        super().__init__(
            f"{what} belongs to the region {stored}, and RECORDER_REGION is {region}. Data stay in their "
            f"region: set RECORDER_REGION to {stored}, or choose stores of {region}."
        )


def check_region(settings: Settings, database: Database, blobs: Blobs, lake: Lake) -> None:
    """Check that every store belongs to the deployment's region, and mark new stores.

    Raises:
        UnknownRegion: if the setting is no region.
        WrongRegion: if a store belongs to another region.
        SlotsDiffer: if the setting names another number of sealing slots.
        Unavailable: if the database does not answer.
    """
    region = settings.region
    if region not in REGIONS:
        raise UnknownRegion
    _check_database(database, region, settings.seal_slots)
    stores = {
        # Without the archive behind it, in whose place its mark would be read.
        "The store of frames": Blobs(blobs.url),
        "The store of exports": Blobs(settings.export_url),
        "The store of archived frames": Blobs(settings.cold_url),
    }
    for what, store in stores.items():
        with _skip_unavailable(what):
            _check_location(what, url=store.url, region=region)
            _check_store(what, store, region)
    with _skip_unavailable("The lake"):
        _check_location("The lake", url=lake.url, region=region)
        _require_region(lake.mark_region(region), what="The lake", region=region)


def require_region(db: DbSession, region: str) -> None:
    """Check that a new workspace's region is the deployment's.

    Raises:
        WrongRegion: if it is another region.
    """
    deployment = db.get(DeploymentRow, 1)
    if deployment is not None:
        _require_region(deployment.region, what="The deployment", region=region)


@contextmanager
def _skip_unavailable(what: str) -> Iterator[None]:
    """Log and skip a store that does not answer: `/readyz` reports it, the next start checks it."""
    try:
        yield
    except WrongRegion:
        raise
    except Exception as error:  # clients of object stores have errors of their own
        log.warning("%s does not answer (%s); its region was not checked", what, type(error).__name__)


def _check_database(database: Database, region: str, slots: int | None) -> None:
    with database.transaction(write=False) as db:
        marked = db.get(DeploymentRow, 1)
        # A database without the mark shows its region by its workspaces.
        foreign = select(WorkspaceRow.region).where(col(WorkspaceRow.region) != region)
        stored = db.exec(foreign.limit(1)).first() or (None if marked is None else marked.region)
    if marked is not None and slots not in (None, marked.seal_slots):
        raise SlotsDiffer(marked.seal_slots)
    if stored is not None:
        _require_region(stored, what="The database", region=region)
        return
    mark = {"id": 1, "region": region, "seal_slots": slots or limits.SEAL_SLOTS, "created_at": clock.now()}
    with database.transaction(write=True) as db:
        insert_if_missing(db, DeploymentRow, mark)
        # If two processes start for the first time at once, the region of the first one is stored.
        _require_region(db.get_one(DeploymentRow, 1).region, what="The database", region=region)


def _check_store(what: str, store: Blobs, region: str) -> None:
    try:
        stored = orjson.loads(store.get(STORE_MARK))["region"]
    except KeyError:
        store.put(STORE_MARK, orjson.dumps({"region": region}))
        return
    _require_region(stored, what=what, region=region)


def _check_location(what: str, *, url: str, region: str) -> None:
    location = _find_bucket_location(url)
    match = _LOCATION.fullmatch(location or "")
    if location is not None and match:
        _require_region(_BY_CONTINENT.get(match[1], location), what=f"{what} (its bucket)", region=region)


def _find_bucket_location(url: str) -> str | None:
    """Return the location of an S3 bucket; None for other stores, and if it cannot be read."""
    if urlsplit(url).scheme not in ("s3", "s3a"):
        return None
    store, path = fsspec.core.url_to_fs(url)
    try:
        location = store.call_s3("get_bucket_location", Bucket=path.split("/")[0]).get("LocationConstraint")
    except Exception:  # a key without this permission: only the mark is checked
        return None
    if location == "EU":
        return "eu-west-1"
    # Amazon returns no location for its first region; other stores return none if they know none.
    is_amazon = urlsplit(store.s3.meta.endpoint_url).hostname.endswith(".amazonaws.com")
    return location or ("us-east-1" if is_amazon else None)


def _require_region(stored: str, *, what: str, region: str) -> None:
    if stored != region:
        raise WrongRegion(what, stored=stored, region=region)
