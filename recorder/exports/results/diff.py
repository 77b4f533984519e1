"""Two stored plans compared. What comes out is kept a while, since pages of it are asked for. Contract §5."""

from collections import Counter
from dataclasses import dataclass
from threading import Lock
from typing import Any, get_args

import polars as pl
from cachetools import LRUCache
from sqlalchemy import case
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.datasets.formats import MANIFEST
from recorder.errors import InvalidState, NotFound, ValidationFailed
from recorder.exports.destinations import open_destination
from recorder.exports.destinations.base import READ_SECONDS, READING, within
from recorder.exports.runner.shard_store import PlanTooLarge, read_stored_plan
from recorder.models.export import ChangeCause, DifferenceCounts, ExportRow, ExportShardRow, SessionDifference
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs

#: Compressed bytes of a plan that the API's process reads, about 300,000 sessions.
MOST_BYTES = 32 * 1024 * 1024
#: Sessions that differ, of all results that are kept; the newest is kept whatever it holds.
_KEPT_ROWS = 500_000
_KEPT = 16
# What the files say of a session, beside its id and place.
_CONTENT = ("outcome", "actor_kind", "split", "rows_sha256", "frames_sha256", "samples_sha256")


@dataclass(frozen=True)
class PlanDifference:
    """What two plans have not alike."""

    #: session_id, change, outcome_differs, rows_differ; by id.
    changes: pl.DataFrame
    #: How many sessions are the same in both.
    same: int
    same_request: bool
    same_graph: bool
    #: Names of the filters of either request.
    filters: frozenset[str]


@dataclass(frozen=True)
class _Side:
    spec: dict[str, Any]
    graph: dict[str, int]
    sessions: pl.DataFrame


# Of this process. Plans are named by their content, so what is kept holds for good.
_kept: LRUCache[tuple[str | None, str | None], PlanDifference] = LRUCache(
    # Each takes a sixteenth of the room at least, and the newest is kept whatever it holds.
    _KEPT_ROWS,
    lambda found: min(max(found.changes.height, _KEPT_ROWS // _KEPT), _KEPT_ROWS),
)
# A comparison holds two plans in memory: one at a time.
_comparing = Lock()


def compare_plans(blobs: Blobs, row: ExportRow, against: ExportRow) -> PlanDifference:
    """The difference of the plans of two completed exports. It may take seconds: in no transaction.

    Raises:
        NotFound: if a plan is gone, or of an earlier release.
        ValidationFailed: if a plan is too large to be compared here.
        Unavailable: if the store does not answer.
    """
    pair = (row.plan_sha256, against.plan_sha256)
    with _comparing:
        if pair in _kept:
            _require_there(blobs, row, against)
            return _kept[pair]
        found = _kept[pair] = _difference(_read(blobs, row), _read(blobs, against))
        return found


def _require_there(blobs: Blobs, *rows: ExportRow) -> None:
    for row in rows:
        try:
            blobs.get(row.plan_key or "", 0, 1)
        except KeyError as error:
            raise _gone(row) from error


def _read(blobs: Blobs, row: ExportRow) -> _Side:
    try:
        plan = read_stored_plan(blobs, row.plan_key or "", most_bytes=MOST_BYTES)
    except KeyError as error:
        raise _gone(row) from error
    except PlanTooLarge as error:
        text = f"{row.id} has too many sessions to be compared here; compare the shards of the two manifests."
        raise ValidationFailed.of("against", "invalid_value", message=text, where="query") from error
    if plan is None:
        raise NotFound("manifest", f"{row.id} is of an earlier release, which kept too little to compare.")
    return _Side(plan.spec, plan.graph, plan.sessions.select("session_id", *_CONTENT))


def _gone(row: ExportRow) -> NotFound:
    return NotFound("manifest", f"The files of {row.id} are gone, and what they held.")


def _difference(ours: _Side, theirs: _Side) -> PlanDifference:
    changes = _changes(ours.sessions, theirs.sessions)
    return PlanDifference(
        changes=changes,
        same=ours.sessions.height - changes.filter(pl.col("change") != "removed").height,
        same_request=ours.spec == theirs.spec,
        same_graph=ours.graph == theirs.graph,
        filters=frozenset({*ours.spec["filter"], *theirs.spec["filter"]}),
    )


def _changes(ours: pl.DataFrame, theirs: pl.DataFrame) -> pl.DataFrame:
    """The sessions that are in one only, or not the same in both, and whether outcome or events differ."""
    both = ours.join(theirs, on="session_id", how="full", coalesce=False)
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
        .with_columns(pl.col("change").cast(pl.Enum(["added", "removed", "changed"])))
    )


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
