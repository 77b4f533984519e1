"""Digests of secret values, by which the recorder finds them in texts that the page script does not clean.

The values themselves stay in the page.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

HIDDEN_TEXT = "•••"
#: Bases of the two polynomials of a digest, as in page.js, and their modulus.
_BASES = (31, 1_000_003)
_MODULUS = 2**32
_MAX_DIGESTS, _MAX_CHARACTERS = 200, 4_500


class SecretDigest(NamedTuple):
    """Length of a value in characters, and its value in two polynomials."""

    length: int
    first: int
    second: int


def parse_secret_digests(values: Any) -> tuple[SecretDigest, ...]:
    """Return the digests in a message of the page script.

    Raises:
        TypeError, ValueError: if they are none.
    """
    digests = [SecretDigest(*map(int, value)) for value in values[:_MAX_DIGESTS]]
    if any(not 0 < digest.length <= _MAX_CHARACTERS for digest in digests):
        raise ValueError("A secret value has another length.")
    return tuple(digests)


def hide_digested_secrets(text: str, digests: Collection[SecretDigest], *, in_address: bool = False) -> str:
    """Return a text without the values of some digests.

    Args:
        text: the text.
        digests: digests of values, also of their encoded forms.
        in_address: whether the text is an address: a value of letters alone, such as `admin`, stays there.
    """
    if not digests:
        return text
    first, second = (_sum_prefixes(text, base) for base in _BASES)
    spans: list[tuple[int, int]] = []
    for digest in sorted(digests, reverse=True):
        power, other_power = (pow(base, digest.length, _MODULUS) for base in _BASES)
        for start, stop in enumerate(range(digest.length, len(text) + 1)):
            if (
                (first[stop] - first[start] * power) % _MODULUS == digest.first
                and (second[stop] - second[start] * other_power) % _MODULUS == digest.second
                and not (in_address and text[start:stop].isalpha())
                and all(start >= end or stop <= begin for begin, end in spans)
            ):
                spans.append((start, stop))
    for start, stop in sorted(spans, reverse=True):
        text = text[:start] + HIDDEN_TEXT + text[stop:]
    return text


def _sum_prefixes(text: str, base: int) -> list[int]:
    """Return the values of the polynomial for each beginning of a text."""
    sums = [0]
    for character in text:
        sums.append((sums[-1] * base + ord(character)) % _MODULUS)
    return sums
