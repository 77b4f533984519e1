"""Makers for tests of masking."""

import json
import re
from typing import Any

import orjson
import zstandard
from sqlmodel import select

from recorder.hashing import canonical_json
from recorder.masking.masker import Masker, compile_masker_rules
from recorder.models.frame import FrameRow
from recorder.models.operations import OutboxRow
from recorder.runtime import Runtime
from tests.support.factories import Caller

ALL = ("email", "card", "token")
KEY = b"a key of one workspace"
ADA = "ada@example.com"
EVERYTHING = {"builtins": list(ALL), "patterns": []}


def make_masker(*builtins: str, patterns: list[dict[str, str]] | None = None, key: bytes = KEY) -> Masker:
    """Return a masker with these built-in kinds and patterns."""
    policy: dict[str, Any] = {"builtins": list(builtins), "patterns": patterns or []}
    return Masker(compile_masker_rules((canonical_json(policy).decode(),)), key)


def pattern(name: str, expression: str, replacement: str = "") -> dict[str, str]:
    """Return one pattern of a policy."""
    return {"name": name, "pattern": expression, "replacement": replacement}


def set_masking(caller: Caller, policy: dict[str, Any], *, workflow: str | None = None) -> None:
    """Let a workspace or one of its workflows mask this, and nothing else, from now on."""
    path = "/v1/workspaces/current" if workflow is None else f"/v1/workflows/{workflow}"
    answer = caller.request("PATCH", path, json={"masking": {"builtins": [], "patterns": [], **policy}})
    assert answer.status_code == 200, answer.text


def shown(text: str) -> str:
    """Return a masked text without the digits of its tokens."""
    return re.sub("‹([a-z0-9_]+):[0-9a-f]{16}›", r"‹\1›", text)


def read_events(caller: Caller, session_id: str) -> list[dict[str, Any]]:
    """Return the events of a session as they are read back."""
    data: list[dict[str, Any]] = caller.get(f"/v1/sessions/{session_id}/events").json()["data"]
    return data


def shown_json(value: Any) -> Any:
    """Return a JSON value without the digits of its tokens."""
    return json.loads(shown(json.dumps(value, ensure_ascii=False)))


def told(runtime: Runtime, session_id: str) -> list[Any]:
    """Return the data of the outbox events about a session."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(OutboxRow).where(OutboxRow.subject_id == session_id)).all()
        return [row.data for row in rows]


def snapshots(runtime: Runtime, session_id: str) -> list[Any]:
    """Return the DOM snapshots of a session as they are in the blob store."""
    with runtime.database.transaction(write=False) as db:
        rows = db.exec(select(FrameRow).where(FrameRow.session_id == session_id)).all()
    packed = [
        runtime.blobs.get(row.dom_object, row.dom_offset, row.dom_length)
        for row in rows
        if row.dom_object is not None and row.dom_offset is not None and row.dom_length is not None
    ]
    return [orjson.loads(zstandard.ZstdDecompressor().decompress(data)) for data in packed]
