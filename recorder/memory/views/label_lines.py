"""Labels of nodes as lines that may be shown: they come from recorded pages, so they may hold anything.

Every picture and format takes its labels from here and then escapes them in its own way.
"""

import re
import unicodedata

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


def estimate_text_width(text: str, size: float) -> float:
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
        if made[-1] and estimate_text_width(longer, size) > width:
            made.append(word)
        else:
            made[-1] = longer
    if len(made) > lines:
        made = [*made[: lines - 1], " ".join(made[lines - 1 :])]
    return tuple(_cut_label_line(line, width, size) for line in made)


def _cut_label_line(line: str, width: float, size: float) -> str:
    if estimate_text_width(line, size) <= width:
        return line
    shortened, addition = _split_addition(line)
    while shortened and estimate_text_width(shortened + _ELLIPSIS + addition, size) > width:
        shortened = shortened[:-1]
    return shortened.rstrip() + _ELLIPSIS + addition


def _measure_character(character: str) -> float:
    """Return the estimated width of a character of a label, in parts of the font size."""
    if character in _NARROW_LETTERS:
        return _NARROW
    if character in _BROAD_LETTERS:
        return _BROAD
    if unicodedata.east_asian_width(character) in "WF":
        return _FULL
    if unicodedata.combining(character):
        return 0.0
    return _CAPITAL if character.isupper() or not character.isascii() else _MIDDLE
