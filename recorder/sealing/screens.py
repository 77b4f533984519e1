"""Screens of frames: digests of the DOM snapshot, else of the address or the picture. Design §3."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import zstandard

from recorder.memory.steps.screens import Screen, describe_screen
from recorder.sealing.digest_messages import DigestBudget

# A block of 128 KiB takes at least four bytes: a frame that declares more than that is damaged, no bomb.
_LARGEST_RATIO = 32_768
# Possessive quantifiers: no text can make these backtrack.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


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
    # Before the values are built: the parser crashes where memory runs out.
    if _has_more_nodes(text, budget.snapshot_nodes):
        raise SnapshotOverBudget
    value = orjson.loads(text)
    return value if isinstance(value, dict) else None


def _has_more_nodes(text: bytes, limit: int) -> bool:
    """Return whether a JSON text has more arrays and objects than a limit."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    # Some of the brackets may be in strings.
    bare = _STRING.sub(b"", text)
    return bare.count(b"[") + bare.count(b"{") > limit
