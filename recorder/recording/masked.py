"""The one place where recorded texts are masked: before they are stored, streamed or told. Contract §3, §8.

Not masked are names that are compared and cannot hold free text: ids and types of events, ids of frames.
"""

from dataclasses import replace
from typing import Any

import msgspec
import orjson

from recorder import limits
from recorder.digest import canonical_json
from recorder.errors import Problem, ValidationFailed
from recorder.masking.masker import Masker
from recorder.masking.policies import MaskingPolicies
from recorder.masking.values import texts_of, with_texts
from recorder.models.event import EventBatchBody
from recorder.models.session import SessionCreate
from recorder.models.tag import TagCreate
from recorder.recording.frame_checks import CheckedFrame, item_digest, pack_dom

_decoder = msgspec.json.Decoder(EventBatchBody)
_NAMES = frozenset({"id", "type", "frame_id", "parent_id"})
#: Members of an event whose keys are the contract's; keys of all other objects are the client's text.
_OBJECTS = frozenset({"target", "app", "input", "trace"})
#: Members of `input` that a replay would give to the page.
_REPLAYED = ("value", "key", "files")


def mask_events(masker: Masker, body: bytes) -> bytes:
    """A valid body of `POST …/events`, masked; items in which nothing is found stay as they were sent.

    Raises:
        ValidationFailed: if an item grows beyond four times its cap.
    """
    sent = [bytes(item) for item in _decoder.decode(body).events]
    items = [_mask_event(masker, item) if masker.may_change(item) else item for item in sent]
    problems = [
        _too_large(f"/events/{index}", limits.EVENT_BYTES)
        for index, item in enumerate(items)
        if len(item) > limits.EVENT_BYTES * limits.MASKING_GROWTH
    ]
    if problems:
        raise ValidationFailed(problems)
    return body if items == sent else b'{"events":[' + b",".join(items) + b"]}"


def mask_frames(
    policies: MaskingPolicies | None, workflow: str, frames: list[CheckedFrame]
) -> list[CheckedFrame]:
    """Frames with their addresses and snapshots masked; the pictures stay.

    Raises:
        ValidationFailed: if a snapshot grows beyond four times its cap.
    """
    masker = None if policies is None else policies.of(workflow)
    if masker is None:
        return frames
    return [_mask_frame(masker, frame, index) for index, frame in enumerate(frames)]


def mask_tag(policies: MaskingPolicies | None, workflow: str, body: TagCreate) -> TagCreate:
    """A tag with its name and data masked.

    Raises:
        ValidationFailed: if one of them grows beyond four times its cap.
    """
    masker = None if policies is None else policies.of(workflow)
    if masker is None:
        return body
    name, data = masker.mask_text(body.name), masker.mask_value(body.data)
    if len(name) > limits.TAG_NAME_CHARACTERS * limits.MASKING_GROWTH:
        raise ValidationFailed([_too_large("/name", limits.TAG_NAME_CHARACTERS)])
    if len(canonical_json(data)) > limits.TAG_DATA_BYTES * limits.MASKING_GROWTH:
        raise ValidationFailed([_too_large("/data", limits.TAG_DATA_BYTES)])
    return body.model_copy(update={"name": name, "data": data})


def mask_session(policies: MaskingPolicies | None, body: SessionCreate) -> SessionCreate:
    """A session with its metadata and its actor's id masked.

    Raises:
        ValidationFailed: if the metadata grow beyond four times their cap, or the id beyond its own.
    """
    masker = None if policies is None else policies.of(body.workflow)
    if masker is None:
        return body
    metadata, actor = masker.mask_value(body.metadata), body.actor
    if len(canonical_json(metadata)) > limits.METADATA_BYTES * limits.MASKING_GROWTH:
        raise ValidationFailed([_too_large("/metadata", limits.METADATA_BYTES)])
    if actor is not None:
        actor = actor.model_copy(update={"id": masker.mask_text(actor.id)})
        if len(actor.id) > limits.ACTOR_ID_CHARACTERS:
            raise ValidationFailed([_too_large("/actor/id", limits.ACTOR_ID_CHARACTERS, growth=1)])
    return body.model_copy(update={"metadata": metadata, "actor": actor})


def _mask_event(masker: Masker, sent: bytes) -> bytes:
    item: dict[str, Any] = orjson.loads(sent)
    changed = masker.changes(texts_of([value for name, value in item.items() if name not in _NAMES]))
    masked = {name: _with_texts(name, value, changed) for name, value in item.items()}
    if masked == item:
        return sent
    given, kept = item.get("input"), masked.get("input")
    if given and kept and any(given.get(name) != kept.get(name) for name in _REPLAYED):
        kept["masked"] = True
    return orjson.dumps(masked)


def _mask_frame(masker: Masker, frame: CheckedFrame, index: int) -> CheckedFrame:
    texts = [value for value in (frame.item.url, frame.item.dom) if value is not msgspec.UNSET]
    if not masker.may_change(canonical_json(texts)):
        return frame
    item = msgspec.structs.replace(
        frame.item, url=_mask(masker, frame.item.url), dom=_mask(masker, frame.item.dom)
    )
    cap = limits.DOM_BYTES * limits.MASKING_GROWTH
    digest = None if frame.digest is None else item_digest(item, frame.sha256)
    return replace(frame, item=item, dom=pack_dom(item.dom, index, max_bytes=cap), digest=digest)


def _with_texts(name: str, value: Any, changed: dict[str, str]) -> Any:
    if name in _NAMES:
        return value
    if name in _OBJECTS and isinstance(value, dict):
        return {key: with_texts(member, changed) for key, member in value.items()}
    return with_texts(value, changed)


def _mask(masker: Masker, value: Any) -> Any:
    return value if value is msgspec.UNSET else masker.mask_value(value)


def _too_large(pointer: str, cap: int, *, growth: int = limits.MASKING_GROWTH) -> Problem:
    text = f"Masked, this exceeds {cap * growth}; send less at once, or shorten the replacements."
    return Problem("body", pointer, "too_large", text)
