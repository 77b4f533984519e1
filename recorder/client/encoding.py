"""JSON encoder for the bodies of requests; NaN and Infinity are refused. Contract §1."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from recorder.errors import json_pointer


def encode_json(value: Any) -> bytes:
    """Return a value as JSON; any mapping becomes an object.

    Raises:
        ValueError: if a number is NaN or Infinity, for which JSON has no form; the message names the member.
        TypeError: if a value has no form in JSON.
    """
    content = orjson.dumps(value, default=_convert_mapping)
    # orjson writes NaN and Infinity as null: only a text with a null is searched for them.
    if b"null" in content and (path := _find_infinite(value)) is not None:
        raise ValueError(f"{json_pointer(*path)}: NaN and Infinity are not JSON; send null or a number.")
    return content


def _convert_mapping(value: Any) -> dict[Any, Any]:
    """Return a mapping that the JSON encoder does not know as a dict."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError


def _find_infinite(value: Any) -> tuple[str | int, ...] | None:
    """Return the path to the first number that is NaN or Infinity; orjson has limited the depth before."""
    if isinstance(value, float):
        return None if math.isfinite(value) else ()
    members: Iterable[tuple[str | int, Any]] = ()
    if isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, list | tuple):
        members = enumerate(value)
    for name, member in members:
        if member is not None and (path := _find_infinite(member)) is not None:
            return (name, *path)
    return None
