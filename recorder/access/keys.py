"""API keys: form, hashes, scopes, authentication; creation of keys. Spec §5, contract §1.

Scopes are `read`, `write` and `admin`, each including the one before it; `replay:live` may follow.
"""

import secrets
import zlib
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.access.rate_tiers import TIERS, Tier
from recorder.errors import InsufficientScope, InvalidApiKey, WorkspaceDisabled
from recorder.hashing import compute_keyed_digest
from recorder.ids import new_id
from recorder.masking.policies import MaskingPolicies, load_masking_policies
from recorder.models.wire import Mode
from recorder.models.workspace import KeyRow, WorkspaceRow
from recorder.tenant import Tenant

Level = Literal["read", "write", "admin"]
LEVELS: tuple[Level, ...] = get_args(Level)
LIVE_REPLAY = "replay:live"
_RANK = {level: rank for rank, level in enumerate(LEVELS)}


@dataclass(frozen=True, slots=True)
class Scope:
    """Rights of a key."""

    level: Level
    live_replay: bool = False

    @classmethod
    def parse(cls, text: str) -> "Scope":
        """Return the scope of a text such as `write replay:live`; the order of the words does not matter.

        Raises:
            ValueError: if the text names no scope.
        """
        words = text.split(" ")
        levels = [level for level in LEVELS if level in words]
        rest = [word for word in words if word not in LEVELS]
        if len(levels) != 1 or rest not in ([], [LIVE_REPLAY]) or len(words) != 1 + len(rest):
            raise ValueError("a scope is read, write or admin, which may be followed by replay:live")
        return cls(levels[0], bool(rest))

    def includes(self, other: "Scope") -> bool:
        """Return whether a key of this scope may create a key of the other scope."""
        return self.reaches(other.level) and (self.live_replay or not other.live_replay)

    def reaches(self, level: Level) -> bool:
        """Return whether this scope has at least that level."""
        return _RANK[self.level] >= _RANK[level]

    def require(self, level: Level) -> None:
        """Check that this scope has at least that level.

        Raises:
            InsufficientScope: if it has a lower level.
        """
        if not self.reaches(level):
            raise InsufficientScope(level)

    def __str__(self) -> str:
        return f"{self.level} {LIVE_REPLAY}" if self.live_replay else self.level


_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Prefixes of self-hosted deployments; keys with the prefix of the hosted service are refused.
_PREFIXES: dict[Mode, str] = {"live": "nsk_local_", "test": "nsk_test_"}
_RANDOM_CHARACTERS = 43  # 256 bits in base 62
_CHECKSUM_CHARACTERS = 6
_ADMIN = Scope("admin")
_DEFAULT_TIER = TIERS["default"]
FIRST_SCOPE = "admin replay:live"


@dataclass(frozen=True, slots=True)
class Caller:
    """Caller of a request: its tenant bounds every query."""

    tenant: Tenant
    key_id: str
    scope: Scope = _ADMIN
    tier: Tier = _DEFAULT_TIER
    expires_at: datetime | None = None
    #: Masking of this workspace and mode; None where nothing is masked.
    masking: MaskingPolicies | None = None
    workspace_status: str = "active"
    #: Key of the digests that are stored instead of values.
    digest_key: bytes = field(default=b"", repr=False)

    @property
    def workspace_id(self) -> str:
        """Workspace of the key."""
        return self.tenant.workspace_id

    @property
    def mode(self) -> Mode:
        """Mode of the key."""
        return "test" if self.tenant.mode == "test" else "live"

    def require_active(self) -> None:
        """Check that the workspace of the caller is active.

        Raises:
            WorkspaceDisabled: if the workspace is suspended or expired.
        """
        if self.workspace_status != "active":
            raise WorkspaceDisabled(self.workspace_status)


@dataclass(frozen=True)
class NewKey:
    """New key with its full value, which is not stored."""

    workspace_id: str
    key_id: str
    key: str


def create_key(
    db: DbSession,
    workspace_id: str,
    *,
    label: str,
    scope: str,
    mode: Mode,
    secret: bytes,
    expires_at: datetime | None = None,
) -> NewKey:
    """Create a key without checking a caller; `recorder.access.key_admin` checks."""
    row, key = add_api_key(
        db, workspace_id, label=label, scope=scope, mode=mode, secret=secret, expires_at=expires_at
    )
    return NewKey(workspace_id, row.id, key)


def add_api_key(
    db: DbSession,
    workspace_id: str,
    *,
    label: str,
    scope: str,
    mode: Mode,
    secret: bytes,
    expires_at: datetime | None,
) -> tuple[KeyRow, str]:
    """Create a key; return its row and its value, which is not stored."""
    key = _generate_api_key(_PREFIXES[mode])
    row = KeyRow(
        id=new_id("key"),
        workspace_id=workspace_id,
        mode=mode,
        label=label,
        scope=scope,
        key_hash=_hash_api_key(key, secret),
        last4=key[-4:],
        created_at=clock.now(),
        expires_at=expires_at,
    )
    db.add(row)
    return row, key


def is_well_formed_key(key: str) -> bool:
    """Return whether prefix, length and checksum are right, so that a typing error costs no query."""
    prefix = next((prefix for prefix in _PREFIXES.values() if key.startswith(prefix)), None)
    if prefix is None or len(key) != len(prefix) + _RANDOM_CHARACTERS + _CHECKSUM_CHARACTERS:
        return False
    if not key.isascii():
        return False
    checksum = _compute_key_checksum(key[:-_CHECKSUM_CHARACTERS])
    return secrets.compare_digest(checksum, key[-_CHECKSUM_CHARACTERS:])


def authenticate_key(db: DbSession, key: str, *, secret: bytes) -> Caller:
    """Return the caller that a key belongs to, also of a workspace that is not active.

    Raises:
        InvalidApiKey: if the key is unknown, revoked or expired.
    """
    row = db.exec(select(KeyRow).where(KeyRow.key_hash == _hash_api_key(key, secret))).first()
    if row is None or row.revoked_at is not None or (row.expires_at and row.expires_at <= clock.now()):
        raise InvalidApiKey
    workspace = db.get(WorkspaceRow, row.workspace_id)
    if workspace is None:
        raise InvalidApiKey
    mode: Mode = "test" if row.mode == "test" else "live"
    return Caller(
        tenant=Tenant(workspace.id, mode),
        key_id=row.id,
        scope=Scope.parse(row.scope),
        tier=TIERS[workspace.tier],
        expires_at=row.expires_at,
        masking=load_masking_policies(db, workspace, mode, secret=secret),
        digest_key=compute_keyed_digest(secret, "workspace-digests", workspace.id.encode()),
        workspace_status=workspace.status,
    )


def _generate_api_key(prefix: str) -> str:
    body = prefix + "".join(secrets.choice(_BASE62) for _ in range(_RANDOM_CHARACTERS))
    return body + _compute_key_checksum(body)


def _compute_key_checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_CHARACTERS):
        value, digit = divmod(value, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))


def _hash_api_key(key: str, secret: bytes) -> str:
    return compute_keyed_digest(secret, "api-key", key.encode()).hex()
