"""Screens of frames: digests of the DOM snapshot, else of the address or the picture. Design §3."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import zstandard

from recorder.memory.states import Screen, describe_screen
from recorder.sealing.digest_messages import DigestBudget

# A block of 128 KiB takes at least four bytes: a frame that declares more than that is damaged, no bomb.
_LARGEST_RATIO = 32_768


class SeenFrame(NamedTuple):
    """Digests of one frame; `dhash` (signed) is None where its picture does not decode."""

    screen: Screen
    dhash: int | None


class SnapshotOverBudget(Exception):
    """A DOM snapshot that takes more bytes, nodes or memory than the budget allows."""


def describe_frame(screen: Screen | None, url: str | None, dhash: int | None) -> SeenFrame:
    """Return the digests of a frame; without a readable snapshot its address or picture decides."""
    return SeenFrame(screen or describe_screen(dom=None, url=url, title=None, dhash=dhash), dhash)


def read_snapshot(packed: bytes, budget: DigestBudget) -> Screen | None:
    """Return the screen of a packed DOM snapshot; None where it is damaged or has an unknown form.

    Raises:
        SnapshotOverBudget: if it takes more bytes, nodes or memory than allowed.
    """
    try:
        dom = _unpack(packed, budget)
        if dom is None:
            return None
        screen = describe_screen(dom=dom, url=None, title=None, dhash=None)
    except MemoryError:
        raise SnapshotOverBudget from None
    except SnapshotOverBudget:
        raise
    except Exception:
        # Not zstd, not JSON, nested too deep, odd types in odd places: such a snapshot counts as none.
        return None
    return screen if screen.state_key is not None else None


def _unpack(packed: bytes, budget: DigestBudget) -> Mapping[str, Any] | None:
    if len(packed) > budget.snapshot_packed_bytes:
        raise SnapshotOverBudget
    # The declared size is what decompression allocates; a frame that is longer than declared is damaged.
    size = zstandard.get_frame_parameters(packed).content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN or size > len(packed) * _LARGEST_RATIO:
        return None
    if size > budget.snapshot_bytes:
        raise SnapshotOverBudget
    text = zstandard.ZstdDecompressor().decompress(packed)
    value = orjson.loads(text)
    # Brackets in strings count too, so a snapshot under the limit by its brackets needs no exact count.
    if text.count(b"[") + text.count(b"{") > budget.snapshot_nodes and (
        _count_nodes(value, budget.snapshot_nodes) > budget.snapshot_nodes
    ):
        raise SnapshotOverBudget
    return value if isinstance(value, dict) else None


def _count_nodes(value: Any, limit: int) -> int:
    """Return the number of arrays and objects in a JSON value; any number above the limit once it is over."""
    count, stack = 0, [value]
    while stack and count <= limit:
        item = stack.pop()
        if isinstance(item, dict):
            count += 1
            stack.extend(item.values())
        elif isinstance(item, list):
            count += 1
            stack.extend(item)
    return count
