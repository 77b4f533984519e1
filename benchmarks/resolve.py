"""Resolution of recorded targets on pages that changed, and the time of a dry replay.

Six made-up pages with 2,400 seeded mutations, and the pages of 1,298 real demonstrations (MiniWoB), where the
element acted on is known: selectors of a state are resolved in that state after mutation.
`RECORDER_BENCH_SEED` gives the seed of all mutations.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.dom_mutations import TRUTH, Rates, mutate
from benchmarks.figure_reports import Figure, Skipped, at_least, at_most
from recorder.importers.miniwob.demonstration import demonstration_files
from recorder.importers.miniwob.elements import (
    make_event_target,
    make_miniwob_snapshot,
    take_miniwob_target_elements,
)
from recorder.importers.miniwob.format import (
    PageElement,
    join_demonstration_action_halves,
    read_demonstration_file,
)
from recorder.importers.upload import UnreadableRecording
from recorder.memory.steps.screens import describe_screen
from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, DomElement, find_dom_element_role, read_dom_document
from recorder.replays.dry_replay import replay_dry
from recorder.replays.recorded_session import RecordedFrame, RecordedSession
from recorder.replays.replay_policy import ReplayPolicy
from recorder.replays.selectors import find_single_element_by_selector, make_selectors
from recorder.replays.target_resolution import resolve_target

_DATA = Path(__file__).parents[2] / "shared" / "data" / "miniwob"
_SEED = int(os.environ.get("RECORDER_BENCH_SEED", "20261124"))
_MUTATIONS = 2_400
#: Each n-th demonstration is read.
_QUICK_SHARE = 10
_SESSIONS = 200


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure wrong actions and located targets on made-up and real pages; milliseconds of a dry replay."""
    figures = [*_measure_pages(), _measure_dry()]
    if _DATA.is_dir():
        figures += measure_demonstrations(_DATA, every=_QUICK_SHARE if quick else 1)
    return figures


def _measure_pages() -> list[Figure]:
    rng = random.Random(_SEED)
    cases = list(_list_targets())
    counts: Counter[str] = Counter()
    for number in range(_MUTATIONS):
        nodes, path, target = cases[number % len(cases)]
        counts[judge(_mark(nodes, path), target, rng, Rates())] += 1
    present = counts.total() - counts["gone"] - counts["gone: wrong"]
    wrong = counts["wrong"] + counts["gone: wrong"]
    detail = {
        "seed": str(_SEED),  # without separators, so that it can be given again
        "pages": len(_PAGES),
        "targets": len(cases),
        "mutations": counts.total(),
        **counts,
    }
    return [
        Figure(name="resolve: wrong actions", unit="of 2,400", ours=[wrong], goal=at_most(0), detail=detail),
        Figure(
            name="resolve: targets located where they still are",
            unit="%",
            ours=[100 * counts["right"] / present],
            goal=at_least(90),
        ),
    ]


def measure_demonstrations(folder: Path, *, every: int) -> list[Figure]:
    """Return the wrong and accepted shares on the pages of demonstrations, by task.

    Raises:
        Skipped: if no demonstration has a target.
    """
    rng = random.Random(_SEED)
    tasks: dict[str, Counter[str]] = {}
    files = demonstration_files(folder)[::every]
    for file in files:
        task = tasks.setdefault(file.parent.name, Counter())
        for nodes, target in _read_states(file):
            task[judge(nodes, target, rng, Rates(removed=0.05))] += 1
    counts = sum(tasks.values(), Counter())
    if not counts:
        raise Skipped("no demonstration has a target")
    accepted = counts["right"] + counts["wrong"] + counts["gone: wrong"]
    shares = {
        f"{task}, % accepted": round(
            100 * results["right"] / max(1, results["right"] + results["missed"] + results["wrong"])
        )
        for task, results in sorted(tasks.items())
        if results
    }
    return [
        Figure(
            name="resolve: wrong on demonstrations, of those accepted",
            unit="%",
            ours=[100 * (counts["wrong"] + counts["gone: wrong"]) / max(1, accepted)],
            goal=at_most(0.5),
            detail={"seed": str(_SEED), "demonstrations": len(files), **counts, **shares},
        ),
        Figure(
            name="resolve: accepted on demonstrations",
            unit="%",
            ours=[100 * accepted / counts.total()],
        ),
    ]


def judge(nodes: list[Any], target: dict[str, Any], rng: random.Random, rates: Rates) -> str:
    """Return `right`, `wrong` or `missed` for a target on a mutated page; `gone` where it was removed."""
    page = _read(mutate(nodes, rng, rates))
    is_gone = not any(element.attrs.get(TRUTH) for element in page.elements)
    resolution = resolve_target(page, target)
    if not resolution.is_found or resolution.element is None:
        return "gone" if is_gone else "missed"
    if resolution.element.attrs.get(TRUTH):
        return "right"
    return "gone: wrong" if is_gone else "wrong"


def _read(nodes: list[Any]) -> DomDocument:
    page = read_dom_document({"format": "nodes", "html": nodes}, lambda frame_id: None, Budget(10_000_000))
    if page is None:
        raise ValueError("The page is no snapshot.")
    return page


def _read_states(file: Path) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Yield the pages acted on, with the element marked, and the targets; repeated targets are left out."""
    try:
        demonstration, _ = read_demonstration_file(file)
    except UnreadableRecording:
        return
    last: dict[str, Any] | None = None
    for seen in join_demonstration_action_halves(demonstration.states):
        dom = demonstration.states[seen.index].dom
        path = take_miniwob_target_elements(dom)
        if not path:
            continue
        target = make_event_target(path)
        if target != last:
            yield _mark(make_miniwob_snapshot(dom)["html"], _index_path(path)), target
        last = target


def _index_path(path: list[PageElement]) -> list[int]:
    """Return the place of each element of a path among the nodes of its parent."""
    places = []
    for parent, child in pairwise(path):
        number = next(n for n, other in enumerate(parent.children or ()) if other is child)
        places.append(2 + bool(parent.text) + number)
    return places


def _mark(nodes: list[Any], path: list[int]) -> list[Any]:
    """Return the page with the element at a path marked."""
    if not path:
        return [nodes[0], {**nodes[1], TRUTH: True}, *nodes[2:]]
    number, *rest = path
    return [*nodes[:number], _mark(nodes[number], rest), *nodes[number + 1 :]]


def _list_targets() -> Iterator[tuple[list[Any], list[int], dict[str, Any]]]:
    """Yield every control of the made-up pages that a recorder can name."""
    for nodes in _PAGES:
        page = _read(nodes)
        for element in page.elements:
            if (
                find_dom_element_role(element) in ("button", "link", "textbox", "combobox", "checkbox")
                and element.visible
            ):
                yield nodes, _path_of(element), _describe(page, element)


def _path_of(element: DomElement) -> list[int]:
    path: list[int] = []
    while element.parent is not None:
        path.insert(0, 2 + next(n for n, child in enumerate(element.parent.children) if child is element))
        element = element.parent
    return path


def _describe(page: DomDocument, element: DomElement) -> dict[str, Any]:
    selectors = [
        selector
        for selector in make_selectors(page, element)
        if find_single_element_by_selector(page, selector, Budget(100_000)) is element
    ]
    return {
        "role": find_dom_element_role(element),
        "name": page.find_name(element),
        "tag": element.tag,
        "text": " ".join(element.own_text.split()),
        "attrs": {name: str(value) for name, value in element.attrs.items() if not name.startswith("__")},
        "selectors": selectors,
    }


def _measure_dry() -> Figure:
    session = make_session(13)
    times = []
    for _ in range(_SESSIONS):
        began = time.process_time()
        result = replay_dry(
            session, mode="full", anchor=None, until=None, policy=ReplayPolicy(), input_names=frozenset()
        )
        times.append(1_000 * (time.process_time() - began))
        if result.status != "completed":
            raise ValueError(f"The replay ended {result.status}.")
    return Figure(name="replay: dry, session of 13 events, CPU time", unit="ms", ours=times, goal=at_most(2))


def make_session(count: int) -> RecordedSession:
    """Return a session that acts on the made-up pages, one after the other."""
    cases = list(_list_targets())
    events: list[dict[str, Any]] = []
    frames = []
    for number in range(count):
        nodes, _, target = cases[number * len(cases) // count]
        given = {"v": 1, "format": "nodes", "html": nodes}
        tokens = describe_screen(dom=given, url=None, title=None, cells=None).state_tokens
        frames.append(RecordedFrame(f"frm_{number:02}", 1_000 * number, tokens, lambda given=given: given))  # type: ignore[misc]
        events.append(
            {"id": f"evt_{number:02}", "t_ms": 1_000 * number + 1, "type": "click", "target": target}
        )
    return RecordedSession("ses_1", events, frames, [])


def _page(title: str, *body: Any) -> list[Any]:
    links = [
        ["a", {"href": f"/{name.lower()}", "class": "nav"}, name]
        for name in ("Home", "Invoices", "Suppliers")
    ]
    return [
        "html", {}, ["head", {}, ["title", {}, title]],
        ["body", {}, ["nav", {"id": "menu"}, *links], ["h1", {}, title], ["main", {"id": "content"}, *body]],
    ]  # fmt: skip


def _field(label: str, **attrs: str) -> list[Any]:
    name = label.lower().replace(" ", "-")
    return [
        "p",
        {},
        ["label", {"for": name}, label],
        ["input", {"id": name, "name": name, "type": "text", **attrs}],
    ]


def _button(name: str, **attrs: str) -> list[Any]:
    return ["button", {"id": name.lower().replace(" ", "-"), "class": "btn", **attrs}, name]


_PAGES = [
    _page("Sign in", _field("E-mail"), _field("Password", type="password"),
          _button("Sign in", type="submit")),
    _page("Invoices", ["input", {"id": "q", "placeholder": "Search invoices", "type": "text"}],
          _button("Search"),
          ["table", {}, *[["tr", {}, ["td", {}, f"INV-{n}"],
                           ["td", {}, ["a", {"href": f"/invoices/{n}", "id": f"row-{n}"}, f"Open INV-{n}"]]]
                          for n in range(101, 107)]]),
    _page("Invoice INV-1042", ["div", {"class": "bar"}, _button("Approve"), _button("Write note")],
          ["section", {}, ["h2", {}, "Lines"], _field("Cost centre"), _button("Add line")]),
    _page("Confirm approval", ["div", {"role": "dialog", "aria-label": "Confirm"}, _button("Confirm"),
                               _button("Go back", **{"data-testid": "back"})]),
    _page("Settings", _field("Display name"), _field("Phone"),
          ["p", {}, ["label", {}, "Send reminders ", ["input", {"type": "checkbox", "id": "reminders"}]]],
          ["select", {"id": "language", "name": "language", "aria-label": "Language"},
           ["option", {}, "English"], ["option", {}, "German"]], _button("Save", type="submit")),
    _page("Suppliers", ["ul", {"class": "list"}, *[["li", {}, ["a", {"href": f"/s/{name}"}, name]]
                                                   for name in ("Acme", "Globex", "Initech")]],
          _button("New supplier"), _button("Export", **{"data-testid": "export"})),
]  # fmt: skip
