"""Validation of `POST …/events` bodies: JSON, sizes, types and ids of all items. Contract §3."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET

from recorder import limits, strict_json
from recorder.errors import BatchTooLarge, EmptyBatch, InvalidJson, Problem, ValidationFailed
from recorder.models.event import EventBatchBody, EventItem
from recorder.models.wire import make_wire_problem


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    events: list[EventItem]


_decoder = msgspec.json.Decoder(_Body)
_raw_decoder = msgspec.json.Decoder(EventBatchBody)
_encoder = msgspec.json.Encoder()
# NUL, surrogates and hidden colons.
_ESCAPES = re.compile(rb"\\u(?:0000|[dD][89a-fA-F]|003[aA])")
_INT64_DIGITS = b"0" * 19
# An item with fewer brackets lies within the depth, whatever they enclose.
_ITEM_BRACKETS = limits.JSON_DEPTH - 2
# In a body of this size so many or so large items may stand that they are counted and measured first.
_LARGE_BYTES = 256 * 1024
#: Wrong items that an error describes: each takes 10 µs, and a mistake of a program is in all of its events.
_DESCRIBED_ITEMS = 20
# So many digits in a row are most often part of an id.
_LONG_NUMBER = re.compile(rb"[:,\[\s-][0-9]{19}")


def validate_event_body(body: bytes) -> tuple[list[EventItem], list[tuple[int, str]]]:
    """Return the items of a body, and index and id of those that name themselves.

    Raises:
        InvalidJson: if it is not JSON.
        EmptyBatch, BatchTooLarge: if it holds no events, or more than 100.
        ValidationFailed: if an item is not as contract §3 wants it; `errors` points at it.
    """
    if len(body) > _LARGE_BYTES:
        _validate_event_sizes(body)
    items = _decode_event_body(body)
    return items, _validate_event_items(items, body)


def _validate_event_sizes(body: bytes) -> None:
    """Refuse too many items, and too large ones, before they are taken apart, which takes 100 times as long.

    A body that is no JSON passes: the strict reader says what is wrong with it.
    """
    try:
        items = _raw_decoder.decode(body).events
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return
    _validate_event_count(len(items))
    problems = _list_large_events(items)
    if problems:
        raise ValidationFailed(problems)


def _list_large_events(items: list[msgspec.Raw]) -> list[Problem]:
    text = f"An event holds at most {limits.EVENT_BYTES} bytes."
    return [
        Problem("body", f"/events/{index}", "too_large", text)
        for index, raw in enumerate(items)
        if len(memoryview(raw)) > limits.EVENT_BYTES and _count_event_bytes(raw) > limits.EVENT_BYTES
    ]


def _count_event_bytes(raw: msgspec.Raw) -> int:
    """Return the bytes of an item as compact UTF-8 JSON, without the escapes and spaces of its sender.

    Only items that are larger as they were sent are measured; the body bounds their size. An item that cannot
    be read counts as it was sent.
    """
    try:
        return len(_encoder.encode(msgspec.json.decode(raw)))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return len(memoryview(raw))


def _decode_event_body(body: bytes) -> list[EventItem]:
    try:
        decoded = _decoder.decode(body)
    except msgspec.ValidationError as error:
        value = strict_json.parse(body)
        _validate_event_count(_count_unchecked_events(body))
        problems = _list_wrong_events(value) or [make_wire_problem(error, _Body, value)]
        raise ValidationFailed(problems) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        strict_json.parse(body)
        raise InvalidJson("The body is empty or malformed JSON.") from error
    if _is_suspect_body(body, decoded):
        strict_json.parse(body)
    _validate_event_count(len(decoded.events))
    return decoded.events


def _list_wrong_events(value: Any) -> list[Problem]:
    """List the first problem of each of the first wrong items; none if the error is outside of the items."""
    events = value.get("events") if isinstance(value, dict) else None
    if not isinstance(events, list):
        return []
    problems = []
    for index, entry in enumerate(events):
        try:
            msgspec.convert(entry, EventItem)
        except msgspec.ValidationError as error:
            problems.append(make_wire_problem(error, EventItem, entry, at=f"/events/{index}"))
            if len(problems) == _DESCRIBED_ITEMS:
                break
    return problems


def _is_suspect_body(body: bytes, decoded: _Body) -> bool:
    """Return whether a body may hold what msgspec lets through but the contract does not.

    A fifth of the time of the strict reader (0.08 ms against 0.4 for 100 events), which only reads what
    shows something here.
    """
    if b"\\" in body and _ESCAPES.search(body):
        return True
    if _INT64_DIGITS in body.translate(strict_json.DIGITS_AS_ZEROS) and _LONG_NUMBER.search(body):
        return True
    # Only these members are free to nest.
    free = [item for item in decoded.events if item.data is not UNSET or item.signals is not UNSET]
    if free and any(map(_may_be_deep_event, free)):
        return True
    # Of a key that is named twice only the last is decoded: the other's colon is missing then.
    return _count_colons(body) != _count_colons(_encoder.encode(decoded))


def _count_colons(text: bytes) -> int:
    """Return the number of colons in a body: fewer after decoding show a key that was sent twice."""
    # A third of the time of `text.count`.
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == ord(":")))


def _may_be_deep_event(item: EventItem) -> bool:
    text = _encoder.encode(item)
    return text.count(b"[") + text.count(b"{") > _ITEM_BRACKETS


def _validate_event_items(items: list[EventItem], body: bytes) -> list[tuple[int, str]]:
    """Check sizes, types and ids; return index and id of the items that name themselves."""
    problems = []
    if limits.EVENT_BYTES < len(body) <= _LARGE_BYTES:
        problems = _list_large_events(_raw_decoder.decode(body).events)
    values: dict[str, set[Any]] = {
        "type": {item.type for item in items},
        "id": {item.id for item in items},
        "frame_id": {item.frame_id for item in items},
        "parent_id": {item.parent_id for item in items},
    }
    for name, given in values.items():
        given -= _ABSENT
        # NUL stands in no string by now, so it tells the values apart.
        if given and not _CHECKS[name][0]("\0".join(given)):
            problems += _list_event_problems(items, name)
    if problems:
        raise ValidationFailed(problems)
    if not values["id"]:
        return []
    return [(index, item.id) for index, item in enumerate(items) if isinstance(item.id, str)]


def _list_event_problems(items: list[EventItem], name: str) -> list[Problem]:
    fits, code, text = _CHECKS[name]
    return [
        Problem("body", f"/events/{index}/{name}", code, text)
        for index, item in enumerate(items)
        if (value := getattr(item, name)) not in _ABSENT and not fits(value)
    ]


def _make_event_text_check(pattern: str) -> Callable[[str], object]:
    """Return a check of texts joined by NUL: one regular expression checks a whole batch."""
    return re.compile(f"{pattern}(?:\0{pattern})*", re.ASCII).fullmatch


_CLIENT_ID = "_[0-9A-Za-z]{1,40}"
_ABSENT = frozenset({None, UNSET})
#: Per member: the check of its values, and the problem of one that fails it.
_CHECKS: dict[str, tuple[Callable[[str], object], str, str]] = {
    "type": (
        _make_event_text_check(limits.EVENT_TYPE_PATTERN.strip("^$")),
        "invalid_value",
        "A type is 1 to 64 of a–z, 0–9, _ and ., and begins with a letter.",
    ),
    "id": (
        _make_event_text_check("evt" + _CLIENT_ID),
        "invalid_id",
        "An event id is evt_ and 1 to 40 letters and digits.",
    ),
    "frame_id": (
        _make_event_text_check("frm" + _CLIENT_ID),
        "invalid_id",
        "frame_id takes an id that begins with frm_.",
    ),
    "parent_id": (
        _make_event_text_check("evt" + _CLIENT_ID),
        "invalid_id",
        "parent_id takes an id that begins with evt_.",
    ),
}


def _validate_event_count(count: int) -> None:
    if count == 0:
        raise EmptyBatch("events")
    if count > limits.EVENTS_PER_BATCH:
        raise BatchTooLarge("events", limits.EVENTS_PER_BATCH)


def _count_unchecked_events(body: bytes) -> int:
    """Count the items of a body that may be invalid; 1 if they cannot be counted."""
    try:
        return len(_raw_decoder.decode(body).events)
    except msgspec.ValidationError:
        return 1
