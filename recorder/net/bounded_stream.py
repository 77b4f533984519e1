"""Network stream that reads at most so many bytes of an answer, few at a time. Contract §6."""

import asyncio
import ssl
from typing import Any, Final

import httpcore

#: Bytes of an answer with its head, its framing and the interim answers (1xx) before it.
ANSWER_BYTES: Final = 32 * 1024
#: An interim answer takes 25 bytes, and its parsing 60 µs: others take turns after 20 of them.
_READ_BYTES: Final = 512


class AnswerTooLong(httpcore.ReadError):
    """The server has sent more bytes than are read of an answer."""


class BoundedStream(httpcore.AsyncNetworkStream):
    """Stream that ends with an error once the server has sent too much.

    A server may send interim answers, or chunks of one byte, without end and as fast as they are parsed: in
    the seconds that an answer may take they would cost the event loop as many seconds.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream, left: int = ANSWER_BYTES) -> None:
        """Wrap a stream.

        Args:
            stream: the stream.
            left: bytes that may be read.
        """
        self._stream = stream
        self._left = left

    async def read(
        self,
        max_bytes: int,
        timeout: float | None = None,  # noqa: ASYNC109  (the interface is httpcore's)
    ) -> bytes:
        """Return the next bytes, after others had a turn.

        Raises:
            AnswerTooLong: if no bytes are left.
        """
        if self._left <= 0:
            raise AnswerTooLong
        await asyncio.sleep(0)
        data = await self._stream.read(min(max_bytes, _READ_BYTES, self._left), timeout)
        self._left -= len(data)
        return data

    async def write(
        self,
        buffer: bytes,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> None:
        """Send bytes."""
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close the stream."""
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109
    ) -> httpcore.AsyncNetworkStream:
        """Return the stream inside TLS, bounded too."""
        return BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._left)

    def get_extra_info(self, info: str) -> Any:
        """Return what the stream knows of its connection."""
        return self._stream.get_extra_info(info)
