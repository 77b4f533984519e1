"""Changes that were noticed, in the order in which they are reported. Docs: docs/drift.md."""

from dataclasses import dataclass

from recorder.memory.drift.drift_subjects import EDGE, NODE, PATH
from recorder.memory.drift.history import History


@dataclass(frozen=True, slots=True)
class NoticedChange:
    """A change of one subject that was noticed at the session of position `position`."""

    subject: int
    #: Whether it became more frequent.
    rose: bool
    #: Position of the first session that it may have begun with.
    since: int
    position: int
    #: Shares of the sessions, 0 to 1; `most_after` is the highest that the sessions since then allow.
    before: float
    most_after: float
    #: Whether it was reported; else it is a consequence of one that was.
    is_reported: bool
    #: Numbers of sealing of both sessions, where they were stored: deletions move positions, never these.
    stored_seqs: tuple[int, int] | None = None


_ORDER_OF_FALLS = {PATH: 0, NODE: 1, EDGE: 2}
_ORDER_OF_GROWTH = {NODE: 0, EDGE: 1, PATH: 2}


def report_order_of(history: History, change: NoticedChange) -> tuple[int, int, float, int]:
    """Return the order in which changes noticed at the same session are reported, the first one first.

    The most frequent subject comes first. Of equally frequent ones a path precedes its nodes where it fell; a
    node precedes its edges and paths where it is new.
    """
    order = _ORDER_OF_GROWTH if change.rose else _ORDER_OF_FALLS
    share = change.most_after if change.rose else change.before
    return (change.position, int(change.rose), -share, order[int(history.subjects.kind[change.subject])])
