"""Sessions off the common paths, the least typical first. Spec §4.2 (outliers); contract §4.

Which sessions are outliers says the frequency of their path. How far out they are says the mean of
-log P(edge) along their way, in which one rare step among many common ones already shows.
"""

from dataclasses import dataclass

import numpy as np

from recorder.memory.building.postings import Floats, Ints
from recorder.memory.queries.columns import GraphColumns, Mask
from recorder.memory.queries.transitions import transitions_of

#: Paths of fewer sessions than this share are off the common ones, unless asked otherwise.
THRESHOLD = 0.01


@dataclass(frozen=True, slots=True)
class Outliers:
    """Rows of sessions, the least typical first, then the newest, then by id."""

    rows: Ints
    #: Share of the chosen sessions that are on the same path, and how usual the way is: both 0 to 1.
    path_frequency: Floats
    typicality: Floats


def find_outliers(columns: GraphColumns, chosen: Mask, *, threshold: float = THRESHOLD) -> Outliers:
    """The chosen sessions whose path fewer than `threshold` of the chosen ones take."""
    paths = columns.path
    counts = np.bincount(paths[chosen], minlength=len(columns.paths))
    frequency = counts / max(int(chosen.sum()), 1)
    rows = np.flatnonzero(chosen & (frequency[paths] < threshold))
    typical = typicality(columns, chosen)[columns.variant[rows]]
    order = np.lexsort((columns.session_id[rows], -columns.started_ms[rows], typical))
    rows, typical = rows[order], typical[order]
    return Outliers(rows, frequency[paths[rows]], typical)


def typicality(columns: GraphColumns, chosen: Mask) -> Floats:
    """How usual the way of each variant is among the chosen sessions: exp of the mean log P(edge), 0 to 1.

    P(edge) is the share of its source's departures, one added to each possible one; the edge that leads into
    the session counts, the one that leads out does not.
    """
    steps = transitions_of(columns)
    sessions = np.bincount(columns.variant[chosen], minlength=len(columns.variant_path))
    weights = sessions[steps.owner].astype(np.float64)
    taken = np.bincount(steps.edge, weights=weights, minlength=len(steps.edge_source))
    departures = np.bincount(steps.source + 1, weights=weights, minlength=len(columns.nodes) + 1)
    possible = len(np.unique(steps.edge_target[taken > 0]))
    likely = np.log(taken + 1) - np.log(departures[steps.edge_source + 1] + max(possible, 1))
    sizes = np.bincount(steps.owner, minlength=len(sessions))
    sums = np.bincount(steps.owner, weights=likely[steps.edge], minlength=len(sessions))
    typical: Floats = np.exp(sums / np.maximum(sizes, 1))
    return typical
