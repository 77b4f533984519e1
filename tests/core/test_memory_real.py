"""The graph on demonstrations that people recorded: paths against the tasks they were given. Spec §2.6."""

from pathlib import Path
from typing import Any

from sklearn.metrics import adjusted_rand_score

from recorder.importers.miniwob.actions import event_members, whole_actions
from recorder.importers.miniwob.elements import event_target, snapshot, target_path
from recorder.importers.miniwob.format import read_file
from recorder.memory.building.graph import Graph
from recorder.memory.building.nodes import GraphScope
from recorder.memory.states import FrameScreen, describe_screen
from recorder.memory.steps import Step, session_steps
from tests.demonstrations import REAL, needs_real

#: Sessions of one sealing batch.
_BATCH = 50


def steps_of(path: Path) -> list[Step]:
    """The steps of a demonstration, read as the importer reads it but without pictures."""
    states = read_file(path)[0].states
    targets = [target_path(state.dom) for state in states]
    frames = []
    for place, state in enumerate(states):
        screen = describe_screen(dom=snapshot(state.dom), url=None, title=None, dhash=None)
        frames.append(FrameScreen(round(state.time), f"frm_{place:06d}", screen))
    seen = whole_actions(states)
    events: list[dict[str, Any]] = []
    for one, members in zip(seen, event_members(seen), strict=True):
        event = {"id": f"evt_{one.index:06d}", "t_ms": frames[one.index].t_ms, **members}
        event["frame_id"] = frames[one.index].frame_id
        if targets[one.index]:
            event["target"] = event_target(targets[one.index])
        events.append(event)
    return session_steps(events, frames)


@needs_real
def test_paths_follow_the_tasks_though_all_lie_in_one_workflow() -> None:
    files = sorted(REAL.glob("*/*.json.gz"))[::4]
    sessions = {path: steps for path in files if (steps := steps_of(path))}
    graph = Graph(GraphScope("wsp_a", "live", "tasks"))
    path_ids: dict[str, str] = {}
    for start in range(0, len(sessions), _BATCH):
        batch = {str(path): sessions[path] for path in list(sessions)[start : start + _BATCH]}
        for one in graph.add_sessions(batch).sessions:
            path_ids[one.session_id] = graph.path_of(one.trace_key).path_id
    tasks = [path.parent.name for path in sessions]
    # Without knowing how many tasks there are; exact variants reach .4.
    assert adjusted_rand_score(tasks, [path_ids[str(path)] for path in sessions]) >= 0.60
    assert len(graph.nodes) < sum(len(steps) for steps in sessions.values()) / 4
