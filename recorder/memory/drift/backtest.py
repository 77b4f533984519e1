"""Backtest: the alarms that the stored history of a graph would have given. Contract §9, docs/drift.md."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from recorder import clock
from recorder.errors import NotFound
from recorder.memory.drift.detector import DetectorState, detect_alarms
from recorder.memory.drift.payloads import make_alarm_payload
from recorder.memory.drift.store import NEW_NODE, PATH_DISAPPEARED, read_history
from recorder.memory.drift.thresholds import DriftRules
from recorder.memory.queries.columns_cache import read_graph_columns
from recorder.memory.storage.versions import read_newest_version
from recorder.storage.database import Database
from recorder.tenant import GraphScope


@dataclass(frozen=True, slots=True)
class PastAlarm:
    """An alarm at the session of this position, counted from 1, which began then."""

    position: int
    began_at: datetime
    type: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Backtest:
    """Result of a replay of a history."""

    sessions: int
    #: Sessions after a baseline, the only ones that can make an alarm.
    judged: int
    terms: int
    alarms: list[PastAlarm]

    @property
    def rates(self) -> dict[str, float]:
        """Alarms of each type per 2,000 judged sessions."""
        counts = Counter(alarm.type for alarm in self.alarms)
        judged = max(1, self.judged)
        return {type: counts[type] * 2_000 / judged for type in (PATH_DISAPPEARED, NEW_NODE)}


def backtest_history(
    database: Database,
    scope: GraphScope,
    rules: DriftRules,
    *,
    progress: Callable[[int, int], object] = lambda done, sessions: None,
) -> Backtest:
    """Judge all sessions of a graph in the order of their starts; write nothing and send nothing.

    Args:
        database: the database of the deployment.
        scope: the graph.
        rules: the numbers of the rules.
        progress: called after each term with the number of judged sessions and of all.

    Raises:
        NotFound: if there is no such workflow.
    """
    with database.transaction(write=False) as db:
        head = read_newest_version(db, scope)
        if head is None:
            text = f"The workspace has no graph of this workflow in {scope.tenant.mode} mode; check both."
            raise NotFound("workflow", text)
        columns = read_graph_columns(db, scope, head.version)
        history = read_history(db, scope, columns, by_start=True)
    alarms: list[PastAlarm] = []
    terms = judged = 0
    for check in detect_alarms(history, DetectorState(), rules, from_the_start=True):
        for alarm in check.alarms:
            type, _, data = make_alarm_payload(alarm, history, columns, workflow=scope.workflow)
            began_at = clock.from_ms(int(history.started_ms[alarm.position]))
            alarms.append(PastAlarm(alarm.position + 1, began_at, type, data.model_dump(mode="json")))
        terms += 1
        judged = check.state.judged - min(rules.least_baseline, rules.baseline)
        progress(check.state.judged, len(history))
    return Backtest(len(history), judged, terms, alarms)
