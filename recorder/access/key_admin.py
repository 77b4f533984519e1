"""Administration of API keys by clients: create, list and revoke. Spec §4.5, §5; contract §1 (keys)."""

from sqlalchemy import func, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select
from sqlmodel.sql.expression import SelectOfScalar

from recorder import clock, limits
from recorder.access.keys import LIVE_REPLAY, Caller, Scope, add_api_key
from recorder.audit.log import Origin, record_audit_entry
from recorder.errors import InsufficientScope, InvalidTime, LimitReached, NotFound, ValidationFailed
from recorder.models.wire import Mode
from recorder.models.workspace import Key, KeyCreate, KeyCreated, KeyRow, WorkspaceRow
from recorder.storage.conditions import in_tenant
from recorder.storage.list_pages import FetchedPage, fetch_newest_rows
from recorder.tenant import Tenant


class LiveModeNotHeld(InsufficientScope):
    """A test key was used to create a live key."""

    needed_mode = "live"

    def __init__(self) -> None:
        detail = "A test key creates test keys alone; create a live key with an admin key of live mode."
        super().__init__("admin", detail)


def create_key_for_caller(
    db: DbSession, caller: Caller, origin: Origin, wanted: KeyCreate, secret: bytes
) -> KeyCreated:
    """Create a key that may do no more than the caller's.

    Raises:
        ValidationFailed: if label or scope are malformed.
        InvalidTime: if it would expire at once.
        InsufficientScope: if the key could do what the caller cannot: see live data, or replay live.
        LimitReached: if the workspace has as many valid keys as it may.
    """
    scope = _validate_key_request(wanted)
    mode = wanted.mode or caller.mode
    if mode == "live" and caller.mode == "test":
        raise LiveModeNotHeld
    if not caller.scope.includes(scope):
        raise InsufficientScope(LIVE_REPLAY if caller.scope.reaches(scope.level) else scope.level)
    return _create_recorded_key(db, origin, wanted, scope, mode, secret)


def create_key_as_operator(db: DbSession, origin: Origin, wanted: KeyCreate, secret: bytes) -> KeyCreated:
    """Create any key, for the operator of the deployment; its mode is live by default.

    Raises:
        ValidationFailed: if label or scope are malformed.
        InvalidTime: if it would expire at once.
        LimitReached: if the workspace has as many valid keys as it may.
    """
    return _create_recorded_key(
        db, origin, wanted, _validate_key_request(wanted), wanted.mode or "live", secret
    )


def list_keys(
    db: DbSession, tenant: Tenant, *, before_id: str | None = None, limit: int = limits.LIST_MAX
) -> FetchedPage[Key, str]:
    """Return a page of the keys that were not revoked, expired ones among them, newest first.

    Args:
        db: a transaction.
        tenant: the caller's; a live key administers all keys of its workspace, a test key those of test mode.
        before_id: id of the last key of the page before.
        limit: most keys of the page.
    """
    statement = _select_visible_keys(tenant)
    page = fetch_newest_rows(db, statement, col(KeyRow.id), before_id=before_id, limit=limit)
    return page.convert(_key_to_wire)


def revoke_key(db: DbSession, tenant: Tenant, origin: Origin, key_id: str) -> None:
    """Revoke a key; a key may revoke itself.

    Raises:
        NotFound: if the tenant has no such key, or it was revoked before.
    """
    row = db.exec(_select_visible_keys(tenant).where(KeyRow.id == key_id).with_for_update()).first()
    if row is None:
        raise NotFound("key")
    row.revoked_at = clock.now()
    db.add(row)
    record_audit_entry(
        db, origin, "key.revoke", resource_type="key", resource_id=key_id, details={"label": row.label}
    )


def find_key_as_operator(db: DbSession, key_id: str) -> KeyRow:
    """Return a key of any workspace, for the operator of the deployment.

    Raises:
        NotFound: if there is none, or it was revoked.
    """
    row = db.get(KeyRow, key_id)
    if row is None or row.revoked_at is not None:
        detail = "No key has this id, or it is revoked; `recorder keys list WORKSPACE` shows the valid ones."
        raise NotFound("key", detail)
    return row


def _key_to_wire(row: KeyRow) -> Key:
    return Key.model_validate(row.model_dump(include=set(Key.model_fields)))


def _select_visible_keys(tenant: Tenant) -> SelectOfScalar[KeyRow]:
    statement = select(KeyRow).where(
        KeyRow.workspace_id == tenant.workspace_id, col(KeyRow.revoked_at).is_(None)
    )
    return statement if tenant.mode == "live" else statement.where(KeyRow.mode == tenant.mode)


def _validate_key_request(wanted: KeyCreate) -> Scope:
    """Return the scope of a valid request."""
    if not wanted.label.isprintable():
        raise ValidationFailed.of("/label", "invalid_string", message="label takes printable characters.")
    try:
        scope = Scope.parse(wanted.scope)
    except ValueError as error:
        text = f"scope takes read, write or admin, which may be followed by {LIVE_REPLAY}."
        raise ValidationFailed.of("/scope", "invalid_value", message=text) from error
    if wanted.expires_at is not None and wanted.expires_at <= clock.now():
        raise InvalidTime("/expires_at", "expires_at takes a time in the future.", where="body")
    return scope


def _require_room_for_key(db: DbSession, tenant: Tenant) -> None:
    """Check that a workspace may have one more key; delete its revoked and expired ones if there is no room.

    Raises:
        LimitReached: if it has as many valid keys of the mode as it may.
    """
    # The lock makes two requests at once count one after the other.
    db.exec(select(WorkspaceRow.id).where(WorkspaceRow.id == tenant.workspace_id).with_for_update())
    counted = select(func.count()).select_from(KeyRow).where(*in_tenant(KeyRow, tenant))
    if db.exec(counted).one() < limits.KEYS_PER_WORKSPACE:
        return
    is_invalid = or_(col(KeyRow.revoked_at).is_not(None), col(KeyRow.expires_at) <= clock.now())
    db.exec(delete(KeyRow).where(*in_tenant(KeyRow, tenant), is_invalid))
    if db.exec(counted).one() >= limits.KEYS_PER_WORKSPACE:
        what = f"valid keys of {tenant.mode} mode"
        raise LimitReached(what, limits.KEYS_PER_WORKSPACE, "revoke one that no program uses")


def _create_recorded_key(
    db: DbSession, origin: Origin, wanted: KeyCreate, scope: Scope, mode: Mode, secret: bytes
) -> KeyCreated:
    _require_room_for_key(db, Tenant(origin.workspace_id, mode))
    row, key = add_api_key(
        db,
        origin.workspace_id,
        label=wanted.label,
        scope=str(scope),
        mode=mode,
        secret=secret,
        expires_at=wanted.expires_at,
    )
    expires_at = None if row.expires_at is None else clock.to_iso(row.expires_at)
    details = {"label": row.label, "scope": row.scope, "mode": mode, "expires_at": expires_at}
    record_audit_entry(db, origin, "key.create", resource_type="key", resource_id=row.id, details=details)
    return KeyCreated(
        id=row.id,
        label=row.label,
        scope=row.scope,
        key=key,
        mode=mode,
        expires_at=row.expires_at,
        created_at=row.created_at,
    )
