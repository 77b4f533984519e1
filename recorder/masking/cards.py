"""Numbers of payment cards: 13 to 19 digits whose check digit is right (ISO/IEC 7812)."""

import re
from collections.abc import Iterator

from recorder.masking.rules import Rule, Span
from recorder.masking.tokens import plain_card

# American Express, Diners, JCB, Maestro, Mastercard, Discover, UnionPay and Visa begin with 2 to 6; the
# milliseconds and nanoseconds of our time with 1.
_FIRST = "[2-6]"
_GAP = r"[ \-\x{A0}\x{2007}\x{2009}\x{2010}-\x{2013}\x{202F}]"
# The same in bytes of UTF-8, for Python's expressions.
_GAP_BYTES = rb"(?:[ \-]|\xc2\xa0|\xe2\x80[\x87\x89\x90-\x93\xaf])"
#: The longest first: what follows a number in groups (its check code, say) may look like one group more.
_SHAPES = (
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}{_GAP}[0-9]{{3}}",
    rf"{_FIRST}[0-9]{{3}}(?:{_GAP}[0-9]{{4}}){{3}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{5}}",
    rf"{_FIRST}[0-9]{{3}}{_GAP}[0-9]{{6}}{_GAP}[0-9]{{4}}",
    rf"{_FIRST}[0-9]{{12,18}}",
)
# A number that letters or digits touch is part of an id, one behind a point is a fraction.
_HINT = rf"(?:^|[^0-9A-Za-z.]|[^0-9]\.|^\.)(?:{'|'.join(_SHAPES)})(?:$|[^0-9A-Za-z])"
# Python's own expressions: of bounded length, so that none of them can take long, and five times as fast to
# call at a place as RE2's. Every shape that fits where a run of digits begins is a group.
_candidates = re.compile(
    rf"(?<![0-9A-Za-z])(?<![0-9]\.)(?={_FIRST}[0-9]{{3}})".encode()
    + b"".join(
        rb"(?:(?=(%b)(?![0-9A-Za-z]))|)" % shape.encode().replace(_GAP.encode(), _GAP_BYTES)
        for shape in _SHAPES
    )
)
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")


def _find(text: bytes) -> Iterator[Span]:
    end = 0
    for candidate in _candidates.finditer(text):
        start = candidate.start()
        # A later number may begin inside one that is none: 0123 4111 1111 1111 1111.
        if start >= end and candidate.lastindex is not None:
            number = next(filter(_is_number, filter(None, candidate.groups())), None)
            if number is not None:
                end = start + len(number)
                yield start, end


def _is_number(shape: bytes) -> bool:
    digits = shape.translate(None, _NO_DIGITS)
    total = sum(digits[-1::-2]) + sum(digits[-2::-2].translate(_DOUBLED)) - 48 * len(digits)
    return total % 10 == 0


CARD = Rule("card", _HINT, _find, plain_card)
