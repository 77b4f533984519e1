"""Messages between the digest pool and its worker processes. Decision 0030.

MessagePack with fixed types and no pickles: a decoder that a hostile picture takes over cannot make the
sealing process run code.
"""

from typing import Literal

import msgspec
from msgspec import Struct

from recorder import limits
from recorder.memory.steps.screens import Screen


class DigestBudget(Struct, frozen=True, kw_only=True):
    """Limits on the digest of one picture or one DOM snapshot.

    A picture over its budget has no digest. A snapshot over its budget fails its session (`over_budget`).
    The times are CPU seconds of the worker process.
    """

    picture_bytes: int = limits.FRAME_BYTES
    picture_pixels: int = limits.FRAME_PIXELS
    #: 6 s at 50 megapixels, where the slowest picture of a screen that was measured takes 1.6 s.
    picture_seconds: float = 1.0
    picture_seconds_per_megapixel: float = 0.1
    #: Uploads hold 4 MiB each, which masking may let grow four times.
    snapshot_packed_bytes: int = 16 * 1024 * 1024
    snapshot_bytes: int = 20 * 1024 * 1024
    #: Arrays and objects of the JSON; with the bytes they bound the memory of the parsed snapshot.
    snapshot_nodes: int = 1_000_000
    snapshot_seconds: float = 10.0
    #: Memory that a worker may allocate above its start; a WebP of 50 megapixels takes 615 MB.
    memory_bytes: int = 690_000_000
    #: A worker returns the rest of an item after so long, so that other workspaces have their turn.
    item_seconds: float = 1.0
    #: A worker that sends no message for so long is ended.
    stall_seconds: float = 120.0

    def seconds(self, task: "DigestTask") -> float:
        """Return the CPU seconds that a task may take."""
        if task.kind == "snapshot":
            return self.snapshot_seconds
        return self.picture_seconds + self.picture_seconds_per_megapixel * task.pixels / 1_000_000


class DigestTask(Struct, frozen=True, array_like=True):
    """Picture or snapshot, and its bytes in an upload object."""

    kind: Literal["picture", "snapshot"]
    offset: int
    length: int
    #: Width × height of a picture as checked at upload.
    pixels: int = 0


class DigestSetupMessage(Struct, frozen=True, array_like=True, tag="setup"):
    """First message to a worker: the store to fetch from, and the budget."""

    blob_url: str
    budget: DigestBudget


class DigestItemMessage(Struct, frozen=True, array_like=True, tag="item"):
    """Tasks of one upload object for one worker."""

    object_key: str
    tasks: list[DigestTask]
    #: Bytes that the object must have, also if no task needs them.
    least_bytes: int


class DigestFetchedMessage(Struct, frozen=True, array_like=True, tag="fetched"):
    """Answer to an item whose bytes were fetched: a digest of each task's snapshot, None for pictures."""

    snapshot_keys: list[str | None]


class DigestFetchFailedMessage(Struct, frozen=True, array_like=True, tag="fetch_failed"):
    """Answer to an item whose object is missing or too short, or whose store does not answer."""

    reason: Literal["missing", "unavailable"]


class DigestWantedMessage(Struct, frozen=True, array_like=True, tag="wanted"):
    """Answer to `DigestFetchedMessage`: the indexes of the tasks to compute, in this order."""

    indexes: list[int]


class PictureDigestMessage(Struct, frozen=True, array_like=True, tag="picture"):
    """Result of a picture: luminance of its cells; None if it does not decode within its budget."""

    cells: bytes | None


class SnapshotDigestMessage(Struct, frozen=True, array_like=True, tag="snapshot"):
    """Result of a snapshot; the screen is None if the snapshot cannot be parsed."""

    screen: Screen | None
    is_over_budget: bool = False


class DigestItemFinishedMessage(Struct, frozen=True, array_like=True, tag="finished"):
    """Last message of an item, before all of its tasks are computed if they take too long.

    A worker that has grown too large ends and is replaced.
    """

    is_ending: bool


ToWorker = DigestSetupMessage | DigestItemMessage | DigestWantedMessage
FromWorker = (
    DigestFetchedMessage
    | DigestFetchFailedMessage
    | PictureDigestMessage
    | SnapshotDigestMessage
    | DigestItemFinishedMessage
)

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
