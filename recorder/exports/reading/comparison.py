"""What one export has and another has not: sessions by the plans, files by their hashes. Contract §5.

Sessions that were deleted since are counted and never named: whoever reads this must not learn of them again.
So the database is asked anew for each page, and for the sessions that differ alone.
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
from recorder.exports.destinations.deadline import READ_SECONDS, within
from recorder.exports.destinations.store import READING
from recorder.exports.names import MANIFEST
from recorder.exports.reading.plans import PlanDifference, compare_plans
from recorder.models.export import ChangeCause, DifferenceCounts, SessionDifference
from recorder.models.export_rows import ExportRow, ExportShardRow
from recorder.models.session import SessionRow
from recorder.runtime import Runtime

_KNOWN = pl.Schema({"session_id": pl.String, "is_there": pl.Boolean, "came_later": pl.Boolean})
_ASKED_AT_ONCE = 2000


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


def compare(runtime: Runtime, row: ExportRow, against: ExportRow) -> Compared:
    """Compare an export with an earlier one of the same workspace and mode. Opens its own transactions.

    Raises:
        InvalidState: if one of them is not completed.
        NotFound: if the plan or the files of one are gone.
        ValidationFailed: if the plan of one is too large.
        Unavailable: if a store does not answer.
    """
    for one in (row, against):
        _require_files(runtime, one)
    found = compare_plans(runtime.blobs, row, against)
    explained = _explain(found, _look_up(runtime, row, against, found.changes["session_id"]))
    counts = Counter(explained["change"].to_list())
    with runtime.database.transaction(write=False) as db:
        shards = _compare_shards(db, row, against)
    return Compared(
        same_rows=row.row_set_sha256 == against.row_set_sha256,
        same_request=found.same_request,
        changes=explained,
        sessions=DifferenceCounts(
            same=found.same, added=counts["added"], removed=counts["removed"], changed=counts["changed"]
        ),
        shards=shards,
    )


def _require_files(runtime: Runtime, row: ExportRow) -> None:
    if row.status != "completed":
        raise InvalidState(row.status, needed="exports that are compared must both be completed")
    if row.destination["kind"] != "signed_url":
        return
    destination = open_destination(row, runtime.settings, READING)
    try:
        within(lambda: destination.size(MANIFEST), seconds=READ_SECONDS)
    except KeyError as error:
        raise NotFound("manifest", f"The files of {row.id} are gone, and what they held.") from error


def _look_up(runtime: Runtime, row: ExportRow, against: ExportRow, session_ids: pl.Series) -> pl.DataFrame:
    """What these sessions are today: whether they are there, and were imported after `against` began."""
    planned_at = against.started_at or against.created_at
    came_later = (col(SessionRow.is_import)) & (col(SessionRow.created_at) > planned_at)
    statement = select(
        SessionRow.id,
        col(SessionRow.deleted_at).is_(None),
        case((came_later, True), else_=False),
    ).where(SessionRow.workspace_id == row.workspace_id, SessionRow.mode == row.mode)
    known = [pl.DataFrame(schema=_KNOWN)]
    for some in session_ids.to_frame().iter_slices(_ASKED_AT_ONCE):
        with runtime.database.transaction(write=False) as db:
            found = db.exec(statement.where(col(SessionRow.id).in_(some["session_id"].to_list())))
            known.append(pl.DataFrame([tuple(one) for one in found], schema=_KNOWN, orient="row"))
    return pl.concat(known)


def _explain(found: PlanDifference, known: pl.DataFrame) -> pl.DataFrame:
    """The sessions that differ with what explains it, the surest first."""
    in_one = pl.col("change") != "changed"
    cause = (
        pl.when(~pl.col("is_there").fill_null(False))
        .then(pl.lit("deletion"))
        .when((pl.col("change") == "added") & pl.col("came_later"))
        .then(pl.lit("import"))
        .when(in_one & pl.lit(not found.same_request))
        .then(pl.lit("request"))
        .when(in_one & pl.lit(not found.same_graph))
        .then(pl.lit("graph"))
        .when(in_one & pl.lit(bool(found.filters & {"tag", "outcome"})))
        .then(pl.lit("tag"))
        .when(~in_one & pl.col("outcome_differs"))
        .then(pl.lit("tag"))
        .when(~in_one & ~pl.col("rows_differ") & pl.lit(not found.same_request))
        .then(pl.lit("request"))
        .otherwise(pl.lit("lake"))
    )
    explained = found.changes.join(known, on="session_id", how="left", maintain_order="left")
    return explained.select("session_id", "change", cause.alias("cause"))


def _compare_shards(db: DbSession, row: ExportRow, against: ExportRow) -> DifferenceCounts:
    ours, theirs = _hashes(db, row), _hashes(db, against)
    in_both = ours.keys() & theirs.keys()
    same = sum(ours[path] == theirs[path] for path in in_both)
    return DifferenceCounts(
        same=same,
        added=len(ours) - len(in_both),
        removed=len(theirs) - len(in_both),
        changed=len(in_both) - same,
    )


def _hashes(db: DbSession, row: ExportRow) -> dict[str, str | None]:
    """The files of an export: path and SHA-256."""
    statement = select(ExportShardRow.path, ExportShardRow.sha256).where(ExportShardRow.export_id == row.id)
    return dict(db.exec(statement).all())
