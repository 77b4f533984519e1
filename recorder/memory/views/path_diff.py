"""How a path differs from the common one, in words: “+ Search supplier after Open invoices”. Spec §4.2."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from recorder.memory.views.labels import one_line

#: More names than this in a row are shortened to the first ones and the last.
_NAMES = 6
_NAME_LENGTH = 40


@dataclass(frozen=True, slots=True)
class PathChange:
    """One place where a path leaves the common one: nodes of it that are missing, and others instead."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    #: The common node before it; None at the beginning.
    after: str | None


def path_changes(common: Sequence[str], other: Sequence[str]) -> list[PathChange]:
    """Where a sequence of nodes differs from the common one, from the beginning to the end.

    Examples:
        >>> path_changes(["a", "b", "c"], ["a", "c", "d"])
        [PathChange(removed=('b',), added=(), after='a'), PathChange(removed=(), added=('d',), after='c')]
    """
    matcher = SequenceMatcher(None, common, other, autojunk=False)
    return [
        PathChange(
            tuple(common[start:end]), tuple(other[first:last]), common[start - 1] if start > 0 else None
        )
        for kind, start, end, first, last in matcher.get_opcodes()
        if kind != "equal"
    ]


def describe_path(common: Sequence[str], other: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """The differences as sentences; of the common path itself, that it is.

    Args:
        names: labels by node id; a node without one is told by its id.

    Returns:
        One text for each place, such as `− Write note` or `+ Reject › Rejected after Invoice`.
    """
    shown = {node: one_line(names.get(node, node), _NAME_LENGTH) for node in (*common, *other)}
    if list(common) == list(other):
        return [_common(common, shown)]
    return [_sentence(change, shown) for change in path_changes(common, other)]


def _common(nodes: Sequence[str], names: Mapping[str, str]) -> str:
    if not nodes:
        return "the common path: no steps"
    ends = names[nodes[0]] if len(nodes) == 1 else f"{names[nodes[0]]} … {names[nodes[-1]]}"
    return f"the common path: {len(nodes)} {'step' if len(nodes) == 1 else 'steps'}, {ends}"


def _sentence(change: PathChange, names: Mapping[str, str]) -> str:
    parts = []
    if change.removed:
        parts.append(f"− {_row(change.removed, names)}")
    if change.added:
        where = "first" if change.after is None else f"after {names[change.after]}"
        parts.append(f"+ {_row(change.added, names)} {where}")
    return " ".join(parts)


def _row(nodes: Sequence[str], names: Mapping[str, str]) -> str:
    if len(nodes) <= _NAMES:
        return " › ".join(names[node] for node in nodes)
    first = " › ".join(names[node] for node in nodes[: _NAMES - 2])
    return f"{first} › … {len(nodes) - _NAMES + 1} more … › {names[nodes[-1]]}"
