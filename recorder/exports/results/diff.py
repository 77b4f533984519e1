"""Difference of two exports, from their stored plans; cached, since it is read in pages. Contract §5."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, get_args

import polars as pl
from cachetools import LRUCache
from sqlalchemy import case
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.datasets.formats import MANIFEST, FileKind
from recorder.errors import InvalidState, NotFound, ValidationFailed
from recorder.exports.destinations import open_destination
from recorder.exports.destinations.base import READ_SECONDS, READING, call_within_time_limit
from recorder.exports.runner.shard_store import PlanTooLarge, read_stored_export_plan
from recorder.models.export import ChangeCause, DifferenceCounts, ExportRow, ExportShardRow, SessionDifference
from recorder.models.session import SessionRow
from recorder.runtime import Runtime
from recorder.storage.blobs import Blobs
from recorder.storage.conditions import in_tenant
from recorder.storage.list_pages import FetchedPage, fetch_list_page

#: Largest compressed plan that the API's process reads, about 300,000 sessions.
MOST_BYTES = 32 * 1024 * 1024
#: Most sessions that differ in all cached results together; the newest result is always cached.
_CACHED_ROWS = 500_000
_CACHED_RESULTS = 16
# Columns of a plan that the files depend on, beside id and bucket. Plans of samples have one more.
_CONTENT = ("outcome", "actor_kind", "split", "rows_sha256", "frames_sha256")
_SAMPLES = "samples_sha256"
_FILES_GONE = "The files of {} are gone; create the export again."


@dataclass(frozen=True)
class PlanDifference:
    """Difference of two plans."""

    #: session_id, change, outcome_differs, rows_differ; by id.
    changes: pl.DataFrame
    #: Number of sessions that are the same in both.
    same: int
    #: Whether both select and sample in the same way, whatever the kinds of their rows.
    same_spec: bool
    same_request: bool
    same_graph: bool
    #: Names of the filters of both requests.
    filters: frozenset[str]


@dataclass(frozen=True)
class _Side:
    kinds: tuple[FileKind, ...]
    spec: dict[str, Any]
    graph: dict[str, int]
    sessions: pl.DataFrame


# Plans are named by their content, so that cached results stay valid.
_cache: LRUCache[tuple[str | None, str | None], PlanDifference] = LRUCache(
    # Each result counts as a sixteenth at least, and the newest is always cached.
    _CACHED_ROWS,
    lambda difference: min(max(difference.changes.height, _CACHED_ROWS // _CACHED_RESULTS), _CACHED_ROWS),
)
_cache_lock = Lock()
# A comparison holds two plans in memory: one at a time, while cached ones are read.
_comparing = Lock()


def diff_export_plans(blobs: Blobs, row: ExportRow, against: ExportRow) -> PlanDifference:
    """Return the difference of the plans of two completed exports. Takes seconds: call outside transactions.

    Raises:
        NotFound: if a plan is gone, or of an earlier release.
        ValidationFailed: if a plan is too large to be compared here.
        Unavailable: if the store does not answer.
    """
    for export in (row, against):
        if export.plan_key is None:
            raise _make_missing_plan_error(export)
    pair = (row.plan_sha256, against.plan_sha256)
    difference = _find_cached_difference(pair)
    if difference is None:
        with _comparing:
            difference = _find_cached_difference(pair)
            if difference is None:
                ours, theirs = (_read_compared_plan(blobs, export) for export in (row, against))
                difference = _diff_plan_sides(ours, theirs)
                with _cache_lock:
                    _cache[pair] = difference
                return difference
    _require_plans_for_diff(blobs, row, against)
    return difference


def _find_cached_difference(pair: tuple[str | None, str | None]) -> PlanDifference | None:
    with _cache_lock:
        return _cache.get(pair)


def _require_plans_for_diff(blobs: Blobs, *rows: ExportRow) -> None:
    for row in rows:
        try:
            blobs.get(row.plan_key or "", 0, 1)
        except KeyError as error:
            raise _make_missing_plan_error(row) from error


def _read_compared_plan(blobs: Blobs, row: ExportRow) -> _Side:
    try:
        plan = read_stored_export_plan(blobs, row.plan_key or "", most_bytes=MOST_BYTES)
    except KeyError as error:
        raise _make_missing_plan_error(row) from error
    except PlanTooLarge as error:
        text = f"{row.id} has too many sessions to be compared here; compare the shards of the two manifests."
        raise ValidationFailed.of("against", "invalid_value", message=text, where="query") from error
    if plan is None:
        raise NotFound("manifest", f"{row.id} is of an earlier release, which kept too little to compare.")
    sessions = plan.sessions.select("session_id", *_CONTENT, _SAMPLES)
    return _Side(plan.file_format.kinds, plan.spec, plan.graph, sessions)


def _make_missing_plan_error(row: ExportRow) -> NotFound:
    return NotFound("manifest", _FILES_GONE.format(row.id))


def _diff_plan_sides(ours: _Side, theirs: _Side) -> PlanDifference:
    same_kinds, same_spec = ours.kinds == theirs.kinds, ours.spec == theirs.spec
    # Digests of samples are in plans of WebDatasets alone.
    content = [*_CONTENT, _SAMPLES] if same_kinds else _CONTENT
    changes = _compare_plan_sessions(ours.sessions, theirs.sessions, content)
    return PlanDifference(
        changes=changes,
        same=ours.sessions.height - changes.filter(pl.col("change") != "removed").height,
        same_spec=same_spec,
        same_request=same_spec and same_kinds,
        same_graph=ours.graph == theirs.graph,
        filters=frozenset({*ours.spec["filter"], *theirs.spec["filter"]}),
    )


def _compare_plan_sessions(ours: pl.DataFrame, theirs: pl.DataFrame, content: Sequence[str]) -> pl.DataFrame:
    """Return the sessions that only one export has or that differ, and whether outcome or events differ.

    Args:
        ours: sessions of one plan.
        theirs: sessions of the other plan.
        content: columns that are compared.
    """
    both = ours.join(theirs, on="session_id", how="full", coalesce=False)
    differs = {name: pl.col(name).ne_missing(pl.col(f"{name}_right")) for name in content}
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
_IDS_AT_ONCE = 2000


@dataclass(frozen=True)
class ExportComparison:
    """Two completed exports side by side."""

    same_rows: bool
    same_request: bool
    #: session_id, change, cause; by id. Sessions that are in one only, or not the same in both.
    changes: pl.DataFrame
    sessions: DifferenceCounts
    shards: DifferenceCounts

    def count_causes(self) -> dict[ChangeCause, int]:
        """Return the number of sessions that each cause explains."""
        counts = Counter(self.changes["cause"].to_list())
        return {cause: counts[cause] for cause in get_args(ChangeCause) if counts[cause]}

    def page(self, *, after_id: str | None, limit: int) -> FetchedPage[SessionDifference, str]:
        """Return a page of the sessions that differ and were not deleted, by id."""
        named = self.changes.filter(pl.col("cause") != "deletion")
        if after_id is not None:
            named = named.filter(pl.col("session_id") > after_id)
        page = fetch_list_page(
            lambda count: named.head(count).to_dicts(),
            limit=limit,
            position_of=lambda row: str(row["session_id"]),
        )
        return page.convert(SessionDifference.model_validate)


def compare_exports(runtime: Runtime, row: ExportRow, against: ExportRow) -> ExportComparison:
    """Compare an export with an earlier one of the same workspace and mode. Opens its own transactions.

    Raises:
        InvalidState: if one of them is not completed.
        NotFound: if the plan or the files of one are gone.
        ValidationFailed: if the plan of one is too large.
        Unavailable: if a store does not answer.
    """
    for export in (row, against):
        _require_files_for_diff(runtime, export)
    difference = diff_export_plans(runtime.blobs, row, against)
    today = _read_compared_sessions(runtime, row, against, difference.changes["session_id"])
    explained = _explain_session_changes(difference, today)
    counts = Counter(explained["change"].to_list())
    with runtime.database.transaction(write=False) as db:
        shards = _compare_export_shards(db, row, against)
    return ExportComparison(
        same_rows=row.row_set_sha256 == against.row_set_sha256,
        same_request=difference.same_request,
        changes=explained,
        sessions=DifferenceCounts(
            same=difference.same, added=counts["added"], removed=counts["removed"], changed=counts["changed"]
        ),
        shards=shards,
    )


def _require_files_for_diff(runtime: Runtime, row: ExportRow) -> None:
    if row.status != "completed":
        raise InvalidState(row.status, needed=f"export {row.id} must be completed to be compared")
    if row.destination["kind"] != "signed_url":
        return
    destination = open_destination(row, runtime.settings, READING)
    try:
        call_within_time_limit(lambda: destination.size(MANIFEST), seconds=READ_SECONDS)
    except KeyError as error:
        raise NotFound("manifest", _FILES_GONE.format(row.id)) from error


def _read_compared_sessions(
    runtime: Runtime, row: ExportRow, against: ExportRow, session_ids: pl.Series
) -> pl.DataFrame:
    """Return whether some sessions still exist, and whether they were imported after `against` began."""
    planned_at = against.started_at or against.created_at
    came_later = (col(SessionRow.is_import)) & (col(SessionRow.created_at) > planned_at)
    statement = select(
        SessionRow.id,
        col(SessionRow.deleted_at).is_(None),
        case((came_later, True), else_=False),
    ).where(*in_tenant(SessionRow, row.tenant))
    known = [pl.DataFrame(schema=_KNOWN)]
    for some in session_ids.to_frame().iter_slices(_IDS_AT_ONCE):
        with runtime.database.transaction(write=False) as db:
            rows = db.exec(statement.where(col(SessionRow.id).in_(some["session_id"].to_list())))
            known.append(pl.DataFrame([tuple(row) for row in rows], schema=_KNOWN, orient="row"))
    return pl.concat(known)


def _explain_session_changes(difference: PlanDifference, known: pl.DataFrame) -> pl.DataFrame:
    """Return the sessions that differ with their cause, the most certain one that applies."""
    in_one = pl.col("change") != "changed"
    cause = (
        pl.when(~pl.col("is_there").fill_null(False))
        .then(pl.lit("deletion"))
        .when((pl.col("change") == "added") & pl.col("came_later"))
        .then(pl.lit("import"))
        .when(in_one & pl.lit(not difference.same_spec))
        .then(pl.lit("request"))
        .when(in_one & pl.lit(not difference.same_graph))
        .then(pl.lit("graph"))
        .when(in_one & pl.lit(bool(difference.filters & {"tag", "outcome"})))
        .then(pl.lit("tag"))
        .when(~in_one & pl.col("outcome_differs"))
        .then(pl.lit("tag"))
        .when(~in_one & ~pl.col("rows_differ") & pl.lit(not difference.same_spec))
        .then(pl.lit("request"))
        .otherwise(pl.lit("lake"))
    )
    explained = difference.changes.join(known, on="session_id", how="left", maintain_order="left")
    return explained.select("session_id", "change", cause.alias("cause"))


def _compare_export_shards(db: DbSession, row: ExportRow, against: ExportRow) -> DifferenceCounts:
    ours, theirs = _read_export_file_hashes(db, row), _read_export_file_hashes(db, against)
    in_both = ours.keys() & theirs.keys()
    same = sum(ours[path] == theirs[path] for path in in_both)
    return DifferenceCounts(
        same=same,
        added=len(ours) - len(in_both),
        removed=len(theirs) - len(in_both),
        changed=len(in_both) - same,
    )


def _read_export_file_hashes(db: DbSession, row: ExportRow) -> dict[str, str | None]:
    """Return the files of an export: path and SHA-256."""
    statement = select(ExportShardRow.path, ExportShardRow.sha256).where(ExportShardRow.export_id == row.id)
    return dict(db.exec(statement).all())
