"""Labels of nodes as text that may be shown: they come from recorded pages, so they may hold anything.

Every picture and format takes its labels from here and then escapes them in its own way.
"""

import unicodedata

#: Longer labels are cut where they are shown; JSON keeps them whole.
LABEL_LENGTH = 80
_ELLIPSIS = "…"
#: Control characters, invisible formatting (bidirectional marks among it), halves of pairs, private and
#: unassigned characters: none is drawn, and some turn the text around them.
_INVISIBLE = frozenset(["Cc", "Cf", "Cs", "Co", "Cn"])
#: Width in em of letters that are far from the average, in the wide faces that browsers fall back to.
_NARROW, _MIDDLE, _CAPITAL, _BROAD, _FULL = 0.33, 0.60, 0.70, 0.92, 1.0
_NARROW_LETTERS = frozenset("iljtfrI.,:;'’‘!|()[]/ ·")
_BROAD_LETTERS = frozenset("mwMW@%…—")


def one_line(label: str, length: int = LABEL_LENGTH) -> str:
    """A label without anything invisible, on one line, of at most `length` characters; never empty."""
    seen = "".join(
        character
        if unicodedata.category(character) not in _INVISIBLE
        else (" " if character.isspace() else "")
        for character in label[: 4 * length]
    )
    words = " ".join(seen.split())
    cut = words if len(words) <= length else words[: length - 1].rstrip() + _ELLIPSIS
    return cut or "(no label)"


def text_width(text: str, size: float) -> float:
    """About how wide a text is drawn, rather too wide than too narrow.

    Args:
        size: height of the letters; the width has the same unit.
    """
    return size * sum(_width(character) for character in text)


def in_lines(label: str, width: float, size: float, lines: int = 2) -> tuple[str, ...]:
    """A label broken into at most so many lines of this width; what does not fit is cut with an ellipsis."""
    made = [""]
    for word in one_line(label).split(" "):
        longer = f"{made[-1]} {word}".strip()
        if made[-1] and text_width(longer, size) > width:
            made.append(word)
        else:
            made[-1] = longer
    if len(made) > lines:
        made = [*made[: lines - 1], " ".join(made[lines - 1 :])]
    return tuple(_cut(line, width, size) for line in made)


def _cut(line: str, width: float, size: float) -> str:
    if text_width(line, size) <= width:
        return line
    kept = line
    while kept and text_width(kept + _ELLIPSIS, size) > width:
        kept = kept[:-1]
    return kept.rstrip() + _ELLIPSIS


def _width(character: str) -> float:
    if character in _NARROW_LETTERS:
        return _NARROW
    if character in _BROAD_LETTERS:
        return _BROAD
    if unicodedata.east_asian_width(character) in "WF":
        return _FULL
    if unicodedata.combining(character):
        return 0.0
    return _CAPITAL if character.isupper() or not character.isascii() else _MIDDLE
