"""Made-up damaged pictures: PNG, JPEG and WebP whose parts were changed, moved, cut or put in.

Equal seeds give equal pictures. `storable_pictures` gives only those that the checks at upload let through.
"""

import io
import random
import struct
import warnings
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

from PIL import Image

from recorder.errors import RecorderError
from recorder.recording.frame_validation import validate_frame_picture

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PNG_NAMES = (
    b"iCCP tEXt zTXt iTXt eXIf acTL fcTL fdAT tRNS PLTE gAMA cHRM sRGB pHYs IHDR IDAT sBIT hIST bKGD tIME"
).split()
_JPEG_BODIES = (
    b"Exif\0\0",
    b"Exif\0\0II*\0\x08\0\0\0",
    b"Exif\0\0MM\0*\0\0\0\x08",
    b"ICC_PROFILE\0\x01\x02",
    b"MPF\0II*\0\x08\0\0\0",
    b"MPF\0MM\0*\0\0\0\x08",
    b"Adobe\0d",
    b"Photoshop 3.0\0" + b"8BIM\x04\x04\0\0",
    b"Photoshop 3.0\0" + b"8BIM\x03\xed\0\0\0\0\0\x10",
    b"JFIF\0\x01\x02",
    b"http://ns.adobe.com/xap/1.0/\0<x",
    b"FPXR\0",
)


class FuzzedPicture(NamedTuple):
    """A damaged picture; `recipe` names its format, base and the changes made to it."""

    content_type: str
    data: bytes
    recipe: str


def fuzzed_pictures(seed: int) -> Iterator[FuzzedPicture]:
    """Give damaged pictures without end."""
    choose = random.Random(seed)
    bases = _make_bases()
    while True:
        name, content_type, data = choose.choice(bases)
        fuzz = {"image/png": _fuzz_png, "image/jpeg": _fuzz_jpeg, "image/webp": _fuzz_webp}[content_type]
        try:
            damaged, changes = fuzz(data, choose)
        except (struct.error, zlib.error):
            continue  # a change that needs what an earlier one took away
        yield FuzzedPicture(content_type, damaged, f"{name}: {', '.join(changes)}")


def storable_pictures(seed: int) -> Iterator[FuzzedPicture]:
    """Give the damaged pictures that pass the checks at upload."""
    for picture in fuzzed_pictures(seed):
        try:
            # As in the service, where a warning is no error.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                validate_frame_picture(picture.data, picture.content_type, index=0)
        except RecorderError:
            continue
        except Exception:  # it fails its upload, and is not stored either
            continue
        yield picture


def scan_bomb(side: int, scans: int) -> bytes:
    """Return a small progressive JPEG that repeats a scan: each costs a pass over all pixels."""
    file = io.BytesIO()
    Image.new("L", (side, side), 128).save(file, "JPEG", progressive=True)
    data = file.getvalue()
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * scans + b"\xff\xd9"


def png_with_late_profile() -> bytes:
    """Return a PNG of 1 × 1 with a broken colour profile after its pixels."""
    head = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"\0\0")), (b"iCCP", b"a\0"), (b"IEND", b"")]
    return _join_png([(name, body, None) for name, body in chunks])


def _make_bases() -> list[tuple[str, str, bytes]]:
    noise = random.Random(0)
    rgb = Image.frombytes("RGB", (37, 29), noise.randbytes(37 * 29 * 3))
    bases: list[tuple[str, str, bytes]] = []

    def add(name: str, image: Image.Image, form: str, **options: object) -> None:
        file = io.BytesIO()
        image.save(file, form, **options)
        bases.append((name, f"image/{form.lower()}", file.getvalue()))

    for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16"):
        image = rgb.convert("L").convert("I;16") if mode == "I;16" else rgb.convert(mode)
        add(f"png {mode}", image, "PNG")
    add("png P tRNS", rgb.convert("P"), "PNG", transparency=3)
    add("png animated", rgb, "PNG", save_all=True, append_images=[rgb.rotate(90)])
    bases.append(("png interlaced", "image/png", _make_interlaced(noise)))
    for mode in ("L", "RGB", "CMYK"):
        add(f"jpeg {mode}", rgb.convert(mode), "JPEG")
        add(f"jpeg {mode} progressive", rgb.convert(mode), "JPEG", progressive=True)
    add("webp", rgb, "WEBP")
    add("webp lossless", rgb.convert("RGBA"), "WEBP", lossless=True)
    add("webp alpha", rgb.convert("RGBA").rotate(30), "WEBP", exif=b"Exif\0\0II*\0\x08\0\0\0", xmp=b"<x/>")
    add("webp animated", rgb, "WEBP", save_all=True, append_images=[rgb.rotate(90)], icc_profile=b"icc")
    return bases


def _make_interlaced(noise: random.Random) -> bytes:
    """Return a PNG in seven passes, which Pillow reads and does not write."""
    side, rows = 19, b""
    for left, top, right, down in (
        (0, 0, 8, 8),
        (4, 0, 8, 8),
        (0, 4, 4, 8),
        (2, 0, 4, 4),
        (0, 2, 2, 4),
        (1, 0, 2, 2),
        (0, 1, 1, 2),
    ):
        for _ in range(top, side, down):
            rows += b"\0" + noise.randbytes(3 * len(range(left, side, right)))
    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 1)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return _join_png([(name, body, None) for name, body in chunks])


#: Name, body, and checksum where it is not the right one.
_Chunk = tuple[bytes, bytes, int | None]


def _split_png(data: bytes) -> list[_Chunk]:
    offset, chunks = 8, []
    while offset + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, offset)
        chunks.append((data[offset + 4 : offset + 8], data[offset + 8 : offset + 8 + length], None))
        offset += length + 12
    return chunks


def _join_png(chunks: list[_Chunk]) -> bytes:
    return _SIGNATURE + b"".join(
        struct.pack(">I", len(body))
        + name
        + body
        + struct.pack(">I", zlib.crc32(name + body) if c is None else c)
        for name, body, c in chunks
    )


def _fuzz_png(data: bytes, choose: random.Random) -> tuple[bytes, list[str]]:
    chunks, changes = _split_png(data), []
    for _ in range(choose.choice([1, 1, 2, 3])):
        change = choose.choice(_PNG_CHANGES)
        changes.append(change.__name__.removeprefix("_") + change(chunks, choose))
    if chunks[-1][0] != b"IEND" or chunks[-1][1]:
        chunks.append((b"IEND", b"", None))
    return _join_png(chunks), changes


def _insert_chunk(chunks: list[_Chunk], choose: random.Random) -> str:
    name = choose.choice(_PNG_NAMES)
    index = choose.randrange(1, len(chunks))
    chunks.insert(index, (name, _make_body(name, choose), None))
    is_late = any(before[0] == b"IDAT" for before in chunks[:index])
    return f" {name.decode()} {'late' if is_late else 'early'}"


def _insert_late(chunks: list[_Chunk], choose: random.Random) -> str:
    """Insert a chunk after the pixels, where opening the picture does not read it."""
    name = choose.choice([b"iCCP", b"iCCP", b"tRNS", b"zTXt", b"iTXt", b"eXIf", choose.choice(_PNG_NAMES)])
    body = choose.choice([_make_body(name, choose), choose.randbytes(choose.randrange(9)) + b"\0"])
    chunks.insert(len(chunks) - 1, (name, body, None))
    return f" {name.decode()} of {len(body)} bytes"


def _make_body(name: bytes, choose: random.Random) -> bytes:
    packed = zlib.compress(choose.randbytes(choose.choice([0, 4, 200])))
    whole = {
        b"iCCP": [b"a\0", b"a\0\0", b"a\0\1x", b"a\0\0" + packed, b"", b"a" * 90],
        b"zTXt": [b"a\0", b"a\0\0", b"a\0\2x", b"a\0\0" + packed, b"a", b"a\0\0" + packed[:-3]],
        b"iTXt": [b"a\0", b"a\0\1\0", b"a\0\1\0\0\0" + packed, b"a\0\0\0e\0\xff\0\xff", b"a\0\1\5\0\0x", b""],
        b"tEXt": [b"a", b"a\0", b"\xff\0\xff", b"\0\0", b"a\0" + b"b" * 5000],
        b"eXIf": [b"", b"II", b"II*\0\x08\0\0\0\xff\xff", b"MM\0*\0\0\0\x08\0\x01", b"Exif\0\0"],
        b"acTL": [b"", b"\0" * 4, b"\0\0\0\2\0\0\0\0", b"\0\0\0\0\0\0\0\0", b"\xff" * 8],
        b"fcTL": [b"", b"\0" * 26, b"\0\0\0\0\0\0\0\5\0\0\0\5" + b"\xff" * 8 + b"\0" * 6, b"\0\0\0\1" * 3],
        b"fdAT": [b"", b"\0", b"\0\0\0\1" + packed, b"\0\0\0\0"],
        b"tRNS": [b"", b"\0", b"\0\1\0\1\0\1", bytes(range(200)), b"\0\5"],
        b"PLTE": [b"", b"\0", b"\1\2\3" * 256, b"\1\2\3" * 300, b"\1\2\3\4"],
        b"gAMA": [b"", b"\0\0\0\0", b"\0"],
        b"cHRM": [b"", b"\0" * 32, b"\0" * 7],
        b"sRGB": [b"", b"\0", b"\xff"],
        b"pHYs": [b"", b"\0" * 8, b"\0\0\0\1\0\0\0\0\1", b"\0" * 9],
        b"IHDR": [
            b"",
            b"\0" * 13,
            struct.pack(">IIBBBBB", 5, 5, 16, 6, 0, 0, 0),
            struct.pack(">IIBBBBB", 900, 2, 8, 2, 0, 0, 1),
            struct.pack(">IIBBBBB", 2, 900, 3, 9, 7, 7, 7),
            struct.pack(">II", 4, 4),
        ],
        b"IDAT": [b"", packed, b"x\x9c", b"\0" * 40],
    }.get(name, [b""])
    return choose.choice([*whole, choose.randbytes(choose.choice([0, 1, 3, 7, 40]))])


def _shuffle_chunks(chunks: list[_Chunk], choose: random.Random) -> str:
    middle = chunks[1:-1]
    choose.shuffle(middle)
    chunks[1:-1] = middle
    return ""


def _repeat_chunk(chunks: list[_Chunk], choose: random.Random) -> str:
    chunk = choose.choice(chunks[:-1])
    chunks.insert(choose.randrange(1, len(chunks)), chunk)
    return f" {_name_of(chunk)}"


def _drop_chunk(chunks: list[_Chunk], choose: random.Random) -> str:
    return f" {_name_of(chunks.pop(choose.randrange(1, len(chunks))))}" if len(chunks) > 2 else ""


def _cut_chunk(chunks: list[_Chunk], choose: random.Random) -> str:
    index = choose.randrange(len(chunks))
    name, body, _ = chunks[index]
    chunks[index] = (name, body[: choose.randrange(len(body) + 1)], None)
    return f" {_name_of(chunks[index])}"


def _flip_bits(chunks: list[_Chunk], choose: random.Random) -> str:
    index = choose.randrange(len(chunks))
    name, body, _ = chunks[index]
    changed = bytearray(body or b"\0")
    for _ in range(choose.choice([1, 2, 8])):
        changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
    is_repaired = choose.random() < 0.7
    chunks[index] = (name, bytes(changed), None if is_repaired else zlib.crc32(name + body))
    return f" {_name_of(chunks[index])}{'' if is_repaired else ' with a wrong checksum'}"


def _rename_chunk(chunks: list[_Chunk], choose: random.Random) -> str:
    index = choose.randrange(1, len(chunks))
    name = choose.choice([*_PNG_NAMES, b"abCd", b"ABCD", b"\0\0\0\0", b"9999"])
    chunks[index] = (name, chunks[index][1], None)
    return f" {_name_of(chunks[index])}"


def _wrong_checksum(chunks: list[_Chunk], choose: random.Random) -> str:
    index = choose.randrange(len(chunks))
    chunks[index] = (*chunks[index][:2], choose.randrange(2**32))
    return f" {_name_of(chunks[index])}"


def _change_head(chunks: list[_Chunk], choose: random.Random) -> str:
    width, height, depth, color, packing, filtering, interlace = struct.unpack(">IIBBBBB", chunks[0][1])
    what = choose.choice(["size", "depth", "color", "interlace", "methods"])
    if what == "size":
        width, height = (choose.choice([1, 2, 36, 38, 500, 3000]) for _ in range(2))
    elif what == "depth":
        depth = choose.choice([1, 2, 4, 8, 16])
    elif what == "color":
        color = choose.choice([0, 2, 3, 4, 6])
    elif what == "interlace":
        interlace = 1 - interlace if interlace in (0, 1) else 1
    else:
        packing, filtering = choose.choice([(1, 0), (0, 1), (9, 9)])
    head = (width, height, depth, color, packing, filtering, interlace)
    chunks[0] = (b"IHDR", struct.pack(">IIBBBBB", *head), None)
    return f" {what}"


def _change_rows(chunks: list[_Chunk], choose: random.Random) -> str:
    positions = [index for index, chunk in enumerate(chunks) if chunk[0] == b"IDAT"]
    if not positions:
        return ""
    rows = bytearray(zlib.decompress(chunks[positions[0]][1]))
    what = choose.choice(["fewer", "more", "filters", "level"])
    if what == "fewer":
        del rows[choose.randrange(len(rows)) :]
    elif what == "more":
        rows += choose.randbytes(500)
    elif what == "filters":
        rows[0] = choose.randrange(5, 256)
    chunks[positions[0]] = (b"IDAT", zlib.compress(rows, choose.randrange(10)), None)
    return f" {what}"


def _split_pixels(chunks: list[_Chunk], choose: random.Random) -> str:
    for index, (name, body, _) in enumerate(chunks):
        if name == b"IDAT" and len(body) > 2:
            cut = choose.randrange(1, len(body))
            chunks[index : index + 1] = [(name, body[:cut], None), (name, body[cut:], None)]
            between = choose.choice(_PNG_NAMES)
            if choose.random() < 0.6:
                chunks.insert(index + 1, (between, _make_body(between, choose), None))
                return f" around {between.decode()}"
            return ""
    return ""


def _name_of(chunk: _Chunk) -> str:
    return chunk[0].decode("latin-1")


_PNG_CHANGES: tuple[Callable[[list[_Chunk], random.Random], str], ...] = (
    _insert_chunk,
    _insert_chunk,
    _insert_late,
    _insert_late,
    _insert_late,
    _shuffle_chunks,
    _repeat_chunk,
    _drop_chunk,
    _cut_chunk,
    _flip_bits,
    _flip_bits,
    _rename_chunk,
    _wrong_checksum,
    _change_head,
    _change_rows,
    _split_pixels,
    _split_pixels,
)


def _fuzz_jpeg(data: bytes, choose: random.Random) -> tuple[bytes, list[str]]:
    head, scan = _split_jpeg(data)
    changes = []
    for _ in range(choose.choice([1, 1, 2, 3])):
        how = choose.choice(
            ["insert", "insert", "flip", "cut", "drop", "repeat", "shuffle", "size", "scan", "kind"]
        )
        index = choose.randrange(len(head))
        marker, body = head[index]
        if how == "insert":
            marker = choose.choice([0xE0, 0xE1, 0xE1, 0xE2, 0xE2, 0xED, 0xEE, 0xFE, 0xDD, 0xC4, 0xDB, 0xDC])
            body = choose.choice(_JPEG_BODIES) + choose.randbytes(choose.choice([0, 1, 2, 12, 60]))
            head.insert(index, (marker, body))
        elif how == "flip" and body:
            changed = bytearray(body)
            changed[choose.randrange(len(changed))] ^= 1 << choose.randrange(8)
            head[index] = (marker, bytes(changed))
        elif how == "cut":
            head[index] = (marker, body[: choose.randrange(len(body) + 1)])
        elif how == "drop" and len(head) > 2:
            del head[index]
        elif how == "repeat":
            head.insert(choose.randrange(len(head) + 1), (marker, body))
        elif how == "shuffle":
            choose.shuffle(head)
        elif how == "size":
            head = [_resize_jpeg(segment, choose) for segment in head]
        elif how == "kind":
            marker = choose.choice([0xC0, 0xC1, 0xC2, 0xC3, 0xC5, 0xC9, 0xCA, 0xCC, 0xDA, 0xE1, 0xE2, 0xED])
            head[index] = (marker, body)
        elif how == "scan":
            changed = bytearray(scan)
            for _ in range(choose.choice([1, 4, 30])):
                changed[choose.randrange(len(changed))] = choose.randrange(256)
            scan = bytes(changed[: choose.choice([len(changed), choose.randrange(len(changed))])])
        changes.append(f"{how} {marker:x}" if how not in ("scan", "shuffle", "size") else how)
    segments = b"".join(bytes([0xFF, kind]) + struct.pack(">H", len(body) + 2) + body for kind, body in head)
    return b"\xff\xd8" + segments + scan + b"\xff\xd9", changes


def _split_jpeg(data: bytes) -> tuple[list[tuple[int, bytes]], bytes]:
    """Return the segments before the first scan, and all from that scan on but the end marker."""
    offset, head = 2, []
    while data[offset + 1] != 0xDA:
        (length,) = struct.unpack_from(">H", data, offset + 2)
        head.append((data[offset + 1], data[offset + 4 : offset + 2 + length]))
        offset += 2 + length
    return head, data[offset:-2]


def _resize_jpeg(segment: tuple[int, bytes], choose: random.Random) -> tuple[int, bytes]:
    marker, body = segment
    if not 0xC0 <= marker <= 0xC2 or len(body) < 6:
        return segment
    height, width = (choose.choice([0, 1, 8, 30, 300, 3000]) for _ in range(2))
    return marker, body[:1] + struct.pack(">HH", height, width) + body[5:]


def _fuzz_webp(data: bytes, choose: random.Random) -> tuple[bytes, list[str]]:
    chunks, offset, changes = [], 12, []
    while offset + 8 <= len(data):
        name, length = data[offset : offset + 4], int.from_bytes(data[offset + 4 : offset + 8], "little")
        chunks.append((name, data[offset + 8 : offset + 8 + length]))
        offset += 8 + length + length % 2
    for _ in range(choose.choice([1, 1, 2, 3])):
        how = choose.choice(["insert", "flip", "flip", "cut", "drop", "repeat", "shuffle", "bytes"])
        offset = choose.randrange(len(chunks))
        name, body = chunks[offset]
        if how == "insert":
            name = choose.choice(
                [b"VP8X", b"ANIM", b"ANMF", b"ALPH", b"EXIF", b"ICCP", b"XMP ", b"VP8 ", b"VP8L"]
            )
            chunks.insert(offset, (name, choose.choice([b"", b"\0" * 10, choose.randbytes(30), body])))
        elif how in ("flip", "bytes") and body:
            changed = bytearray(body)
            for _ in range(choose.choice([1, 3]) if how == "flip" else 20):
                # Most of the length is entropy-coded pixels; its head decides more.
                at = choose.randrange(min(len(changed), choose.choice([12, len(changed)])))
                changed[at] ^= 1 << choose.randrange(8)
            chunks[offset] = (name, bytes(changed))
        elif how == "cut":
            chunks[offset] = (name, body[: choose.randrange(len(body) + 1)])
        elif how == "drop" and len(chunks) > 1:
            del chunks[offset]
        elif how == "repeat":
            chunks.insert(choose.randrange(len(chunks) + 1), (name, body))
        elif how == "shuffle":
            choose.shuffle(chunks)
        changes.append(f"{how} {name.decode('latin-1')}" if how != "shuffle" else how)
    packed = b"".join(
        name + len(body).to_bytes(4, "little") + body + b"\0" * (len(body) % 2) for name, body in chunks
    )
    return b"RIFF" + (len(packed) + 4).to_bytes(4, "little") + b"WEBP" + packed, changes
