"""Hashes and canonical JSON: equal values give equal bytes, purposes are kept apart."""

import hashlib

from hypothesis import given
from hypothesis import strategies as st

from recorder import hashing

_VALUES = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**53) | st.none()
)


@given(_VALUES)
def test_the_order_of_members_does_not_matter(value: dict[str, int | None]) -> None:
    turned = dict(reversed(value.items()))
    assert hashing.canonical_json(value) == hashing.canonical_json(turned)
    assert hashing.compute_sha256(value) == hashing.compute_sha256(turned)


def test_canonical_json_is_compact_and_sorted() -> None:
    assert hashing.canonical_json({"b": [1, 2.0], "a": "é"}) == '{"a":"é","b":[1,2.0]}'.encode()


def test_bytes_are_hashed_as_they_are() -> None:
    assert hashing.compute_sha256(b"abc") == hashlib.sha256(b"abc").hexdigest()


def test_keyed_digests_differ_by_secret_purpose_and_data() -> None:
    made = {
        hashing.compute_keyed_digest(secret, purpose, data)
        for secret in (b"one", b"two")
        for purpose, data in (("a", b"b"), ("ab", b""), ("a", b"\0b"), ("b", b"b"))
    }
    assert len(made) == 8


def test_buckets_are_stable_and_even() -> None:
    buckets = [hashing.compute_hash_bucket(f"ses_{n}") for n in range(4_000)]
    assert hashing.compute_hash_bucket("ses_0") == int(hashlib.sha256(b"ses_0").hexdigest()[:4], 16)
    quarters = [sum(bucket // 16_384 == quarter for bucket in buckets) for quarter in range(4)]
    assert min(quarters) > 850 and sum(quarters) == 4_000
