"""Sealed sessions by the million, put where sealing leaves them: lake rows, pictures, SQL rows. Spec §3.1.

A session's rows and pictures follow from its number and the shape alone, in whichever file of the lake they
are stored; nullable columns have nulls.
"""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from sqlalchemy import insert

from benchmarks.exports.payloads import NOISE, Payloads, payload
from recorder import clock
from recorder.event_types import is_action
from recorder.hashing import compute_hash_bucket
from recorder.ids import encode_ulid, id_range
from recorder.models.session import SessionMetadataRow, SessionRow
from recorder.models.workflow import WorkflowRow
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.storage.lake_schemas import LAYOUTS, LakeKind
from recorder.tenant import Tenant

WORKSPACE = "wsp_01k0000000000000000000000b"
WORKFLOW = "payables"
START = datetime(2025, 5, 1, 8, tzinfo=UTC)
_DAYS = 8
_ROWS_AT_ONCE = 125_000
_SESSIONS_AT_ONCE = 20_000
_STEP_MS = 300
_TYPES = ("click", "fill", "pointer_move", "scroll", "key_down", "navigate", "request")
_OUTCOMES = ("success", "error", None)
_ACTORS = ("human", "model", "script", None)
_PNG = b"\x89PNG\r\n\x1a\n"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Number of sessions, and the content of each."""

    sessions: int
    events: int = 500
    frames: int = 0
    #: With 0 the frames have no pictures, as when their days are over.
    picture_bytes: int = 80_000
    payloads: Payloads = "recorded"
    seed: int = 1


def fill(runtime: Runtime, shape: Shape, *, files: int = 8, shuffled: int | None = None) -> None:
    """Put sessions of this shape into an empty deployment.

    Args:
        files: in so many appends at least; each leaves a file for every day that its sessions are of.
        shuffled: seed of the order in which sessions come; None: as they were recorded.
    """
    _add_workspace(runtime)
    numbers = np.arange(shape.sessions)
    if shuffled is not None:
        np.random.default_rng(shuffled).shuffle(numbers)
    at_once = max(1, min(_ROWS_AT_ONCE // shape.events, _SESSIONS_AT_ONCE, -(-shape.sessions // files)))
    for count, first in enumerate(range(0, shape.sessions, at_once), 1):
        sessions = [_session(shape, int(number)) for number in numbers[first : first + at_once]]
        for kind, rows in _lake_rows(runtime, shape, sessions).items():
            schema = LAYOUTS[kind].schema
            table = rows.select(schema.names).to_arrow().cast(schema)
            runtime.lake.append(kind, Tenant(WORKSPACE, "live"), table, lane="benchmark", number=count)
        with runtime.database.transaction(write=True) as db:
            db.connection().execute(insert(SessionRow), [_sql_row(shape, session) for session in sessions])
            metadata = [{"session_id": session["session_id"], "metadata": {}} for session in sessions]
            db.connection().execute(insert(SessionMetadataRow), metadata)


def _session(shape: Shape, number: int) -> dict[str, Any]:
    """Return the facts of a session before its rows are made."""
    started_at = clock.truncate_to_ms(START + number * (timedelta(days=_DAYS) / shape.sessions))
    drawn = int.from_bytes(_noise(shape, number, "id", 9))
    ulid = encode_ulid(clock.to_ms(started_at) << 80 | drawn)
    return {
        "number": number,
        "workflow": WORKFLOW,
        "date": started_at.strftime("%Y-%m-%d"),
        "bucket": compute_hash_bucket(f"ses_{ulid}"),
        "session_id": f"ses_{ulid}",
        "ulid": ulid,
        "started_at": started_at,
    }


def _noise(shape: Shape, number: int, use: str, n_bytes: int) -> bytes:
    """Return bytes that are pseudo-random and always the same."""
    return hashlib.shake_128(f"{shape.seed} {number} {use}".encode()).digest(n_bytes)


def _lake_rows(
    runtime: Runtime, shape: Shape, sessions: list[dict[str, Any]]
) -> dict[LakeKind, pl.DataFrame]:
    events = _events(shape, sessions)
    frames = _frames(runtime, shape, sessions, events)
    return {"events": events, "frames": frames, "sessions": _facts(shape, sessions, events)}


def _events(shape: Shape, sessions: list[dict[str, Any]]) -> pl.DataFrame:
    """Return events in the order of session, time and id; a frame is before the first event bound to it."""
    event_ids, noise = list[str](), list[str]()
    for session in sessions:
        event_ids += id_range(f"evt_{session['ulid']}", shape.events)
        drawn = _noise(shape, session["number"], "text", shape.events * NOISE // 2).hex()
        noise += [drawn[at : at + NOISE] for at in range(0, len(drawn), NOISE)]
    bound = pl.col("seq") * shape.frames // shape.events
    is_known = pl.lit(shape.frames > 0)
    return (
        _repeated(sessions, shape.events)
        .with_columns(
            event_id=pl.Series(event_ids),
            noise=pl.Series(noise),
            t_ms=pl.col("seq").cast(pl.Int64) * _STEP_MS,
            type=_dealt(_TYPES, pl.col("seq") + pl.col("number")),
            frame_seq=pl.when(is_known).then(bound),
        )
        .with_columns(
            ts=pl.col("started_at") + pl.duration(milliseconds="t_ms"),
            is_action=pl.col("type").is_in([name for name in _TYPES if is_action(name)]),
            # Some say themselves what frame they are of; where none came, they name one that is missing.
            frame_id=pl.when(pl.col("seq") % 2 == 0).then(_frame_id(pl.col("frame_seq").fill_null(0))),
            payload=payload(shape.payloads),
        )
    )


def _repeated(sessions: list[dict[str, Any]], times: int) -> pl.DataFrame:
    """Return a row for each of so many rows of each session, with its `seq`."""
    kinds = pl.DataFrame(sessions)
    return kinds[np.repeat(np.arange(len(sessions)), times)].with_columns(
        seq=pl.Series(np.tile(np.arange(times, dtype=np.int32), len(sessions)))
    )


def _dealt(names: tuple[str, ...], number: pl.Expr) -> pl.Expr:
    """Return an expression that takes these values in turn."""
    return (number % len(names)).replace_strict(dict(enumerate(names)), return_dtype=pl.String)


def _frame_id(seq: pl.Expr) -> pl.Expr:
    return pl.concat_str(pl.lit("frm_"), pl.col("ulid").str.head(20), seq.cast(pl.String).str.zfill(6))


def _frames(
    runtime: Runtime, shape: Shape, sessions: list[dict[str, Any]], events: pl.DataFrame
) -> pl.DataFrame:
    """Return the frames, with the columns that events give them; their pictures go to the blob store."""
    if not shape.frames:
        return pl.DataFrame(schema=pl.Schema(LAYOUTS["frames"].schema))
    bound = events.group_by("session_id", pl.col("frame_seq").alias("seq")).agg(
        pl.len().cast(pl.Int32).alias("n_events"), pl.col("is_action").any().alias("has_action")
    )
    hashes = [
        hashlib.sha256(picture).hexdigest()
        for session in sessions
        for picture in _store_pictures(runtime, shape, session)
    ]
    made = _repeated(sessions, shape.frames).with_columns(sha256=pl.Series(hashes))
    first_event = (pl.col("seq").cast(pl.Int64) * shape.events + shape.frames - 1) // shape.frames
    return (
        made.join(bound, on=["session_id", "seq"], how="left", maintain_order="left")
        .with_columns(
            pl.col("n_events").fill_null(0),
            pl.col("has_action").fill_null(False),
            frame_id=_frame_id(pl.col("seq")),
            t_ms=first_event * _STEP_MS,
            width=1280,
            height=720,
            content_type=pl.lit("image/png"),
            bytes=shape.picture_bytes,
            dhash=pl.when(pl.col("seq") % 3 != 1).then(-pl.col("seq")),
            state_key=pl.when(pl.col("seq") % 2 == 0).then(pl.format("s{}", "seq")),
            state_tokens=pl.lit(["button Approve", "textbox Amount"]),
            is_keyframe=pl.col("seq") % 4 == 0,
            object=pl.format("frames/{}/{}/batch.pack", pl.lit(WORKSPACE), "session_id"),
            offset=pl.col("seq").cast(pl.Int64) * shape.picture_bytes,
            length=shape.picture_bytes,
            dom_object=None,
            dom_offset=None,
            dom_length=None,
            keyframe=pl.when(pl.col("seq") == 0).then(True),
            url=pl.when(pl.col("seq") % 5 != 0).then(pl.lit("https://erp.example.com/payables")),
            rects=None,
        )
        .with_columns(ts=pl.col("started_at") + pl.duration(milliseconds="t_ms"))
    )


def _store_pictures(runtime: Runtime, shape: Shape, session: dict[str, Any]) -> list[bytes]:
    """Return the pictures of a session, stored as one object as an upload leaves them."""
    size = shape.picture_bytes
    if not size:
        return [b""] * shape.frames
    drawn = _noise(shape, session["number"], "pictures", shape.frames * size)
    pictures = [_PNG + drawn[at : at + size - len(_PNG)] for at in range(0, len(drawn), size)]
    runtime.blobs.put(f"frames/{WORKSPACE}/{session['session_id']}/batch.pack", b"".join(pictures))
    return pictures


def _facts(shape: Shape, sessions: list[dict[str, Any]], events: pl.DataFrame) -> pl.DataFrame:
    """Return the facts that sealing stores for each session."""
    counted = events.group_by("session_id", maintain_order=True).agg(
        pl.col("is_action").sum().cast(pl.Int32).alias("action_count"),
        pl.col("payload").str.len_bytes().cast(pl.Int64).sum().alias("payload_bytes"),
        _canonical_event().str.join("\n").alias("lines"),
    )
    digests = [hashlib.sha256(lines.encode()).hexdigest() for lines in counted["lines"]]
    return (
        pl.DataFrame(sessions)
        .join(counted, on="session_id", how="left", maintain_order="left")
        .with_columns(
            seal_seq=pl.col("number"),
            duration_ms=_duration_ms(shape),
            event_count=shape.events,
            frame_count=shape.frames,
            image_bytes=shape.frames * shape.picture_bytes,
            rows_sha256=pl.Series(digests),
            replayability=None,
        )
    )


def _canonical_event() -> pl.Expr:
    """Return the line of an event in its session's digest, as `rowset.events_digest` writes it."""
    frame = pl.format('"{}"', "frame_id").fill_null("null")
    escaped = pl.col("payload").str.replace_all("\\", "\\\\", literal=True)
    payload = escaped.str.replace_all('"', '\\"', literal=True)
    times = pl.col("t_ms"), pl.col("ts").dt.timestamp("us")
    return pl.format('["{}",{},{},"{}",{},"{}"]', "event_id", *times, "type", frame, payload)


def _duration_ms(shape: Shape) -> int:
    return shape.events * _STEP_MS


def _sql_row(shape: Shape, session: dict[str, Any]) -> dict[str, Any]:
    stopped_at = session["started_at"] + timedelta(milliseconds=_duration_ms(shape))
    actor_kind = _ACTORS[session["number"] % len(_ACTORS)]
    return {
        "id": session["session_id"],
        "workspace_id": WORKSPACE,
        "mode": "live",
        "workflow": WORKFLOW,
        "status": "sealed",
        "actor_id": actor_kind and f"{actor_kind} {session['number'] % 50}",
        "actor_kind": actor_kind,
        "created_at": session["started_at"],
        "started_at": session["started_at"],
        "stopped_at": stopped_at,
        "sealed_at": stopped_at,
        "duration_ms": _duration_ms(shape),
        "event_count": shape.events,
        "frame_count": shape.frames,
        "outcome": _OUTCOMES[session["number"] % len(_OUTCOMES)],
        "lake_date": session["date"],
        "is_hot": False,
    }


def _add_workspace(runtime: Runtime) -> None:
    with runtime.database.transaction(write=True) as db:
        db.add(
            WorkspaceRow(
                id=WORKSPACE,
                name="benchmark",
                region=runtime.settings.region,
                tier="unlimited",
                created_at=START,
            )
        )
        db.add(
            WorkflowRow(
                workspace_id=WORKSPACE, mode="live", workflow=WORKFLOW, created_at=START, updated_at=START
            )
        )
