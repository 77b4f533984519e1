"""Bodies that are not strict JSON are refused alike on every route that reads one, and store nothing.

Contract §1 (JSON in).
"""

from typing import Any

import pytest

from tests.support.factories import Caller, assert_problem, footprint, frame

_PICTURE = frame()["data"].encode()
# Where a value of the client's choice can stand; `%s` is that place, the number how deep it lies.
ROUTES: dict[str, tuple[str, bytes, int]] = {
    "session": ("/v1/sessions", b'{"workflow":"checkout","metadata":{"x":%s}}', 2),
    "tag": ("/v1/sessions/{id}/tags", b'{"name":"seen","data":{"x":%s}}', 2),
    "events": ("/v1/sessions/{id}/events", b'{"events":[{"t_ms":1,"type":"click","data":{"x":%s}}]}', 4),
    "frames": (
        "/v1/sessions/{id}/frames",
        b'{"frames":[{"t_ms":1,"content_type":"image/png","data":"'
        + _PICTURE
        + b'","dom":{"v":1,"format":"nodes","html":["p"],"x":%s}}]}',
        4,
    ),
}
BAD_VALUES: dict[str, tuple[bytes, int, str, str | None]] = {
    "NaN": (b"NaN", 400, "invalid_json", None),
    "Infinity": (b"Infinity", 400, "invalid_json", None),
    "negative infinity": (b"-Infinity", 400, "invalid_json", None),
    "1e999": (b"1e999", 400, "invalid_json", None),
    "5,000 digits": (b"9" * 5_000, 400, "invalid_json", None),
    "leading zero": (b"01", 400, "invalid_json", None),
    "half a surrogate pair": (rb'"\ud83d"', 400, "invalid_json", None),
    "half a surrogate pair in a key": (rb'{"\ude00":1}', 400, "invalid_json", None),
    "invalid UTF-8": (b'"\xff"', 400, "invalid_json", None),
    "invalid UTF-8 in a key": (b'{"\xc3":1}', 400, "invalid_json", None),
    "surrogate in UTF-8": (b'"\xed\xa0\x80"', 400, "invalid_json", None),
    "raw control character": (b'"a\x01b"', 400, "invalid_json", None),
    "raw NUL": (b'"a\x00b"', 400, "invalid_json", None),
    "key twice": (b'{"a":1,"a":2}', 400, "invalid_json", "duplicate_key"),
    "key twice, same value": (b'{"a":1,"a":1}', 400, "invalid_json", "duplicate_key"),
    "key twice, once escaped": (rb'{"a":1,"\u0061":2}', 400, "invalid_json", "duplicate_key"),
    "key twice, colon escaped": (rb'{"a":1,"a":"\u003a"}', 400, "invalid_json", "duplicate_key"),
    "key twice, spaces before colon": (b'{"a" \n: 1, "a"\t: ":"}', 400, "invalid_json", "duplicate_key"),
    "key twice, deep inside": (b'[[{"b":{"a":":","a":[]}}]]', 400, "invalid_json", "duplicate_key"),
    "unfinished": (b'{"a":', 400, "invalid_json", None),
    "trailing comma": (b"[1,]", 400, "invalid_json", None),
    "comment": (b"1 /* one */", 400, "invalid_json", None),
    "escaped NUL": (rb'"a\u0000b"', 422, "validation_failed", "invalid_string"),
    "escaped NUL in a key": (rb'{"a\u0000":1}', 422, "validation_failed", "invalid_string"),
    "2^63": (b"9223372036854775808", 422, "validation_failed", "invalid_integer"),
    "-2^63-1": (b"-9223372036854775809", 422, "validation_failed", "invalid_integer"),
    "2^64": (b"18446744073709551616", 422, "validation_failed", "invalid_integer"),
}
GOOD_VALUES: dict[str, tuple[bytes, Any]] = {
    "2^63-1": (b"9223372036854775807", 2**63 - 1),
    "-2^63": (b"-9223372036854775808", -(2**63)),
    "text of an escape": (rb'"\\u0000 \\ud800"', r"\u0000 \ud800"),
    "surrogate pair": (rb'"\ud83d\ude00"', "😀"),
    "brackets in a string": (b'"' + b"[" * 500 + b'"', "[" * 500),
    "same key in two objects": (b'[{"a":1},{"a":":"}]', [{"a": 1}, {"a": ":"}]),
    "escaped colon": (rb'{"a":"\u003a\u003A"}', {"a": "::"}),
    "empty key": (b'{"":0.5}', {"": 0.5}),
    "long number": (b"0.12345678901234567890123", 0.12345678901234568),
}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_bad_value_is_refused(caller: Caller, route: str, case: str) -> None:
    value, status, code, item = BAD_VALUES[case]
    path, template, _ = ROUTES[route]
    address = path.format(id=caller.make_session())
    before = footprint(caller.service.runtime)
    problem = assert_problem(caller.post_raw(address, template % value), status, code)
    assert item is None or problem["errors"][0]["code"] == item
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("route", ROUTES)
def test_nesting_is_counted_to_the_level(caller: Caller, route: str) -> None:
    path, template, depth = ROUTES[route]
    address = path.format(id=caller.make_session())
    deepest = 64 - depth
    assert caller.post_raw(address, template % (b"[" * deepest + b"]" * deepest)).status_code < 300
    before = footprint(caller.service.runtime)
    for levels in (deepest + 1, 5_000, 100_000):
        answer = caller.post_raw(address, template % (b"[" * levels + b"]" * levels))
        assert assert_problem(answer, 400, "invalid_json")["errors"][0]["code"] == "json_too_deep"
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        pytest.param(b"", 400, "invalid_json", id="empty"),
        pytest.param(b"{", 400, "invalid_json", id="malformed"),
        pytest.param(b"{}{}", 400, "invalid_json", id="two values"),
        pytest.param(b"\xef\xbb\xbf{}", 400, "invalid_json", id="byte order mark"),
        pytest.param('{"a":1}'.encode("utf-16"), 400, "invalid_json", id="UTF-16"),
        pytest.param(b"[]", 422, "validation_failed", id="array"),
        pytest.param(b"null", 422, "validation_failed", id="null"),
        pytest.param(b'"text"', 422, "validation_failed", id="string"),
        pytest.param(b"{}", 422, "validation_failed", id="object without members"),
        pytest.param(b'{"nobody_knows":1}', 422, "validation_failed", id="unknown member"),
    ],
)
def test_a_bad_body_is_refused(caller: Caller, route: str, body: bytes, status: int, code: str) -> None:
    address = ROUTES[route][0].format(id=caller.make_session())
    before = footprint(caller.service.runtime)
    assert_problem(caller.post_raw(address, body), status, code)
    assert footprint(caller.service.runtime) == before


@pytest.mark.parametrize("case", GOOD_VALUES)
def test_an_unusual_value_is_kept_as_sent(caller: Caller, case: str) -> None:
    value, meant = GOOD_VALUES[case]
    session_id = caller.post_raw(
        "/v1/sessions", b'{"workflow":"odd","start":true,"metadata":{"x":%s}}' % value
    )
    address = f"/v1/sessions/{session_id.json()['id']}"
    sent = caller.post_raw(f"{address}/events", ROUTES["events"][1] % value)
    assert (session_id.status_code, sent.status_code) == (201, 202)
    read = caller.get(f"{address}?include=events").json()
    assert (read["metadata"]["x"], read["events"][0]["data"]["x"]) == (meant, meant)


def test_a_key_twice_at_any_level_of_an_event_is_refused(caller: Caller) -> None:
    address = f"/v1/sessions/{caller.make_session()}/events"
    before = footprint(caller.service.runtime)
    for body in (
        b'{"events":[{"t_ms":1,"type":"click"}],"events":[{"t_ms":1,"type":"click"}]}',
        b'{"events":[{"t_ms":1,"t_ms":2,"type":"click"}]}',
        b'{"events":[{"t_ms":1,"type":"click","target":{"role":"a","role":"b"}}]}',
        b'{"events":[{"t_ms":1,"type":"click","title":"a","title":null}]}',
        b'{"events":[{"t_ms":1,"type":"click","signals":[{"type":"popup","type":"popup"}]}]}',
    ):
        problem = assert_problem(caller.post_raw(address, body), 400, "invalid_json")
        assert problem["errors"][0]["code"] == "duplicate_key"
    assert footprint(caller.service.runtime) == before
