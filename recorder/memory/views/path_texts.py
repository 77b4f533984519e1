"""Paths as text: how one leaves the common path, and its nodes by their labels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from recorder.memory.views.label_lines import one_line
from recorder.number_formats import format_count

#: More names than this in a row are shortened to the first ones and the last.
_NAMES = 6
_NAME_LENGTH = 40
#: Text between two names of nodes that follow each other.
_NEXT_STEP = " › "
#: Steps of long paths that are compared, from the first difference on: the time goes with their cube.
_COMPARED_STEPS = 64
#: Positions that are described.
_DEVIATIONS = 8


@dataclass(frozen=True, slots=True)
class PathDeviation:
    """One position where a path leaves the common one: nodes of it that are missing, and others instead."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    #: The common node before it; None at the beginning.
    after: str | None


def list_path_changes(common: Sequence[str], other: Sequence[str]) -> list[PathDeviation]:
    """Return the differences of a sequence of nodes from the common one, from the beginning to the end.

    Examples:
        >>> path_changes(["a", "b"], ["a", "c"])
        [PathDeviation(removed=('b',), added=('c',), after='a')]
    """
    matcher = SequenceMatcher(None, common, other, autojunk=False)
    return [
        PathDeviation(
            tuple(common[start:end]), tuple(other[first:last]), common[start - 1] if start > 0 else None
        )
        for kind, start, end, first, last in matcher.get_opcodes()
        if kind != "equal"
    ]


def describe_path(common: Sequence[str], other: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Return the differences as sentences; for the common path itself, a sentence that says so.

    Of long paths the steps from the first difference on are compared, and the first differences listed;
    sentences say so.

    Args:
        common: the nodes of the common path.
        other: the nodes of the path to describe.
        names: labels by node id; a node without one is named by its id.

    Returns:
        One text for each position, such as `− Write note` or `after Invoice: + Reject › Rejected`.
    """
    shown = {node: one_line(names.get(node, node), _NAME_LENGTH) for node in {*common, *other}}
    if list(common) == list(other):
        return [_describe_common_path(common, shown)]
    begin, end = 0, 0
    if max(len(common), len(other)) > _COMPARED_STEPS:
        begin = _count_equal_steps(common, other)
        end = _count_equal_steps(common[begin:][::-1], other[begin:][::-1])
        begin = max(begin - 1, 0)
    middle, others = common[begin : len(common) - end], other[begin : len(other) - end]
    changes = list_path_changes(middle[:_COMPARED_STEPS], others[:_COMPARED_STEPS])
    described = [_describe_deviation(change, shown) for change in changes[:_DEVIATIONS]]
    if len(changes) > _DEVIATIONS:
        described.append(format_count(len(changes) - _DEVIATIONS, "more difference"))
    if max(len(middle), len(others)) > _COMPARED_STEPS:
        described.append(f"steps from number {begin + _COMPARED_STEPS + 1} on are not compared")
    return described


def _count_equal_steps(common: Sequence[str], other: Sequence[str]) -> int:
    """Return how many steps two paths begin with alike."""
    pairs = enumerate(zip(common, other, strict=False))
    return next((index for index, (first, second) in pairs if first != second), min(len(common), len(other)))


def _describe_common_path(nodes: Sequence[str], names: Mapping[str, str]) -> str:
    if not nodes:
        return "the common path: no steps"
    ends = names[nodes[0]] if len(nodes) == 1 else f"{names[nodes[0]]} … {names[nodes[-1]]}"
    return f"the common path: {format_count(len(nodes), 'step')}, {ends}"


def _describe_deviation(change: PathDeviation, names: Mapping[str, str]) -> str:
    """Return how a variant deviates from its path: nodes removed and added, and after which node."""
    parts = []
    if change.removed:
        parts.append(f"− {_join_node_labels(change.removed, names)}")
    if change.added:
        parts.append(f"+ {_join_node_labels(change.added, names)}")
        # It comes first: behind the added steps it reads as one more of them.
        parts.insert(0, "at the start:" if change.after is None else f"after {names[change.after]}:")
    return " ".join(parts)


def join_node_names(nodes: Sequence[str], names: Mapping[str, str], *, separator: str = _NEXT_STEP) -> str:
    """Return the names of nodes in a row, as text that may be shown; long rows are shortened.

    Args:
        nodes: node ids.
        names: labels by node id; a node without one is named by its id.
        separator: text between two names; a comma where the nodes do not follow each other.
    """
    shown = {node: one_line(names.get(node, node), _NAME_LENGTH) for node in nodes}
    return _join_node_labels(nodes, shown, separator=separator)


def _join_node_labels(nodes: Sequence[str], names: Mapping[str, str], *, separator: str = _NEXT_STEP) -> str:
    if len(nodes) <= _NAMES:
        return separator.join(names[node] for node in nodes)
    left_out = f"… {len(nodes) - _NAMES + 1} more …"
    return separator.join([*(names[node] for node in nodes[: _NAMES - 2]), left_out, names[nodes[-1]]])
