"""E-mail addresses, as they stand in texts and in the queries of web addresses."""

import re
from collections.abc import Iterator

from recorder.masking.expressions import UNION_BYTES, compile_expression
from recorder.masking.rules import Rule, Span
from recorder.masking.tokens import plain_email

# Latin, Greek and Cyrillic letters with their marks. Others touch an address without being part of it:
# Chinese and Japanese are written without spaces.
_LETTERS = r"A-Za-z\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{24F}\x{300}-\x{52F}"
_ALNUM = rf"0-9{_LETTERS}"
_HINT = (
    rf"[{_ALNUM}_][{_ALNUM}_.%+'-]*(?:@|%40|＠)"
    rf"(?:[{_ALNUM}](?:[{_ALNUM}-]*[{_ALNUM}])?\.)+(?:xn--[0-9A-Za-z-]+|[{_LETTERS}]{{2,63}})"
)
_address = compile_expression(_HINT, max_bytes=UNION_BYTES)
# `logo@2x.png` is a picture for sharp screens.
_PICTURE = re.compile(rb"@[0-9](?:\.[0-9])?x\.(?:png|jpe?g|gif|webp|avif|svg|bmp|ico)\Z", re.IGNORECASE)


def _find(text: bytes) -> Iterator[Span]:
    found = (match.span() for match in _address.finditer(text))
    return (span for span in found if not _PICTURE.search(text[span[0] : span[1]]))


EMAIL = Rule("email", _HINT, _find, plain_email)
