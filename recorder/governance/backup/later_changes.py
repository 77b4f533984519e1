"""Changes that came after a backup and hold in the restored copy: deletions, erasures, holds, revoked keys.

They are read from an export of the audit log. Its entries must continue the chains of the backup, so that
none is missing; they are added to the restored chains. Keyed hashes find the subjects of erasures again.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import orjson
from sqlmodel import Session as DbSession
from sqlmodel import col, select, update

from recorder import clock
from recorder.audit.log import Origin, audit_entry_of, first_audit_hash, hash_audit_entry, record_audit_entry
from recorder.governance.backup.backup_manifest import BackupManifest
from recorder.governance.backup.errors import AuditDoesNotFit
from recorder.governance.erasure_runs import run_erasures
from recorder.governance.purging.purge_rows import request_purge
from recorder.governance.purging.purge_runs import run_purges
from recorder.governance.repeated_erasures import repeat_erasures
from recorder.governance.table_rewrites import rewrite_tables
from recorder.models.governance import HoldRow, PurgeCause, PurgeRow
from recorder.models.operations import AuditHeadRow, AuditRow
from recorder.models.session import SessionRow
from recorder.models.workspace import KeyRow, WorkspaceRow
from recorder.recording.sessions import hide_session
from recorder.runtime import Runtime
from recorder.storage.upsert import insert_if_missing

_OWNER = "restore"
#: A purge takes four steps, each with a wait that a deployment without requests does not need.
_ROUNDS = 8
#: Causes whose sessions leave the statistics of the memory graph.
_SUBTRACTED = ("hard_delete", "deletion")


@dataclass
class AppliedChanges:
    """Numbers of what was applied to the restored copy."""

    entries: int = 0
    deleted_sessions: int = 0
    erasures: int = 0
    revoked_keys: int = 0
    #: Purges that wait for a batch which is being sealed; the running service ends them.
    open_purges: int = 0


class LaterChanges:
    """Entries of audit logs that came after a backup, in order, by workspace."""

    def __init__(self, entries: Mapping[str, list[AuditRow]], *, is_given: bool) -> None:
        self.entries = entries
        self.is_given = is_given

    @classmethod
    def read(cls, path: Path | None, heads: Mapping[str, tuple[int, str]]) -> "LaterChanges":
        """Read an export of the audit log, and check that it continues the chains of a backup.

        Args:
            path: the export; None if there is none.
            heads: number and hash of the last entry of each workspace in the backup.

        Raises:
            AuditDoesNotFit: if it cannot be read, was changed, or entries are missing.
        """
        if path is None:
            return cls({}, is_given=False)
        rows: dict[str, list[AuditRow]] = defaultdict(list)
        chains: set[str] = set()
        try:
            with path.open("rb") as file:
                for line in file:
                    row = _parse_later_audit_line(line)
                    chains.add(row.workspace_id)
                    _collect_later_entry(row, rows, heads)
        except OSError as error:
            raise AuditDoesNotFit(f"the file cannot be read ({error.strerror})") from error
        for workspace_id, (number, _) in heads.items():
            if workspace_id not in chains and number:
                raise AuditDoesNotFit(f"it has no entries of the workspace {workspace_id}")
        return cls(rows, is_given=True)


def _parse_later_audit_line(line: bytes) -> AuditRow:
    """Return the entry of a line whose content gives its hash.

    Raises:
        AuditDoesNotFit: if it cannot be read, or its content does not give its hash.
    """
    try:
        entry: dict[str, Any] = orjson.loads(line)
        row = AuditRow(
            workspace_id=entry["workspace_id"],
            number=int(entry["number"]),
            id=entry["id"],
            mode=entry["mode"],
            at=clock.parse_time(entry["at"], name="at"),
            actor_type=entry["actor"]["type"],
            actor_id=entry["actor"]["id"],
            action=entry["action"],
            resource_type=entry["resource"]["type"],
            resource_id=entry["resource"]["id"],
            outcome=entry["outcome"],
            request_id=entry["request_id"],
            ip=entry["ip"],
            details=entry["details"],
            prev_hash=entry["prev_hash"],
            hash=entry["hash"],
        )
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise AuditDoesNotFit("a line is no entry of an export by `recorder audit export`") from error
    if hash_audit_entry(audit_entry_of(row)) != row.hash:
        raise AuditDoesNotFit(f"entry {row.number} of {row.workspace_id} was changed")
    return row


def _collect_later_entry(
    row: AuditRow, rows: dict[str, list[AuditRow]], heads: Mapping[str, tuple[int, str]]
) -> None:
    """Keep an entry that came after the backup, if it follows the one before.

    Raises:
        AuditDoesNotFit: if an entry between them is missing.
    """
    number, last_hash = heads.get(row.workspace_id, (0, first_audit_hash(row.workspace_id)))
    if row.number <= number:
        if row.number == number and row.hash != last_hash:
            raise AuditDoesNotFit(f"entry {row.number} of {row.workspace_id} is not the backup's")
        return
    later = rows[row.workspace_id]
    if later:
        number, last_hash = later[-1].number, later[-1].hash
    if (row.number, row.prev_hash) != (number + 1, last_hash):
        raise AuditDoesNotFit(f"entry {number + 1} of {row.workspace_id} is missing")
    later.append(row)


def apply_later_changes(
    runtime: Runtime, manifest: BackupManifest, changes: LaterChanges, gone: Mapping[str, str]
) -> AppliedChanges:
    """Apply what came after the backup, and purge to the end; nothing else works on the deployment.

    Args:
        runtime: the restored deployment.
        manifest: the backup.
        changes: later entries of the audit log.
        gone: sessions that were purged while the backup was made, with the cause.
    """
    applied = AppliedChanges()
    _hide_later_purged_sessions(runtime, gone)
    for workspace_id, entries in changes.entries.items():
        with runtime.database.transaction(write=True) as db:
            if db.get(WorkspaceRow, workspace_id) is None:
                continue  # a workspace that was created after the backup
            _append_later_entries(db, workspace_id, entries)
            applied.entries += len(entries)
        for entry in entries:
            if entry.outcome == "success":
                _apply_later_entry(runtime, entry, applied)
        requests = [entry for entry in entries if entry.action == "privacy.request"]
        repeat_erasures(runtime, workspace_id, requests)
        applied.erasures += len(requests)
        _record_later_changes(runtime, workspace_id, manifest, applied)
    if changes.is_given or gone:
        applied.open_purges = _finish_later_purges(runtime)
    return applied


def _append_later_entries(db: DbSession, workspace_id: str, entries: list[AuditRow]) -> None:
    """Continue the restored chain by the later entries."""
    last = entries[-1]
    insert_if_missing(
        db, AuditHeadRow, {"workspace_id": workspace_id, "number": 0, "hash": first_audit_hash(workspace_id)}
    )
    moved = update(AuditHeadRow).where(col(AuditHeadRow.workspace_id) == workspace_id)
    db.connection().execute(moved.values(number=last.number, hash=last.hash))
    for entry in entries:
        db.add(AuditRow(**entry.model_dump()))


def _apply_later_entry(runtime: Runtime, entry: AuditRow, applied: AppliedChanges) -> None:
    """Repeat a change that the audit log recorded after the backup: deletions, revoked keys and holds."""
    match entry.action:
        case "session.delete":
            applied.deleted_sessions += _repeat_later_deletion(runtime, entry)
        case "key.revoke":
            with runtime.database.transaction(write=True) as db:
                key = db.get(KeyRow, entry.resource_id)
                if key is not None and key.workspace_id == entry.workspace_id and key.revoked_at is None:
                    key.revoked_at = entry.at
                    db.add(key)
                    applied.revoked_keys += 1
        case "hold.add" | "hold.remove":
            values = {
                "workspace_id": entry.workspace_id,
                "kind": entry.resource_type,
                "value": entry.resource_id,
            }
            with runtime.database.transaction(write=True) as db:
                if entry.action == "hold.add":
                    insert_if_missing(db, HoldRow, values | {"created_at": entry.at})
                else:
                    row = db.get(HoldRow, (entry.workspace_id, entry.resource_type, entry.resource_id))
                    if row is not None:
                        db.delete(row)


def _repeat_later_deletion(runtime: Runtime, entry: AuditRow) -> bool:
    """Repeat a soft or hard delete; return whether the session was here."""
    is_hard = bool(entry.details.get("hard"))
    with runtime.database.transaction(write=True) as db:
        row = db.get(SessionRow, entry.resource_id, with_for_update=True)
        if row is None or row.workspace_id != entry.workspace_id:
            return False
        if row.deleted_at is None:
            hide_session(db, row, at=entry.at)
        if is_hard and db.get(PurgeRow, row.id) is None:
            request_purge(db, row, "hard_delete", at=entry.at)
    return True


def _hide_later_purged_sessions(runtime: Runtime, gone: Mapping[str, str]) -> None:
    """Request the purge of sessions that were purged while the backup was made."""
    causes: dict[str, PurgeCause] = {
        cause: cause for cause in ("hard_delete", "deletion", "test_expiry", "retention", "erasure")
    }
    now = clock.now()
    for session_id, cause in gone.items():
        with runtime.database.transaction(write=True) as db:
            row = db.get(SessionRow, session_id, with_for_update=True)
            if row is None or db.get(PurgeRow, session_id) is not None:
                continue
            if row.deleted_at is None:
                hide_session(db, row, at=now, is_counted=cause not in _SUBTRACTED)
            request_purge(db, row, causes[cause], at=now)


def _record_later_changes(
    runtime: Runtime, workspace_id: str, manifest: BackupManifest, applied: AppliedChanges
) -> None:
    details = {"backup": manifest.id, "moment": clock.to_iso(manifest.moment), "entries": applied.entries}
    with runtime.database.transaction(write=True) as db:
        record_audit_entry(
            db,
            Origin.operator(workspace_id),
            "workspace.restore",
            resource_type="workspace",
            resource_id=workspace_id,
            details=details,
        )


def _finish_later_purges(runtime: Runtime) -> int:
    """Purge to the end without waits, since nothing reads or writes yet; return the number of open purges."""
    for _ in range(_ROUNDS):
        run_erasures(runtime, _OWNER, longest_request=timedelta(0))
        if not _make_later_purges_due(runtime):
            break
        run_purges(runtime, _OWNER)
    run_erasures(runtime, _OWNER, longest_request=timedelta(0))
    rewrite_tables(runtime, _OWNER)
    with runtime.database.transaction(write=False) as db:
        return len(_list_open_purges(db))


def _make_later_purges_due(runtime: Runtime) -> int:
    """Make all open purges due now, and return how many there are."""
    now = clock.now()
    with runtime.database.transaction(write=True) as db:
        session_ids = _list_open_purges(db)
        is_open = col(PurgeRow.step) != "done"
        db.connection().execute(update(PurgeRow).where(is_open).values(due_at=now))
        return len(session_ids)


def _list_open_purges(db: DbSession) -> list[str]:
    return list(db.exec(select(PurgeRow.session_id).where(PurgeRow.step != "done")))
