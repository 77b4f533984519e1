"""Event items as OpenTelemetry spans, in the protobuf form that OTLP over HTTP takes.

Written out by hand, from opentelemetry-proto's trace.proto: eight fields do not need its packages.
"""

import struct
from collections.abc import Sequence
from typing import Any

import orjson

# Stands in a body for the id of its trace, until it is sent.
_TRACE = b"\xa5trace-of-events"
_EPOCH_NS = 1_767_225_600 * 10**9
_VARINT, _FIXED64, _BYTES = 0, 1, 2


class TraceRequests(Sequence[bytes]):
    """Whole HTTP requests, as many as are asked for: the bodies in turn, each as a trace of its own."""

    def __init__(self, bodies: Sequence[bytes], *, address: str, experiment: str, count: int) -> None:
        self._count = count
        self._requests = [_http_request(body, address, experiment) for body in bodies]

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, turn: Any) -> bytes:
        if turn >= self._count:
            raise IndexError(turn)
        return self._requests[turn % len(self._requests)].replace(_TRACE, trace_id(turn))


def trace_id(turn: int) -> bytes:
    """Return the sixteen bytes that name the trace of a request."""
    return (turn + 1).to_bytes(16)


def encode_spans(items: Sequence[dict[str, Any]]) -> bytes:
    """Return a trace with one span per event: the type is its name, every other member an attribute."""
    spans = b"".join(_field(2, _span(number, item)) for number, item in enumerate(items))
    return _field(1, _field(2, spans))


def _span(number: int, item: dict[str, Any]) -> bytes:
    at = _EPOCH_NS + item["t_ms"] * 1_000_000
    members = {name: value for name, value in item.items() if name not in ("t_ms", "type")}
    return b"".join(
        (
            _field(1, _TRACE),
            _field(2, _span_id(number)),
            _field(4, _span_id(0)) if number else b"",
            _field(5, item["type"].encode()),
            _key(6, _VARINT) + _varint(1),
            _key(7, _FIXED64) + struct.pack("<Q", at),
            _key(8, _FIXED64) + struct.pack("<Q", at + 1_000_000),
            *(_field(9, _attribute(name, value)) for name, value in members.items()),
        )
    )


def _span_id(number: int) -> bytes:
    return (number + 1).to_bytes(8)


def _attribute(name: str, value: Any) -> bytes:
    text = value.encode() if isinstance(value, str) else orjson.dumps(value)
    return _field(1, name.encode()) + _field(2, _field(1, text))


def _field(number: int, content: bytes) -> bytes:
    return _key(number, _BYTES) + _varint(len(content)) + content


def _key(number: int, wire_type: int) -> bytes:
    return _varint(number << 3 | wire_type)


def _varint(value: int) -> bytes:
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def _http_request(body: bytes, address: str, experiment: str) -> bytes:
    head = (
        f"POST /v1/traces HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/x-protobuf\r\n"
        f"x-mlflow-experiment-id: {experiment}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body
