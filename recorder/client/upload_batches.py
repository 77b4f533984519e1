"""Upload requests of the client: events and frames divided into batches, each with its batch id.

Spec §8.1, contract §3.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from recorder import ids, limits
from recorder.client.encoding import encode_json
from recorder.client.transport import TransportCall

Item = TypeVar("Item")

#: A quarter of the limit of a request, so that an interrupted batch is sent again quickly.
_FRAMES_BATCH_BYTES = limits.FRAMES_REQUEST_BYTES // 4
EVENTS_BATCH_BYTES = limits.EVENTS_REQUEST_BYTES - len('{"events":[]}')
_MAGIC = ((b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"RIFF", "image/webp"))
_IMAGE_EXPECTED = (
    'A frame takes the bytes of a PNG, JPEG or WebP file, such as Path("screen.png").read_bytes().'
)


class CapturedFrame(NamedTuple):
    """Captured screen: the members of its frame item, and the bytes of the image file."""

    item: dict[str, Any]
    image: bytes

    @classmethod
    def of(cls, image: bytes | bytearray, *, t_ms: int, **members: Any) -> "CapturedFrame":
        """Return a frame of a PNG, JPEG or WebP file; `members` are the item's others (`id`, `dom`, `url` …).

        A bytearray is copied: the caller may reuse it.

        Raises:
            TypeError: if the image is not bytes.
            ValueError: if the image is none of these and no `content_type` is given.
        """
        if not isinstance(image, bytes | bytearray):
            raise TypeError(f"{_IMAGE_EXPECTED} You passed a value of type {type(image).__name__}.")
        content_type = members.pop("content_type", None) or detect_frame_image_type(image)
        return cls({"t_ms": t_ms, "content_type": content_type, **members}, bytes(image))


@dataclass(frozen=True)
class EncodedFrame:
    """Frame with its item as JSON, so that its size is known before it joins a batch."""

    item: bytes
    image: bytes

    @classmethod
    def of(cls, frame: CapturedFrame) -> "EncodedFrame":
        """Return a frame with its item encoded.

        Raises:
            TypeError, ValueError: if a member has no form in JSON.
        """
        return cls(encode_json(frame.item), frame.image)

    @property
    def size(self) -> int:
        """Bytes on the wire, with room for the part's own header."""
        return len(self.item) + len(self.image) + 256


def detect_frame_image_type(image: bytes | bytearray) -> str:
    """Return the content type of an image file, by its first bytes."""
    for magic, content_type in _MAGIC:
        if image.startswith(magic):
            return content_type
    raise ValueError(_IMAGE_EXPECTED)


def new_batch_id() -> str:
    """Return an id for a batch; later ids are higher, so that batches sort by time."""
    return f"bat_{ids.encode_ulid(ids.reserve_ulid_values(1))}"


def event_batch_calls(
    session_id: str, events: Iterable[Mapping[str, Any] | bytes]
) -> Iterator[TransportCall]:
    """Yield one call for each batch of at most 100 events that fits into a request, in order.

    Args:
        session_id: the session.
        events: event items, or the JSON of each.
    """
    encoded = (event if isinstance(event, bytes) else encode_json(event) for event in events)
    sized = ((len(item) + 1, item) for item in encoded)
    for batch in _cut_batches(sized, limits.EVENTS_PER_BATCH, EVENTS_BATCH_BYTES):
        yield make_event_batch_call(session_id, batch, key=new_batch_id())


def make_event_batch_call(session_id: str, batch: Sequence[bytes], *, key: str) -> TransportCall:
    """Return the call that uploads a batch of events, each given as JSON."""
    return TransportCall(
        "POST",
        f"/v1/sessions/{session_id}/events",
        content=b'{"events":[' + b",".join(batch) + b"]}",
        key=key,
        repeatable=True,
    )


def frame_batch_calls(
    session_id: str, frames: Iterable[CapturedFrame | EncodedFrame]
) -> Iterator[TransportCall]:
    """Yield one multipart call for each batch of at most 50 frames, in order."""
    encoded = (frame if isinstance(frame, EncodedFrame) else EncodedFrame.of(frame) for frame in frames)
    sized = ((frame.size, frame) for frame in encoded)
    for batch in _cut_batches(sized, limits.FRAMES_PER_BATCH, _FRAMES_BATCH_BYTES):
        yield make_frame_batch_call(session_id, batch, key=new_batch_id())


def make_frame_batch_call(session_id: str, batch: Sequence[EncodedFrame], *, key: str) -> TransportCall:
    """Return the multipart call that uploads a batch of frames."""
    # The boundary is the batch id: the body of a repeated batch is the same to the byte.
    return TransportCall(
        "POST",
        f"/v1/sessions/{session_id}/frames",
        content=encode_multipart_batch(batch, boundary=key),
        content_type=f"multipart/form-data; boundary={key}",
        key=key,
        repeatable=True,
    )


def encode_multipart_batch(batch: Sequence[EncodedFrame], *, boundary: str) -> bytes:
    """Return a body: the part `frames` (JSON, its items name their parts) and a part for each image."""
    # The item is a non-empty object: its opening brace makes room for the name of its part.
    items = b",".join(b'{"part":"p%d",' % n + frame.item[1:] for n, frame in enumerate(batch))
    parts = [
        _encode_multipart_part(
            "frames", content_type="application/json", content=b"[" + items + b"]", boundary=boundary
        )
    ]
    for n, frame in enumerate(batch):
        parts.append(
            _encode_multipart_part(
                f"p{n}",
                content_type="application/octet-stream",
                content=frame.image,
                boundary=boundary,
                filename=f"p{n}",
            )
        )
    return b"".join(parts) + f"--{boundary}--\r\n".encode()


def _encode_multipart_part(
    name: str, *, content_type: str, content: bytes, boundary: str, filename: str | None = None
) -> bytes:
    named = f'; filename="{filename}"' if filename else ""
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{named}\r\n'
        f"Content-Type: {content_type}\r\n\r\n"
    )
    return head.encode() + content + b"\r\n"


def _cut_batches(sized: Iterable[tuple[int, Item]], count: int, size: int) -> Iterator[list[Item]]:
    """Yield runs of at most `count` items and `size` bytes; a larger item goes alone, and is refused."""
    batch: list[Item] = []
    filled = 0
    for item_size, item in sized:
        if batch and (len(batch) == count or filled + item_size > size):
            yield batch
            batch, filled = [], 0
        batch.append(item)
        filled += item_size
    if batch:
        yield batch
