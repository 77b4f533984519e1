"""Which exports may share files: those of one series. Design §4 (shards).

A series is what files depend on beside the sessions: workflows, format, sampling, split, and the place.
Filters may differ: the export after an exclusion, a deletion or a correction has most of its shards in common
with the one before.
"""

from recorder.digest import sha256_of
from recorder.models.export import ExportRow


def series_of(row: ExportRow) -> str:
    """Digest of what exports have in common that may share files."""
    place = {name: value for name, value in row.destination.items() if name != "expires_in"}
    return sha256_of(
        {
            "workflow": sorted(row.spec["workflow"]),
            "format": row.format,
            "frame_sampling": row.spec["frame_sampling"],
            "split": row.spec["split"],
            "destination": place,
        }
    )
