"""Download of all events of a session as NDJSON or as an Arrow IPC stream. Contract §2 (added reads)."""

import asyncio
import logging
from typing import ClassVar, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.gate.slow_clients import ABORT
from api.streams.stream_responses import make_connection_body_part, wait_until_disconnected
from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import RecorderError
from recorder.recording.session_events import SCHEMA, SessionEventPortions
from recorder.recording.stored_events import EventFilter, EventSortKey
from recorder.recording.whole_reads import WholeReads, let_threads_run
from recorder.runtime import Runtime

log = logging.getLogger(__name__)

JSON = "application/json"
NDJSON = "application/x-ndjson"
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


class EventDownload(Response):
    """Answer with all events of a session; memory holds the portion that the client reads and the next one.

    A read that fails after the start, because the session was deleted or a store does not answer, resets the
    connection, so that the client cannot mistake a part for the whole.
    """

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
        super().__init__(media_type=format.media_type)
        del self.headers["content-length"]
        self._reads = reads
        self._caller = caller
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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the body; an error before its first portion is raised and answered as a problem."""
        with self._reads.hold(self._caller):
            try:
                first = await self._read()
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._write_or_reset(first, scope, receive, send)
            finally:
                # A thread may still read a portion after the answer has ended.
                self._reads.submit(self._portions.close)

    async def _write_or_reset(self, first: bytes | None, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write(first, send))
        leaving = asyncio.create_task(wait_until_disconnected(receive))
        try:
            await asyncio.wait((writing, leaving), return_when=asyncio.FIRST_COMPLETED)
            error = None if leaving.done() else writing.exception()
            if error is not None:
                await _reset_download_connection(error, leaving, scope)
        finally:
            writing.cancel()
            leaving.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)

    async def _write(self, first: bytes | None, send: Send) -> None:
        await send(make_connection_body_part(self._format.begin()))
        body = first
        while body is not None:
            # A client that does not read must not block other downloads.
            async with asyncio.timeout(limits.WHOLE_READ_PATIENCE_S):
                await send(make_connection_body_part(body))
            body = await self._read()
        await send(make_connection_body_part(self._format.end(), is_last=True))

    async def _read(self) -> bytes | None:
        return await self._reads.run(self._caller.workspace_id, self._read_portion)

    def _read_portion(self) -> bytes | None:
        portion = self._portions.read()
        if portion is None:
            return None
        return self._format.encode(portion) if portion.num_rows else b""


async def _reset_download_connection(
    error: BaseException, leaving: "asyncio.Task[None]", scope: Scope
) -> None:
    """Reset the connection in the middle of the body, and log the error.

    Raises:
        BaseException: the error, if it is unexpected or the server cannot reset connections.
    """
    abort = scope["state"].get(ABORT)
    if abort is None:  # other servers close the connection of an answer without an end
        raise error
    abort()
    await leaving
    if not isinstance(error, RecorderError | OSError):
        raise error
    log.warning("a download of events was cut off: %s", type(error).__name__)
