"""Which sessions an export takes, and what sealing noted of them: the two sources of a plan. Spec §4.3."""

import math
from collections.abc import Iterator
from typing import Any

import polars as pl
import sqlalchemy
from sqlalchemy import ColumnElement, and_, or_
from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder import clock
from recorder.errors import RecorderError
from recorder.exports.plan import Plan, make_plan
from recorder.exports.sampling import FACTS, select_frames
from recorder.models.export import ExportRow, FrameSampling
from recorder.models.session import SessionRow
from recorder.models.tag import TagRow
from recorder.rowset import frames_digest
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.lake_schemas import Kind

_TABLES: tuple[Kind, ...] = ("events", "frames", "sessions")
_ROWS_AT_ONCE = 50_000
_FRAMES_AT_ONCE = 500_000
_HASH_VALUES = 65_536
_CHOSEN = pl.Schema(
    {
        "session_id": pl.String,
        "workflow": pl.String,
        "date": pl.String,
        "outcome": pl.String,
        "actor_kind": pl.String,
    }
)
_FRAME_FACTS = {"frames": pl.Int64, "image_bytes": pl.Int64, "frames_sha256": pl.String}


class FactsMissing(RecorderError):
    """A session counts as sealed, and the lake has no row of it."""

    code = "rows_missing"
    title = "Rows missing"

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} sealed session(s) have no row in the lake.")


def read_plan(database: Database, lake: Lake, row: ExportRow) -> Plan:
    """Choose the sessions and pin the lake; nothing is written.

    Raises:
        FactsMissing: if the lake lacks a session that SQL calls sealed.
    """
    with database.transaction(write=False) as db:
        chosen = select_sessions(db, row.workspace_id, row.mode, row.spec)
    # After the choice: a session is marked as sealed only once the lake has it.
    versions: dict[str, int | None] = {
        kind: lake.version(kind, row.workspace_id, row.mode) for kind in _TABLES
    }
    facts = _LakeFacts(lake, row.workspace_id, row.mode, versions, chosen)
    sessions = facts.sessions()
    sampled = facts.frames(sessions, FrameSampling.model_validate(row.spec["frame_sampling"]))
    joined = sessions.join(sampled, on="session_id", how="left").with_columns(
        pl.col("frames", "image_bytes").fill_null(0), pl.col("frames_sha256").fill_null("")
    )
    return make_plan(format=row.format, spec=row.spec, versions=versions, sessions=joined)


def select_sessions(db: DbSession, workspace_id: str, mode: str, spec: dict[str, Any]) -> pl.DataFrame:
    """The sealed sessions that pass every filter of a resolved request, in no order.

    Returns:
        session_id, workflow, date (lake partition), outcome, actor_kind.
    """
    statement = sqlalchemy.select(
        col(SessionRow.id),
        col(SessionRow.workflow),
        col(SessionRow.lake_date),
        col(SessionRow.outcome),
        col(SessionRow.actor_kind),
    ).where(
        col(SessionRow.workspace_id) == workspace_id,
        col(SessionRow.mode) == mode,
        col(SessionRow.status) == "sealed",
        col(SessionRow.deleted_at).is_(None),
        col(SessionRow.workflow).in_(spec["workflow"]),
        *_conditions(workspace_id, mode, spec["filter"]),
    )
    rows = db.connection().execution_options(yield_per=_ROWS_AT_ONCE).execute(statement)
    parts = [
        pl.DataFrame([tuple(row) for row in part], schema=_CHOSEN, orient="row") for part in rows.partitions()
    ]
    chosen = pl.concat(parts) if parts else pl.DataFrame(schema=_CHOSEN)
    # Not in SQL: ten thousand ids are more parameters than a statement should carry.
    excluded = spec["filter"].get("exclude_session_ids", [])
    return chosen.filter(~pl.col("session_id").is_in(excluded))


def find_gone(db: DbSession, workspace_id: str, mode: str, plan: Plan) -> list[str]:
    """Sessions of a plan that have been deleted since it was made."""
    statement = select(SessionRow.id).where(
        SessionRow.workspace_id == workspace_id,
        SessionRow.mode == mode,
        SessionRow.status == "sealed",
        col(SessionRow.deleted_at).is_(None),
        col(SessionRow.workflow).in_(plan.spec["workflow"]),
    )
    present = pl.Series(db.exec(statement).all(), dtype=pl.String)
    planned = plan.sessions["session_id"]
    return planned.filter(~planned.is_in(present.implode())).to_list()


def _conditions(workspace_id: str, mode: str, filters: dict[str, Any]) -> Iterator[ColumnElement[bool]]:
    since = filters.get("since")
    until = clock.parse_time(filters["until"], name="until")
    if since is not None:
        yield col(SessionRow.started_at) >= clock.parse_time(since, name="since")
    # A session recorded live must be sealed by then too, so that a repeat finds the same ones. An import is
    # bound by its start alone: it lies in the past when it arrives.
    in_time = and_(col(SessionRow.started_at) < until, col(SessionRow.sealed_at) <= until)
    yield or_(in_time, and_(col(SessionRow.is_import), col(SessionRow.started_at) < until))
    if "outcome" in filters:
        yield col(SessionRow.outcome) == filters["outcome"]
    if "actor.kind" in filters:
        yield col(SessionRow.actor_kind) == filters["actor.kind"]
    if "min_duration_ms" in filters:
        yield col(SessionRow.duration_ms) >= filters["min_duration_ms"]
    if "max_duration_ms" in filters:
        yield col(SessionRow.duration_ms) <= filters["max_duration_ms"]
    if "tag" in filters:
        tagged = select(TagRow.session_id).where(
            TagRow.workspace_id == workspace_id, TagRow.mode == mode, TagRow.name == filters["tag"]
        )
        yield col(SessionRow.id).in_(tagged)


class _LakeFacts:
    """What sealing noted of the chosen sessions, at pinned versions."""

    def __init__(
        self, lake: Lake, workspace_id: str, mode: str, versions: dict[str, int | None], chosen: pl.DataFrame
    ) -> None:
        self._lake = lake
        self._workspace_id = workspace_id
        self._mode = mode
        self._versions = versions
        self._chosen = chosen

    def sessions(self) -> pl.DataFrame:
        """The chosen sessions with their bucket, counts and digest."""
        facts = self._scan("sessions").select(
            "session_id",
            "bucket",
            pl.col("event_count").cast(pl.Int64).alias("rows"),
            pl.col("action_count").cast(pl.Int64).alias("actions"),
            "rows_sha256",
            pl.col("frame_count").cast(pl.Int64),
        )
        found = self._chosen.lazy().join(facts, on="session_id", how="inner", validate="1:1").collect()
        if found.height != self._chosen.height:
            raise FactsMissing(self._chosen.height - found.height)
        return found

    def frames(self, sessions: pl.DataFrame, sampling: FrameSampling) -> pl.DataFrame:
        """Per session with selected frames: how many, their bytes, their digest.

        Read in slices of the hash range, so that no more than some hundred thousand frames are in memory.
        """
        with_frames = sessions.filter(pl.col("frame_count") > 0)
        slices = 2 ** math.ceil(math.log2(max(1.0, with_frames["frame_count"].sum() / _FRAMES_AT_ONCE)))
        width = max(1, _HASH_VALUES // slices)
        parts = [
            self._frames_between(with_frames, first, first + width - 1, sampling)
            for first in range(0, _HASH_VALUES, width)
            if not with_frames.is_empty()
        ]
        schema = pl.Schema({"session_id": pl.String, **_FRAME_FACTS})
        return pl.concat(parts) if parts else pl.DataFrame(schema=schema)

    def _frames_between(
        self, sessions: pl.DataFrame, first: int, last: int, sampling: FrameSampling
    ) -> pl.DataFrame:
        frames = (
            self._scan("frames")
            .filter(pl.col("bucket").is_between(first, last))
            .join(sessions.lazy().select("session_id"), on="session_id", how="semi")
            .select(*FACTS, "frame_id", "sha256", "bytes")
        )
        by_session = (
            select_frames(frames, sampling)
            .sort("session_id", "t_ms", "frame_id")
            .group_by("session_id", maintain_order=True)
            .agg(
                pl.len().cast(pl.Int64).alias("frames"),
                pl.col("bytes").cast(pl.Int64).sum().alias("image_bytes"),
                "frame_id",
                "sha256",
            )
            .collect()
        )
        digests = [
            frames_digest(zip(frame_ids, hashes, strict=True))
            for frame_ids, hashes in by_session.select("frame_id", "sha256").iter_rows()
        ]
        found = by_session.with_columns(pl.Series("frames_sha256", digests, pl.String))
        return found.select("session_id", *_FRAME_FACTS)

    def _scan(self, kind: Kind) -> pl.LazyFrame:
        table = self._lake.scan(kind, self._workspace_id, self._mode, version=self._versions[kind])
        return table.filter(
            pl.col("workflow").is_in(self._chosen["workflow"].unique().to_list())
            & pl.col("date").is_in(self._chosen["date"].unique().to_list())
        ).drop("workflow", "date")
