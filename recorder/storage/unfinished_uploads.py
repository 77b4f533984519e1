"""Unfinished uploads: parts that a killed writer left in an S3 bucket, which costs their room until aborted.

Azure deletes blocks that were not committed after a week, and Google ends resumable uploads after a week; S3
keeps parts until someone aborts the upload, and lists them nowhere among its objects.
"""

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import fsspec

from recorder import clock

log = logging.getLogger("recorder.storage")

#: Age from which an upload is aborted: a writer commits within 12 hours, or writes again.
GRACE = timedelta(hours=24)
_SCHEMES = ("s3", "s3a")


def abort_unfinished_uploads(url: str, *, before: datetime | None = None) -> int:
    """Abort the uploads below the address of a store that were begun long ago; return their number.

    Stores that do not speak S3 have none. An upload that ends at the same time is passed over.

    Args:
        url: folder or address of the store.
        before: instant before which the uploads were begun; by default a day ago.
    """
    if urlsplit(url).scheme not in _SCHEMES:
        return 0
    before = before or clock.now() - GRACE
    store, path = fsspec.core.url_to_fs(url)
    bucket, _, folder = path.partition("/")
    prefix = f"{folder.rstrip('/')}/" if folder else ""
    aborted = 0
    for upload in list(_iterate_uploads(store, bucket, prefix)):
        if upload["Initiated"] >= before:
            continue
        try:
            store.call_s3(
                "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            )
        except FileNotFoundError:
            continue
        aborted += 1
    if aborted:
        log.info("%d unfinished uploads below %s were aborted", aborted, url)
    return aborted


def _iterate_uploads(store: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the uploads of a bucket whose keys have a prefix, page by page."""
    markers: dict[str, str] = {}
    while True:
        page = store.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **markers)
        # Some stores that speak S3 ignore the prefix.
        yield from (upload for upload in page.get("Uploads", ()) if upload["Key"].startswith(prefix))
        if not page.get("IsTruncated"):
            return
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
