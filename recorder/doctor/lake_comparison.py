"""Comparison of sealed sessions in SQL with the lake and the stores of frames. Contract §9."""

import random
from collections.abc import Iterator
from functools import partial
from typing import Literal

import polars as pl
from sqlmodel import col, select

from recorder.doctor.findings import Finding, join_names
from recorder.models.session import SessionRow
from recorder.number_formats import format_count
from recorder.storage.blobs import Blobs
from recorder.storage.conditions import in_tenant
from recorder.storage.database import Database
from recorder.storage.lake import Lake
from recorder.storage.lake_reads import retry_lake_read
from recorder.tenant import Tenant

#: Sessions, and objects of frames, that are compared one by one in each workspace and mode.
_SAMPLED = 200


def compare_sealed_with_lake(
    database: Database, blobs: Blobs, lake: Lake, chance: random.Random
) -> Iterator[Finding]:
    """Yield a finding for each workspace and mode: sealed sessions in SQL against the lake and the blobs.

    All ids are compared; rows and objects of frames are compared for a random sample of sessions.
    """
    with database.transaction(write=False) as db:
        groups = db.exec(select(SessionRow.workspace_id, SessionRow.mode).distinct()).all()
    for workspace_id, mode in sorted(groups):
        tenant = Tenant(workspace_id, mode)
        problems = list(_compare_tenant(database, blobs, lake, tenant, chance))
        yield from problems
        if not problems:
            yield Finding("contents", "ok", f"SQL, lake and frames of {workspace_id} ({mode}) agree.")


def _compare_tenant(
    database: Database, blobs: Blobs, lake: Lake, tenant: Tenant, chance: random.Random
) -> Iterator[Finding]:
    """Yield findings on sealed sessions of a tenant that the lake or the blob store lacks."""
    name = f"{tenant.workspace_id} ({tenant.mode})"
    sealed = _read_sealed_to_compare(database, tenant)
    try:
        in_lake = retry_lake_read(lambda: lake.scan("sessions", tenant).select("session_id").collect())
        missing = sealed.join(in_lake, on="session_id", how="anti")["session_id"].to_list()
        if missing:
            sessions = format_count(len(missing), "sealed session")
            message = f"The lake lacks {sessions} of {name}: {join_names(missing)}."
            yield Finding("contents", "error", message, "Restore the lake from a backup of the same time.")
        sample = sealed.filter(~pl.col("session_id").is_in(missing))
        sample = sample.sample(min(_SAMPLED, sample.height), seed=chance.getrandbits(32))
        wrong = _compare_counts_with_lake(lake, tenant, sample)
        if wrong:
            message = f"Rows of {format_count(len(wrong), 'session')} of {name} differ: {join_names(wrong)}."
            yield Finding("contents", "error", message, "Restore the lake from a backup of the same time.")
        gone = _compare_frames_with_store(lake, blobs, tenant, sample)
        if gone:
            objects = format_count(len(gone), "object")
            message = f"The store lacks {objects} with frames of {name}: {join_names(gone)}."
            yield Finding("contents", "error", message, "Restore the store of frames.")
    except Exception as error:  # a damaged file can fail in any library
        cause = type(error.__cause__ or error).__name__
        message = f"The lake or the frames of {name} cannot be read ({cause})."
        fix = (
            "If the store answers, files are missing or damaged: restore them from a backup (docs/backup.md)."
        )
        yield Finding("contents", "error", message, fix)


def _read_sealed_to_compare(database: Database, tenant: Tenant) -> pl.DataFrame:
    columns = {"session_id": pl.String, "events": pl.Int64, "frames": pl.Int64}
    statement = select(SessionRow.id, SessionRow.event_count, SessionRow.frame_count).where(
        *in_tenant(SessionRow, tenant),
        SessionRow.status == "sealed",
        col(SessionRow.deleted_at).is_(None),
    )
    with database.transaction(write=False) as db:
        return pl.DataFrame(db.exec(statement).all(), schema=columns, orient="row")


def _compare_counts_with_lake(lake: Lake, tenant: Tenant, sample: pl.DataFrame) -> list[str]:
    """Return the sessions of which the lake has other numbers of events or frames than SQL."""

    def count_rows(kind: Literal["events", "frames"]) -> pl.DataFrame:
        rows = lake.scan(kind, tenant).filter(pl.col("session_id").is_in(sample["session_id"].implode()))
        return rows.group_by("session_id").agg(pl.len().cast(pl.Int64).alias("n")).collect()

    wrong: set[str] = set()
    for kind in ("events", "frames"):
        counts = retry_lake_read(partial(count_rows, kind))
        joined = sample.join(counts, on="session_id", how="left").with_columns(pl.col("n").fill_null(0))
        wrong |= set(joined.filter(pl.col("n") != pl.col(kind))["session_id"])
    return sorted(wrong)


def _compare_frames_with_store(lake: Lake, blobs: Blobs, tenant: Tenant, sample: pl.DataFrame) -> list[str]:
    """Return the keys of objects that hold pictures or snapshots of the sample and are not in the store."""

    def read_keys() -> pl.DataFrame:
        rows = lake.scan("frames", tenant).filter(pl.col("session_id").is_in(sample["session_id"].implode()))
        # A picture that came before is in another object than the snapshot that came with it.
        columns = [rows.select(pl.col(name).alias("key")) for name in ("object", "dom_object")]
        return pl.concat(columns).unique().collect()

    keys = retry_lake_read(read_keys)["key"].drop_nulls().sort()
    return [key for key in keys.head(_SAMPLED) if not _has_compared_object(blobs, key)]


def _has_compared_object(blobs: Blobs, key: str) -> bool:
    try:
        blobs.get(key, 0, 1)
    except KeyError:
        return False
    return True
