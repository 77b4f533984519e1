"""Hooks of schemathesis: made-up requests meet what is there.

Half of the ids become real ones, half of some bodies get values that no schema describes. A tenth of reads
asks for a range, a tenth of the JSON bodies names a charset. The fuzzer's own key stays alive.

Loaded by `schemathesis` itself (`SCHEMATHESIS_HOOKS=tests.fuzz.hooks`), in its own process.
"""

import json
import os
import zlib
from typing import Any

import schemathesis

#: By the name of a path parameter: ids of things that are there.
KNOWN: dict[str, list[str]] = json.loads(os.environ["RECORDER_FUZZ_IDS"])  # noqa: TID251
#: By operation: members of a body that are right, such as a picture that is one.
GIVEN: dict[str, dict[str, Any]] = json.loads(os.environ["RECORDER_FUZZ_BODIES"])  # noqa: TID251
OWN_KEY_ID = os.environ["RECORDER_FUZZ_KEY_ID"]  # noqa: TID251


RANGES = ("bytes=0-9", "bytes=-5", "bytes=9999999999-", "bytes=5-4", "bytes=x")
CHARSETS = ("utf-8", "latin-1", "utf-16", '"UTF-8"')
HEADERS = (
    "x-request-id",
    "service-version",
    "x-ratelimit-limit",
    "x-ratelimit-remaining",
    "x-ratelimit-reset",
    "x-scope",
)


def chance_of(case: schemathesis.Case) -> int:
    """Return a number that follows from a request, so that a seed gives the same requests."""
    return zlib.crc32(repr((case.operation.label, case.path_parameters, case.query, case.body)).encode())


@schemathesis.check
def complete_answer(context: Any, response: Any, case: schemathesis.Case) -> None:
    """Check that every answer has the headers of the interface, and every problem the request id."""
    missing = [name for name in HEADERS if not response.headers.get(name)]
    assert not missing, f"headers are missing: {missing}"
    if response.status_code >= 400 and not case.path.startswith("/metrics"):
        kind = response.headers["content-type"][0]
        assert kind == "application/problem+json", kind
        # A stored answer is that of the first request, with its id.
        is_kept = "idempotent-replayed" in response.headers
        assert is_kept or response.json()["request_id"] == response.headers["x-request-id"][0]
        assert response.json()["request_id"].startswith("req_")


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    """Let a request meet what is there; those that follow from an answer keep its ids."""
    is_sequence = case.meta is not None and case.meta.phase.name.value == "stateful"
    for name, value in list(case.path_parameters.items()):
        known = KNOWN.get(name)
        # By its content, so that a seed gives the same requests.
        chance = zlib.crc32(repr((case.operation.label, name, value, case.query)).encode())
        if known and not is_sequence and chance % 2:
            case.path_parameters[name] = known[chance // 2 % len(known)]
        if case.path_parameters[name] == OWN_KEY_ID:
            case.path_parameters[name] = "key_01k00000000000000000000000"
    if chance_of(case) % 10 == 0:
        if case.operation.method.upper() == "GET":
            case.headers["Range"] = RANGES[chance_of(case) // 10 % len(RANGES)]
        elif case.media_type == "application/json":
            charset = CHARSETS[chance_of(case) // 10 % len(CHARSETS)]
            case.headers["Content-Type"] = f"application/json; charset={charset}"
    given = GIVEN.get(case.operation.label)
    if given and isinstance(case.body, dict) and zlib.crc32(repr(case.body).encode()) % 2:
        case.body = {**case.body, **given}
