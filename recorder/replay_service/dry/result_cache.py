"""Results of dry replays that are asked for again: copied, not computed. Spec §4.6.

A result is kept by the replay that computed it, so it goes with every purge of a session that it is about.
"""

import hashlib
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import orjson
from sqlalchemy import insert, literal
from sqlmodel import Session as DbSession
from sqlmodel import col, delete, select

from recorder import clock
from recorder.models.replay import ReplayRow, ReplayStepRow
from recorder.models.session import SessionRow
from recorder.replay_service.requests.replays import publish_ended_replays, set_replay_ended
from recorder.version import __version__

#: Steps that one transaction copies: 500,000 took 2 s, for which all other writers waited.
_COPIED_STEPS = 5_000
_STEP_COLUMNS = [name for name in ReplayStepRow.model_fields if name != "replay_id"]


def set_result_keys(db: DbSession, rows: Sequence[ReplayRow]) -> None:
    """Set the keys of replays whose results depend on requests and sealed sessions alone.

    Those that are compared with a graph, which grows, those that a person decides on, and those that begin at
    a best candidate have none.
    """
    rows = [row for row in rows if _has_repeatable_result(row)]
    if not rows:
        return
    ids = {row.session_id for row in rows} | {row.against_session_id for row in rows} - {None}
    # Tags, which anchors name, are added to sealed sessions too, and never change.
    columns = select(SessionRow.id, SessionRow.sealed_at, SessionRow.tag_count)
    states = {
        session_id: (at and clock.to_iso(at), tags)
        for session_id, at, tags in db.exec(columns.where(col(SessionRow.id).in_(ids)))
    }
    for row in rows:
        sessions = [
            (session_id, *states.get(session_id, (None, 0)))
            for session_id in (row.session_id, row.against_session_id)
            if session_id is not None
        ]
        depends_on = [__version__, row.kind, sessions, row.spec, row.anchor_event, row.input_names]
        packed = orjson.dumps(depends_on, option=orjson.OPT_SORT_KEYS)
        row.result_key = hashlib.sha256(packed).hexdigest()
        db.add(row)


class CopiedResults(NamedTuple):
    """Replays that ended with the results of others, and replays whose results a later call copies."""

    ended: list[ReplayRow]
    left: list[ReplayRow]


def copy_cached_results(
    db: DbSession, rows: Sequence[ReplayRow], *, most_steps: int = _COPIED_STEPS
) -> CopiedResults:
    """End replays whose keys ended ones have, with their results.

    Args:
        db: a write transaction that holds the rows; other writers wait for it.
        rows: replays that have begun.
        most_steps: steps to copy; those of one replay are copied however many they are.
    """
    waiting = [row for row in rows if row.result_key is not None]
    keys = {row.result_key for row in waiting}
    ended = select(ReplayRow).where(
        col(ReplayRow.result_key).in_(keys), col(ReplayRow.status).in_(("completed", "diverged"))
    )
    sources = {row.result_key: row for row in db.exec(ended)} if keys else {}
    repeated = [row for row in waiting if row.result_key in sources]
    counts = accumulate(sources[row.result_key].steps or 0 for row in repeated)
    fitting = sum(count <= most_steps for count in counts)
    copied, left = repeated[: max(1, fitting)], repeated[max(1, fitting) :]
    if not copied:
        return CopiedResults([], [])
    db.exec(delete(ReplayStepRow).where(col(ReplayStepRow.replay_id).in_([row.id for row in copied])))
    for row in copied:
        source = sources[row.result_key]
        columns: list[Any] = [getattr(ReplayStepRow, name) for name in _STEP_COLUMNS]
        steps = select(literal(row.id), *columns).where(ReplayStepRow.replay_id == source.id)
        db.connection().execute(insert(ReplayStepRow).from_select(["replay_id", *_STEP_COLUMNS], steps))
        row.summary, row.divergence = source.summary, source.divergence
        row.anchor_event = row.anchor_event or source.anchor_event
        row.step, row.steps = source.step, source.steps
        row.result_key = None  # one replay keeps the result
        set_replay_ended(row, source.status)
        db.add(row)
    publish_ended_replays(db, *copied)
    return CopiedResults(copied, left)


def _has_repeatable_result(row: ReplayRow) -> bool:
    """Return whether a replay's result depends on recordings alone: on no person, graph or search."""
    against, anchor = row.spec["against"] or {}, row.spec["anchor"] or {}
    is_decided = row.kind == "guided" or row.spec["policy"]["on_divergence"] == "ask"
    return not is_decided and "auto" not in anchor and not {"graph", "path_id"} & against.keys()
