"""Masking of recorded texts before they are stored, streamed or sent. Contract §3, §8.

Each kind of body gives its texts as JSON documents (`list_event_items_to_mask` and the like).
`Scanner.find_changes` finds what masking changes in them, and the functions here put it into the body.

Not masked are names that are compared and cannot hold free text: ids and types of events, ids of frames.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import orjson

from recorder import limits
from recorder.errors import Problem, ValidationFailed
from recorder.hashing import canonical_json
from recorder.masking.masker import Changes, replace_json_strings
from recorder.models.event import EventBatchBody
from recorder.models.session import SessionCreate, TagCreate
from recorder.recording.frame_validation import CheckedFrame, hash_frame, pack_frame_snapshot

_decoder = msgspec.json.Decoder(EventBatchBody)
_NAMES = frozenset({"id", "type", "frame_id", "parent_id"})
#: Members of an event whose keys are the contract's; keys of all other objects are the client's text.
_OBJECTS = frozenset({"target", "app", "input", "trace"})
#: Members of `input` that a replay would give to the page.
_REPLAYED = ("value", "key", "files")


def list_event_items_to_mask(body: bytes) -> list[bytes]:
    """Return the items of a valid body of `POST …/events`, as they were sent."""
    return [bytes(item) for item in _decoder.decode(body).events]


def mask_events(changes: Mapping[int, Changes], body: bytes) -> bytes:
    """Return a valid body of `POST …/events`, masked; items in which nothing is found stay as they were sent.

    Raises:
        ValidationFailed: if an item grows beyond four times its cap.
    """
    if not changes:
        return body
    sent = list_event_items_to_mask(body)
    items = [
        _mask_event_item(changes[index], item) if index in changes else item
        for index, item in enumerate(sent)
    ]
    problems = [
        _describe_too_large_masked_item(f"/events/{index}", limits.EVENT_BYTES)
        for index, item in enumerate(items)
        # An item that masking leaves as it was sent may be larger: with escapes or spaces.
        if item is not sent[index] and len(item) > limits.EVENT_BYTES * limits.MASKING_GROWTH
    ]
    if problems:
        raise ValidationFailed(problems)
    return body if items == sent else b'{"events":[' + b",".join(items) + b"]}"


def list_frame_texts_to_mask(frames: list[CheckedFrame]) -> list[bytes]:
    """Return the address and the snapshot of each frame."""
    return [
        canonical_json([value for value in (frame.item.url, frame.item.dom) if value is not msgspec.UNSET])
        for frame in frames
    ]


def mask_frames(changes: Mapping[int, Changes], frames: list[CheckedFrame]) -> list[CheckedFrame]:
    """Return frames with their addresses and snapshots masked; the pictures stay.

    Raises:
        ValidationFailed: if a snapshot grows beyond four times its cap.
    """
    return [
        _mask_frame(changes[index], frame, index) if index in changes else frame
        for index, frame in enumerate(frames)
    ]


def make_tag_text_to_mask(body: TagCreate) -> bytes:
    """Return the texts of a tag."""
    return canonical_json([body.name, body.data])


def mask_tag(changed: Changes, body: TagCreate) -> TagCreate:
    """Return a tag with its name and data masked.

    Raises:
        ValidationFailed: if one of them grows beyond four times its cap.
    """
    name, data = changed.get(body.name, body.name), replace_json_strings(body.data, changed)
    if len(name) > limits.TAG_NAME_CHARACTERS * limits.MASKING_GROWTH:
        raise ValidationFailed([_describe_too_large_masked_item("/name", limits.TAG_NAME_CHARACTERS)])
    if len(canonical_json(data)) > limits.TAG_DATA_BYTES * limits.MASKING_GROWTH:
        raise ValidationFailed([_describe_too_large_masked_item("/data", limits.TAG_DATA_BYTES)])
    return body.model_copy(update={"name": name, "data": data})


def make_session_text_to_mask(body: SessionCreate) -> bytes:
    """Return the texts of a new session."""
    return canonical_json([body.metadata, body.actor and body.actor.id])


def mask_session(changed: Changes, body: SessionCreate) -> SessionCreate:
    """Return a session with its metadata and its actor's id masked.

    Raises:
        ValidationFailed: if the metadata grow beyond four times their cap, or the id beyond its own.
    """
    metadata, actor = replace_json_strings(body.metadata, changed), body.actor
    if len(canonical_json(metadata)) > limits.METADATA_BYTES * limits.MASKING_GROWTH:
        raise ValidationFailed([_describe_too_large_masked_item("/metadata", limits.METADATA_BYTES)])
    if actor is not None:
        actor = actor.model_copy(update={"id": changed.get(actor.id, actor.id)})
        if len(actor.id) > limits.ACTOR_ID_CHARACTERS:
            raise ValidationFailed(
                [_describe_too_large_masked_item("/actor/id", limits.ACTOR_ID_CHARACTERS, growth=1)]
            )
    return body.model_copy(update={"metadata": metadata, "actor": actor})


def _mask_event_item(changed: Changes, sent: bytes) -> bytes:
    """Return an event as it was sent, with each text that masking changes replaced."""
    item: dict[str, Any] = orjson.loads(sent)
    masked = {name: _mask_event_member(name, value, changed) for name, value in item.items()}
    if masked == item:
        return sent
    sent_input, masked_input = item.get("input"), masked.get("input")
    if (
        sent_input
        and masked_input
        and any(sent_input.get(name) != masked_input.get(name) for name in _REPLAYED)
    ):
        masked_input["masked"] = True
    return orjson.dumps(masked)


def _mask_frame(changed: Changes, frame: CheckedFrame, index: int) -> CheckedFrame:
    item = msgspec.structs.replace(
        frame.item,
        url=_mask_item_value(changed, frame.item.url),
        dom=_mask_item_value(changed, frame.item.dom),
    )
    cap = limits.DOM_BYTES * limits.MASKING_GROWTH
    dom = pack_frame_snapshot(item.dom, index, max_bytes=cap)
    digest, digest_without_id = hash_frame(item, frame.sha256)
    return replace(frame, item=item, dom=dom, digest=digest, digest_without_id=digest_without_id)


def _mask_event_member(name: str, value: Any, changed: Changes) -> Any:
    if name in _NAMES:
        return value
    if name in _OBJECTS and isinstance(value, dict):
        return {key: replace_json_strings(member, changed) for key, member in value.items()}
    return replace_json_strings(value, changed)


def _mask_item_value(changed: Changes, value: Any) -> Any:
    return value if value is msgspec.UNSET else replace_json_strings(value, changed)


def _describe_too_large_masked_item(
    pointer: str, cap: int, *, growth: int = limits.MASKING_GROWTH
) -> Problem:
    text = f"Masked, this exceeds {cap * growth}; send less at once, or shorten the replacements."
    return Problem("body", pointer, "too_large", text)
