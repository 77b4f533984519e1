"""Audit log of a workspace as NDJSON, read in portions. Contract §7 (audit)."""

from contextlib import closing
from dataclasses import replace

from sqlmodel import Session as DbSession
from sqlmodel import col

from recorder import limits
from recorder.audit.log import AuditFilter, audit_entry_to_wire, select_audit_rows
from recorder.models.operations import AuditHeadRow, AuditRow
from recorder.storage.database import Database
from recorder.storage.limited_reads import limited_read
from recorder.storage.list_pages import stream_rows

#: A portion ends with the entry that reaches either.
PORTION_ENTRIES = 500
PORTION_BYTES = 512 * 1024
#: A filter without an index reads every entry, so a portion searches at most so many.
SEARCHED_ENTRIES = 10_000


class AuditPortions:
    """Portions of all entries that the filters select, in chain order.

    Entries are only appended, so several transactions read the same entries as one would.
    """

    def __init__(self, database: Database, filters: AuditFilter) -> None:
        self._database = database
        self._filters = filters
        self._has_ended = False

    def read(self) -> bytes | None:
        """Return the next entries, one a line; empty if the part searched has none; None after the last part.

        Raises:
            ReadTooLong: if the database takes longer than a page of a list may.
        """
        if self._has_ended:
            return None
        with limited_read(self._database, limit_s=limits.LIST_SECONDS) as db:
            return self._read_part(db)

    def _read_part(self, db: DbSession) -> bytes:
        """Return the next audit entries as JSON lines, at most a portion."""
        head = db.get(AuditHeadRow, self._filters.workspace_id)
        last_number = 0 if head is None else head.number
        searched_to = min(self._filters.after_number + SEARCHED_ENTRIES, last_number)
        statement = select_audit_rows(self._filters).where(col(AuditRow.number) <= searched_to)
        lines: list[bytes] = []
        size = 0
        with closing(stream_rows(db, statement.limit(PORTION_ENTRIES))) as rows:
            for row in rows:
                lines.append(audit_entry_to_wire(row).model_dump_json().encode() + b"\n")
                size += len(lines[-1])
                if len(lines) == PORTION_ENTRIES or size >= PORTION_BYTES:
                    searched_to = row.number
                    break
        self._filters = replace(self._filters, after_number=searched_to)
        self._has_ended = searched_to >= last_number
        return b"".join(lines)
