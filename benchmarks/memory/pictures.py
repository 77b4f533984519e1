"""Recorded tasks by their pictures alone: no DOM, no address, no targets. Spec §2.6, decision 0046.

Every page of a demonstration is drawn as the importer draws it; a step is then an action on a picture. A
second set shows the same pages as other clients would send them: each session in a scale, format, quality
and brightness of its own, each picture with a patch that differs.
"""

import io
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

from PIL import Image, ImageDraw
from sklearn.metrics import adjusted_rand_score

from benchmarks.figure_reports import Figure, Goal, Skipped, at_least
from benchmarks.memory.graphs import Sealed, paths_by_session, stored_graph
from benchmarks.memory.tasks import DATA, SAME_PAGES, Demonstration, in_order
from recorder.importers.miniwob.elements import (
    compute_canvas_size,
    list_miniwob_element_boxes,
    take_miniwob_target_elements,
)
from recorder.importers.miniwob.format import (
    convert_action,
    join_demonstration_action_halves,
    read_demonstration_file,
)
from recorder.importers.screen_drawing import draw_screen
from recorder.memory.steps.screens import FrameScreen, describe_screen
from recorder.memory.steps.session_steps import session_steps
from recorder.sealing.frame_digests import read_cells_of_frame_picture

_ORDERS, _QUICK_ORDERS = 5, 2
_SETS = ("by pictures alone", "by pictures re-encoded, scaled and changed")


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the agreement of paths with tasks where frames are all that is known of a screen.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    drawn, changed = _read_drawn(DATA)
    orders = _QUICK_ORDERS if quick else _ORDERS
    return [
        *_measure_set(_SETS[0], drawn, orders, goal=at_least(0.45)),
        *_measure_set(_SETS[1], changed, orders, goal=None),
    ]


def _measure_set(
    name: str, demonstrations: Sequence[Demonstration], orders: int, *, goal: Goal | None
) -> list[Figure]:
    labels = [SAME_PAGES.get(item.task, item.task) for item in demonstrations]
    sealed: list[float] = []
    rebuilt: list[float] = []
    for order in range(orders):
        with stored_graph() as graph:
            graph.add([item.session for item in in_order(demonstrations, order)])
            for scores in (sealed, rebuilt):
                paths = paths_by_session(graph.columns())
                shown = [paths[item.session.session_id] for item in demonstrations]
                scores.append(float(adjusted_rand_score(labels, shown)))
                graph.rebuild("anchored")
    return [
        Figure(
            name=f"memory, MiniWoB {name}: adjusted Rand index of paths and tasks, {state}",
            unit="",
            ours=scores,
            goal=goal,
        )
        for state, scores in (("as sealed", sealed), ("rebuilt", rebuilt))
    ]


def _read_drawn(folder: Path) -> tuple[list[Demonstration], list[Demonstration]]:
    """Return the demonstrations as drawn, and as changed."""
    files = sorted(folder.glob("*/*.json.gz"))
    with ProcessPoolExecutor() as processes:
        runs = list(processes.map(_read_run, files, chunksize=16))
    numbered = [
        [
            Demonstration(replace(run, session_id=f"ses_{index:06d}"), file.parent.name)
            for index, (file, run) in enumerate(zip(files, some, strict=True))
        ]
        for some in zip(*runs, strict=True)
    ]
    return numbered[0], numbered[1]


def _read_run(file: Path) -> tuple[Sealed, Sealed]:
    """Return a demonstration with its pages as drawn, and as changed."""
    demonstration = read_demonstration_file(file)[0]
    seen = join_demonstration_action_halves(demonstration.states)
    change = _choose_change(file)
    cells: dict[object, tuple[bytes | None, bytes | None]] = {}
    events = []
    frames: tuple[list[FrameScreen], list[FrameScreen]] = ([], [])
    for item, members in zip(seen, convert_action(seen), strict=True):
        page = demonstration.states[item.index].dom
        take_miniwob_target_elements(
            page
        )  # takes off the mark of the element acted on, which no picture shows
        drawn = list_miniwob_element_boxes(page), compute_canvas_size(page)
        if drawn not in cells:
            picture = draw_screen(*drawn)
            cells[drawn] = read_cells_of_frame_picture(picture), read_cells_of_frame_picture(change(picture))
        t_ms, frame_id = round(demonstration.states[item.index].time), f"frm_{item.index:06d}"
        for shown, seen_cells in zip(frames, cells[drawn], strict=True):
            screen = describe_screen(dom=None, url=None, title=None, cells=seen_cells)
            shown.append(FrameScreen(t_ms, frame_id, screen))
        events.append({"id": f"evt_{item.index:06d}", "t_ms": t_ms, "frame_id": frame_id, **members})
    outcome = "success" if demonstration.raw_reward > 0 else "error"
    first, other = (
        Sealed(file.name, steps, outcome=outcome, duration_ms=steps[-1].t_out_ms if steps else 0)
        for steps in (session_steps(events, shown) for shown in frames)
    )
    return first, other


def _choose_change(file: Path) -> Callable[[bytes], bytes]:
    """Return what one client does to its pictures; the patch is an eighth of the width wide."""
    draw_of = random.Random(f"{file.parent.name}/{file.name}")
    scale, quality = draw_of.uniform(0.8, 1.6), draw_of.randrange(60, 96)
    form, brighter = draw_of.choice(("JPEG", "WEBP")), draw_of.randrange(-6, 7)

    def change(picture: bytes) -> bytes:
        with Image.open(io.BytesIO(picture)) as drawn:
            size = round(drawn.width * scale), round(drawn.height * scale)
            image = drawn.convert("RGB").resize(size, Image.Resampling.BILINEAR)
        image = image.point([min(255, max(0, shade + brighter)) for shade in range(256)] * 3)
        width, height = image.width // 8, image.height // 20
        left, top = draw_of.randrange(image.width - width), draw_of.randrange(image.height - height)
        shade = draw_of.randrange(40, 216)
        ImageDraw.Draw(image).rectangle((left, top, left + width, top + height), fill=(shade, shade, shade))
        file = io.BytesIO()
        image.save(file, form, quality=quality)
        return file.getvalue()

    return change
