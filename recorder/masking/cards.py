"""Numbers of payment cards: 13 to 19 digits whose check digit is right (ISO/IEC 7812)."""

from collections.abc import Iterator

from recorder.masking.rules import Rule, Span
from recorder.masking.tokens import plain_card
from recorder.models.masking import compile_expression

# American Express, Diners, JCB, Maestro, Mastercard, Discover, UnionPay and Visa begin with 2 to 6; the
# milliseconds and nanoseconds of our time with 1.
_FIRST = "[2-6]"
_GAP = r"[ \-\x{A0}\x{2007}\x{2009}\x{2010}-\x{2013}\x{202F}]"
#: The longest first: what follows a number in groups (its check code, say) may look like one group more.
_SHAPES = (
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}{_GAP}[0-9]{{3}}",
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{5}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4}}",
    rf"{_FIRST}[0-9]{{12,18}}",
)
_ANY = "|".join(_SHAPES)
# A number that letters or digits touch is part of an id, one behind a point is a fraction.
_HINT = rf"(?:^|[^0-9A-Za-z.]|[^0-9]\.|^\.)(?:{_ANY})(?:$|[^0-9A-Za-z])"
_any = compile_expression(_ANY)
_digits = compile_expression("[0-9]+")
_shapes = [compile_expression(shape) for shape in _SHAPES]
_DOUBLED = str.maketrans("0123456789", "0246813579")


def _find(text: bytes) -> Iterator[Span]:
    position = 0
    while found := _any.search(text, position):
        start = found.start()
        # A digit stands before whatever begins later in this run of digits: one step a run, however long.
        position = _digits.match(text, start).end()
        if _touches_before(text, start):
            continue
        # A later number may begin inside one that is none: 0123 4111 1111 1111 1111.
        ends = (match.end() for shape in _shapes if (match := shape.match(text, start)))
        end = next((end for end in ends if _is_number(text, start, end)), None)
        if end is not None:
            yield start, end
            position = end


def _touches_before(text: bytes, start: int) -> bool:
    before = text[max(0, start - 2) : start]
    return before[-1:].isalnum() or (before[-1:] == b"." and before[:1].isdigit())


def _is_number(text: bytes, start: int, end: int) -> bool:
    if text[end : end + 1].isalnum():
        return False
    digits = plain_card(text[start:end].decode())
    return sum(map(int, digits[-1::-2] + digits[-2::-2].translate(_DOUBLED))) % 10 == 0


CARD = Rule("card", _HINT, _find, plain_card)
