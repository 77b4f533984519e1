"""Administering the keys of a workspace: make, list, revoke. Spec §4.5, §5; contract §1 (keys)."""

from sqlmodel import Session as DbSession
from sqlmodel import col, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder import clock
from recorder.access.keys import LIVE_REPLAY, Caller, Scope, add_key
from recorder.audit.log import Origin, record
from recorder.errors import InsufficientScope, InvalidTime, NotFound, ValidationFailed
from recorder.models.key import Key, KeyCreate, KeyCreated, KeyRow
from recorder.models.wire import Mode
from recorder.tenant import Tenant


class LiveModeNotHeld(InsufficientScope):
    """A test key asked for one that sees live data."""

    def __init__(self) -> None:
        super().__init__("admin, of live mode: a test key makes test keys alone")


def grant_key(db: DbSession, caller: Caller, origin: Origin, wanted: KeyCreate, secret: bytes) -> KeyCreated:
    """Make a key that may do no more than the caller's own.

    Raises:
        ValidationFailed: if label or scope are malformed.
        InvalidTime: if it would be expired from the beginning.
        InsufficientScope: if it could do what the caller cannot: see live data, or replay live.
    """
    scope = _check(wanted)
    mode = wanted.mode or caller.mode
    if mode == "live" and caller.mode == "test":
        raise LiveModeNotHeld
    if not caller.scope.includes(scope):
        raise InsufficientScope(LIVE_REPLAY if caller.scope.reaches(scope.level) else scope.level)
    return _create(db, origin, wanted, scope, mode, secret)


def issue_key(db: DbSession, origin: Origin, wanted: KeyCreate, secret: bytes) -> KeyCreated:
    """Make any key, as the operator of the deployment may; live unless said otherwise.

    Raises:
        ValidationFailed: if label or scope are malformed.
        InvalidTime: if it would be expired from the beginning.
    """
    return _create(db, origin, wanted, _check(wanted), wanted.mode or "live", secret)


def list_keys(
    db: DbSession, tenant: Tenant, *, before_id: str | None = None, limit: int | None = None
) -> tuple[list[Key], bool]:
    """Keys that were not revoked, newest first, and whether there are more; expired ones stand among them.

    Args:
        tenant: the caller's; a live key administers all keys of its workspace, a test key those of test mode.
    """
    statement = _visible(tenant).order_by(col(KeyRow.id).desc())
    if before_id is not None:
        statement = statement.where(col(KeyRow.id) < before_id)
    if limit is not None:
        statement = statement.limit(limit + 1)
    rows = list(db.exec(statement))
    shown = rows[:limit]
    return [_to_wire(row) for row in shown], len(rows) > len(shown)


def revoke_key(db: DbSession, tenant: Tenant, origin: Origin, key_id: str) -> None:
    """End a key; it may be the one that asks.

    Raises:
        NotFound: if who asks sees no such key, or it was revoked before.
    """
    row = db.exec(_visible(tenant).where(KeyRow.id == key_id).with_for_update()).first()
    if row is None:
        raise NotFound("key")
    row.revoked_at = clock.now()
    db.add(row)
    record(db, origin, "key.revoke", resource_type="key", resource_id=key_id, details={"label": row.label})


def find_key(db: DbSession, key_id: str) -> KeyRow:
    """A key of any workspace, for the operator of the deployment.

    Raises:
        NotFound: if there is none, or it was revoked.
    """
    row = db.get(KeyRow, key_id)
    if row is None or row.revoked_at is not None:
        raise NotFound("key")
    return row


def _to_wire(row: KeyRow) -> Key:
    return Key.model_validate(row.model_dump(include=set(Key.model_fields)))


def _visible(tenant: Tenant) -> SelectOfScalar[KeyRow]:
    statement = select(KeyRow).where(
        KeyRow.workspace_id == tenant.workspace_id, col(KeyRow.revoked_at).is_(None)
    )
    return statement if tenant.mode == "live" else statement.where(KeyRow.mode == tenant.mode)


def _check(wanted: KeyCreate) -> Scope:
    """The scope of a key that can be made."""
    if not wanted.label.isprintable():
        raise ValidationFailed.of("/label", "invalid_string", message="label takes printable characters.")
    try:
        scope = Scope.parse(wanted.scope)
    except ValueError as error:
        text = f"scope takes read, write or admin, and {LIVE_REPLAY} behind it for live replays."
        raise ValidationFailed.of("/scope", "invalid_value", message=text) from error
    if wanted.expires_at is not None and wanted.expires_at <= clock.now():
        raise InvalidTime("/expires_at", "expires_at lies in the future.", where="body")
    return scope


def _create(
    db: DbSession, origin: Origin, wanted: KeyCreate, scope: Scope, mode: Mode, secret: bytes
) -> KeyCreated:
    row, key = add_key(
        db,
        origin.workspace_id,
        label=wanted.label,
        scope=str(scope),
        mode=mode,
        secret=secret,
        expires_at=wanted.expires_at,
    )
    ends = None if row.expires_at is None else clock.to_iso(row.expires_at)
    details = {"label": row.label, "scope": row.scope, "mode": mode, "expires_at": ends}
    record(db, origin, "key.create", resource_type="key", resource_id=row.id, details=details)
    return KeyCreated(
        id=row.id,
        label=row.label,
        scope=row.scope,
        key=key,
        mode=mode,
        expires_at=row.expires_at,
        created_at=row.created_at,
    )
