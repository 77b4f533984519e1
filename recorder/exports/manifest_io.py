"""The manifest of an export as it lies at the destination: ours, or none. Contract §5.

Whoever owns the bucket may replace what lies in it. So it is read up to a bound, and taken for the manifest
only with the hash that was noted when it was written.
"""

import hashlib

from recorder.errors import NotFound
from recorder.exports.destinations import Destination
from recorder.exports.formats import MANIFEST
from recorder.models.export import ExportRow

_BYTES = 16 * 1024 * 1024
_BYTES_PER_SHARD = 2048


def read_own_manifest(destination: Destination, row: ExportRow) -> bytes:
    """The manifest that the export wrote.

    Raises:
        NotFound: if there is none, or another file in its place.
        Unavailable: if the store does not answer.
    """
    most = _BYTES + _BYTES_PER_SHARD * (row.shards or 0)
    try:
        size = destination.size(MANIFEST)
        data = b"" if size > most else b"".join(destination.read_range(MANIFEST, 0, size))
    except KeyError as error:
        raise NotFound("manifest", f"The manifest of {row.id} is gone.") from error
    if hashlib.sha256(data).hexdigest() != row.manifest_sha256:
        detail = f"What lies in place of the manifest of {row.id} is not what the export wrote."
        raise NotFound("manifest", detail)
    return data
