"""Two stored plans compared. What comes out is kept a while, since pages of it are asked for. Contract §5."""

from dataclasses import dataclass
from threading import Lock
from typing import Any

import polars as pl
from cachetools import LRUCache

from recorder.errors import NotFound, ValidationFailed
from recorder.exports.running.ledger import PlanTooLarge, read_stored_plan
from recorder.models.export_rows import ExportRow
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
