"""Replay object for clients, and its events. Spec §3.3, §6.1; contract §8."""

from typing import Any

from sqlmodel import Session as DbSession

from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.models.replay import (
    DRY_POLICY,
    AnchorEvent,
    Replay,
    ReplayAwaiting,
    ReplayProgress,
    ReplayRow,
)
from recorder.request_context import continue_request_context
from recorder.tenant import GraphScope
from recorder.webhooks.outbox import add_outbox_events, describe_outbox_event

_COLUMNS = {
    "id",
    "session_id",
    "workflow",
    "sandbox",
    "status",
    "summary",
    "divergence",
    "result_session_id",
    "cause",
    "attempt",
    "error",
    "created_at",
    "started_at",
    "finished_at",
}
#: Members of a divergence that may be nodes of a graph.
_SIDES = ("expected", "observed")


def replay_to_wire(row: ReplayRow) -> Replay:
    """Return the replay object; of inputs it has the names only."""
    awaiting = None
    if row.awaiting_step is not None and row.awaiting_until is not None:
        awaiting = ReplayAwaiting(step=row.awaiting_step, expires_at=row.awaiting_until)
    is_compared = bool({"graph", "path_id"} & (row.spec["against"] or {}).keys())
    return Replay.model_validate(
        {
            **row.model_dump(include=_COLUMNS),
            "mode": row.kind,
            "anchor": row.spec["anchor"],
            "until": row.spec["until"],
            "policy": make_wire_policy(row.spec["policy"], row.sandbox, is_compared=is_compared),
            "against": row.spec["against"],
            "start": row.spec.get("start"),
            "anchor_event": None if row.anchor_event is None else AnchorEvent(**row.anchor_event),
            "inputs": row.input_names,
            "progress": ReplayProgress(step=row.step, steps=row.steps),
            "awaiting": awaiting,
        }
    )


def read_labelled_replay(db: DbSession, row: ReplayRow) -> Replay:
    """Return the replay object with the labels that nodes have in the memory graph now."""
    replay = replay_to_wire(row)
    divergence = replay.divergence or {}
    sides = {name: divergence[name] for name in _SIDES if divergence.get(name, {}).get("node_id")}
    if sides:
        columns = read_newest_columns(db, GraphScope(row.tenant, row.workflow))
        labels = {node.node_id: node.label for node in columns.nodes}
        named = {
            name: {**side, "name": labels.get(side["node_id"], side["name"])} for name, side in sides.items()
        }
        replay.divergence = {**divergence, **named}
    return replay


def make_wire_policy(policy: dict[str, Any], sandbox: str, *, is_compared: bool = False) -> dict[str, Any]:
    """Return the members of a policy that have an effect in a sandbox.

    Args:
        policy: all members.
        sandbox: `dry` or `live`.
        is_compared: whether a path or the graph is compared with.
    """
    names = DRY_POLICY if sandbox == "dry" else policy
    return {name: policy[name] for name in names if name in policy and (is_compared or name != "min_support")}


def queue_replay_events(db: DbSession, *rows: ReplayRow) -> None:
    """Queue the events of the statuses that replays have just taken, with the whole objects."""
    add_outbox_events(db, [_describe_replay_event(row) for row in rows])


def _describe_replay_event(row: ReplayRow) -> dict[str, Any]:
    with continue_request_context(row.request_id):
        return describe_outbox_event(
            tenant=row.tenant,
            type=f"replay.{row.status}",
            subject_id=row.id,
            data={"replay": replay_to_wire(row).model_dump(mode="json")},
        )
