"""Canonical JSON, SHA-256, keyed hashes, and the hash bucket of a session."""

import hashlib
import hmac
from typing import Any

import orjson


def canonical_json(value: Any) -> bytes:
    """Return compact UTF-8 JSON with sorted keys: equal values give equal bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def compute_sha256(value: Any) -> str:
    """Return the hex SHA-256 of a value's canonical JSON (bytes are hashed as they are)."""
    return hashlib.sha256(value if isinstance(value, bytes) else canonical_json(value)).hexdigest()


def compute_keyed_digest(secret: bytes, purpose: str, data: bytes) -> bytes:
    """Return an HMAC-SHA256 under the deployment's secret, separate for each purpose."""
    return hmac.digest(secret, purpose.encode() + b"\0" + data, "sha256")


def compute_hash_bucket(session_id: str) -> int:
    """Return the hash bucket of a session, 0 to 65535: the first two bytes of its SHA-256.

    The lake sorts by it and exports cut shards along it (docs/decisions/0004-hash-buckets.md).
    """
    return int.from_bytes(hashlib.sha256(session_id.encode()).digest()[:2], "big")
