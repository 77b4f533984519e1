"""The hash chain of a workspace's audit log: each entry's hash covers the one before. Contract §7 (audit)."""

import hashlib
from typing import Any

from recorder import clock, digest
from recorder.models.audit import AuditRow


def first_hash(workspace_id: str) -> str:
    """What stands before a workspace's first entry: a chain moved to another workspace does not fit."""
    return digest.sha256_of(workspace_id.encode())


def entry_of(row: AuditRow) -> dict[str, Any]:
    """An entry as it leaves the service, in JSON types, without its hash."""
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


def hash_entry(entry: dict[str, Any]) -> str:
    """Hex SHA-256 of the previous entry's hash and this entry's canonical JSON (without `hash`)."""
    return hashlib.sha256(entry["prev_hash"].encode() + digest.canonical_json(entry)).hexdigest()
