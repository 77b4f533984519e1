"""What may be set as masking, and that no answer repeats an expression. Contract §1, §3."""

from typing import Any

import pytest
from pydantic import ValidationError

from recorder import limits
from recorder.models.masking import Masking

_MANY = [{"name": f"n{n}", "pattern": "x"} for n in range(limits.MASKING_PATTERNS + 1)]

REFUSED: dict[str, tuple[dict[str, Any], tuple[str | int, ...]]] = {
    "unknown kind": ({"builtins": ["phone"]}, ("builtins", 0)),
    "kind twice": ({"builtins": ["email", "email"]}, ("builtins",)),
    "unknown member": ({"builtin": []}, ("builtin",)),
    "51 patterns": ({"patterns": _MANY}, ("patterns",)),
    "one name twice": ({"patterns": [_MANY[0], _MANY[0]]}, ("patterns",)),
    "too large together": (
        {"patterns": [{"name": f"n{n}", "pattern": r"\pL+"} for n in range(20)]},
        ("patterns",),
    ),
    "too many states": (
        {"patterns": [{"name": f"n{n}", "pattern": "[ab]{900}"} for n in range(3)]},
        ("patterns",),
    ),
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
EXPRESSIONS = {
    "empty": "",
    "1,001 characters": "x" * 1001,
    "open group": "(secret",
    "look-ahead": "secret(?=x)",
    "back-reference": r"(secret)\1",
    "open quotation": r"\Qsecret",
    "groups that close each other": "secret)|(?:x",
    "needs too much memory": r"(?:secret\pL{100}){10}",
    "matches nothing at all": "(?:secret)*",
    "matches an edge": r"\b",
    "beginning of the text": r"\Asecret",
    "end of the text": r"secret\z",
    "line ends switched off": "(?i-m)secret$",
    "single byte": r"secret\C",
}


@pytest.mark.parametrize(("policy", "place"), REFUSED.values(), ids=REFUSED)
def test_a_wrong_policy_is_refused_where_it_is_wrong(
    policy: dict[str, Any], place: tuple[str | int, ...]
) -> None:
    with pytest.raises(ValidationError) as caught:
        Masking.model_validate(policy)
    assert [error["loc"] for error in caught.value.errors()] == [place]


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_an_expression_is_refused_without_being_repeated(expression: str, capfd: Any) -> None:
    with pytest.raises(ValidationError) as caught:
        Masking.model_validate({"patterns": [{"name": "a", "pattern": expression}]})
    (error,) = caught.value.errors()
    assert error["loc"] == ("patterns", 0, "pattern")
    assert "secret" not in error["msg"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "expression",
    [
        r"\Qa(b\E+",
        r"\\Az",
        "(?P<n>x)|(?P<n>y)",
        r"(?i)\bemp-[0-9]{6}\b",
        r"\pL{2}[0-9]+",
        r"[y-\x{4E00}]",
        "[一-龥é]+",
        "x" * 1000,
        "語" * 1000,
    ],
)
def test_a_good_expression_is_taken(expression: str) -> None:
    policy = {"patterns": [{"name": "a", "pattern": expression, "replacement": "[a]"}]}
    assert Masking.model_validate(policy).model_dump() == {"builtins": [], **policy}


def test_members_that_were_not_sent_stay() -> None:
    stored = Masking(builtins=["email"]).merged_into(None)
    pattern = {"name": "a", "pattern": "x", "replacement": ""}
    stored = Masking.model_validate({"patterns": [pattern]}).merged_into(stored)
    assert stored == {"builtins": ["email"], "patterns": [pattern]}
    assert Masking.model_validate({"builtins": []}).merged_into(stored)["builtins"] == []
