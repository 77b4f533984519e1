"""Hostile queries and slugs: cases 37 to 44. Contract §1 (queries)."""

import pytest

from tests.support.factories import Caller, event
from tests.support.hostile_cases import CANARY, Refused, case, judge, nothing_stored
from tests.support.route_addresses import fill, operations, required, with_parameter
from tests.support.sealing import seal_all

#: What a parameter takes, where it is not just any text.
GOOD_VALUES = {
    "limit": "5",
    "since": "2026-01-01T00:00:00Z",
    "until": "2026-02-01T00:00:00Z",
    "status": "queued",
    "outcome": "success",
    "actor.kind": "human",
    "hard": "false",
    "from_t_ms": "5",
    "to_t_ms": "9",
    "include": "tags",
    "from": "start",
    "min_frequency": "0.5",
    "threshold": "0.5",
    "min_change": "0.5",
    "format": "json",
    "against_since": "2026-01-01T00:00:00Z",
    "against_until": "2026-02-01T00:00:00Z",
    "against_actor.kind": "model",
    "exp": "1",
    "workflow": "checkout",
}
BAD_INTEGERS = [
    "0",
    "501",
    "-1",
    "+5",
    "5.0",
    "1e3",
    "1_0",
    " 5",
    "5 ",
    "0x10",
    "٥",
    "５",
    "",
    "five",
    "9" * 5_000,
]
BAD_NUMBERS = [
    "-0.1",
    "1.1",
    "+0.5",
    " 0.5",
    ".5",
    "0_1",
    "nan",
    "inf",
    "1e999",
    "٠.٥",
    "",
    "half",
    "0," + "9" * 5_000,
]


@pytest.mark.parametrize(
    "limit", [case(37, bad_integer, name=ascii(bad_integer)[:14]) for bad_integer in BAD_INTEGERS]
)
def test_a_limit_in_another_form_is_refused(caller: Caller, limit: str) -> None:
    paths = with_parameter(caller.service, "limit")
    assert len(paths) >= 10
    for path in paths:
        answer = caller.request("GET", path, params=required(path) | {"limit": limit})
        judge(answer, Refused(422, "validation_failed", "invalid_value", "limit", "query"))


@pytest.mark.parametrize(
    "number", [case(37, bad_number, name=ascii(bad_number)[:14]) for bad_number in BAD_NUMBERS]
)
def test_a_fraction_in_another_form_is_refused(caller: Caller, number: str) -> None:
    for name in ("min_frequency", "threshold", "min_change"):
        for path in with_parameter(caller.service, name):
            answer = caller.request("GET", path, params=required(path) | {name: number})
            judge(answer, Refused(422, "validation_failed", "invalid_value", name, "query"))


@pytest.mark.parametrize(
    "since",
    [
        case(38, value, name=value[:20])
        for value in (
            "abc",
            "null",
            "-1d",
            "99999999999d",
            "1.5h",
            "1 h",
            "٣d",
            "2026-13-01T00:00:00Z",
            "1767225600",
        )
    ],
)
@pytest.mark.parametrize("bound", ["since", "until"])
def test_what_is_no_time_is_refused(caller: Caller, bound: str, since: str) -> None:
    paths = with_parameter(caller.service, bound)
    assert len(paths) >= 3
    for path in paths:
        answer = caller.request("GET", path, params=required(path) | {bound: since})
        judge(answer, Refused(422, "invalid_time", "invalid_time", bound, "query"))


@pytest.mark.parametrize("count", [case(39, 2, name="twice"), case(39, 500, name="500-times")])
def test_a_parameter_is_sent_once(caller: Caller, count: int) -> None:
    for path, taken in operations(caller.service).items():
        for value in taken:
            if value["schema"].get("type") == "array":
                assert value["name"] == "workflow" or (value["name"], path[-7:]) == ("type", "/events")
                continue
            pair = (value["name"], GOOD_VALUES.get(value["name"], "any"))
            others = [] if value["name"] == "workflow" else list(required(path).items())
            answer = caller.request("GET", fill(path), params=[pair] * count + others)
            judge(answer, Refused(422, "validation_failed", "repeated_parameter", value["name"], "query"))


def test_a_text_with_nul_is_answered_as_any_other_text(caller: Caller) -> None:
    # Cover case 37 too: PostgreSQL takes no NUL.
    names = set()
    for path, taken in operations(caller.service).items():
        for value in taken:
            name = value["name"]
            if name not in GOOD_VALUES:
                answer = caller.request("GET", fill(path), params={**required(path), name: "a\0b"})
                assert answer.status_code in (200, 400, 403, 404, 422), (path, name, answer.text)
                names.add(name)
    assert {"cause", "session_id", "tag", "path", "subpath", "against", "cursor"} <= names


@pytest.mark.parametrize("tag", ["a\u0007b", "a\u202eb", "a\0b"], ids=["bell", "direction", "nul"])
def test_a_tag_that_nothing_can_have_is_refused_everywhere(caller: Caller, tag: str) -> None:
    paths = [
        path
        for path, taken in operations(caller.service).items()
        if any(value["name"] == "tag" for value in taken)
    ]
    assert {"/v1/sessions", "/v1/exports"} <= set(paths)
    for path in paths:
        answer = caller.request("GET", fill(path), params=required(path) | {"tag": tag})
        judge(answer, Refused(422, "validation_failed", "invalid_string", "tag", "query"))


def test_an_unknown_parameter_is_refused_everywhere(caller: Caller) -> None:
    # Cover case 39 too: a misspelt filter must not return everything.
    for method in ("get", "delete"):
        for path in operations(caller.service, method):
            answer = caller.request(
                method.upper(), fill(path), params=required(path) | {"nobody_knows": CANARY}
            )
            refused = Refused(422, "validation_failed", "unknown_parameter", "nobody_knows", "query")
            judge(answer, refused)


@pytest.mark.parametrize(
    ("since", "until"),
    [
        case(40, "2026-02-01T00:00:00Z", "2026-01-01T00:00:00Z", name="times"),
        case(40, "1h", "2h", name="durations"),
        case(40, "2026-01-01T00:00:00.001Z", "2026-01-01T00:00:00Z", name="by-a-millisecond"),
    ],
)
def test_a_range_that_ends_before_it_begins_is_refused(caller: Caller, since: str, until: str) -> None:
    for path in set(with_parameter(caller.service, "since")) & set(with_parameter(caller.service, "until")):
        answer = caller.request("GET", path, params=required(path) | {"since": since, "until": until})
        judge(answer, Refused(422, "invalid_range", "invalid_range", "since", "query"))


@pytest.mark.parametrize(
    "slug",
    [
        case(41, name, name=ascii(name)[1:15])
        for name in ("ab\n", "a", "", "Ab", "a-b", "a b", "ab٣", "äb", "a" * 65, "ab\u0000", "../ab")
    ],
)
def test_what_is_no_slug_is_refused(caller: Caller, slug: str) -> None:
    with nothing_stored(caller.service.runtime):
        for body, path in (
            ({"workflow": slug}, "/v1/sessions"),
            ({"workflow": slug, "format": "parquet", "destination": {"kind": "signed_url"}}, "/v1/exports"),
        ):
            judge(caller.post(path, body), Refused(422, "validation_failed", where="body"))
        for path in with_parameter(caller.service, "workflow"):
            answer = caller.request("GET", path, params={"workflow": slug})
            judge(answer, Refused(422, "validation_failed", where="query"))


@pytest.mark.parametrize(
    ("least", "most"), [case(42, 2, 1, name="by-one"), case(42, 10**12, 0, name="by-far")]
)
def test_durations_the_wrong_way_round_are_refused(caller: Caller, least: int, most: int) -> None:
    wanted = {"workflow": "checkout", "format": "parquet", "destination": {"kind": "signed_url"}}
    filters = {"min_duration_ms": least, "max_duration_ms": most}
    with nothing_stored(caller.service.runtime):
        judge(
            caller.post("/v1/exports", wanted | {"filter": filters}),
            Refused(422, "invalid_range", where="body"),
        )


@pytest.mark.parametrize(
    "hostile",
    [
        case(43, value, name=name)
        for name, value in {
            "quote": "x' OR '1'='1",
            "semicolon": "'; DROP TABLE sessions; --",
            "braces": "{0!r} %s",
        }.items()
    ],
)
def test_an_actor_that_looks_like_a_predicate_is_plain_data(caller: Caller, hostile: str) -> None:
    bystander = caller.make_session(status="stopped", actor={"id": "somebody", "kind": "human"})
    session_id = caller.make_session(actor={"id": hostile, "kind": "human"}, metadata={hostile: hostile})
    caller.add_events(session_id, event(1, data={hostile: hostile}))
    caller.post(f"/v1/sessions/{session_id}/tags", {"name": hostile})
    before = caller.get(f"/v1/sessions/{session_id}?include=events,tags").json()
    caller.post(f"/v1/sessions/{session_id}/stop")
    seal_all(caller.service.runtime)
    after = caller.get(f"/v1/sessions/{session_id}?include=events,tags").json()
    assert after["status"] == "sealed"
    assert {name: after[name] for name in ("actor", "metadata", "events", "tags")} == {
        name: before[name] for name in ("actor", "metadata", "events", "tags")
    }
    items = caller.request("GET", "/v1/sessions", params={"tag": hostile}).json()["data"]
    assert [session["id"] for session in items] == [session_id]
    assert caller.delete(f"/v1/sessions/{session_id}").status_code == 204
    assert caller.get(f"/v1/sessions/{bystander}").status_code == 200


@pytest.mark.parametrize(
    "include",
    [
        case(44, names, name=names or "empty")
        for names in ("unknown", "", "events,", "events,unknown", "Events", "events tags")
    ],
)
def test_an_unknown_include_is_refused(caller: Caller, include: str) -> None:
    answer = caller.request("GET", f"/v1/sessions/{caller.make_session()}", params={"include": include})
    judge(answer, Refused(422, "validation_failed", "invalid_value", "include", "query"))
