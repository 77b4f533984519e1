"""Audit log: entries in a hash chain for each workspace, written and read. Contract §7 (audit).

Actions are named `<resource>.<verb>`; docs/audit.md lists who does each.
"""

import getpass
import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

import orjson
from sqlmodel import Session as DbSession
from sqlmodel import col, or_, select, update
from sqlmodel.sql.expression import SelectOfScalar

from recorder import clock
from recorder.hashing import canonical_json, compute_sha256
from recorder.ids import new_id
from recorder.models.operations import ActorType, AuditEntry, AuditHeadRow, AuditOutcome, AuditRow
from recorder.models.workspace import Masking
from recorder.storage.database import Database, add_last_transaction_step
from recorder.storage.list_pages import FetchedPage, fetch_statement_page
from recorder.storage.upsert import insert_if_missing

Action = Literal[
    "key.create",
    "key.revoke",
    "webhook.create",
    "webhook.update",
    "webhook.delete",
    "webhook.rotate_secret",
    "webhook.test",
    "webhook.redeliver",
    "workspace.create",
    "workspace.update",
    "workspace.restore",
    "workflow.create",
    "workflow.update",
    "session.delete",
    "session.set_aside",
    "session.reseal",
    "session.purge",
    "hold.add",
    "hold.remove",
    "audit.prune",
    "privacy.request",
    "privacy.erase",
    "export.create",
    "export.cancel",
    "replay.create",
    "replay.cancel",
    "replay.decide",
    "recovery.create",
    "recovery.cancel",
    "recipe.create",
    "recipe.delete",
    "endpoint.call",
]

ResourceType = Literal[
    "endpoint",
    "erasure",
    "export",
    "key",
    "recipe",
    "recovery",
    "replay",
    "session",
    "tag",
    "webhook",
    "workflow",
    "workspace",
]
_RESOURCE_TYPES = frozenset[str](get_args(ResourceType))
_ACTOR_TYPES = frozenset[str](get_args(ActorType))


def first_audit_hash(workspace_id: str) -> str:
    """Return the hash before a workspace's first entry, so that no chain fits another workspace."""
    return compute_sha256(workspace_id.encode())


def audit_entry_of(row: AuditRow) -> dict[str, Any]:
    """Return an entry in JSON types as the API shows it, without its hash."""
    return {
        "id": row.id,
        "at": clock.to_iso(row.at),
        "actor": {"type": row.actor_type, "id": row.actor_id},
        "action": row.action,
        "resource": {"type": row.resource_type, "id": row.resource_id},
        "outcome": row.outcome,
        "request_id": row.request_id,
        "ip": row.ip,
        "details": row.details,
        "prev_hash": row.prev_hash,
    }


def hash_audit_entry(entry: dict[str, Any]) -> str:
    """Return the hex SHA-256 of the previous hash and this entry's canonical JSON (without `hash`)."""
    return hashlib.sha256(entry["prev_hash"].encode() + canonical_json(entry)).hexdigest()


def describe_audited_changes(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the members that differ, each before and after the change."""
    return {
        name: {"from": before.get(name), "to": value}
        for name, value in after.items()
        if before.get(name) != value
    }


def describe_audited_masking(masking: Masking) -> dict[str, Any]:
    """Return a masking policy without its expressions: they may name people, and entries outlive erasures."""
    patterns = {
        pattern.name: compute_sha256([pattern.pattern, pattern.replacement]) for pattern in masking.patterns
    }
    return {"builtins": sorted(masking.builtins), "patterns": patterns}


_PENDING = "audit_entries"


@dataclass(frozen=True, slots=True)
class Origin:
    """Actor of a change: a key's request, the operator's command line, or the service itself."""

    workspace_id: str
    actor_type: ActorType
    actor_id: str
    request_id: str | None = None
    ip: str | None = None
    #: The key's mode: a test key reads back what test keys did. None for operator and service.
    mode: str | None = None

    @classmethod
    def operator(cls, workspace_id: str) -> "Origin":
        """Return the origin of changes from the deployment's command line."""
        return cls(workspace_id, "operator", _read_audit_account())

    @classmethod
    def system(cls, workspace_id: str, part: str) -> "Origin":
        """Return the origin of changes by a part of the service, such as `retention`."""
        return cls(workspace_id, "system", part)


def _read_audit_account() -> str:
    """Return the account name at the command line; a container may run under a number without a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unnamed"


@dataclass(frozen=True, slots=True)
class _PendingEntry:
    origin: Origin
    action: Action
    resource_type: ResourceType
    resource_id: str
    outcome: AuditOutcome
    details: dict[str, Any] = field(default_factory=dict)


def record_audit_entry(
    db: DbSession,
    origin: Origin,
    action: Action,
    *,
    resource_type: ResourceType,
    resource_id: str,
    outcome: AuditOutcome = "success",
    details: dict[str, Any] | None = None,
) -> None:
    """Add an entry to the workspace's chain as a last step of the transaction.

    The chain's head is the last row that a transaction locks: no transaction waits for another row while
    others wait for the head.

    Args:
        db: the transaction of the change.
        origin: actor of the change, and its workspace.
        action: the action.
        resource_type: type of the changed resource, such as `key`.
        resource_id: id of the changed resource.
        outcome: whether the action succeeded.
        details: the changes, in JSON types; never a secret, never recorded data.
    """
    entry = _PendingEntry(origin, action, resource_type, resource_id, outcome, details or {})
    db.info.setdefault(_PENDING, []).append(entry)
    add_last_transaction_step(db, _append_pending_entries)


def _append_pending_entries(db: DbSession) -> None:
    waiting: list[_PendingEntry] = db.info.pop(_PENDING)
    db.flush()
    # In one order everywhere, in case a transaction changes two workspaces.
    for workspace_id in sorted({entry.origin.workspace_id for entry in waiting}):
        _append_audit_entries(
            db, workspace_id, [entry for entry in waiting if entry.origin.workspace_id == workspace_id]
        )


def _append_audit_entries(db: DbSession, workspace_id: str, entries: list[_PendingEntry]) -> None:
    number, last_hash = _lock_audit_head(db, workspace_id)
    for entry in entries:
        number += 1
        row = _make_audit_row(entry, number, last_hash)
        db.add(row)
        last_hash = row.hash
    moved = update(AuditHeadRow).where(col(AuditHeadRow.workspace_id) == workspace_id)
    db.connection().execute(moved.values(number=number, hash=last_hash))


def _lock_audit_head(db: DbSession, workspace_id: str) -> tuple[int, str]:
    """Lock the head of a chain; return number and hash of its last entry."""
    connection = db.connection()
    head = select(AuditHeadRow.number, AuditHeadRow.hash).where(AuditHeadRow.workspace_id == workspace_id)
    last = connection.execute(head.with_for_update()).one_or_none()
    if last is None:
        first = {"workspace_id": workspace_id, "number": 0, "hash": first_audit_hash(workspace_id)}
        insert_if_missing(db, AuditHeadRow, first)
        last = connection.execute(head.with_for_update()).one()
    return last.number, last.hash


def _make_audit_row(entry: _PendingEntry, number: int, prev_hash: str) -> AuditRow:
    origin = entry.origin
    row = AuditRow(
        workspace_id=origin.workspace_id,
        number=number,
        id=new_id("aud"),
        mode=origin.mode,
        at=clock.now(),
        actor_type=origin.actor_type,
        actor_id=origin.actor_id,
        action=entry.action,
        resource_type=entry.resource_type,
        resource_id=entry.resource_id,
        outcome=entry.outcome,
        request_id=origin.request_id,
        ip=origin.ip,
        details=entry.details,
        prev_hash=prev_hash,
        hash="",
    )
    row.hash = hash_audit_entry(audit_entry_of(row))
    return row


_EXPORTED_ROWS = 500


@dataclass(frozen=True, kw_only=True)
class AuditFilter:
    """Filters of `GET /v1/audit`; None matches everything."""

    workspace_id: str
    #: `test` selects entries of test keys; None selects the whole chain.
    mode: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    action: str | None = None
    #: An actor's id, or its type.
    actor: str | None = None
    #: A resource's id, or its type.
    resource: str | None = None
    after_number: int = 0


def read_audit_page(db: DbSession, filters: AuditFilter, *, limit: int) -> FetchedPage[AuditEntry, int]:
    """Return a page of entries in chain order; its position is the number of the last one."""
    page = fetch_statement_page(
        db, select_audit_rows(filters), limit=limit, position_of=lambda row: row.number
    )
    return page.convert(audit_entry_to_wire)


def export_audit_entries(database: Database, workspace_id: str) -> Iterator[bytes]:
    """Yield all entries of a chain as NDJSON.

    Each line also holds workspace, number, mode and hash, which a restore needs.
    """
    filters: AuditFilter | None = AuditFilter(workspace_id=workspace_id)
    while filters is not None:
        with database.transaction(write=False) as db:
            rows = list(db.exec(select_audit_rows(filters).limit(_EXPORTED_ROWS)))
        for row in rows:
            position = {"workspace_id": row.workspace_id, "number": row.number, "mode": row.mode}
            yield orjson.dumps({**position, **audit_entry_of(row), "hash": row.hash}) + b"\n"
        filters = replace(filters, after_number=rows[-1].number) if len(rows) == _EXPORTED_ROWS else None


def audit_entry_to_wire(row: AuditRow) -> AuditEntry:
    """Return the wire object of a row."""
    return AuditEntry.model_validate({**audit_entry_of(row), "hash": row.hash})


def select_audit_rows(filters: AuditFilter) -> SelectOfScalar[AuditRow]:
    """Return the statement for the rows that the filters select, in chain order."""
    statement = select(AuditRow).where(
        AuditRow.workspace_id == filters.workspace_id, col(AuditRow.number) > filters.after_number
    )
    if filters.mode is not None:
        statement = statement.where(AuditRow.mode == filters.mode)
    if filters.since is not None:
        statement = statement.where(col(AuditRow.at) >= filters.since)
    if filters.until is not None:
        statement = statement.where(col(AuditRow.at) < filters.until)
    if filters.action is not None:
        statement = statement.where(AuditRow.action == filters.action)
    if filters.actor is not None:
        named = _make_name_condition(AuditRow.actor_id, AuditRow.actor_type, filters.actor, _ACTOR_TYPES)
        statement = statement.where(named)
    if filters.resource is not None:
        named = _make_name_condition(
            AuditRow.resource_id, AuditRow.resource_type, filters.resource, _RESOURCE_TYPES
        )
        statement = statement.where(named)
    return statement.order_by(col(AuditRow.number))


def _make_name_condition(row_id: Any, row_type: Any, name: str, types: Collection[str]) -> Any:
    """Return the condition that an id, or a type, has a name; a name that is no type needs the ids alone."""
    is_id = col(row_id) == name
    return or_(is_id, col(row_type) == name) if name in types else is_id
