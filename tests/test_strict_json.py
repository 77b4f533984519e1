"""The strict reader by itself: agreement with the standard one, levels, time. Contract §1 (JSON in)."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder import strict_json
from recorder.errors import InvalidJson, RecorderError, ValidationFailed

_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
_VALUES = st.recursive(
    _SCALARS | _TEXT, lambda inner: st.lists(inner) | st.dictionaries(_TEXT, inner), max_leaves=200
)  # fmt: skip


@given(_VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_what_json_writes_is_read_back(value: Any, is_ascii: bool, indent: int | None) -> None:
    body = json.dumps(value, ensure_ascii=is_ascii, indent=indent).encode()
    assert strict_json.parse(body) == value


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\u0D8 1eE.-n', max_size=60).map(str.encode))
def test_any_bytes_give_a_value_or_an_error_of_ours(body: bytes) -> None:
    try:
        value = strict_json.parse(body)
    except RecorderError:
        return
    assert json.loads(body) == value


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"":'], ids=["arrays", "objects", "both"])
def test_64_levels_are_read_and_65_are_not(opening: str) -> None:
    closing = opening.replace("[", "]").replace('{"a":', "}").replace('{"":', "}")[::-1]
    levels = len(closing)
    fits = 64 // levels
    assert strict_json.parse((opening * fits + "1" + closing * fits).encode())
    rest = "[" * (65 - fits * levels)
    with pytest.raises(InvalidJson) as refusal:
        strict_json.parse((opening * fits + rest + "1" + "]" * len(rest) + closing * fits).encode())
    assert refusal.value.item == "json_too_deep"


LOCATIONS = [
    (b'{"a":1,\n "b":2,,}', "line 2, column 8"),
    (b'{"a":1', "line 1, column 7"),
    (b'{"x":"\xc3\xa9\xff"}', "line 1, column 8"),
    (b'["NaN",\nNaN]', "line 2, column 1"),
    (b'{"a":{"x":1},"b":{"x":1,\n"\\u0078":2}}', "line 2, column 1"),
    (b'[1e5,"1e999",1e999]', "line 1, column 14"),
    (b"[12345678901234567890123.5,\n " + b"9" * 401 + b"]", "line 2, column 2"),
    (b"[9223372036854775807,9223372036854775808]", "line 1, column 22"),
    (b'{"\xc3\xa9[":[[],\n' + b"[" * 62 + b'{"a":[', "line 2, column 63"),
    (b'["' + rb"\"[" * 80 + b'",' + b"[" * 64, "line 1, column 308"),
    (b"\xff" + b"[" * 65, "line 1, column 66"),
    (rb'["\\ud83d","\ud83d\ude00","\uD83D\ud83d\ude00"]', "line 1, column 28"),
    (b'{"\xc3\xa9":1,\n' + rb'"\ude00":2}', "line 2, column 2"),
    (b"\xef\xbb\xbf{}", "line 1, column 1"),
]


@pytest.mark.parametrize(("body", "location"), LOCATIONS, ids=[location for _, location in LOCATIONS])
def test_refusals_name_the_place_and_not_the_value(body: bytes, location: str) -> None:
    with pytest.raises(RecorderError) as refusal:
        strict_json.parse(body)
    shown = f"{refusal.value} {refusal.value.extra}"
    assert location in shown
    assert "999" not in shown


def test_many_siblings_are_not_deep() -> None:
    assert len(strict_json.parse(b"[" + b",".join([b'{"a":[[1]]}'] * 5_000) + b"]")) == 5_000


HOSTILE = {
    "escaped quotes": b"[" * 70 + rb"\"" * 500_000,
    "openings": b"[" * 1_000_000,
    "pairs": b"[]" * 500_000,
    "quotes": b'"' * 1_000_001,
    "backslashes": b"[" * 70 + b'"' + b"\\" * 1_000_001,
    "hill and wall": b"[" * 64 + b"]" * 64 + b"[" * 1_000_000,
    "brackets in strings": b"{}" * 64 + b'"[' * 500_000,
    "long name of many values": b'{"' + b"n" * 700_000 + b'":[' + b"1," * 150_000 + rb'"\ud83d"]}',
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_megabyte_costs_no_time(body: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(InvalidJson):
        strict_json.parse(body)
    assert time.perf_counter() - began < 2


def test_the_place_of_a_bad_string_is_told() -> None:
    with pytest.raises(ValidationFailed) as refusal:
        strict_json.parse(rb'{"a/b":[0,{"c~d":"x\u0000"}]}')
    assert [problem.pointer for problem in refusal.value.problems] == ["/a~1b/1/c~0d"]


def test_the_place_of_a_bad_name_is_its_object() -> None:
    with pytest.raises(ValidationFailed) as refusal:
        strict_json.parse(rb'{"a":[0,{"c\u0000":{"d":"x\u0000"}}]}')
    assert [problem.pointer for problem in refusal.value.problems] == ["/a/1"]
