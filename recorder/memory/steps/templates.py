"""Texts into templates, templates into 64-bit keys: what varies from run to run is taken out. Spec §2.6."""

import re
from functools import lru_cache

import xxhash

_DIGIT = re.compile(r"\d")
# Possessive quantifiers: no input can make these backtrack.
_RANDOM = (
    r"(?<![0-9a-z])(?:"
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[a-f]*[0-9])[0-9a-f]{8,}+"
    r"|(?=[0-9a-z]{10})(?:[a-z]*+[0-9]++){2,}+[a-z]*+"
    r")(?![0-9a-z])"
)
_ISO_TIME = r"\d{4}-\d{2}-\d{2}(?:[t ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:z|[+-]\d{2}:?\d{2})?)?"
_VOLATILE = re.compile(rf"{_ISO_TIME}|{_RANDOM}|\d+", re.IGNORECASE)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_NAME_PARTS = re.compile(
    rf"(?P<time>{_ISO_TIME}|\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?: ?[ap]m\b)?"
    rf"|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{2,4}}|\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}})"
    r"|(?P<money>[$€£¥] ?\d[\d.,]*|\d[\d.,]*+ ?(?:[$€£¥]|(?:usd|eur|gbp|chf|jpy)\b))"
    rf"|(?P<hex>{_RANDOM})"
    r"|(?P<n>\d+(?:[.,]\d+)*)"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_NAME_CHARACTERS = 80
_URL_CHARACTERS = 256


def template_of(text: str) -> str:
    """The text with every number, date, UUID and random-looking id replaced by `#`."""
    return _VOLATILE.sub("#", text) if _DIGIT.search(text) else text


def normal_name(text: str) -> str:
    """Return a name in lower case, ≤ 80 characters, with `<time> <money> <hex> <n>` for what varies."""
    return _normal_name(text[: 4 * _NAME_CHARACTERS])


@lru_cache(maxsize=65_536)
def _normal_name(text: str) -> str:
    words = " ".join(readable(text).lower().split())
    if _DIGIT.search(words):
        words = _NAME_PARTS.sub(lambda match: f"<{match.lastgroup}>", words)
    return words[:_NAME_CHARACTERS]


def url_template(url: str) -> str:
    """Host and path without what varies, the names of the query's parameters, and a hash route.

    Credentials, parameter values and other fragments are left out; of `data:` and its like only the scheme
    stays.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        opaque = _SCHEME.match(url)
        if opaque:
            return opaque[0].lower()
        rest = scheme
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    if separator:
        host, slash, path = rest.partition("/")
        rest = host.rpartition("@")[2].lower() + slash + path
    route = fragment.partition("?")[0] if fragment.startswith(("/", "!")) else ""
    names = sorted({part.partition("=")[0] for part in query.split("&")} - {""}) if query else ()
    text = rest.rstrip("/") + ("?" + "&".join(names) if names else "") + ("#" + route if route else "")
    return readable(template_of(text[: 4 * _URL_CHARACTERS]))[:_URL_CHARACTERS]


def readable(text: str) -> str:
    """The text as valid UTF-8: halves of surrogate pairs and NULs, which stores refuse, become `?`."""
    if text.isascii():
        return text.replace("\0", "?")
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def key_of(*parts: str) -> int:
    """A signed 64-bit key of some texts, the same on every machine (xxh64)."""
    digest = xxhash.xxh64_intdigest("\0".join(parts).encode("utf-8", "replace"))
    return signed(digest)


def signed(value: int) -> int:
    """An unsigned 64-bit number as the signed one that databases store."""
    return value - 2**64 if value >= 2**63 else value
