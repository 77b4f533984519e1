"""Formats of a whole session's events: NDJSON lines or an Arrow IPC stream. Contract §2 (added reads)."""

from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recorder.recording.session_events import SCHEMA

JSON = "application/json"
NDJSON = "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


class EventFormat(Protocol):
    """Encoding of events that arrive in portions."""

    media_type: ClassVar[str]

    def begin(self) -> bytes:
        """Return what precedes the first portion."""

    def encode(self, portion: pa.RecordBatch) -> bytes:
        """Return the bytes of a portion."""

    def end(self) -> bytes:
        """Return what follows the last portion."""


class Ndjson:
    """One event a line: the members that were sent, and its id."""

    media_type: ClassVar[str] = NDJSON

    def begin(self) -> bytes:
        """Return nothing."""
        return b""

    def encode(self, portion: pa.RecordBatch) -> bytes:
        """Return the lines, written column by column: without the interpreter's lock, so that others run on.

        Ids and types need no escapes: their patterns admit letters, digits, `_` and `.` alone.
        """
        payload = portion["payload"]
        # The payload is a JSON object; its members follow those that are columns.
        tail = pc.if_else(
            pc.equal(payload, "{}"),
            "}\n",
            pc.binary_join_element_wise(pc.binary_replace_slice(payload, 0, 1, ","), "\n", ""),
        )
        frame = pc.fill_null(pc.binary_join_element_wise('","frame_id":"', portion["frame_id"], ""), "")
        t_ms = portion["t_ms"].cast(pa.string())
        lines = pc.binary_join_element_wise(
            '{"id":"', portion["id"], '","t_ms":', t_ms, ',"type":"', portion["type"], frame, '"', tail, ""
        )
        return _text_of(lines)

    def end(self) -> bytes:
        """Return nothing."""
        return b""


class Arrow:
    """Record batches: id, t_ms, type, frame_id and payload, a JSON object of the other members."""

    media_type: ClassVar[str] = ARROW
    #: Marks the end of an Arrow IPC stream.
    _END: ClassVar[bytes] = b"\xff\xff\xff\xff\x00\x00\x00\x00"

    def begin(self) -> bytes:
        """Return the schema."""
        return bytes(SCHEMA.serialize())

    def encode(self, portion: pa.RecordBatch) -> bytes:
        """Return one record batch."""
        return bytes(portion.serialize())

    def end(self) -> bytes:
        """Return the mark of the end."""
        return self._END


def _text_of(texts: pa.StringArray) -> bytes:
    """Return all texts of an array, one directly after the other, as its data buffer holds them."""
    _, offsets, data = texts.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    return bytes(data[first:last])
