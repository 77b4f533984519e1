"""Workspaces and API keys: making them, and telling who calls. Spec §5, contract §1 (keys)."""

import secrets
import zlib
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from sqlmodel import Session as DbSession
from sqlmodel import select

from recorder import clock
from recorder.access.scopes import Scope
from recorder.access.surfaces import TIERS, Tier
from recorder.digest import keyed_digest
from recorder.errors import Conflict, InvalidApiKey, WorkspaceDisabled
from recorder.ids import new_id
from recorder.masking.policies import MaskingPolicies, load_policies
from recorder.models.workspace import KeyRow, WorkspaceRow

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_PREFIXES = ("nsk_live_", "nsk_test_", "nsk_local_")
_RANDOM_CHARACTERS = 43  # 256 bits in base 62
_CHECKSUM_CHARACTERS = 6
_ADMIN = Scope("admin")
_DEFAULT_TIER = TIERS["default"]
FIRST_SCOPE = "admin replay:live"


class WorkspaceExists(Conflict):
    """A workspace of this name is there already."""

    def __init__(self) -> None:
        super().__init__("A workspace of this name exists; choose another name.")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request: every query is bounded by its workspace and mode."""

    workspace_id: str
    mode: Literal["live", "test"]
    key_id: str
    scope: Scope = _ADMIN
    tier: Tier = _DEFAULT_TIER
    expires_at: datetime | None = None
    #: What is masked in this workspace and mode; None where nothing is.
    masking: MaskingPolicies | None = None


@dataclass(frozen=True)
class NewKey:
    """A key at the one moment when its full value is known."""

    workspace_id: str
    key_id: str
    key: str


def create_workspace(
    db: DbSession, name: str, *, region: str, secret: bytes, tier: str = "default"
) -> NewKey:
    """Make a workspace and its first key, which may do everything.

    Args:
        tier: name of its table of limits.

    Raises:
        WorkspaceExists: if the name is taken.
    """
    if db.exec(select(WorkspaceRow).where(WorkspaceRow.name == name)).first() is not None:
        raise WorkspaceExists
    workspace = WorkspaceRow(id=new_id("wsp"), name=name, region=region, tier=tier, created_at=clock.now())
    db.add(workspace)
    return create_key(
        db, workspace.id, label="first key", scope=FIRST_SCOPE, mode="live", kind="local", secret=secret
    )


def create_key(
    db: DbSession, workspace_id: str, *, label: str, scope: str, mode: str, kind: str, secret: bytes
) -> NewKey:
    """Make a key; `kind` (`live`, `test`, `local`) is its prefix, `mode` what it sees."""
    key = _new_key(f"nsk_{kind}_")
    row = KeyRow(
        id=new_id("key"),
        workspace_id=workspace_id,
        mode=mode,
        label=label,
        scope=scope,
        key_hash=_hash(key, secret),
        last4=key[-4:],
        created_at=clock.now(),
    )
    db.add(row)
    return NewKey(workspace_id, row.id, key)


def is_well_formed(key: str) -> bool:
    """Whether prefix, length and checksum fit: a typo costs no look-up."""
    prefix = next((prefix for prefix in _PREFIXES if key.startswith(prefix)), None)
    if prefix is None or len(key) != len(prefix) + _RANDOM_CHARACTERS + _CHECKSUM_CHARACTERS:
        return False
    return key.isascii() and secrets.compare_digest(_checksum(key[:-_CHECKSUM_CHARACTERS]), key[-6:])


def authenticate(db: DbSession, key: str, *, secret: bytes) -> Caller:
    """The caller that a key stands for.

    Raises:
        InvalidApiKey: if the key is unknown, revoked or expired.
        WorkspaceDisabled: if its workspace is not active.
    """
    row = db.exec(select(KeyRow).where(KeyRow.key_hash == _hash(key, secret))).first()
    if row is None or row.revoked_at is not None or (row.expires_at and row.expires_at <= clock.now()):
        raise InvalidApiKey
    workspace = db.get(WorkspaceRow, row.workspace_id)
    if workspace is None:
        raise InvalidApiKey
    if workspace.status != "active":
        raise WorkspaceDisabled(workspace.status)
    mode: Literal["live", "test"] = "test" if row.mode == "test" else "live"
    return Caller(
        workspace_id=workspace.id,
        mode=mode,
        key_id=row.id,
        scope=Scope.parse(row.scope),
        tier=TIERS[workspace.tier],
        expires_at=row.expires_at,
        masking=load_policies(db, workspace, mode),
    )


def _new_key(prefix: str) -> str:
    body = prefix + "".join(secrets.choice(_BASE62) for _ in range(_RANDOM_CHARACTERS))
    return body + _checksum(body)


def _checksum(body: str) -> str:
    value = zlib.crc32(body.encode())
    digits = []
    for _ in range(_CHECKSUM_CHARACTERS):
        value, digit = divmod(value, 62)
        digits.append(_BASE62[digit])
    return "".join(reversed(digits))


def _hash(key: str, secret: bytes) -> str:
    return keyed_digest(secret, "api-key", key.encode()).hex()
