"""Queue of events and frames that the service has not acknowledged yet. Spec §8.1, contract §3."""

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from recorder import limits
from recorder.client.errors import ApiError, ClientError
from recorder.client.transport import TransportCall
from recorder.client.upload_batches import (
    EVENTS_BATCH_BYTES,
    EncodedFrame,
    make_event_batch_call,
    make_frame_batch_call,
    new_batch_id,
)
from recorder.number_formats import format_count

_FRAMES_BATCH_BYTES = 8 * 1024 * 1024
_ITEM = re.compile(r"/(?:events|frames)/(\d+)(?:/|$)")
#: Refusals of a batch's own content; any other error would meet the next batch too.
_REFUSED_CONTENT = (400, 413, 415, 422)


@dataclass(frozen=True)
class _ItemKind:
    """Events or frames: the limits of a batch, and its request."""

    most_items: int
    most_bytes: int
    make_call: Callable[..., TransportCall]


_EVENTS = _ItemKind(limits.EVENTS_PER_BATCH, EVENTS_BATCH_BYTES, make_event_batch_call)
_FRAMES = _ItemKind(limits.FRAMES_PER_BATCH, _FRAMES_BATCH_BYTES, make_frame_batch_call)


@dataclass(eq=False)
class _Batch:
    """Items that are sent together, under an id that the batch keeps."""

    kind: _ItemKind
    items: list[Any] = field(default_factory=list)
    size: int = 0
    #: Whether items may still join it; from the first attempt on, its bytes stay the same.
    is_open: bool = True
    #: Whether it holds what was left of a refused batch.
    is_remainder: bool = False
    key: str = field(default_factory=new_batch_id)

    @property
    def is_full(self) -> bool:
        """Return whether it takes no further item."""
        return len(self.items) >= self.kind.most_items or self.size >= self.kind.most_bytes

    def without_refused(self, error: ApiError) -> "list[_Batch]":
        """Return batches of the items that may be stored although the service refused this batch.

        The service names the first wrong frame only, and names no item where the JSON as a whole is refused.
        Then each item is sent by itself, so that the number of requests is bounded.
        """
        refused = _list_refused_items(error)
        others = [item for number, item in enumerate(self.items) if number not in refused]
        if len(self.items) == 1 or error.code == "limit_reached":
            return []
        named_some = len(others) < len(self.items)
        groups = [others] if named_some and not self.is_remainder else [[item] for item in others]
        return [_Batch(self.kind, group, is_open=False, is_remainder=True) for group in groups if group]


class UploadQueue:
    """Events and frames of one session that the service has neither stored nor refused.

    Every batch keeps its id and its bytes until then: the service stores it once, however often it is sent.
    """

    def __init__(self, send: Callable[[TransportCall], object]) -> None:
        """Begin with an empty queue.

        Args:
            send: sends a call, repeats it as the client does, and returns once it is acknowledged.
        """
        self._send = send
        self._batches: list[_Batch] = []
        #: Guards the list, not the sending: threads may add items during it.
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Bytes of all items in it."""
        with self._lock:
            return sum(batch.size for batch in self._batches)

    def add_event(self, event: bytes) -> bool:
        """Add the JSON of an event; return whether a batch is complete."""
        return self._add_to_open_batch(_EVENTS, event, len(event) + 1)

    def add_frame(self, frame: EncodedFrame) -> bool:
        """Add a frame; return whether a batch is complete."""
        return self._add_to_open_batch(_FRAMES, frame, frame.size)

    def send(self, session_id: str) -> None:
        """Send all batches to a session: frames first, since events name them.

        An item that the service refuses is dropped; the others of its batch are sent.

        Raises:
            ApiError: if items were refused, after all others were sent; or if the service refuses every
                batch: then this one and those after it stay in the queue.
            Unreachable: if the service does not answer; the same batches stay.
        """
        refusals: list[ApiError] = []
        dropped = 0
        try:
            while (batch := self._close_next_batch()) is not None:
                rest: list[_Batch] = []
                try:
                    self._send(batch.kind.make_call(session_id, batch.items, key=batch.key))
                except ApiError as error:
                    if error.status not in _REFUSED_CONTENT and not _list_refused_items(error):
                        raise
                    rest = batch.without_refused(error)
                    refusals.append(error)
                    dropped += len(batch.items) - sum(len(other.items) for other in rest)
                self._replace(batch, rest)
        except ClientError as error:
            if refusals:
                error.add_note(f"Before that, {_describe_dropped_items(dropped)}: {refusals[0]}")
            raise
        if refusals:
            refusals[0].add_note(f"In all, {_describe_dropped_items(dropped)}.")
            raise refusals[0]

    def _add_to_open_batch(self, kind: _ItemKind, item: object, size: int) -> bool:
        """Add an item to the batch of its kind, or to a new one; return whether a batch is full."""
        with self._lock:
            batch = next((batch for batch in self._batches if batch.kind is kind and batch.is_open), None)
            is_too_large = batch is not None and bool(batch.items) and batch.size + size > kind.most_bytes
            if batch is None or batch.is_full or is_too_large:
                if batch is not None:
                    batch.is_open = False
                batch = _Batch(kind)
                self._batches.append(batch)
            batch.items.append(item)
            batch.size += size
            return batch.is_full or is_too_large

    def _close_next_batch(self) -> _Batch | None:
        with self._lock:
            batch = min(self._batches, key=lambda batch: batch.kind is not _FRAMES, default=None)
            if batch is not None:
                batch.is_open = False
            return batch

    def _replace(self, batch: _Batch, others: Sequence[_Batch]) -> None:
        """Put others in the place of a batch, unless another thread did so."""
        with self._lock:
            if batch in self._batches:
                index = self._batches.index(batch)
                self._batches[index : index + 1] = others


def _list_refused_items(error: ApiError) -> set[int]:
    """Return the numbers of the items that a refusal names."""
    matches = (_ITEM.match(str(item.get("pointer"))) for item in error.errors)
    return {int(match[1]) for match in matches if match}


def _describe_dropped_items(count: int) -> str:
    return f"{format_count(count, 'refused item')} {'was' if count == 1 else 'were'} dropped"
