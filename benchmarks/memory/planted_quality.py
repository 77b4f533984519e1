"""Quality on a planted workflow: paths, outliers and anchors that the graph finds. Spec §2.6, §2.7.

Sessions are sealed in batches into a real graph, then asked for with the service's own queries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sklearn.metrics import adjusted_rand_score

from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.memory.graphs import Sealed, paths_by_session, stored_graph
from benchmarks.memory.planted import (
    ANCHOR_SHARES,
    ANCHORS,
    RECOVERY_SHARE,
    Planted,
    PlantedSession,
    plant,
    step_label,
)
from recorder.memory.graph.arrays import Ints
from recorder.memory.queries.columns import GraphColumns
from recorder.memory.queries.outliers import find_outliers
from recorder.memory.queries.recovery_anchors import find_recovery_anchors

_SEEDS = range(3)
_SESSIONS = 10_000


@dataclass(frozen=True, slots=True)
class Found:
    """Result for one planted workflow."""

    #: Adjusted Rand index of the paths: as sealed, after an anchored rebuild; and of exact variants.
    sealed_ari: float
    rebuilt_ari: float
    variant_ari: float
    variants: int
    paths: int
    #: Precision, which is the recall, of as many outliers as were planted.
    outliers: float
    #: The labels of the anchors and their frequencies, most frequent first.
    anchors: list[tuple[str, float]]
    #: The frequencies that were planted, in the order of `ANCHORS`.
    planted_anchors: list[float]

    @property
    def anchor_error(self) -> float:
        """The largest error of an anchor's frequency; 1 where the first two are not the planted ones."""
        top = self.anchors[: len(ANCHORS)]
        if [label for label, _ in top] != [step_label(step) for step in ANCHORS]:
            return 1.0
        return max(abs(item - true) for (_, item), true in zip(top, self.planted_anchors, strict=True))


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the agreement with the planted truth, for three seeds."""
    results = [find_again(plant(3_000 if quick else _SESSIONS, seed=seed)) for seed in _SEEDS]
    expected = [round(RECOVERY_SHARE * share, 2) for share in ANCHOR_SHARES]
    return [
        Figure(
            name="memory, planted: adjusted Rand index of paths, as sealed",
            unit="",
            ours=[item.sealed_ari for item in results],
            goal=at_least(0.78),
            detail={
                "exact variants": [item.variant_ari for item in results],
                "number of variants": [item.variants for item in results],
                "number of paths": [item.paths for item in results],
            },
        ),
        Figure(
            name="memory, planted: adjusted Rand index of paths, after an anchored rebuild",
            unit="",
            ours=[item.rebuilt_ari for item in results],
            goal=at_least(0.78),
        ),
        Figure(
            name="memory, planted: precision = recall of outliers, of as many as were planted",
            unit="",
            ours=[item.outliers for item in results],
            goal=at_least(0.95),
        ),
        Figure(
            name="memory, planted: error of the recovery anchors' frequencies",
            unit="",
            ours=[item.anchor_error for item in results],
            goal=at_most(0.02),
            detail={
                "expected": " ".join(map(str, expected)),
                "found": " ".join(
                    f"{label} {share:.3f}"
                    for item in results
                    for label, share in item.anchors[: len(ANCHORS)]
                ),
            },
        ),
    ]


def find_again(planted: Planted) -> Found:
    """Seal a planted workflow, and ask for what is known of it."""
    with stored_graph() as graph:
        graph.add([sealed_of(session) for session in planted.sessions])
        columns = graph.columns()
        sealed_ari = path_agreement(planted, columns)
        variants = columns.variant.tolist()
        graph.rebuild("anchored")
        rebuilt = graph.columns()
        return Found(
            sealed_ari=sealed_ari,
            rebuilt_ari=path_agreement(planted, rebuilt),
            variant_ari=float(adjusted_rand_score(_truth(planted), variants)),
            variants=len(set(variants)),
            paths=len(set(columns.path.tolist())),
            outliers=outlier_precision(planted, rebuilt),
            anchors=anchors_of(planted, rebuilt),
            planted_anchors=anchor_shares(planted.sessions),
        )


def path_agreement(planted: Planted, columns: GraphColumns) -> float:
    """Return the adjusted Rand index of the paths; each outlier counts as a path of its own."""
    paths = paths_by_session(columns)
    results = [paths[session.session_id] for session in planted.sessions]
    return float(adjusted_rand_score(_truth(planted), results))


def outlier_precision(planted: Planted, columns: GraphColumns) -> float:
    """Return the share of planted outliers among as many outliers of the service."""
    strange = {session.session_id for session in planted.sessions if session.is_outlier}
    outliers = find_outliers(columns, columns.current(), rank="typicality")
    hits = sum(
        session.decode() in strange for session in columns.session_id[outliers.rows[: len(strange)]].tolist()
    )
    return hits / len(strange)


def anchors_of(planted: Planted, columns: GraphColumns) -> list[tuple[str, float]]:
    """Return the label and frequency of the anchors that the service finds, the most frequent first."""
    failed = {
        session.session_id: session.failed_ms for session in planted.sessions if session.failed_ms is not None
    }
    rows = {session.decode(): row for row, session in enumerate(columns.session_id.tolist())}
    failed_ms = {rows[session_id]: t_ms for session_id, t_ms in failed.items()}
    result = find_recovery_anchors(columns, columns.current(), failed_ms, _no_tags)
    return [(columns.nodes[anchor.node].label, anchor.frequency) for anchor in result]


def anchor_shares(sessions: Sequence[PlantedSession]) -> list[float]:
    """Return the share of the failing sessions that recover at each anchor."""
    failing = [session for session in sessions if session.failed_ms is not None]
    return [sum(session.anchor == anchor for session in failing) / len(failing) for anchor in ANCHORS]


def _no_tags(rows: Ints) -> Mapping[int, Sequence[int]]:
    """Return no times: success is the end of a session, no tags of it were planted."""
    return {}


def _truth(planted: Planted) -> list[str]:
    return [
        session.session_id if session.path is None else f"path {session.path}" for session in planted.sessions
    ]


def sealed_of(session: PlantedSession) -> Sealed:
    """Return the session as sealing takes it in."""
    return Sealed(session.session_id, session.steps, session.outcome, session.started_ms, session.duration_ms)
