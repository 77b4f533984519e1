"""Pictures are checked before anything is written: type, size, header; never a full decode. Contract §3."""

import io
from typing import Literal

from PIL import Image, UnidentifiedImageError

from recorder import limits
from recorder.errors import ImageTooLarge, InvalidImage

_FORMATS: dict[str, Literal["PNG", "JPEG", "WEBP"]] = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
}


def check_image(data: bytes, content_type: str, *, index: int) -> tuple[int, int]:
    """Width and height of a picture in pixels.

    Args:
        content_type: one of `limits.IMAGE_TYPES`.
        index: the frame's place in its batch, for the message.

    Raises:
        ImageTooLarge: if it has over 10 MB or 50 million pixels.
        InvalidImage: if the bytes are not a whole picture of that type.
    """
    if len(data) > limits.FRAME_BYTES:
        raise ImageTooLarge(index, f"A frame holds at most {limits.FRAME_BYTES} bytes.")
    try:
        # Opening reads the header alone; the format list keeps other readers away from hostile bytes.
        with Image.open(io.BytesIO(data), formats=[_FORMATS[content_type]]) as image:
            width, height = image.size
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageTooLarge(index, f"A frame has at most {limits.FRAME_PIXELS} pixels.") from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        raise InvalidImage(index, f"The bytes are not a readable {content_type}.") from error
    if width * height > limits.FRAME_PIXELS:
        raise ImageTooLarge(index, f"A frame has at most {limits.FRAME_PIXELS} pixels.")
    if not _is_whole(data, content_type):
        raise InvalidImage(index, f"The bytes end before the {content_type} does.")
    return width, height


def _is_whole(data: bytes, content_type: str) -> bool:
    """Whether the picture's own end is there: a cut upload has a good header."""
    if content_type == "image/png":
        return data[-12:-4] == b"\0\0\0\0IEND"
    if content_type == "image/jpeg":
        return b"\xff\xd9" in data[-64:]
    return int.from_bytes(data[4:8], "little") + 8 <= len(data) + 1
