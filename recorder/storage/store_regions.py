"""Addresses and regions of the stores, checked at each start. Spec §1.

The first start of the API marks frames, archived frames, hosted exports and lake with the deployment's
region. A process with settings that point at stores of another region does not start. For Amazon's buckets
the location is checked too.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

import fsspec
import orjson
import pyarrow as pa

from recorder.errors import Unavailable
from recorder.settings import Settings
from recorder.storage.blobs import Blobs
from recorder.storage.deployment import WrongRegion, check_deployment_region
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import TableLayout
from recorder.storage.lake_tables import LakeTable, convert_lake_table_errors

log = logging.getLogger("recorder.storage")

#: Object that marks a store as one of this deployment; the first start writes it.
STORE_MARK = "deployment.json"
_LAKE_MARK = "deployment"
#: Addresses of folders, which begin with a slash.
_WITHOUT_BUCKETS = ("file", "local")
_BY_CONTINENT = {"us": "us", "eu": "eu", "ap": "apac"}
# `eu-west-1`, `us-gov-east-1`: the locations of other stores have no known region.
_LOCATION = re.compile(r"([a-z]{2})-[a-z-]+-[0-9]+")


class StoreUnusable(Unavailable):
    """A store cannot be opened at the start."""

    def __init__(self, variable: str, why: str) -> None:
        super(Unavailable, self).__init__(f"The store that {variable} names cannot be opened: {why}.")


class StoreAway(Unavailable):
    """A store does not answer, or lacks the mark of the first start."""

    def __init__(self, variable: str) -> None:
        super(Unavailable, self).__init__(
            f"The store that {variable} names does not answer, or its mark is gone: a volume may not be "
            "mounted. Bring it back. If its content is lost, run `recorder db accept-stores`."
        )


def check_store_addresses(settings: Settings) -> None:
    """Check that every address of a store is a folder, or of a kind that is supported and can be opened.

    Raises:
        StoreUnusable: if one is not. A store that does not answer yet passes where its kind connects later.
    """
    addresses = {
        "RECORDER_BLOB_URL": settings.blob_url,
        "RECORDER_EXPORT_URL": settings.export_url,
        "RECORDER_COLD_URL": settings.cold_url,
        "RECORDER_LAKE_URL": settings.lake_url,
    }
    # `azure` is known to the library of the lake alone.
    known = {*fsspec.available_protocols(), *fsspec.registry, "azure", ""}
    for variable, url in addresses.items():
        words = url.split("::") if "://" in url else [""]
        if not {word.partition("://")[0] for word in words} <= known:
            raise StoreUnusable(variable, "it takes a folder, or an address such as s3://bucket/folder")
        if any(_lacks_bucket(word) for word in words):
            raise StoreUnusable(variable, "its address has no bucket; write it as s3://bucket/folder")
        if variable == "RECORDER_LAKE_URL":  # not opened by fsspec
            continue
        try:
            Blobs(url)
        except ImportError as error:
            raise StoreUnusable(variable, "the package for stores of this kind is not installed") from error
        except Exception as error:  # clients of stores have errors of their own
            raise StoreUnusable(variable, "it does not answer, or its address is wrong") from error


def _lacks_bucket(url: str) -> bool:
    """Return whether an address ends where its bucket, container, server or folder belongs."""
    protocol, separator, path = url.partition("://")
    if protocol in _WITHOUT_BUCKETS:
        path = path.strip("/")
    return bool(separator) and protocol != "memory" and not path.partition("/")[0].strip()


def check_store_regions(settings: Settings, blobs: Blobs, lake: Lake, *, marks_new: bool) -> None:
    """Check that every store belongs to the deployment's region.

    Args:
        settings: the deployment.
        blobs: its frames.
        lake: its lake.
        marks_new: mark stores that have no mark. Runs and commands do not: a volume that is not mounted must
            not become a new store.

    Raises:
        WrongRegion: if a store belongs to another region.
    """
    region = settings.region
    stores = {
        # Without the archive behind it, in whose place its mark would be read.
        "The store of frames": Blobs(blobs.url),
        "The store of exports": Blobs(settings.export_url),
        "The store of archived frames": Blobs(settings.cold_url),
    }
    for what, store in stores.items():
        with _skip_unavailable_store(what):
            _check_bucket_location(what, url=store.url, region=region)
            _check_store_region(what, store, region, marks_new=marks_new)
    with _skip_unavailable_store("The lake"):
        _check_bucket_location("The lake", url=lake.url, region=region)
        stored = mark_lake(lake.url, region) if marks_new else _read_lake_mark(lake.url, region)
        check_deployment_region(stored or region, what="The lake", region=region)


def list_unmarked_stores(settings: Settings) -> list[str]:
    """Return the settings of the stores that answer and have no mark."""
    stores = {
        "RECORDER_BLOB_URL": settings.blob_url,
        "RECORDER_COLD_URL": settings.cold_url,
        "RECORDER_EXPORT_URL": settings.export_url,
    }
    unmarked = []
    for variable, url in stores.items():
        try:
            Blobs(url).get(STORE_MARK)
        except KeyError:
            unmarked.append(variable)
        except Exception:  # noqa: S112 - it does not answer, which the check of its region logs
            continue
    with suppress(Exception):
        if _read_lake_mark(settings.lake_url, settings.region) is None:
            unmarked.append("RECORDER_LAKE_URL")
    return unmarked


def mark_lake(url: str, region: str) -> str:
    """Mark a new lake with a region; return the region of the stored mark.

    Raises:
        Unavailable: if the store does not answer.
    """
    stored = _make_lake_mark(url, region)
    with convert_lake_table_errors():
        table = stored.open_for_writing()
        stored.sync()
        return table.metadata().description or region


def has_store_marks(settings: Settings) -> bool:
    """Return whether frames, archived frames and lake answer and hold the marks of the first start.

    A file that cannot be read is missing or damaged then. Without the marks a volume that is not mounted
    would count as a store whose files are gone.
    """
    try:
        _require_object_mark("RECORDER_BLOB_URL", settings.blob_url)
        _require_object_mark("RECORDER_COLD_URL", settings.cold_url)
        _require_lake_mark(settings)
    except StoreAway as error:
        log.warning("%s", error)
        return False
    return True


def require_store_marks(settings: Settings) -> None:
    """Check that all stores answer and hold the marks of the first start, before something is removed.

    Raises:
        StoreAway: if one does not: what it holds would not be found, and would be back with it.
    """
    require_sealing_store_marks(settings)
    _require_object_mark("RECORDER_COLD_URL", settings.cold_url)
    _require_object_mark("RECORDER_EXPORT_URL", settings.export_url)


def require_sealing_store_marks(settings: Settings) -> None:
    """Check that frames and lake answer and hold the marks of the first start, before sessions are sealed.

    Raises:
        StoreAway: if one does not: frames would seem to be missing, and sealed rows would be hidden once the
            volume of the lake is mounted again.
    """
    _require_object_mark("RECORDER_BLOB_URL", settings.blob_url)
    _require_lake_mark(settings)


def _require_object_mark(variable: str, url: str) -> None:
    """Raise StoreAway unless an object store holds the mark that the deployment's first start wrote."""
    try:
        Blobs(url).get(STORE_MARK)  # alone, without another store behind it
    except Exception as error:  # clients of object stores have errors of their own
        raise StoreAway(variable) from error


def _require_lake_mark(settings: Settings) -> None:
    """Raise StoreAway unless the lake holds the mark that the deployment's first start wrote."""
    try:
        stored = _read_lake_mark(settings.lake_url, settings.region)
    except Exception as error:  # of the library, of its store, or a panic
        raise StoreAway("RECORDER_LAKE_URL") from error
    if stored is None:
        raise StoreAway("RECORDER_LAKE_URL")


def _read_lake_mark(url: str, region: str) -> str | None:
    """Return the region of a lake's mark; None if it has none."""
    with convert_lake_table_errors():
        table = _make_lake_mark(url, region).open()
        return None if table is None else table.metadata().description or region


def _make_lake_mark(url: str, region: str) -> LakeTable:
    """Return the table that marks a lake store as this deployment's, with its region."""
    # The mark is a table without rows, since the library opens every store that the lake supports.
    layout = TableLayout(pa.schema([pa.field("region", pa.string())]), (), "region")
    return LakeTable(url, f"{url}/{_LAKE_MARK}", layout, partitions=[], description=region)


@contextmanager
def _skip_unavailable_store(what: str) -> Iterator[None]:
    """Log and skip a store that does not answer: `/readyz` reports it, the next start checks it."""
    try:
        yield
    except WrongRegion:
        raise
    except Exception as error:  # clients of object stores have errors of their own
        log.warning("%s does not answer (%s); its region was not checked", what, type(error).__name__)


def _check_store_region(what: str, store: Blobs, region: str, *, marks_new: bool) -> None:
    try:
        stored = orjson.loads(store.get(STORE_MARK))["region"]
    except KeyError:
        if marks_new:
            store.put(STORE_MARK, orjson.dumps({"region": region}))
        return
    check_deployment_region(stored, what=what, region=region)


def _check_bucket_location(what: str, *, url: str, region: str) -> None:
    location = _find_bucket_location(url)
    match = _LOCATION.fullmatch(location or "")
    if location is not None and match:
        check_deployment_region(
            _BY_CONTINENT.get(match[1], location), what=f"{what} (its bucket)", region=region
        )


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
