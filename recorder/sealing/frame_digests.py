"""Digests of frames: dHash of the picture; screen of DOM snapshot, address or picture. Design §3."""

import io
import re
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson
import zstandard
from PIL import Image

from recorder import limits
from recorder.memory.steps.screens import Screen, describe_screen
from recorder.sealing.digest_messages import DigestBudget

#: From this many differing bits on, two screens count as materially different.
KEYFRAME_DISTANCE = 10
_FORMATS = ("PNG", "JPEG", "WEBP")
# The side of a JPEG is no longer; a PNG of width 1 with 50 megapixels takes 9 s and 1.7 GB to shrink.
_LONGEST_SIDE = 65_535
# Pixels converted at once: a large picture needs no second copy of itself in memory.
_STRIP_PIXELS = 4_000_000


def read_cells_of_frame_picture(data: bytes, *, max_pixels: int = limits.FRAME_PIXELS) -> bytes | None:
    """Return the luminance of 9 × 8 cells of a picture, row by row; None if it does not decode.

    Args:
        data: the bytes of the picture, as a client sent them.
        max_pixels: larger pictures have no digest.
    """
    try:
        with warnings.catch_warnings():
            # A warning must not cost the digest, even in a process that makes warnings errors.
            warnings.simplefilter("ignore")
            return decode_cells(data, max_pixels)
    except Exception:
        # Decoders fail in more ways than they document (IndexError, struct.error, MemoryError, …): a picture
        # that does not decode costs its digest, never the sealing of its session.
        return None


def dhash(cells: bytes) -> int:
    """Return the difference hash of a picture as a signed 64-bit integer.

    Each bit of the 8 × 8 grid is 1 if a cell is darker than its right neighbour, in reading order.

    Args:
        cells: luminance of 9 × 8 cells, row by row.
    """
    bits = 0
    for row in range(0, 72, 9):
        for left in range(row, row + 8):
            bits = bits << 1 | (cells[left] < cells[left + 1])
    return bits - 2**64 if bits >= 2**63 else bits


def dhash_distance(first: int | None, second: int | None) -> int:
    """Return the number of bits that differ; 0 if a digest is missing."""
    if first is None or second is None:
        return 0
    return ((first ^ second) & (2**64 - 1)).bit_count()


def decode_cells(data: bytes, max_pixels: int) -> bytes:
    """Return the luminance of 9 × 8 cells, row by row.

    Raises:
        Exception: of any kind where the picture does not decode.
    """
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        if image.width * image.height > max_pixels or max(image.size) > _LONGEST_SIDE:
            raise Image.DecompressionBombError("More pixels than allowed.")
        image.draft("L", (72, 64))  # JPEG decodes at an eighth of the size; others ignore it
        return _shrink_picture_to_digest(_decode_picture_to_digest(image)).tobytes()


def _decode_picture_to_digest(image: Image.Image) -> Image.Image:
    """Return the picture decoded; a WebP without the copies that Pillow keeps of it.

    Pillow holds three canvases of a WebP while it copies the pixels into a fourth: 777 MB at 50 megapixels.
    Its decoder alone, released before the pixels are used, needs 590 MB.
    """
    decoder: Any = vars(image).get("_decoder") if image.format == "WEBP" else None
    if decoder is None:
        image.load()
        return image
    decoded = decoder.get_next()
    if decoded is None:
        raise OSError("The first frame does not decode.")
    mode = decoder.get_info()[4]
    image._decoder = None  # type: ignore[attr-defined]
    del decoder
    return Image.frombuffer(mode, image.size, decoded[0], "raw", mode, 0, 1)


def _shrink_picture_to_digest(image: Image.Image) -> Image.Image:
    """Return the picture as 9 × 8 cells of luminance, by the mean of each cell's pixels.

    A large picture is converted and narrowed strip by strip: the resampling goes through rows first and
    rounds in between, so the strips give the same cells.
    """
    width, height = image.size
    rows = max(1, _STRIP_PIXELS // width)
    if rows >= height:
        return image.convert("L").resize((9, 8), Image.Resampling.BOX)
    narrow = Image.new("L", (9, height))
    for top in range(0, height, rows):
        strip = image.crop((0, top, width, min(top + rows, height))).convert("L")
        narrow.paste(strip.resize((9, strip.height), Image.Resampling.BOX), (0, top))
    return narrow.resize((9, 8), Image.Resampling.BOX)


# A block of 128 KiB takes at least four bytes: a frame that declares more than that is damaged, no bomb.
_LARGEST_RATIO = 32_768
# Possessive quantifiers: no text can make these backtrack.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"', re.DOTALL)


class FrameDigest(NamedTuple):
    """Digests of one frame; `dhash` (signed) is None if its picture does not decode."""

    screen: Screen
    dhash: int | None


class SnapshotOverBudget(Exception):
    """A DOM snapshot takes more bytes, nodes or memory than the budget allows."""


def compute_frame_digests(screen: Screen | None, url: str | None, cells: bytes | None) -> FrameDigest:
    """Return the digests of a frame; without a readable snapshot the screen comes from address or picture."""
    screen = screen or describe_screen(dom=None, url=url, title=None, cells=cells)
    return FrameDigest(screen, None if cells is None else dhash(cells))


def compute_snapshot_screen(packed: bytes, budget: DigestBudget) -> Screen | None:
    """Return the screen of a packed DOM snapshot; None if it is damaged or has an unknown form.

    Raises:
        SnapshotOverBudget: if it takes more bytes, nodes or memory than allowed.
    """
    try:
        dom = _parse_snapshot_to_digest(packed, budget)
        if dom is None:
            return None
        screen = describe_screen(dom=dom, url=None, title=None, cells=None)
    except MemoryError:
        raise SnapshotOverBudget from None
    except SnapshotOverBudget:
        raise
    except Exception:
        # Not zstd, not JSON, nested too deep, unexpected types: such a snapshot counts as none.
        return None
    return screen if screen.state_key is not None else None


def _parse_snapshot_to_digest(packed: bytes, budget: DigestBudget) -> Mapping[str, Any] | None:
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
    if _has_more_nodes_to_digest(text, budget.snapshot_nodes):
        raise SnapshotOverBudget
    value = orjson.loads(text)
    return value if isinstance(value, dict) else None


def _has_more_nodes_to_digest(text: bytes, limit: int) -> bool:
    """Return whether a JSON text has more arrays and objects than a limit."""
    if text.count(b"[") + text.count(b"{") <= limit:
        return False
    # Some of the brackets may be in strings.
    bare = _STRING.sub(b"", text)
    return bare.count(b"[") + bare.count(b"{") > limit
