"""Small copies of recorded pictures, made in a process within limits of memory and time. Decision 0030.

A small picture with thousands of scans keeps its decoder busy for long, and decoders fail in any way.
"""

import base64
import io

from PIL import Image

from recorder.limited_process import LimitedProcess, ProcessEnded, serve_limited_process

_FORMATS = ("PNG", "JPEG", "WEBP")
_MOST_PIXELS = 16_000_000
_SIZE = (640, 480)
_QUALITY = 60
_MOST_BYTES = 100_000
_SECONDS = 5.0
_MEMORY_BYTES = 512 * 1024 * 1024


class ThumbnailProcess:
    """Process that makes thumbnails one after the other; the first one starts it."""

    def __init__(self, *, seconds: float = _SECONDS, memory_bytes: int = _MEMORY_BYTES) -> None:
        """Set the limits of a picture.

        Args:
            seconds: time.
            memory_bytes: memory beyond what the process has before the first picture.
        """
        self._process = LimitedProcess(serve_thumbnails, memory_bytes=memory_bytes, seconds=seconds)

    def make(self, picture: bytes) -> bytes | None:
        """Return a JPEG of at most 640 × 480 pixels; None if the picture does not decode in time."""
        try:
            return base64.b64decode(self._process.request(base64.b64encode(picture))) or None
        except ProcessEnded:
            return None

    def end(self) -> None:
        """End the process."""
        self._process.end()


def serve_thumbnails(memory_bytes: int) -> None:
    """Make thumbnails of the pictures on standard input, until it ends."""
    serve_limited_process(_answer_thumbnail_request, memory_bytes)


def _answer_thumbnail_request(message: bytes) -> bytes:
    try:
        return base64.b64encode(_make_picture_thumbnail(base64.b64decode(message)))
    except MemoryError:
        raise
    except Exception:  # decoders raise errors of any kind
        return b""


def _make_picture_thumbnail(data: bytes) -> bytes:
    """Return a small JPEG of a picture; nothing if it has too many pixels or bytes.

    Raises:
        Exception: of any kind where the picture does not decode.
    """
    with Image.open(io.BytesIO(data), formats=_FORMATS) as picture:
        if picture.width * picture.height > _MOST_PIXELS:
            return b""
        picture.draft("RGB", _SIZE)
        small = picture.convert("RGB")
    small.thumbnail(_SIZE)
    made = io.BytesIO()
    small.save(made, "JPEG", quality=_QUALITY)
    return made.getvalue() if made.tell() <= _MOST_BYTES else b""
