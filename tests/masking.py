"""Makers for tests of masking."""

import re
from typing import Any

from recorder.digest import canonical_json
from recorder.masking.masker import Masker, compile_rules
from tests.factories import Caller

ALL = ("email", "card", "token")
KEY = b"a key of one workspace"


def make_masker(*builtins: str, patterns: list[dict[str, str]] | None = None, key: bytes = KEY) -> Masker:
    """A masker with these built-in kinds and patterns."""
    policy: dict[str, Any] = {"builtins": list(builtins), "patterns": patterns or []}
    return Masker(compile_rules((canonical_json(policy).decode(),)), key)


def pattern(name: str, expression: str, replacement: str = "") -> dict[str, str]:
    """One pattern of a policy."""
    return {"name": name, "pattern": expression, "replacement": replacement}


def set_masking(caller: Caller, policy: dict[str, Any], *, workflow: str | None = None) -> None:
    """Let a workspace or one of its workflows mask this, and nothing else, from now on."""
    path = "/v1/workspaces/current" if workflow is None else f"/v1/workflows/{workflow}"
    answer = caller.request("PATCH", path, json={"masking": {"builtins": [], "patterns": [], **policy}})
    assert answer.status_code == 200, answer.text


def shown(text: str) -> str:
    """A masked text without the digits of its tokens."""
    return re.sub("‹([a-z0-9_]+):[0-9a-f]{16}›", r"‹\1›", text)
