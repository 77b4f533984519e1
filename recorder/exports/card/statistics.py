"""What a dataset holds in figures, for its card: parts, outcomes, actors, event types, time. Spec §4.3."""

from dataclasses import dataclass

import polars as pl

from recorder.exports.planning.facts import LakeFacts
from recorder.exports.planning.plan import Plan
from recorder.storage.lake import Lake
from recorder.tenant import Tenant


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Figures over all sessions of a plan."""

    #: split, sessions, events, frames
    splits: list[tuple[str, int, int, int]]
    #: outcome or None, sessions; most frequent first, so are the next two
    outcomes: list[tuple[str | None, int]]
    #: kind of actor or None, sessions
    actor_kinds: list[tuple[str | None, int]]
    #: type, events; all events of the sessions, whether or not a frame holds them
    event_types: list[tuple[str, int]]
    #: From start to end, of all sessions together.
    duration_ms: int


def read_statistics(lake: Lake, tenant: Tenant, plan: Plan) -> Statistics:
    """The figures of a plan, from itself and from the lake at its pinned versions.

    Raises:
        Unavailable: if the lake does not answer.
    """
    sessions = plan.sessions
    facts = LakeFacts(lake, tenant, plan.versions, sessions)
    splits = sessions.group_by("split").agg(pl.len(), pl.col("rows").sum(), pl.col("frames").sum())
    return Statistics(
        splits=splits.sort("split").rows(),
        outcomes=_counted(sessions, "outcome"),
        actor_kinds=_counted(sessions, "actor_kind"),
        event_types=facts.event_types(),
        duration_ms=facts.duration_ms(),
    )


def _counted(sessions: pl.DataFrame, column: str) -> list[tuple[str | None, int]]:
    counts = sessions.group_by(column).len()
    return counts.sort(["len", column], descending=[True, False]).rows()
