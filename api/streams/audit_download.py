"""Download of a workspace's audit log as NDJSON. Contract §7 (audit)."""

from api.streams.portioned_download import NDJSON, PortionedDownload
from recorder.access.keys import Caller
from recorder.audit.log import AuditFilter
from recorder.audit.portions import AuditPortions
from recorder.recording.whole_reads import WholeReads
from recorder.storage.database import Database


class AuditDownload(PortionedDownload):
    """Answer with all entries that the filters select, one a line."""

    def __init__(self, database: Database, reads: WholeReads, caller: Caller, filters: AuditFilter) -> None:
        super().__init__(reads, caller, NDJSON)
        self._portions = AuditPortions(database, filters)

    def read_portion(self) -> bytes | None:
        """Return the next lines, maybe none; None after the last ones."""
        return self._portions.read()
