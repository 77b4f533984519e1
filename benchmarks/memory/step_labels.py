"""Labels of recorded steps: share of visits whose label is a bare tag, role, id or template. Spec §2.6."""

from collections import Counter
from functools import partial

from benchmarks.figures import Figure, Skipped, at_most
from benchmarks.memory.tasks import DATA, read_demonstrations
from recorder.memory.steps.session_steps import Step
from recorder.memory.steps.step_labels import make_label

_SHOWN = 12


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
    for demonstration in read_demonstrations(DATA):
        for step in demonstration.session.steps:
            visits[step.label] += step.runs
            if "#" in step.label:
                templates += step.runs
            if is_bare(step):
                bare[step.label] += step.runs
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


def is_bare(step: Step) -> bool:
    """Check whether the label of a step shows its tag, role or id as it is, or a template of it."""
    if not step.target:
        return False
    kind, _, identity = step.target.partition(" ")
    attribute, _, value = identity.partition("=")
    label = partial(make_label, step.action)
    values = {value, *value.split(".")} if attribute in ("id", "name", "test", "class") else set()
    bare = {kind, "element", "list item", "cell", "row", "image", "page", *values} - {""}
    return step.label in {label(noun) for noun in bare} or "#" in step.label
