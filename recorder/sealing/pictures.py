"""Perceptual digests of pictures: dHash, 64 bits, computed at seal for sampling and state keys. Design §3."""

import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import Image

#: From this many differing bits on, two screens count as materially different.
KEYFRAME_DISTANCE = 10
# Pillow decodes without the interpreter lock, so a second thread nearly doubles the rate.
_THREADS = 2


def dhash(data: bytes) -> int | None:
    """The difference hash of a picture as a signed 64-bit integer; None where it does not decode.

    Bit n of the 8 × 8 grid tells whether a cell is darker than its right neighbour, in reading order.
    """
    try:
        with Image.open(io.BytesIO(data)) as image:
            image.draft("L", (72, 64))  # JPEG decodes at an eighth of the size; others ignore it
            small = image.convert("L").resize((9, 8), Image.Resampling.BOX)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    cells = np.asarray(small, dtype=np.int16)
    bits = np.packbits(cells[:, :-1] < cells[:, 1:])
    return int.from_bytes(bits.tobytes(), "big", signed=True)


def dhash_all(pictures: Mapping[str, bytes]) -> dict[str, int | None]:
    """The digest of each of many pictures, by the key it came under."""
    if len(pictures) == 1:
        return {key: dhash(data) for key, data in pictures.items()}
    with ThreadPoolExecutor(_THREADS) as pool:
        return dict(zip(pictures, pool.map(dhash, pictures.values()), strict=True))


def distance(one: int | None, other: int | None) -> int:
    """How many of the 64 bits differ; 0 where a digest is missing."""
    if one is None or other is None:
        return 0
    return ((one ^ other) & (2**64 - 1)).bit_count()
