"""Downloads that are read and sent in portions, and count as whole-session reads. Contract §1, §2."""

import asyncio
import logging
from abc import ABC, abstractmethod

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from api.gate.slow_clients import ABORT
from api.streams.stream_responses import make_connection_body_part, wait_until_disconnected
from recorder import limits
from recorder.access.keys import Caller
from recorder.errors import RecorderError
from recorder.recording.whole_reads import WholeReads

log = logging.getLogger(__name__)

JSON = "application/json"
NDJSON = "application/x-ndjson"


class PortionedDownload(Response, ABC):
    """Answer in portions; memory holds the portion that the client reads and the next one.

    A read that fails after the start, because the session was deleted or a store does not answer, resets the
    connection, so that the client cannot mistake a part for the whole.
    """

    def __init__(self, reads: WholeReads, caller: Caller, media_type: str) -> None:
        super().__init__(media_type=media_type)
        del self.headers["content-length"]
        self._reads = reads
        self._caller = caller

    def begin(self) -> bytes:
        """Return what precedes the first portion."""
        return b""

    @abstractmethod
    def read_portion(self) -> bytes | None:
        """Return the next portion, which may be empty; None after the last one."""

    def end(self) -> bytes:
        """Return what follows the last portion."""
        return b""

    def close(self) -> None:
        """Close what the portions are read from."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write the body; an error before its first portion is raised and answered as a problem."""
        with self._reads.hold(self._caller):
            try:
                first = await self._read_next_portion()
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._write_or_reset(first, scope, receive, send)
            finally:
                # A thread may still read a portion after the answer has ended.
                self._reads.submit(self.close)

    async def _write_or_reset(self, first: bytes | None, scope: Scope, receive: Receive, send: Send) -> None:
        writing = asyncio.create_task(self._write_portions(first, send))
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

    async def _write_portions(self, first: bytes | None, send: Send) -> None:
        await send(make_connection_body_part(self.begin()))
        body = first
        while body is not None:
            # A client that does not read must not block other downloads.
            async with asyncio.timeout(limits.WHOLE_READ_PATIENCE_S):
                await send(make_connection_body_part(body))
            body = await self._read_next_portion()
        await send(make_connection_body_part(self.end(), is_last=True))

    async def _read_next_portion(self) -> bytes | None:
        return await self._reads.run(self._caller.workspace_id, self.read_portion)


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
    log.warning("a download was cut off: %s", type(error).__name__)
