"""Digests of secret values, by which the recorder finds them in texts that the page script does not clean.

The values themselves stay in the page.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

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
    if any(not 0 <= value < _MODULUS for digest in digests for value in digest[1:]):
        raise ValueError("A digest has another modulus.")
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
    # Arrays: a page may have hundreds of secret values, and requests with long addresses.
    first, second = (_sum_prefixes(text, base) for base in _BASES)
    letters = np.cumsum([0, *map(str.isalpha, text)])
    is_hidden = np.zeros(len(text), np.bool_)
    spans: list[tuple[int, int]] = []
    for digest in sorted(digests, reverse=True):
        length = digest.length
        if length > len(text):
            continue
        power, other_power = (np.uint32(pow(base, length, _MODULUS)) for base in _BASES)
        is_secret = first[length:] - first[:-length] * power == np.uint32(digest.first)
        is_secret &= second[length:] - second[:-length] * other_power == np.uint32(digest.second)
        # What is hidden already is at least as long, so it reaches to an end of what it overlaps.
        is_secret &= ~(is_hidden[: len(text) - length + 1] | is_hidden[length - 1 :])
        if in_address:
            is_secret &= letters[length:] - letters[:-length] < length
        end = 0
        for start in np.flatnonzero(is_secret).tolist():
            if start >= end:
                end = start + length
                is_hidden[start:end] = True
                spans.append((start, end))
    for start, stop in sorted(spans, reverse=True):
        text = text[:start] + HIDDEN_TEXT + text[stop:]
    return text


def _sum_prefixes(text: str, base: int) -> npt.NDArray[np.uint32]:
    """Return the values of the polynomial for each beginning of a text."""
    sums = [0]
    for character in text:
        sums.append((sums[-1] * base + ord(character)) % _MODULUS)
    return np.array(sums, np.uint32)
