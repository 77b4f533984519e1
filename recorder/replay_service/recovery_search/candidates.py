"""Candidates of a recovery: what the graph counts about the nodes passed, and what the recordings allow.

Spec §4.6; contract §8.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from sqlmodel import Session as DbSession
from sqlmodel import col, select

from recorder.errors import NotFound, Unavailable
from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.chosen_sessions import read_newest_columns
from recorder.memory.queries.columns import NOWHERE, GraphColumns, make_session_lookup
from recorder.memory.queries.passed_nodes import PassedNode, PassedNodes, find_passed_node
from recorder.memory.queries.recovery_anchors import Witness
from recorder.memory.storage.graph_store import graph_scope_of
from recorder.memory_service.recovery_points import (
    RecordedStepIds,
    read_recovery_point_steps,
    read_recovery_tag_times,
)
from recorder.models.session import SessionRow, TagRow
from recorder.recording.outcome_detection import read_outcome_detection_rules
from recorder.recording.sessions import find_session
from recorder.replay_service.recordings.failed_sessions import SessionFailure, read_similar_failures
from recorder.replay_service.recordings.recording_messages import open_recording_message
from recorder.replay_service.recordings.recording_reads import read_recording
from recorder.replays.budget import Budget
from recorder.replays.consequences import list_consequential
from recorder.replays.dry_replay import compute_replayability
from recorder.replays.recorded_session import InvalidRecording, RecordedSession, list_recorded_steps
from recorder.replays.recovery_ranking import RankedCandidate, RecoveryCandidate, rank_recovery_candidates
from recorder.replays.replay_range import EventPosition
from recorder.runtime import Runtime
from recorder.tenant import Tenant

#: Donors of a candidate that are tried: one may be unusable.
_DONORS = 3
#: Candidates whose recordings are read: those with the highest bounds of their score.
_READ = 10
#: A donor is a run that went well: larger ones than this are passed over.
_DONOR_EVENTS, _DONOR_BYTES = 20_000, 16 * 1024**2
#: Visits of nodes for the suffixes of all candidates, and time after which no other one is read: processor
#: time, since a busy machine must not leave any out.
_SEARCH_VISITS, _SEARCH_SECONDS = 10_000_000, 30.0


@dataclass(frozen=True, slots=True)
class PointTime:
    """A requested recovery point: a time in a session."""

    session_id: str
    t_ms: int


@dataclass(frozen=True, slots=True)
class _CountedNode:
    """A candidate as the graph counts it, with its step in the failed session and its donors."""

    passed: PassedNode
    node_id: str
    step: RecordedStepIds | None
    #: Sessions with the id of the event that entered the node, the best first.
    donors: tuple[tuple[str, str], ...]


class _Act(NamedTuple):
    """An action of the failed session."""

    position: EventPosition
    is_consequential: bool


@dataclass(frozen=True, slots=True)
class _Suffix:
    """The part of a donor's recording that a recovery repeats."""

    session_id: str
    event_id: str
    until_event_id: str
    replayability: float | None


def list_recovery_candidates(
    runtime: Runtime,
    session: SessionRow,
    failure: SessionFailure,
    point: PointTime | None = None,
    *,
    skip_unavailable: bool = False,
    most_seconds: float = _SEARCH_SECONDS,
) -> list[dict[str, Any]]:
    """Return the candidates of a failed session, the best first, as `RecoveryRow.candidates` keeps them.

    Candidates that cannot be read within the visits and the time of a search are left out, the last ones.

    Args:
        runtime: database, lake and snapshots of the deployment.
        session: the failed session.
        failure: its failure.
        point: the requested recovery point; the only candidate then is its node.
        skip_unavailable: leave candidates out whose donors are in a store that does not answer.
        most_seconds: processor time after which no further candidate is read.

    Raises:
        InvalidRecording: if the session is too large, or no candidate could be read within these bounds.
        NotFound: if it was deleted.
        Unavailable: if a store does not answer.
    """
    until_s = time.process_time() + most_seconds
    with runtime.database.transaction(write=False) as db:
        counted = _find_candidate_nodes(db, runtime, session, failure, point)
    if not counted:
        return []
    acts = _list_candidate_acts(runtime, session, failure.t_ms)
    with runtime.database.transaction(write=False) as db:
        success_tags = read_outcome_detection_rules(db, session).success_tags
    suffixes = _SuffixReader(runtime, session.tenant, success_tags, skip_unavailable)
    ranked = rank_recovery_candidates(_describe_candidate(acts, entry) for entry in counted)
    by_node = {entry.node_id: entry for entry in counted}
    replayable = []
    for entry in ranked[:_READ]:
        suffix = suffixes.read(by_node[entry.candidate.node_id].donors)
        if suffix is not None and suffixes.budget.left >= 0:
            replayable.append((replace(entry.candidate, replayability=suffix.replayability), suffix))
        if suffixes.budget.left < 0 or time.process_time() > until_s:
            if not replayable:
                raise InvalidRecording("The recordings of the candidates take too long to be read.")
            break
    donors = {candidate.node_id: suffix for candidate, suffix in replayable}
    return [
        _candidate_to_json(entry, by_node[entry.candidate.node_id], donors[entry.candidate.node_id])
        for entry in rank_recovery_candidates(candidate for candidate, _ in replayable)
    ]


def _find_candidate_nodes(
    db: DbSession, runtime: Runtime, session: SessionRow, failure: SessionFailure, point: PointTime | None
) -> list[_CountedNode]:
    scope = graph_scope_of(session)
    columns = read_newest_columns(db, scope)
    (row,) = make_session_lookup(columns).find([session.id]).tolist()
    if row == NOWHERE:
        return []  # sealed while the graph was paused
    rules = read_outcome_detection_rules(db, session)

    def read_successes(_: Ints) -> Mapping[int, Ints]:
        return success_times

    success_times = read_recovery_tag_times(db, scope, columns, rules.success_tags)
    failed_ms = read_similar_failures(db, scope, columns, session, failure)
    nodes = PassedNodes(columns, row, failed_ms, read_successes)
    if point is None:
        passed = nodes.list_candidates(_read_candidate_tag_times(db, session, failure, rules.error_tags))
    else:
        passed = [nodes.describe(node) for node in _find_candidate_point_node(columns, point)]
    wanted = {witness for node in passed for witness in node.donors}
    wanted |= {Witness(row, node.pos) for node in passed if node.pos is not None}
    steps = read_recovery_point_steps(db, runtime.lake, scope, columns, sorted(wanted)) if wanted else {}
    return [
        _CountedNode(
            node,
            columns.nodes[node.node].node_id,
            None if node.pos is None else steps.get(Witness(row, node.pos)),
            tuple(
                (columns.session_id[donor.row].decode(), steps[donor].event_id)
                for donor in node.donors
                if donor in steps
            ),
        )
        for node in passed
    ]


def _find_candidate_point_node(columns: GraphColumns, point: PointTime) -> list[int]:
    (row,) = make_session_lookup(columns).find([point.session_id]).tolist()
    node = None if row == NOWHERE else find_passed_node(columns, row, point.t_ms)
    return [] if node is None else [node]


def _read_candidate_tag_times(
    db: DbSession, session: SessionRow, failure: SessionFailure, error_tags: frozenset[str]
) -> list[int]:
    """Return the times of the tags before the failure that mark no failure themselves."""
    statement = select(TagRow.name, TagRow.t_ms).where(TagRow.session_id == session.id)
    names = error_tags | {failure.tag}
    tags = db.exec(statement.where(col(TagRow.t_ms) <= failure.t_ms))
    return [t_ms for name, t_ms in tags if name not in names]


def _list_candidate_acts(runtime: Runtime, session: SessionRow, until_ms: int) -> list[_Act]:
    """Return the actions of the failed session up to a time, in order."""
    recording = open_recording_message(read_recording(runtime, session), runtime.blobs)
    consequential = list_consequential(recording)
    acts = [step.event for step in list_recorded_steps(recording) if step.event["t_ms"] <= until_ms]
    return [_Act(EventPosition(act["t_ms"], act["id"]), act["id"] in consequential) for act in acts]


def _describe_candidate(acts: Sequence[_Act], counted: _CountedNode) -> RecoveryCandidate:
    """Return a node that the failed session passed as a candidate from which to recover."""
    passed, step = counted.passed, counted.step
    position = EventPosition(passed.entered_ms or 0, "" if step is None else step.event_id)
    repeated = 0
    if step is not None:
        # The last act before the failure is the one that failed: it has not had its effect.
        repeated = sum(act.is_consequential for act in acts[:-1] if act.position >= position)
    return RecoveryCandidate(
        node_id=counted.node_id,
        event_id=position.event_id,
        t_ms=position.t_ms,
        frame_id=None if step is None else step.frame_id,
        hits=passed.hits,
        successes=passed.successes,
        replayability=None,
        consequential_steps=repeated,
        median_recovery_ms=passed.median_recovery_ms,
    )


class _SuffixReader:
    """Reader of the ways that donors took; the last recording is kept, since candidates share donors."""

    def __init__(
        self, runtime: Runtime, tenant: Tenant, success_tags: Collection[str], skip_unavailable: bool
    ) -> None:
        self._runtime, self._tenant = runtime, tenant
        self._success_tags = success_tags
        self._skip_unavailable = skip_unavailable
        self._last: RecordedSession | None = None
        #: Visits that are left for all suffixes.
        self.budget = Budget(_SEARCH_VISITS)

    def read(self, donors: Sequence[tuple[str, str]]) -> _Suffix | None:
        """Return the suffix of the first donor that is recorded and can be read; None without one.

        Raises:
            Unavailable: if there is none, and the store of one did not answer.
        """
        missed: Unavailable | None = None
        for session_id, event_id in donors[:_DONORS]:
            try:
                suffix = self._read_suffix(session_id, event_id)
            except (NotFound, InvalidRecording):
                continue
            except Unavailable as error:
                missed = error
                continue
            if suffix is not None:
                return suffix
        if missed is not None and not self._skip_unavailable:
            raise missed
        return None

    def _read_suffix(self, session_id: str, event_id: str) -> _Suffix | None:
        """Return the part of a session from an event to its success, with its replayability."""
        recording = self._read_donor_recording(session_id)
        positions = [EventPosition(event["t_ms"], event["id"]) for event in recording.events]
        anchor = next((position for position in positions if position.event_id == event_id), None)
        if anchor is None:
            return None
        ends = [tag.t_ms for tag in recording.tags if tag.name in self._success_tags]
        success_ms = min((t_ms for t_ms in ends if t_ms >= anchor.t_ms), default=None)
        until = max(position for position in positions if success_ms is None or position.t_ms <= success_ms)
        share = compute_replayability(recording, anchor=anchor, until=until, whole=self.budget)
        return _Suffix(session_id, event_id, until.event_id, share)

    def _read_donor_recording(self, session_id: str) -> RecordedSession:
        if self._last is None or self._last.session_id != session_id:
            self._last = None
            with self._runtime.database.transaction(write=False) as db:
                row = find_session(db, self._tenant, session_id)
            if row.event_count > _DONOR_EVENTS or row.event_bytes > _DONOR_BYTES:
                raise InvalidRecording("The session is too large for a recovery to repeat a part of it.")
            self._last = open_recording_message(read_recording(self._runtime, row), self._runtime.blobs)
        return self._last


def _candidate_to_json(entry: RankedCandidate, counted: _CountedNode, suffix: _Suffix) -> dict[str, Any]:
    """Return a candidate as it is stored: what is shown, and the donor of the attempt."""
    described = asdict(entry.candidate)
    if counted.step is None:
        described |= {"event_id": None, "t_ms": None}
    return {
        **described,
        "basis": counted.passed.basis,
        "frequency": entry.frequency,
        "lower_bound": entry.lower_bound,
        "consequence_factor": entry.consequence_factor,
        "score": entry.score,
        "replay_id": None,
        "donor": {
            "session_id": suffix.session_id,
            "event_id": suffix.event_id,
            "until_event_id": suffix.until_event_id,
        },
    }
