"""Attacks on the service: bodies that take long to read or to refuse, and how they are sent."""

import base64
import json
import random
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_JSON = "application/json"


@dataclass(frozen=True)
class Attack:
    """A way to keep the service busy.

    Attributes:
        name: shown in the table.
        bodies: makes the bodies, with the last part of the address and the content type of each.
        connections: how many send at once.
        pause_s: seconds between two requests of a connection.
        drip: send every body in chunks of so many bytes, 100 a second, without announcing its length.
    """

    name: str
    bodies: Callable[[], Sequence[tuple[str, str, bytes]]]
    connections: int
    pause_s: float = 0.0
    drip: int = 0


def _refused_bodies() -> list[tuple[str, str, bytes]]:
    """Make bodies of 5 MB that are refused late: each is a text that takes long to read."""
    size = 5_000_000
    text = "x" * 60
    texts = [
        '{"events":[' + ",".join(['{"type":"ui.click","t_ms":1,"data":{"a":[{}]}}'] * (size // 47)) + "]}",
        '{"events":[{"type":"ui.click","t_ms":1,"data":{"a":[' + ",".join(["[]"] * (size // 3)) + "]}}]}",
        '{"events":[{"type":"ui.click","t_ms":1,"data":{'
        + ",".join(f'"{n}":{n}' for n in range(size // 14))
        + "}}]}",
        '{"events":[{"type":"ui.click","t_ms":1,"data":["\\u0041\\ud83d\\ude00'
        + "\\u0000" * (size // 6)
        + '"]}]}',
        '{"events":[' + ",".join(f'{{"type":7,"t_ms":1,"title":"{text}"}}' for _ in range(size // 92)) + "",
    ]
    return [("events", _JSON, text.encode()) for text in texts]


def _frame_uploads() -> list[tuple[str, str, bytes]]:
    """Make an upload of 60 MB: pictures that are good, as JSON and as multipart."""
    return [_frames_json(45_000_000), make_multipart_upload(60_000_000)]


def _frames_json(size: int) -> tuple[str, str, bytes]:
    pictures = _pictures(size, count=6)
    frames = [
        {"t_ms": n, "content_type": "image/png", "data": base64.b64encode(data).decode()}
        for n, data in enumerate(pictures)
    ]
    return "frames", _JSON, json.dumps({"frames": frames}).encode()


def make_multipart_upload(size: int, *, count: int = 8) -> tuple[str, str, bytes]:
    """Make an upload of so many bytes in so many pictures: address, content type and body."""
    pictures = _pictures(size, count=count)
    items = [{"t_ms": n, "content_type": "image/png", "part": f"p{n}"} for n in range(len(pictures))]
    parts = [("frames", json.dumps(items).encode()), *((f"p{n}", data) for n, data in enumerate(pictures))]
    return "frames", "multipart/form-data; boundary=limit", _multipart(parts)


def _multipart(parts: Sequence[tuple[str, bytes]]) -> bytes:
    parts = [
        b'--limit\r\nContent-Disposition: form-data; name="%b"; filename="%b"\r\n\r\n%b\r\n'
        % (name.encode(), name.encode(), data)
        for name, data in parts
    ]
    return b"".join(parts) + b"--limit--\r\n"


def _pictures(size: int, *, count: int) -> list[bytes]:
    """Make PNG files of random bytes: a valid header, a chunk that no reader uses, and the end."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    draws = random.Random(7)
    head = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(8 * 25)))
    return [
        head + pixels + chunk(b"teXt", draws.randbytes(size // count)) + chunk(b"IEND", b"")
        for _ in range(count)
    ]


def _maximal_batches() -> list[tuple[str, str, bytes]]:
    """Make a batch of 100 events of 64 KB each."""
    item = {"type": "ui.click", "t_ms": 1, "data": {f"k{n}": "x" * 50 for n in range(1_000)}}
    return [("events", _JSON, json.dumps({"events": [item] * 100}).encode())]


def _deep_bodies() -> list[tuple[str, str, bytes]]:
    """Make bodies that are nested as deeply as possible, and nearly."""
    deep = "[" * 3_000_000 + "]" * 3_000_000
    nearly = ",".join(["[" * 60 + "]" * 60] * 50_000)
    within = ",".join(["[" * 50 + "]" * 50] * 9_000)
    return [
        ("events", _JSON, f'{{"events":[{{"type":"a","t_ms":1,"data":{{"a":{deep}}}}}]}}'.encode()),
        ("events", _JSON, f'{{"events":[{{"type":"a","t_ms":1,"data":{{"a":[{nearly}]}}}}]}}'.encode()),
        ("/v1/sessions", _JSON, f'{{"workflow":"w","metadata":{{"a":[{within}]}}}}'.encode()),
        ("/v1/sessions:batch_stop", _JSON, b'{"session_ids":[' + b",".join([b"[]"] * 330_000) + b"]}"),
    ]


def _many_parts() -> list[tuple[str, str, bytes]]:
    """Make multipart bodies of very many small parts, and of one part full of near-boundaries."""
    parts = _multipart([(f"p{n}", b"x") for n in range(200_000)])
    ends = _multipart([("frames", b"[]"), ("p", b"\r\n--limi" * 2_000_000)])
    kind = "multipart/form-data; boundary=limit"
    return [("frames", kind, parts), ("frames", kind, ends)]


def _drips() -> list[tuple[str, str, bytes]]:
    """Make a body that comes in small chunks."""
    return [("events", _JSON, _maximal_batches()[0][2][:200_000])]


def _costly_small_bodies() -> list[tuple[str, str, bytes]]:
    """Make bodies of 240 KB that take long to read for their size, most of them valid."""
    size = 58_000
    values = [
        "[" + ",".join(["[" * 55 + "]" * 55] * (size // 111)) + "]",
        "[" + ",".join(["{}"] * (size // 3)) + "]",
        "[" + ",".join([f"0.{'7' * 130}"] * (size // 133)) + "]",
    ]
    batches = [
        '{"events":[' + ",".join([f'{{"type":"a","t_ms":1,"data":{{"a":{value}}}}}'] * 4) + "]}"
        for value in values
    ]
    members = ",".join(f'"member_{n}":1' for n in range(15_000))
    return [
        *(("events", _JSON, text.encode()) for text in batches),
        ("/v1/sessions", _JSON, f'{{"workflow":"w",{members}}}'.encode()),
    ]


def _small_refused_batches() -> list[tuple[str, str, bytes]]:
    """Make batches of 4 KB of which every event is wrong."""
    events = ('{"type":"a","t_ms":1,"input":{"z":1}}', '{"type":"a","t_ms":1,"z":1}', '{"t_ms":1}')
    return [("events", _JSON, f'{{"events":[{",".join([event] * 100)}]}}'.encode()) for event in events]


def _full_batches() -> list[tuple[str, str, bytes]]:
    """Make a plain batch of 100 events of 2.3 KB."""
    items = [{"type": "ui.click", "t_ms": n, "data": {"text": "x" * 2_300}} for n in range(100)]
    return [("events", _JSON, json.dumps({"events": items}).encode())]


ATTACKS = (
    Attack("two refused bodies of 5 MB a second", _refused_bodies, connections=2, pause_s=0.8),
    Attack("refused bodies of 5 MB, unlimited", _refused_bodies, connections=16),
    Attack("twelve frame uploads of 60 MB", _frame_uploads, connections=12),
    Attack("maximal batches on 256 connections", _maximal_batches, connections=256),
    Attack("deep nesting", _deep_bodies, connections=16),
    Attack("multipart with many parts", _many_parts, connections=16),
    Attack("costly bodies of 240 KB", _costly_small_bodies, connections=32),
    Attack("refused batches of 4 KB", _small_refused_batches, connections=32),
    Attack("plain batches of 235 KB", _full_batches, connections=32),
    Attack("chunks that drip on 200 connections", _drips, connections=200, drip=128),
)
