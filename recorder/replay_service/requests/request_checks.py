"""Checks of the sessions, positions and hosts that a replay names. Spec §4.6, contract §8."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import limits
from recorder.access.keys import LIVE_REPLAY, Caller
from recorder.errors import (
    InsufficientScope,
    InvalidRange,
    InvalidUrl,
    NotFound,
    Problem,
    RecorderError,
    SessionNotSealed,
    UrlNotAllowed,
    ValidationFailed,
    json_pointer,
)
from recorder.memory.storage.graph_store import graph_scope_of
from recorder.memory.storage.versions import in_scope
from recorder.models.memory import GraphPathRow
from recorder.models.recovery import RecoveryCreate
from recorder.models.replay import DRY_POLICY, ReplayCreate, ReplayPlace, ReplayPolicyBody
from recorder.models.session import SessionRow, TagCreate, TagRow
from recorder.models.workspace import WorkspaceRow
from recorder.net.addresses import parse_called_address
from recorder.net.reachable_hosts import ReachableHosts
from recorder.recording.item_reads import find_anchor_time
from recorder.recording.session_events import read_session_events_page
from recorder.recording.sessions import find_session
from recorder.replay_service.recordings.failed_sessions import find_session_failure
from recorder.replay_service.requests.storage_state import (
    InvalidStorageState,
    StorageState,
    read_storage_state,
)
from recorder.runtime import Runtime
from recorder.tenant import Tenant

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class EarlierLookup(Generic[_Value]):
    """Result of a look-up in the lake that was made before the request's write transaction.

    Sealed sessions do not change. A read of the lake takes up to 0.2 s, for which other writers would wait.
    """

    value: _Value | None = None
    error: RecorderError | None = None

    def require(self) -> _Value | None:
        """Return the value.

        Raises:
            RecorderError: as the look-up did.
        """
        if self.error is not None:
            raise self.error
        return self.value


#: Inputs that may be large: a file, or an array that begins with one.
_FILES = re.compile(r'(?:\s*\[\s*")?data:')


def require_sealed_replay_session(db: DbSession, tenant: Tenant, session_id: str) -> SessionRow:
    """Return a sealed session of the caller's workspace and mode.

    Raises:
        NotFound, SessionNotSealed: if there is none, or it is not sealed.
    """
    row = find_session(db, tenant, session_id)
    if row.status != "sealed":
        raise SessionNotSealed(row.status)
    return row


def _require_live_replay_hosts(db: DbSession, tenant: Tenant) -> list[str]:
    """Return the hosts that live replays of a workspace may reach.

    Raises:
        UrlNotAllowed: if there are none.
    """
    allowed = db.get_one(WorkspaceRow, tenant.workspace_id).live_hosts or []
    if not allowed:
        raise UrlNotAllowed(
            "The workspace allows no host to live replays; an admin key adds some with PATCH "
            "/v1/workspaces/current, member live_replay.allow_hosts.",
            "/sandbox",
        )
    return allowed


def check_replay_inputs(inputs: Mapping[str, str], storage_state_ref: str | None = None) -> None:
    """Check the values of inputs; the one that a policy names must hold the stored state of a browser.

    Raises:
        ValidationFailed: if a value is too long, or no such state.
    """
    for name, value in inputs.items():
        pointer = json_pointer("inputs", name)
        if name == storage_state_ref:
            try:
                read_storage_state(value)
            except InvalidStorageState as error:
                raise ValidationFailed.of(pointer, "invalid_value", message=str(error)) from None
        elif len(value) > limits.REPLAY_INPUT_CHARACTERS and not _FILES.match(value):
            text = f"Takes at most {limits.REPLAY_INPUT_CHARACTERS:,} characters."
            raise ValidationFailed.of(pointer, "invalid_value", message=text)


def check_replay_settings(
    caller: Caller,
    sandbox: str,
    policy: ReplayPolicyBody,
    inputs: Mapping[str, str],
    *,
    is_compared: bool = False,
) -> None:
    """Check what replays and recoveries have alike and what needs no look-up: policy, inputs and scope.

    Raises:
        ValidationFailed: if a member of the policy has no effect, or an input is too long.
        InsufficientScope: if the sandbox is live and the key lacks its scope.
    """
    check_requested_policy(policy, sandbox, is_compared=is_compared)
    check_replay_inputs(inputs, policy.storage_state_ref)
    require_replay_scope(caller, sandbox)


def require_replay_scope(caller: Caller, sandbox: str) -> None:
    """Check that a key may start, cancel and steer replays of a sandbox.

    Raises:
        InsufficientScope: if the sandbox is live and the key lacks its scope.
    """
    if sandbox == "live" and not caller.scope.live_replay:
        raise InsufficientScope(LIVE_REPLAY)


def check_requested_policy(policy: ReplayPolicyBody, sandbox: str, *, is_compared: bool = False) -> None:
    """Check that each member of a policy that was sent has an effect, and that its origins can be read.

    Args:
        policy: the policy; members that are null count as not sent.
        sandbox: `dry` or `live`.
        is_compared: whether the replay is compared with a path or the graph.

    Raises:
        ValidationFailed: if some have none, or are no origins.
    """
    problems = []
    for name in ReplayPolicyBody.model_fields:
        if name not in policy.model_fields_set or getattr(policy, name) is None:
            continue
        if name == "min_support" and not is_compared:
            text = "Takes effect only against a path or the graph; leave it out, or replay dry with against."
        elif sandbox == "dry" and name not in DRY_POLICY:
            allowed = ", ".join(DRY_POLICY)
            text = (
                f"Has no effect in a dry replay, which takes {allowed}; leave it out, or send sandbox live."
            )
        else:
            continue
        problems.append(Problem("body", json_pointer("policy", name), "invalid_value", text))
    for recorded, live in policy.base_url_map.items():
        if not (_is_replay_policy_origin(recorded) and _is_replay_policy_origin(live)):
            pointer = json_pointer("policy", "base_url_map", recorded)
            text = "Takes origins such as https://shop.example.com, with a port if you like."
            problems.append(Problem("body", pointer, "invalid_value", text))
    if problems:
        raise ValidationFailed(problems)


def _is_replay_policy_origin(address: str) -> bool:
    try:
        parse_called_address(address)
    except InvalidUrl:
        return False
    return True  # the model refuses paths and queries


def check_requested_hosts(db: DbSession, tenant: Tenant, body: ReplayCreate | RecoveryCreate) -> None:
    """Check that a request names only hosts that its workspace allows; a dry replay or recovery reaches none.

    Raises:
        UrlNotAllowed: if the workspace allows no host, the request names another one or none, or its stored
            state is of other ones.
    """
    if body.sandbox != "live":
        return
    policy, inputs = body.policy, body.inputs
    reachable = ReachableHosts(_require_live_replay_hosts(db, tenant))
    if policy.allow_hosts == []:
        text = (
            "An empty list lets the browser reach nothing; name some hosts, or leave it out for all of them."
        )
        raise UrlNotAllowed(text, "/policy/allow_hosts")
    for index, host in enumerate(policy.allow_hosts or []):
        if not reachable.contains_entry(host):
            text = "The workspace's live_replay.allow_hosts lacks this host; a replay only narrows that list."
            raise UrlNotAllowed(text, f"/policy/allow_hosts/{index}")
    for host in policy.allow_methods:
        if not reachable.contains_entry(host):
            text = "The workspace's live_replay.allow_hosts lacks this host; name methods of listed ones."
            raise UrlNotAllowed(text, json_pointer("policy", "allow_methods", host))
    name = policy.storage_state_ref
    if name is not None and name in inputs:
        given = read_storage_state(inputs[name])
        if given != StorageState() and given.select(reachable) == StorageState():
            text = "Nothing of the stored state is of a host of the workspace's live_replay.allow_hosts."
            raise UrlNotAllowed(text, json_pointer("inputs", name))


def check_compared_replay_session(
    db: DbSession, session: SessionRow, body: ReplayCreate
) -> SessionRow | None:
    """Return the session of `against`, if it names one; a path must be one of the workflow.

    Raises:
        NotFound, SessionNotSealed: if there is no such session or path, or the session is not sealed.
    """
    against = body.against
    if against is None:
        return None
    if against.session_id is not None:
        return require_sealed_replay_session(db, session.tenant, against.session_id)
    if against.path_id is not None:
        path = GraphPathRow
        mine = (*in_scope(path, graph_scope_of(session)), col(path.path_id) == against.path_id)
        if db.exec(select(path.number).where(*mine)).first() is None:
            raise NotFound(
                "path", "The session's workflow has no such path; GET /v1/memory/paths lists them."
            )
    return None


def look_up_replay_range(
    db: DbSession, runtime: Runtime, tenant: Tenant, body: ReplayCreate
) -> EarlierLookup[dict[str, Any]]:
    """Return the event with which a requested replay with an anchor or `until` begins, if it is known."""
    try:
        session = require_sealed_replay_session(db, tenant, body.session_id)
        return EarlierLookup(_check_requested_replay_range(db, runtime, session, body))
    except RecorderError as error:
        return EarlierLookup(error=error)


def look_up_recovery_point(
    db: DbSession, runtime: Runtime, tenant: Tenant, body: RecoveryCreate
) -> EarlierLookup[int]:
    """Return the time of the recovery point that a request names; None if it names none."""
    point = body.recovery_point
    if point is None:
        return EarlierLookup()
    position = ReplayPlace(**point.model_dump(exclude={"session_id"}, exclude_none=True))
    try:
        session = require_sealed_replay_session(db, tenant, point.session_id)
        return EarlierLookup(_find_requested_place_time(db, runtime, session, position))
    except RecorderError as error:
        return EarlierLookup(error=error)


def _check_requested_replay_range(
    db: DbSession, runtime: Runtime, session: SessionRow, body: ReplayCreate
) -> dict[str, Any] | None:
    """Check anchor and until of a request; return the event with which the replay begins, if it is known.

    Raises:
        NotFound: if the session lacks the tag, frame or event, or an event on the asked side of it.
        ValidationFailed: if an automatic anchor is asked for and the session did not fail.
        InvalidRange: if the replay would end before it begins.
    """
    until = None if body.until is None else _find_requested_place_time(db, runtime, session, body.until)
    if body.anchor is not None and body.anchor.auto:
        # The best candidate is known once the replay runs.
        find_session_failure(db, session, None, pointer="/anchor/auto")
        _require_event_before_until(db, runtime, session, until)
        return None
    anchor = None if body.anchor is None else _find_requested_place_time(db, runtime, session, body.anchor)
    if anchor is not None and until is not None and _is_until_before_anchor(body, until, anchor):
        raise InvalidRange("/until", "/anchor", where="body", detail="until is before anchor.")
    _require_event_before_until(db, runtime, session, until)
    if anchor is None:
        return None
    # Ids are longer than "": the page begins with the first event at that time.
    after = (anchor, "")
    page = read_session_events_page(db, runtime.lake, session, after=after, limit=1)
    if not page.items:
        raise NotFound("event", "The session has no event at or after this anchor; name an earlier one.")
    first = page.items[0]
    if until is not None and first.t_ms > until:
        text = "The session has no event from anchor to until; name a later until, or an earlier anchor."
        raise InvalidRange("/until", "/anchor", where="body", detail=text)
    if body.anchor is not None and body.anchor.event_id is not None:
        return {"event_id": body.anchor.event_id, "t_ms": anchor}
    return {"event_id": first.id, "t_ms": first.t_ms}


def _require_event_before_until(
    db: DbSession, runtime: Runtime, session: SessionRow, until_ms: int | None
) -> None:
    """Check that a replay has an event to end with: the last one at or before `until`."""
    if until_ms is None:
        return
    first = read_session_events_page(db, runtime.lake, session, after=None, limit=1).items
    if not first or first[0].t_ms > until_ms:
        raise NotFound("event", "The session has no event at or before this until; name a later one.")


def _is_until_before_anchor(body: ReplayCreate, until_ms: int, anchor_ms: int) -> bool:
    """Compare times, and of two events of one millisecond their ids."""
    until_id = None if body.until is None else body.until.event_id
    anchor_id = None if body.anchor is None else body.anchor.event_id
    if until_id is None or anchor_id is None:
        return until_ms < anchor_ms
    return (until_ms, until_id) < (anchor_ms, anchor_id)


def _find_requested_place_time(
    db: DbSession, runtime: Runtime, session: SessionRow, position: ReplayPlace
) -> int:
    """Return the time of a tag, frame or event of a session; of tags of one name that of the last.

    Raises:
        NotFound: if the session has no such.
    """
    if position.tag is not None:
        named = select(TagRow.t_ms).where(TagRow.session_id == session.id, TagRow.name == position.tag)
        t_ms = db.exec(named.order_by(col(TagRow.t_ms).desc()).limit(1)).first()
        kind = "tag"
    else:
        kind = "event" if position.event_id is not None else "frame"
        tag = TagCreate(name="anchor", event_id=position.event_id, frame_id=position.frame_id)
        try:
            t_ms = find_anchor_time(db, runtime.lake, session, tag)
        except ValidationFailed:
            t_ms = None
    if t_ms is None:
        raise NotFound(kind, f"The session has no such {kind}.")
    return t_ms
