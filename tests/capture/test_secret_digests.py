"""Secret values found in texts by their digests."""

import time
from functools import reduce
from random import Random

import pytest

from recorder.capture.secret_digests import SecretDigest, hide_digested_secrets, parse_secret_digests


def make_digest(text: str) -> SecretDigest:
    """Return the digest of a text, as the page script makes it."""
    first, second = (
        reduce(lambda total, character: (total * base + ord(character)) % 2**32, text, 0)
        for base in (31, 1_000_003)
    )
    return SecretDigest(len(text), first, second)


def test_values_are_hidden_wherever_they_are_the_longest_first() -> None:
    digests = [make_digest(text) for text in ("7351", "735192", "äöü🔑")]
    assert hide_digested_secrets("735192, 7351 and 73519", digests) == "•••, ••• and •••9"
    assert hide_digested_secrets("key äöü🔑!", digests) == "key •••!"
    assert hide_digested_secrets("735", digests) == "735"


def test_a_word_stays_in_addresses_alone() -> None:
    digests = [make_digest("admin"), make_digest("admin1")]
    address = "https://app.example/admin/admin1"
    assert hide_digested_secrets(address, digests, in_address=True) == "https://app.example/admin/•••"
    assert hide_digested_secrets("Use admin?", digests) == "Use •••?"


@pytest.mark.parametrize("character", ["0", "a"])
def test_long_addresses_with_many_values_take_little_time(character: str) -> None:
    digests = [make_digest(character * length) for length in range(4, 1_004)]
    began = time.process_time()
    hidden = hide_digested_secrets(character * 8_000, digests, in_address=True)
    assert hidden == ("a" * 8_000 if character == "a" else "•••" * 8)
    assert time.process_time() - began < 5


def test_random_texts_are_hidden_as_by_a_search_for_the_values() -> None:
    random = Random(1)
    for _ in range(300):
        text = "".join(random.choices("ab1", k=40))
        values = {"".join(random.choices("ab1", k=random.randint(1, 5))) for _ in range(3)}
        expected = text
        for value in sorted(values, key=make_digest, reverse=True):
            expected = expected.replace(value, "•" * 3)
        assert hide_digested_secrets(text, [make_digest(value) for value in values]) == expected


@pytest.mark.parametrize(
    "values",
    [None, [[0, 1, 2]], [[4, 1]], [["x", 1, 2]], [[10_000, 1, 2]], [[4, -1, 2]], [[4, 1, 2**32]], [3]],
)
def test_other_messages_are_refused(values: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        parse_secret_digests(values)
