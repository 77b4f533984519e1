"""Recorded tasks by their pictures alone: no DOM, no address, no targets. Spec §2.6.

Every page of a demonstration is drawn as the importer draws it; a step is then an action on a picture.
"""

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from sklearn.metrics import adjusted_rand_score

from benchmarks.figures import Figure, Skipped, at_least
from benchmarks.memory.graphs import Sealed, paths_by_session, stored_graph
from benchmarks.memory.tasks import DATA, SAME_PAGES, Demonstration, in_order
from recorder.importers.miniwob.elements import canvas_size, list_boxes, target_path
from recorder.importers.miniwob.format import event_members, read_file, whole_actions
from recorder.importers.screen_drawing import draw_screen
from recorder.memory.steps.screens import FrameScreen, describe_screen
from recorder.memory.steps.session_steps import session_steps
from recorder.sealing.frame_digests import read_cells

_ORDERS, _QUICK_ORDERS = 5, 2


def measure(*, quick: bool = False) -> list[Figure]:
    """Agreement of paths with tasks where frames are all that is known of a screen.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    demonstrations = _read_drawn(DATA)
    labels = [SAME_PAGES.get(item.task, item.task) for item in demonstrations]
    sealed, rebuilt = [], []
    for order in range(_QUICK_ORDERS if quick else _ORDERS):
        with stored_graph() as graph:
            graph.add([item.session for item in in_order(demonstrations, order)])
            for scores in (sealed, rebuilt):
                paths = paths_by_session(graph.columns())
                shown = [paths[item.session.session_id] for item in demonstrations]
                scores.append(float(adjusted_rand_score(labels, shown)))
                graph.rebuild("anchored")
    return [
        Figure(
            name=f"memory, MiniWoB by pictures alone: adjusted Rand index of paths and tasks, {state}",
            unit="",
            ours=scores,
            goal=at_least(0.45),
        )
        for state, scores in (("as sealed", sealed), ("rebuilt", rebuilt))
    ]


def _read_drawn(folder: Path) -> Sequence[Demonstration]:
    files = sorted(folder.glob("*/*.json.gz"))
    with ProcessPoolExecutor() as processes:
        runs = list(processes.map(_read_run, files, chunksize=16))
    return [
        Demonstration(replace(run, session_id=f"ses_{index:06d}"), file.parent.name)
        for index, (file, run) in enumerate(zip(files, runs, strict=True))
    ]


def _read_run(file: Path) -> Sealed:
    demonstration = read_file(file)[0]
    seen = whole_actions(demonstration.states)
    cells: dict[object, bytes | None] = {}
    events, frames = [], []
    for item, members in zip(seen, event_members(seen), strict=True):
        page = demonstration.states[item.index].dom
        target_path(page)  # takes off the mark of the element acted on, which no picture shows
        drawn = list_boxes(page), canvas_size(page)
        if drawn not in cells:
            cells[drawn] = read_cells(draw_screen(*drawn))
        t_ms, frame_id = round(demonstration.states[item.index].time), f"frm_{item.index:06d}"
        screen = describe_screen(dom=None, url=None, title=None, cells=cells[drawn])
        frames.append(FrameScreen(t_ms, frame_id, screen))
        events.append({"id": f"evt_{item.index:06d}", "t_ms": t_ms, "frame_id": frame_id, **members})
    steps = session_steps(events, frames)
    outcome = "success" if demonstration.raw_reward > 0 else "error"
    return Sealed(file.name, steps, outcome=outcome, duration_ms=steps[-1].t_out_ms if steps else 0)
