"""Dry replays: a session replayed against snapshots and graph, without touching anything. Spec §4.6."""

from collections.abc import Mapping
from dataclasses import dataclass

from recorder.replays.anchors import EventPosition
from recorder.replays.policy import ReplayPolicy
from recorder.replays.recordings import RecordedSession
from recorder.replays.results import Decision, DryResult, Mode


@dataclass(frozen=True)
class GraphEvidence:
    """The part of a memory graph that a replay is compared with."""

    #: Event id → node id.
    node_of: Mapping[str, str]
    #: Share of the sessions that leave a node by each edge.
    edge_share: Mapping[tuple[str, str], float]
    labels: Mapping[str, str]


def replay_dry(
    recording: RecordedSession,
    *,
    mode: Mode,
    anchor: EventPosition | None,
    until: EventPosition | None,
    policy: ReplayPolicy,
    input_names: frozenset[str],
    against: RecordedSession | GraphEvidence | None = None,
    decisions: Mapping[int, Decision] | None = None,
) -> DryResult:
    """Replay a session against snapshots and graph: same arguments, same result."""
    raise NotImplementedError


def compute_replayability(recording: RecordedSession) -> float | None:
    """Return the share of steps whose target one element alone matches; None without snapshots or steps."""
    raise NotImplementedError
