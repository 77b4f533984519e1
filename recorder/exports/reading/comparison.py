"""What one export has and another has not: sessions by the plans, files by their hashes. Contract §5.

Sessions that were deleted since are counted and never named: whoever reads this must not learn of them again.
"""

from collections import Counter
from dataclasses import dataclass
from typing import get_args

import polars as pl
from sqlalchemy import case
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import InvalidState, NotFound
from recorder.exports.destinations import open_destination
from recorder.exports.names import MANIFEST
from recorder.exports.planning.plan import Plan
from recorder.exports.running.ledger import read_shards, read_stored_plan
from recorder.models.export import ChangeCause, DifferenceCounts, ExportRow, SessionDifference
from recorder.models.session import SessionRow
from recorder.runtime import Runtime

_KNOWN = pl.Schema({"session_id": pl.String, "is_there": pl.Boolean, "came_later": pl.Boolean})
# What the files say of a session, beside its id and place.
_CONTENT = (
    "outcome",
    "actor_kind",
    "split",
    "rows_sha256",
    "frames_sha256",
    "samples_sha256",
)


@dataclass(frozen=True)
class Compared:
    """Two completed exports side by side."""

    same_rows: bool
    same_request: bool
    #: session_id, change, cause; by id. Sessions that are in one only, or not the same in both.
    changes: pl.DataFrame
    sessions: DifferenceCounts
    shards: DifferenceCounts

    def causes(self) -> dict[ChangeCause, int]:
        """How many sessions each cause explains."""
        found = Counter(self.changes["cause"].to_list())
        return {cause: found[cause] for cause in get_args(ChangeCause) if found[cause]}

    def page(self, *, after_id: str | None, limit: int) -> tuple[list[SessionDifference], bool]:
        """Some of the sessions that differ and are still there, by id, and whether more follow."""
        named = self.changes.filter(pl.col("cause") != "deletion")
        if after_id is not None:
            named = named.filter(pl.col("session_id") > after_id)
        rows = named.head(limit + 1).to_dicts()
        return [SessionDifference.model_validate(row) for row in rows[:limit]], len(rows) > limit


def compare(db: DbSession, runtime: Runtime, row: ExportRow, against: ExportRow) -> Compared:
    """Compare an export with an earlier one of the same workspace and mode.

    Raises:
        InvalidState: if one of them is not completed.
        NotFound: if the plan or the files of one are gone.
    """
    plan, other = _read_plan(runtime, row), _read_plan(runtime, against)
    changes = _changes(plan, other)
    explained = _explain(changes, _look_up(db, row, plan, other, changes, against), plan, other)
    counts = Counter(explained["change"].to_list())
    same = plan.sessions.height - counts["added"] - counts["changed"]
    return Compared(
        same_rows=row.row_set_sha256 == against.row_set_sha256,
        same_request=plan.spec == other.spec,
        changes=explained,
        sessions=DifferenceCounts(
            same=same, added=counts["added"], removed=counts["removed"], changed=counts["changed"]
        ),
        shards=_compare_shards(db, row, against),
    )


def _read_plan(runtime: Runtime, row: ExportRow) -> Plan:
    if row.status != "completed":
        raise InvalidState(row.status, needed="exports that are compared must both be completed")
    try:
        if row.destination["kind"] == "signed_url":
            open_destination(row, runtime.settings).size(MANIFEST)
        plan = read_stored_plan(runtime.blobs, row.plan_key or "")
    except KeyError as error:
        raise NotFound("manifest", f"The files of {row.id} are gone, and what they held.") from error
    if plan is None:
        raise NotFound("manifest", f"{row.id} is of an earlier release, which kept too little to compare.")
    return plan


def _changes(plan: Plan, other: Plan) -> pl.DataFrame:
    """session_id, change, and of sessions in both whether outcome or the parts dealt differ."""
    ours = plan.sessions.select("session_id", *_CONTENT)
    both = ours.join(
        other.sessions.select("session_id", *_CONTENT), on="session_id", how="full", coalesce=False
    )
    differs = {name: pl.col(name).ne_missing(pl.col(f"{name}_right")) for name in _CONTENT}
    change = (
        pl.when(pl.col("session_id_right").is_null())
        .then(pl.lit("added"))
        .when(pl.col("session_id").is_null())
        .then(pl.lit("removed"))
        .when(pl.any_horizontal(differs.values()))
        .then(pl.lit("changed"))
    )
    return (
        both.select(
            pl.coalesce("session_id", "session_id_right"),
            change.alias("change"),
            differs["outcome"].alias("outcome_differs"),
            differs["rows_sha256"].alias("rows_differ"),
        )
        .filter(pl.col("change").is_not_null())
        .sort("session_id")
    )


def _look_up(
    db: DbSession, row: ExportRow, plan: Plan, other: Plan, changes: pl.DataFrame, against: ExportRow
) -> pl.DataFrame:
    """What the sessions are today: whether they are there, and whether they were imported after `against`."""
    if changes.is_empty():
        return pl.DataFrame(schema=_KNOWN)
    planned_at = against.started_at or against.created_at
    came_later = (col(SessionRow.is_import)) & (col(SessionRow.created_at) > planned_at)
    statement = select(
        SessionRow.id,
        col(SessionRow.deleted_at).is_(None),
        case((came_later, True), else_=False),
    ).where(
        SessionRow.workspace_id == row.workspace_id,
        SessionRow.mode == row.mode,
        col(SessionRow.workflow).in_({*plan.spec["workflow"], *other.spec["workflow"]}),
    )
    return pl.DataFrame([tuple(found) for found in db.exec(statement)], schema=_KNOWN, orient="row")


def _explain(changes: pl.DataFrame, known: pl.DataFrame, plan: Plan, other: Plan) -> pl.DataFrame:
    """The sessions that differ with what explains it, the surest first."""
    is_other_request = plan.spec != other.spec
    filters = {*plan.spec["filter"], *other.spec["filter"]}
    in_one = pl.col("change") != "changed"
    cause = (
        pl.when(~pl.col("is_there").fill_null(False))
        .then(pl.lit("deletion"))
        .when((pl.col("change") == "added") & pl.col("came_later"))
        .then(pl.lit("import"))
        .when(in_one & pl.lit(is_other_request))
        .then(pl.lit("request"))
        .when(in_one & pl.lit(plan.graph != other.graph))
        .then(pl.lit("graph"))
        .when(in_one & pl.lit(bool(filters & {"tag", "outcome"})))
        .then(pl.lit("tag"))
        .when(~in_one & pl.col("outcome_differs"))
        .then(pl.lit("tag"))
        .when(~in_one & ~pl.col("rows_differ") & pl.lit(is_other_request))
        .then(pl.lit("request"))
        .otherwise(pl.lit("lake"))
    )
    found = changes.join(known, on="session_id", how="left", maintain_order="left")
    return found.select("session_id", "change", cause.alias("cause"))


def _compare_shards(db: DbSession, row: ExportRow, against: ExportRow) -> DifferenceCounts:
    ours = {shard.path: shard.sha256 for shard in read_shards(db, row.id)}
    theirs = {shard.path: shard.sha256 for shard in read_shards(db, against.id)}
    in_both = ours.keys() & theirs.keys()
    same = sum(ours[path] == theirs[path] for path in in_both)
    return DifferenceCounts(
        same=same,
        added=len(ours) - len(in_both),
        removed=len(theirs) - len(in_both),
        changed=len(in_both) - same,
    )
