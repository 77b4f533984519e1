"""Checks of masking settings before their patterns are measured. Contract §1, §3."""

from typing import Any

import pytest
from pydantic import ValidationError

from recorder import limits
from recorder.models.workspace import Masking

_MANY = [{"name": f"n{n}", "pattern": "x"} for n in range(limits.MASKING_PATTERNS + 1)]

REFUSED: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    "unknown kind": ({"builtins": ["phone"]}, ("builtins", 0)),
    "kind twice": ({"builtins": ["email", "email"]}, ("builtins",)),
    "unknown member": ({"builtin": []}, ("builtin",)),
    "51 patterns": ({"patterns": _MANY}, ("patterns",)),
    "one name twice": ({"patterns": [_MANY[0], _MANY[0]]}, ("patterns",)),
    "empty pattern": ({"patterns": [{"name": "a", "pattern": ""}]}, ("patterns", 0, "pattern")),
    "1,001 characters": ({"patterns": [{"name": "a", "pattern": "x" * 1001}]}, ("patterns", 0, "pattern")),
    "name of a built-in kind": ({"patterns": [{"name": "card", "pattern": "x"}]}, ("patterns", 0, "name")),
    "name that is no slug": ({"patterns": [{"name": "A b", "pattern": "x"}]}, ("patterns", 0, "name")),
    "no pattern": ({"patterns": [{"name": "a"}]}, ("patterns", 0, "pattern")),
    "pattern that is not text": ({"patterns": [{"name": "a", "pattern": 1}]}, ("patterns", 0, "pattern")),
    "long replacement": (
        {"patterns": [{"name": "a", "pattern": "x", "replacement": "r" * 101}]},
        ("patterns", 0, "replacement"),
    ),
    "replacement with a line end": (
        {"patterns": [{"name": "a", "pattern": "x", "replacement": "r\n"}]},
        ("patterns", 0, "replacement"),
    ),
}


@pytest.mark.parametrize(("policy", "pointer"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_policy_is_refused_where_it_is_wrong(
    policy: dict[str, Any], pointer: tuple[str | int, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        Masking.model_validate(policy)
    assert [error["loc"] for error in caught.value.errors()] == [pointer]


def test_members_that_were_not_sent_stay() -> None:
    stored = Masking(builtins=["email"]).merged_into(None)
    pattern = {"name": "a", "pattern": "x", "replacement": ""}
    stored = Masking.model_validate({"patterns": [pattern]}).merged_into(stored)
    assert stored == {"builtins": ["email"], "patterns": [pattern]}
    assert Masking.model_validate({"builtins": []}).merged_into(stored)["builtins"] == []
