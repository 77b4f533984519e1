"""What the lake has of an export: its sessions chosen, their rows counted and hashed anew. Spec §4.3."""

from collections.abc import Callable
from itertools import groupby
from typing import Any

import polars as pl
from sqlalchemy import or_
from sqlmodel import col, select

from recorder import clock
from recorder.exports.planning.sampling import Sampling, select_frames
from recorder.memory.queries.subpaths import SubPath
from recorder.models.export_rows import ExportRow
from recorder.models.session import SessionRow
from recorder.models.tag import TagRow
from recorder.rowset import events_digest, frames_digest, samples_digest
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import Kind

_EVENT = ("event_id", "t_ms", "ts", "type", "frame_id", "payload")


class PinnedLake:
    """The lake's rows as the export saw them."""

    def __init__(self, runtime: Runtime, row: ExportRow, manifest: dict[str, Any]) -> None:
        self._runtime = runtime
        self._row = row
        self._tables = manifest["source"]["tables"]
        self._workflows = manifest["spec"]["workflow"]
        self._sampling = Sampling(**manifest["spec"]["frame_sampling"])

    def session_ids(self) -> set[str]:
        """Sessions that were in the lake."""
        return set(self._scan("sessions").select("session_id").collect()["session_id"])

    def counts(self, kind: str, session_ids: set[str]) -> pl.DataFrame:
        """Rows of each of these sessions that has any: session_id, workflow, n."""
        rows = self._of(self._scan("events") if kind == "events" else self._frames(), session_ids)
        return rows.group_by("session_id", "workflow").agg(pl.len().cast(pl.Int64).alias("n")).collect()

    def digests(self, kind: str, session_ids: set[str]) -> dict[str, str]:
        """The digest of the rows of each of these sessions, over the rows themselves."""
        match kind:
            case "events":
                rows = self._of(self._scan("events"), session_ids).sort("session_id", "t_ms", "event_id")
                keys = rows.select("session_id", *_EVENT).with_columns(pl.col("ts").dt.epoch("us"))
                return _by_session(keys.collect(), events_digest)
            case "frames":
                rows = self._of(self._frames(), session_ids).sort("session_id", "t_ms", "frame_id")
                return _by_session(rows.select("session_id", "frame_id", "sha256").collect(), frames_digest)
            case _:
                return _by_session(self._samples(session_ids), samples_digest)

    def _samples(self, session_ids: set[str]) -> pl.DataFrame:
        """Sampled frames with the ids of the events bound to them, in their order."""
        bound = (
            self._of(self._scan("events"), session_ids)
            .sort("session_id", "t_ms", "event_id")
            .group_by("session_id", pl.col("frame_seq").alias("seq"), maintain_order=True)
            .agg("event_id")
        )
        rows = self._of(self._frames(), session_ids).join(bound, on=["session_id", "seq"], how="left")
        columns = ("session_id", "frame_id", "sha256", pl.col("event_id").fill_null([]))
        return rows.sort("session_id", "t_ms", "frame_id").select(*columns).collect()

    def _frames(self) -> pl.LazyFrame:
        return select_frames(self._scan("frames"), self._sampling)

    def _of(self, rows: pl.LazyFrame, session_ids: set[str]) -> pl.LazyFrame:
        wanted = pl.LazyFrame({"session_id": sorted(session_ids)}, schema={"session_id": pl.String})
        return rows.join(wanted, on="session_id", how="semi")

    def _scan(self, kind: Kind) -> pl.LazyFrame:
        version = self._tables[kind]["delta_version"]
        rows = self._runtime.lake.scan(kind, self._row.tenant, version=version)
        return rows.filter(pl.col("workflow").is_in(self._workflows))


def _by_session(rows: pl.DataFrame, digest: Callable[[Any], str]) -> dict[str, str]:
    grouped = groupby(rows.iter_rows(), key=lambda row: row[0])
    return {session_id: digest([row[1:] for row in members]) for session_id, members in grouped}


def choose_sessions(
    runtime: Runtime, row: ExportRow, spec: dict[str, Any], in_lake: set[str]
) -> tuple[set[str], set[str]]:
    """Sessions that the request takes, and those that it took until they were deleted, perhaps."""
    filters = spec["filter"]
    with runtime.database.transaction(write=False) as db:
        sealed = select(SessionRow).where(
            SessionRow.workspace_id == row.workspace_id,
            SessionRow.mode == row.mode,
            SessionRow.status == "sealed",
            col(SessionRow.workflow).in_(spec["workflow"]),
            or_(col(SessionRow.deleted_at).is_(None), col(SessionRow.deleted_at) >= row.created_at),
        )
        chosen = {one.id: one.deleted_at for one in db.exec(sealed) if _passes(one, filters)}
        allowed = in_lake - set(filters.get("exclude_session_ids", []))
        if "tag" in filters:
            tagged = select(TagRow.session_id).where(
                TagRow.workspace_id == row.workspace_id,
                TagRow.mode == row.mode,
                TagRow.name == filters["tag"],
            )
            allowed &= set(db.exec(tagged).all())
        if "path" in filters:
            allowed &= set(SubPath.read(db, tenant=row.tenant, path_id=filters["path"]).session_ids())
    taken = {session_id for session_id, deleted_at in chosen.items() if deleted_at is None}
    return taken & allowed, (set(chosen) - taken) & allowed


def _passes(session: SessionRow, filters: dict[str, Any]) -> bool:
    """Whether a session is one that the filters of a resolved request name."""
    assert session.started_at is not None and session.sealed_at is not None
    until = clock.parse_time(filters["until"], name="until")
    bounds = (session.started_at < until, session.is_import or session.sealed_at <= until)
    since = filters.get("since")
    return (
        all(bounds)
        and (since is None or session.started_at >= clock.parse_time(since, name="since"))
        and filters.get("outcome") in (None, session.outcome)
        and filters.get("actor.kind") in (None, session.actor_kind)
        and filters.get("min_duration_ms", 0) <= session.duration_ms
        and session.duration_ms <= filters.get("max_duration_ms", session.duration_ms)
    )
