"""The graph on demonstrations that people recorded: paths against the tasks they were given. Spec §2.6."""

from sklearn.metrics import adjusted_rand_score

from benchmarks.memory.tasks import steps_of
from recorder.memory.graph.graph import Graph
from recorder.tenant import GraphScope, Tenant
from tests.support.demonstrations import REAL, needs_real

#: Sessions of one sealing batch.
_BATCH = 50


@needs_real
def test_paths_follow_the_tasks_though_all_lie_in_one_workflow() -> None:
    files = sorted(REAL.glob("*/*.json.gz"))[::4]
    sessions = {path: steps for path in files if (steps := steps_of(path))}
    graph = Graph(GraphScope(Tenant("wsp_a", "live"), "tasks"))
    path_ids: dict[str, str] = {}
    for start in range(0, len(sessions), _BATCH):
        batch = {str(path): sessions[path] for path in list(sessions)[start : start + _BATCH]}
        for trace in graph.add_sessions(batch).sessions:
            path_ids[trace.session_id] = graph.path_of(trace.trace_key).path_id
    tasks = [path.parent.name for path in sessions]
    # Without knowing how many tasks there are; exact variants reach .4.
    assert adjusted_rand_score(tasks, [path_ids[str(path)] for path in sessions]) >= 0.60
    assert len(graph.nodes) < sum(len(steps) for steps in sessions.values()) / 4
