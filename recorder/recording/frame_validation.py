"""Validation of frame uploads: items, pictures by type, size and header, DOM snapshots. Contract §3."""

import base64
import binascii
import hashlib
import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import orjson
import zstandard
from PIL import Image

from recorder import limits, strict_json
from recorder.errors import (
    BatchTooLarge,
    EmptyBatch,
    ImageTooLarge,
    InvalidImage,
    Problem,
    UnsupportedMediaType,
    ValidationFailed,
    json_pointer,
)
from recorder.hashing import canonical_json
from recorder.ids import encode_ulid, id_range, is_client_id, is_id, reserve_ulid_values
from recorder.models.frame import FrameItem
from recorder.models.wire import describe_allowed_wire_names, make_wire_problem, shorten_wire_name

_FORMATS: dict[str, Literal["PNG", "JPEG", "WEBP"]] = {
    "image/png": "PNG",
    "image/jpeg": "JPEG",
    "image/webp": "WEBP",
}


def validate_frame_picture(data: bytes, content_type: str, *, index: int) -> tuple[int, int]:
    """Return width and height of a picture in pixels.

    Args:
        data: bytes of the picture.
        content_type: one of `limits.IMAGE_TYPES`.
        index: the frame's position in its batch, for the message.

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
    except Exception as error:  # readers of headers fail in more ways than they document
        raise InvalidImage(index, f"The bytes are not a readable {content_type}.") from error
    if width * height > limits.FRAME_PIXELS:
        raise ImageTooLarge(index, f"A frame has at most {limits.FRAME_PIXELS} pixels.")
    if not _is_whole_picture(data, content_type):
        raise InvalidImage(index, f"The bytes end before the {content_type} does.")
    return width, height


def _is_whole_picture(data: bytes, content_type: str) -> bool:
    """Return whether the picture's own end is there: a cut upload has a good header."""
    if content_type == "image/png":
        return data[-12:-4] == b"\0\0\0\0IEND"
    if content_type == "image/jpeg":
        return b"\xff\xd9" in data[-64:]
    return int.from_bytes(data[4:8], "little") + 8 <= len(data) + 1


@dataclass(frozen=True, slots=True)
class CheckedFrame:
    """A frame whose picture and members were found good."""

    item: FrameItem
    id: str
    data: bytes | memoryview
    sha256: str
    width: int
    height: int
    dom: bytes | None
    #: Digest of its members, with the picture by hash.
    digest: bytes
    #: The same without its `id`, of a frame whose `id` has the form that the service assigns; else None.
    digest_without_id: bytes | None = None

    @property
    def is_named(self) -> bool:
        """Return whether the client chose the id."""
        return isinstance(self.item.id, str)

    def without_bytes(self) -> "CheckedFrame":
        """Return the frame without its picture and its snapshot."""
        item = msgspec.structs.replace(self.item, data=msgspec.UNSET, dom=msgspec.UNSET)
        return replace(self, item=item, data=b"", dom=None)


def validate_frames_json(body: bytes) -> tuple[list[FrameItem], dict[str, bytes]]:
    """Return the items of a JSON body, and their bytes under made-up part names.

    Raises:
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge: as the body is wrong.
    """
    value = strict_json.parse(body)
    if not isinstance(value, dict) or "frames" not in value:
        text = "The body is an object with the one member `frames`."
        raise ValidationFailed.of("", "invalid_value", message=text)
    unknown = [json_pointer(shorten_wire_name(name)) for name in value if name != "frames"]
    if unknown:
        message = f"Unknown member. {describe_allowed_wire_names(['frames'])}"
        raise ValidationFailed([Problem("body", pointer, "unknown_field", message) for pointer in unknown])
    items = _convert_frame_items(value["frames"])
    parts = {}
    for index, item in enumerate(items):
        if isinstance(item.part, str):
            message = "JSON frames carry base64 in `data`; leave out `part`."
            raise ValidationFailed.of(f"/frames/{index}/part", "invalid_value", message=message)
        if not isinstance(item.data, str):
            raise ValidationFailed.of(
                f"/frames/{index}/data", "missing", message="JSON frames carry base64 in `data`."
            )
        try:
            parts[str(index)] = base64.b64decode(item.data, validate=True)
        except (binascii.Error, ValueError) as error:
            raise ValidationFailed.of(
                f"/frames/{index}/data", "invalid_base64", message="data takes base64."
            ) from error
        item.part = str(index)
    return items, parts


def validate_frames_part(part: bytes) -> list[FrameItem]:
    """Return the items of the `frames` part of a multipart body.

    Raises:
        InvalidJson, ValidationFailed, EmptyBatch, BatchTooLarge: as the part is wrong.
    """
    items = _convert_frame_items(strict_json.parse(part, part="frames"))
    for index, item in enumerate(items):
        if isinstance(item.data, str):
            message = "Multipart frames name the part with their bytes in `part`; leave out `data`."
            raise ValidationFailed.of(f"/frames/{index}/data", "invalid_value", message=message)
        if not isinstance(item.part, str):
            message = "Multipart frames name the part with their bytes in `part`."
            raise ValidationFailed.of(f"/frames/{index}/part", "missing", message=message)
    return items


def validate_frames(items: list[FrameItem], parts: Mapping[str, bytes]) -> list[CheckedFrame]:
    """Check every picture, before anything is written.

    Raises:
        UnsupportedMediaType: if a content type is not png, jpeg or webp.
        InvalidImage, ImageTooLarge, ValidationFailed: as a frame is wrong.
    """
    ids = id_range(f"frm_{encode_ulid(reserve_ulid_values(len(items)))}", len(items))
    return [_validate_frame(index, item, parts, ids[index]) for index, item in enumerate(items)]


def hash_frame_item(item: FrameItem, sha256: str) -> bytes:
    """Hash the members of a frame, with its picture by hash: finds a resent or a conflicting one."""
    digested = {name: getattr(item, name) for name in item.__struct_fields__ if name not in ("data", "part")}
    members = {name: value for name, value in digested.items() if value not in (None, msgspec.UNSET)}
    return hashlib.blake2b(canonical_json({**members, "sha256": sha256}), digest_size=16).digest()


def hash_frame(item: FrameItem, sha256: str) -> tuple[bytes, bytes | None]:
    """Return `digest` and `digest_without_id` of a frame."""
    digest = hash_frame_item(item, sha256)
    if not isinstance(item.id, str) or not is_id(item.id, "frm"):
        return digest, None
    return digest, hash_frame_item(msgspec.structs.replace(item, id=msgspec.UNSET), sha256)


def hash_frame_upload(frames: list[CheckedFrame]) -> bytes:
    """Return the digest of an upload's content, the same whether it came as JSON or as multipart."""
    return hashlib.sha256(b"".join(frame.digest for frame in frames)).digest()


def _convert_frame_items(value: Any) -> list[FrameItem]:
    if not isinstance(value, list):
        raise ValidationFailed.of("/frames", "invalid_value", message="frames takes an array.")
    if not value:
        raise EmptyBatch("frames")
    if len(value) > limits.FRAMES_PER_BATCH:
        raise BatchTooLarge("frames", limits.FRAMES_PER_BATCH)
    items, problems = [], []
    for index, entry in enumerate(value):
        try:
            item = msgspec.convert(entry, FrameItem)
            # Media types are the same in capitals.
            item.content_type = item.content_type.lower()
            items.append(item)
            problems += _list_snapshot_problems(item.dom, index)
        except msgspec.ValidationError as error:
            problems.append(make_wire_problem(error, FrameItem, entry, at=f"/frames/{index}"))
    if problems:
        raise ValidationFailed(problems)
    return items


def _list_snapshot_problems(dom: object, index: int) -> list[Problem]:
    """Return why a frame's snapshot is of another form than replays and the memory graph read.

    Only its root is checked: the work does not grow with the snapshot.
    """
    if not isinstance(dom, dict):
        return []
    version, html = dom.get("v"), dom.get("html")
    checks = {
        "format": (dom.get("format") == "nodes", 'format takes "nodes".'),
        "v": (type(version) is int and version == 1, "v takes 1."),
        "html": (
            isinstance(html, list) and bool(html) and isinstance(html[0], str | list),
            "html takes an array: a tag, its attributes, and its children.",
        ),
    }
    return [
        Problem("body", f"/frames/{index}/dom/{name}", "invalid_value" if name in dom else "missing", message)
        for name, (is_right, message) in checks.items()
        if not is_right
    ]


def _validate_frame(index: int, item: FrameItem, parts: Mapping[str, bytes], given_id: str) -> CheckedFrame:
    if item.content_type not in limits.IMAGE_TYPES:
        pointer = f"/frames/{index}/content_type"
        raise UnsupportedMediaType("frames as " + ", ".join(limits.IMAGE_TYPES), pointer)
    data = parts.get(str(item.part))
    if data is None:
        raise ValidationFailed.of(
            f"/frames/{index}/part", "missing", message="There is no part of this name."
        )
    if isinstance(item.id, str) and not is_client_id(item.id, "frm"):
        message = "A frame id is frm_ and 1 to 40 letters and digits."
        raise ValidationFailed.of(f"/frames/{index}/id", "invalid_id", message=message)
    _validate_frame_members(item, index)
    width, height = validate_frame_picture(data, item.content_type, index=index)
    for name, actual in (("width", width), ("height", height)):
        if isinstance(getattr(item, name), int) and getattr(item, name) != actual:
            raise ValidationFailed.of(
                f"/frames/{index}/{name}", "mismatch", message=f"{name} differs from the picture's."
            )
    sha256 = hashlib.sha256(data).hexdigest()
    dom = pack_frame_snapshot(item.dom, index)
    frame_id = item.id if isinstance(item.id, str) else given_id
    return CheckedFrame(item, frame_id, data, sha256, width, height, dom, *hash_frame(item, sha256))


def pack_frame_snapshot(dom: object, index: int, *, max_bytes: int = limits.DOM_BYTES) -> bytes | None:
    """Return a frame's snapshot, compressed; None without one.

    Raises:
        ValidationFailed: if it is too large.
    """
    if not isinstance(dom, dict):
        return None
    text = canonical_json(dom)
    if len(text) > max_bytes:
        raise ValidationFailed.of(
            f"/frames/{index}/dom", "too_large", message=f"dom holds at most {max_bytes} bytes."
        )
    return zstandard.ZstdCompressor(level=3).compress(text)


def unpack_frame_snapshot(packed: bytes) -> bytes:
    """Return the JSON of a snapshot that `pack_frame_snapshot` packed."""
    return zstandard.ZstdDecompressor().decompress(packed)


def unpack_uploaded_frame_dom(frame: CheckedFrame) -> CheckedFrame:
    """Return a frame whose item holds its snapshot again, as masking needs it."""
    if frame.dom is None:
        return frame
    dom = orjson.loads(unpack_frame_snapshot(frame.dom))
    return replace(frame, item=msgspec.structs.replace(frame.item, dom=dom))


def _validate_frame_members(item: FrameItem, index: int) -> None:
    """Refuse a frame whose members beside the picture and the snapshot are very large.

    They are stored in the frame's index row, and pass through every list of frames.
    """
    size = len(item.url) if isinstance(item.url, str) else 0
    size += 32 * len(item.masked_rects) if isinstance(item.masked_rects, list) else 0
    if size > limits.FRAME_MEMBERS_BYTES:
        text = (
            f"url and masked_rects hold at most {limits.FRAME_MEMBERS_BYTES} bytes together, a rectangle 32."
        )
        raise ValidationFailed.of(f"/frames/{index}", "too_large", message=text)
