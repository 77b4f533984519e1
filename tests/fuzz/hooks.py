"""Hooks of schemathesis: made-up requests meet what is there.

Half of the ids become real ones, half of some bodies get what no schema can tell. The fuzzer's own key stays
alive.

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
    given = GIVEN.get(case.operation.label)
    if given and isinstance(case.body, dict) and zlib.crc32(repr(case.body).encode()) % 2:
        case.body = {**case.body, **given}
