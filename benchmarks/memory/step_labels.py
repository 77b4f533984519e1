"""Labels of nodes: share of visits whose label is a bare tag, role, id or template. Spec §2.6."""

import re
from collections import Counter
from functools import partial

from benchmarks.figure_reports import Figure, Skipped, at_most
from benchmarks.memory.graphs import stored_graph
from benchmarks.memory.tasks import DATA, read_demonstrations
from recorder.memory.steps.session_steps import Step
from recorder.memory.steps.step_labels import make_step_label

_SHOWN = 12
_QUICK_SHARE = 4
_NUMBER = re.compile(r" \(\d+\)$")
#: A `#` that stands for digits; one before digits is part of a name, such as `Tab #2`.
_TEMPLATE = re.compile(r"#(?!\d)")


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the share over all demonstrations; a step without a target is none of them.

    Raises:
        Skipped: if the demonstrations are not beside the project.
    """
    if not DATA.is_dir():
        raise Skipped("the demonstrations (../shared/data/miniwob) are absent")
    visits: Counter[str] = Counter()
    bare: Counter[str] = Counter()
    templates = 0
    sessions = [demonstration.session for demonstration in read_demonstrations(DATA)]
    sessions = sessions[:: _QUICK_SHARE if quick else 1]
    with stored_graph() as graph:
        graph.add(sessions)
        nodes = graph.columns().nodes
        shown = {state.micro_key: nodes[state.node].label for state in graph.recorded().micro_states}
    for step in (step for session in sessions for step in session.steps):
        label = shown[step.micro_key]
        visits[label] += step.runs
        if _TEMPLATE.search(label):
            templates += step.runs
        if is_bare(step, label):
            bare[label] += step.runs
    return [
        Figure(
            name="memory, MiniWoB: visits whose label is a bare tag, role, id or template",
            unit="",
            ours=[bare.total() / visits.total()],
            goal=at_most(0.10),
            detail={
                "visits": visits.total(),
                "labels": len(visits),
                "visits whose label has a #": templates,
                "commonest": "; ".join(f"{label} {count}" for label, count in bare.most_common(_SHOWN)),
            },
        )
    ]


def is_bare(step: Step, shown: str) -> bool:
    """Check whether the label shown for a step is its tag, role or id as it is, or a template of it.

    A number that distinguishes nodes of one label is no word.
    """
    shown = _NUMBER.sub("", shown)
    if not step.target:
        return False
    kind, _, identity = step.target.partition(" ")
    attribute, _, value = identity.partition("=")
    label = partial(make_step_label, step.action)
    values = {value, *value.split(".")} if attribute in ("id", "name", "test", "class") else set()
    bare = {kind, "element", "list item", "cell", "row", "image", "page", *values} - {""}
    return shown in {label(noun) for noun in bare} or bool(_TEMPLATE.search(shown))
