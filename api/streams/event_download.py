"""Download of all events of a session as NDJSON or as an Arrow IPC stream. Contract §2 (added reads)."""

from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from api.streams.portioned_download import NDJSON, PortionedDownload
from recorder.access.keys import Caller
from recorder.recording.session_events import SCHEMA, SessionEventPortions
from recorder.recording.stored_events import EventFilter, EventSortKey
from recorder.recording.whole_reads import WholeReads, let_threads_run
from recorder.runtime import Runtime

ARROW = "application/vnd.apache.arrow.stream"


class DownloadFormat(Protocol):
    """Encoding of events that arrive in portions."""

    media_type: ClassVar[str]

    def begin(self) -> bytes:
        """Return what precedes the first portion."""

    def encode(self, portion: pa.RecordBatch) -> bytes:
        """Return the bytes of a portion."""

    def end(self) -> bytes:
        """Return what follows the last portion."""


class NdjsonDownload:
    """NDJSON: a line for each event, with the members that were sent and its id."""

    media_type: ClassVar[str] = NDJSON

    def begin(self) -> bytes:
        """Return nothing."""
        return b""

    def encode(self, portion: pa.RecordBatch) -> bytes:
        """Return the lines, joined column by column outside of the interpreter's lock.

        Ids and types need no escapes: their patterns admit only letters, digits, `_` and `.`.
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
        return _join_downloaded_texts(lines)

    def end(self) -> bytes:
        """Return nothing."""
        return b""


class ArrowDownload:
    """Arrow IPC stream of id, t_ms, type, frame_id and payload, a JSON object of the other members."""

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


def _join_downloaded_texts(texts: pa.StringArray) -> bytes:
    """Return the texts of an array without separators, as its data buffer holds them."""
    _, offsets, data = texts.buffers()
    first, last = np.frombuffer(offsets, np.int32)[[texts.offset, texts.offset + len(texts)]]
    return bytes(data[first:last])


class EventDownload(PortionedDownload):
    """Answer with all events of a session."""

    def __init__(
        self,
        runtime: Runtime,
        reads: WholeReads,
        caller: Caller,
        session_id: str,
        *,
        after: EventSortKey | None,
        wanted: EventFilter,
        format: DownloadFormat,
    ) -> None:
        super().__init__(reads, caller, format.media_type)
        self._format = format
        self._portions = SessionEventPortions(
            runtime.database,
            runtime.lake,
            caller.tenant,
            session_id,
            after=after,
            wanted=wanted,
            pause=let_threads_run,
        )

    def begin(self) -> bytes:
        """Return the bytes before the first event: the schema of an Arrow stream, nothing for NDJSON."""
        return self._format.begin()

    def read_portion(self) -> bytes | None:
        """Return the encoded events of the next portion; None after the last one."""
        portion = self._portions.read()
        if portion is None:
            return None
        return self._format.encode(portion) if portion.num_rows else b""

    def end(self) -> bytes:
        """Return what the format ends with."""
        return self._format.end()

    def close(self) -> None:
        """Close what the portions are read from."""
        self._portions.close()
