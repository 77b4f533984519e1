"""Labels of nodes as text that may be shown: they come from recorded pages, so they may hold anything.

Every picture and format takes its labels from here and then escapes them in its own way.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from recorder.plurals import counted

#: Longer labels are cut where they are shown; JSON keeps them whole.
LABEL_LENGTH = 80
_ELLIPSIS = "…"
_ADDITION = re.compile(r" \([^()]{1,12}\)$")
#: Control characters, invisible formatting (bidirectional marks among it), halves of pairs, private and
#: unassigned characters: none is drawn, and some turn the text around them.
_INVISIBLE = frozenset(["Cc", "Cf", "Cs", "Co", "Cn"])
#: Width in em of letters that are far from the average, in the wide faces that browsers fall back to.
_NARROW, _MIDDLE, _CAPITAL, _BROAD, _FULL = 0.33, 0.60, 0.70, 0.92, 1.0
_NARROW_LETTERS = frozenset("iljtfrI.,:;'’‘!|()[]/ ·")
_BROAD_LETTERS = frozenset("mwMW@%…—")


def one_line(label: str, length: int = LABEL_LENGTH) -> str:
    """Return a label without anything invisible, on one line, of at most `length` characters; never empty."""
    seen = "".join(
        character
        if unicodedata.category(character) not in _INVISIBLE
        else (" " if character.isspace() else "")
        for character in label[: 4 * length]
    )
    words = " ".join(seen.split())
    if len(words) > length:
        words, addition = _split_addition(words)
        words = words[: length - 1 - len(addition)].rstrip() + _ELLIPSIS + addition
    return words or "(no label)"


def _split_addition(words: str) -> tuple[str, str]:
    """Return a label and the part in which it differs from equal ones, such as ` (2)`, which is kept."""
    addition = _ADDITION.search(words)
    return (words[: addition.start()], addition[0]) if addition else (words, "")


def text_width(text: str, size: float) -> float:
    """Estimate the width of a drawn text, rather too wide than too narrow.

    Args:
        text: the text.
        size: height of the letters; the width has the same unit.
    """
    return size * sum(_measure_character(character) for character in text)


def break_label_into_lines(label: str, width: float, size: float, lines: int = 2) -> tuple[str, ...]:
    """Break a label into at most so many lines of this width; what does not fit is cut with an ellipsis."""
    made = [""]
    for word in one_line(label).split(" "):
        longer = f"{made[-1]} {word}".strip()
        if made[-1] and text_width(longer, size) > width:
            made.append(word)
        else:
            made[-1] = longer
    if len(made) > lines:
        made = [*made[: lines - 1], " ".join(made[lines - 1 :])]
    return tuple(_cut_label_line(line, width, size) for line in made)


def _cut_label_line(line: str, width: float, size: float) -> str:
    if text_width(line, size) <= width:
        return line
    shortened, addition = _split_addition(line)
    while shortened and text_width(shortened + _ELLIPSIS + addition, size) > width:
        shortened = shortened[:-1]
    return shortened.rstrip() + _ELLIPSIS + addition


def _measure_character(character: str) -> float:
    if character in _NARROW_LETTERS:
        return _NARROW
    if character in _BROAD_LETTERS:
        return _BROAD
    if unicodedata.east_asian_width(character) in "WF":
        return _FULL
    if unicodedata.combining(character):
        return 0.0
    return _CAPITAL if character.isupper() or not character.isascii() else _MIDDLE


#: More names than this in a row are shortened to the first ones and the last.
_NAMES = 6
_NAME_LENGTH = 40
#: Steps of long paths that are compared, from the first difference on: the time goes with their cube.
_COMPARED_STEPS = 64
#: Places that are described.
_DEVIATIONS = 8


@dataclass(frozen=True, slots=True)
class PathDeviation:
    """One place where a path leaves the common one: nodes of it that are missing, and others instead."""

    removed: tuple[str, ...]
    added: tuple[str, ...]
    #: The common node before it; None at the beginning.
    after: str | None


def path_changes(common: Sequence[str], other: Sequence[str]) -> list[PathDeviation]:
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
        One text for each place, such as `− Write note` or `+ Reject › Rejected after Invoice`.
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
    changes = path_changes(middle[:_COMPARED_STEPS], others[:_COMPARED_STEPS])
    described = [_describe_deviation(change, shown) for change in changes[:_DEVIATIONS]]
    if len(changes) > _DEVIATIONS:
        described.append(counted(len(changes) - _DEVIATIONS, "more difference"))
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
    return f"the common path: {counted(len(nodes), 'step')}, {ends}"


def _describe_deviation(change: PathDeviation, names: Mapping[str, str]) -> str:
    parts = []
    if change.removed:
        parts.append(f"− {_join_node_labels(change.removed, names)}")
    if change.added:
        where = "first" if change.after is None else f"after {names[change.after]}"
        parts.append(f"+ {_join_node_labels(change.added, names)} {where}")
    return " ".join(parts)


def join_names(nodes: Sequence[str], names: Mapping[str, str]) -> str:
    """Return the names of nodes in a row, as text that may be shown; long rows are shortened.

    Args:
        nodes: node ids.
        names: labels by node id; a node without one is named by its id.
    """
    return _join_node_labels(nodes, {node: one_line(names.get(node, node), _NAME_LENGTH) for node in nodes})


def _join_node_labels(nodes: Sequence[str], names: Mapping[str, str]) -> str:
    if len(nodes) <= _NAMES:
        return " › ".join(names[node] for node in nodes)
    first = " › ".join(names[node] for node in nodes[: _NAMES - 2])
    return f"{first} › … {len(nodes) - _NAMES + 1} more … › {names[nodes[-1]]}"
