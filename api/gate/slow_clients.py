"""HTTP protocol for uvicorn with deadlines for slow clients; it counts each open connection.

`uvicorn --http api.gate.slow_clients:SlowClientProtocol`; uvicorn itself waits without end. Deadlines apply
to the parts that the client sends and to the size of its headers, not to answers and streams. An address
that has many connections open is refused further ones before it sends a request. Contract §1.
"""

import asyncio
from typing import ClassVar, Final

from api.bodies.body_limits import IS_LATE
from api.errors import make_problem_response
from api.gate.bucket_decisions import Header, make_limit_headers
from api.gate.head_limits import is_head_too_large, make_framing_error, make_head_error
from api.gate.http_upgrades import UpgradeIgnoringProtocol
from api.gate.lingering_close import LingeringTransport
from api.gate.open_connections import CONNECTIONS, OpenConnections
from api.gate.rate_limiter import RateLimiter, find_client_network
from api.gate.responses import serialize_answer
from api.gate.unread_answers import UnreadAnswer
from recorder import limits
from recorder.errors import (
    MalformedRequest,
    NoFreeConnection,
    RecorderError,
    RequestTimeout,
    TooManyConnections,
)
from recorder.ids import IdCounter

#: Name of the rate limiter in the state that the application's lifespan passes to the server.
RATE_LIMITER: Final = "rate_limiter"
#: Name in a request's state of the function that resets the connection of a client that does not read.
ABORT: Final = "abort_connection"

# Phases of a connection.
_HEAD: Final = "head"  # the client must send a request's head, or the first byte of the connection
_BODY: Final = "body"  # the client must send a request's body
_LATE: Final = "late"  # the route was notified that the body is late, and answers
_IDLE: Final = "idle"  # the client must send nothing; uvicorn's --timeout-keep-alive applies

#: So many bytes of a body allow one byte of framing: 2 MB in chunks of one byte took 3 s of the event loop.
_BYTES_PER_FRAMING = 16
#: Chunks of a body are gathered up to this size: a route that wakes for each costs twice the CPU.
_WAKING_BYTES = 16_384
#: After so many reads of fewer bytes than these, a body is read once in this time.
_FREE_SMALL_READS, _SMALL_READ_BYTES, _SMALL_READS_EVERY_S = 16, 1_024, 0.1
#: So many requests wait for the answers before them; after those the connection is closed.
_PIPELINED_REQUESTS = 64
#: While the service does not read, the deadline is checked again after this long.
_PAUSE_S = 1.0


class SlowClientProtocol(UpgradeIgnoringProtocol):
    """uvicorn's HTTP protocol with deadlines, and a limit on the bytes outside of bodies."""

    head_s: ClassVar[float] = limits.REQUEST_HEAD_SECONDS
    body_s: ClassVar[float] = limits.REQUEST_BODY_SECONDS
    #: A body that takes longer than `body_s` brings so many bytes a second in each such time.
    body_bytes_per_s: ClassVar[int] = limits.REQUEST_BODY_BYTES_PER_SECOND
    #: A client reads something of its answer within this time.
    read_s: ClassVar[float] = limits.ANSWER_READ_SECONDS
    #: From the notice that the body is late until the connection is closed, answered or not.
    grace_s: ClassVar[float] = 5.0

    _ids: ClassVar = IdCounter("req")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the deadline for the first head."""
        open_connections: OpenConnections | None = self.app_state.get(CONNECTIONS)
        lingering = None if open_connections is None else open_connections.lingering
        self._lingering = LingeringTransport(transport, lingering, self._is_client_sending)
        super().connection_made(self._lingering)
        self._phase, self._since = _HEAD, self.loop.time()
        self._is_silent = True
        self.url, self.headers = b"", []
        self._surplus_bytes = self._most_head_bytes = self._small_reads = 0
        #: Bytes of the body since the deadline began.
        self._arrived_bytes = 0
        #: Whether the rest of the connection is ignored, since it is malformed or was refused.
        self._is_refused = False
        self._unread = UnreadAnswer(
            transport, read_s=self.read_s, reset=self._lingering.reset, find_owner=self._find_answer_owner
        )
        self._timer: asyncio.TimerHandle | None = self.loop.call_later(self.head_s, self._check_deadline)
        #: Counts that hold this connection; None for other applications, and once it counts no longer.
        self._counts: OpenConnections | None = None
        self._count_connection()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the deadlines."""
        self._stop_timer()
        self._end_connection_count()
        super().connection_lost(exc)
        self._break_reference_cycles()

    def handle_websocket_upgrade(self) -> None:
        """Pass a valid handshake to the WebSocket protocol, which sends pings."""
        if not self.is_websocket_handshake():
            self._phase = _HEAD
            self._refuse_request(MalformedRequest("Send a WebSocket handshake as a GET (RFC 6455 §4.1)."))
            return
        self._stop_timer()
        self.transport = self._lingering.wrapped
        super().handle_websocket_upgrade()
        self._end_connection_count()  # the WebSocket protocol counts the connection now
        self._break_reference_cycles()

    def _break_reference_cycles(self) -> None:
        """Let the protocol be freed as soon as its connection is lost, or another protocol has it.

        Else garbage collections free it, which stop the process for 0.1 s if there are thousands.
        """
        self._unread.forget_protocol()
        self._lingering.forget_protocol()
        self.cycle = self.scope = self.parser = None  # type: ignore[assignment]
        self.headers = []
        self.pipeline.clear()

    def send_400_response(self, msg: str) -> None:
        """Answer a malformed request with a problem document, after the requests before it."""
        if self._phase is not _BODY:
            self._refuse_request(make_head_error() if self._is_head_too_large() else MalformedRequest())
        else:
            self._refuse_body(MalformedRequest())

    def _refuse_body(self, error: MalformedRequest) -> None:
        """Answer a request whose body is malformed; for its route the client is disconnected."""
        if self.pipeline or self.cycle.response_started:
            self._close_connection()
            return
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._phase, self.cycle = _HEAD, None  # type: ignore[assignment]
        self._refuse_request(error)

    def data_received(self, data: bytes) -> None:
        """Count the bytes outside of bodies; bytes on an idle connection begin a head."""
        if self._is_refused or self.transport.is_closing():
            self._lingering.drop(len(data))
            return
        if self._phase is _IDLE:
            self._phase, self._since = _HEAD, self.loop.time()
        self._is_silent = False
        self._surplus_bytes += len(data)
        self._most_head_bytes = self._surplus_bytes  # a body before the head subtracts from the other count
        super().data_received(data)
        if len(data) < _SMALL_READ_BYTES and self._phase is _BODY:
            self._small_reads += 1
            if self._small_reads > _FREE_SMALL_READS and not self.transport.is_closing():
                self._pause_small_reads()
        self._bound_surplus_bytes()

    def _bound_surplus_bytes(self) -> None:
        """Refuse a request with too large a head, or with too much framing; count a head that is arriving."""
        if self._is_refused:
            return
        if self._is_head_too_large():
            if self._phase is _BODY:
                self._refuse_body(make_framing_error())
            else:
                self._refuse_request(make_head_error())
        elif self._phase is _HEAD and self._counts is not None:
            self._counts.heads.hold(self, find_client_network(self.client[0] if self.client else ""))

    def on_message_begin(self) -> None:
        """Start the deadline of a head, also for a pipelined request."""
        super().on_message_begin()
        if self._phase is not _HEAD:
            self._phase, self._since = _HEAD, self.loop.time()

    def on_headers_complete(self) -> None:
        """Check the size of the head, and start the deadline of the body.

        Raises:
            HeadTooLarge: to the parser, which then reads no more.
            MalformedRequest: to the parser, if many requests wait; the connection is closed after them.
        """
        if self.should_ignore_upgrade():
            return
        if is_head_too_large(self.url, self.headers, most_bytes=self._most_head_bytes):
            raise make_head_error()
        if len(self.pipeline) >= _PIPELINED_REQUESTS:
            raise MalformedRequest
        if not self.url.startswith(b"/"):
            self._take_host_of_target()
        if self._counts is not None:
            self._counts.remove_waiting(self)
        if not self.flow.write_paused:
            self._unread.stop()  # bytes of the next answer would hide that this one was read
        self.scope["state"][ABORT] = self._lingering.reset
        super().on_headers_complete()  # raises if the path is malformed
        self._phase = _BODY
        self._begin_body_time(self.loop.time())
        self._small_reads = 0

    def on_body(self, body: bytes) -> None:
        """Subtract the body and its framing from the counted bytes; wake the route for many bytes at once.

        The end of the body, a deadline and the end of the connection wake it too.
        """
        self._surplus_bytes = max(0, self._surplus_bytes - len(body) - len(body) // _BYTES_PER_FRAMING)
        self._arrived_bytes += len(body)
        cycle = self.cycle
        if cycle is None or self.parser.should_upgrade() or len(cycle.body) + len(body) >= _WAKING_BYTES:
            super().on_body(body)
        elif not cycle.response_complete:
            cycle.body += body

    def on_message_complete(self) -> None:
        """Stop the deadline: the client must send nothing more."""
        super().on_message_complete()
        if not self._is_upgrade_ignored:
            self._phase, self._surplus_bytes = _IDLE, 0
            self._forget_answered_request()

    def on_response_complete(self) -> None:
        """Wait for the next request, if none was sent yet."""
        is_last = not self.pipeline
        super().on_response_complete()
        if is_last and self._counts is not None and not self.transport.is_closing():
            self._counts.add_waiting(self)
        if is_last:
            self._unread.watch()
            self._forget_answered_request()

    def pause_writing(self) -> None:
        """Stop the application's writing, and wait for the client to read."""
        super().pause_writing()
        self._unread.watch()

    def resume_writing(self) -> None:
        """Resume the application's writing: the client has read, however slowly."""
        super().resume_writing()
        self._unread.stop()

    def make_room(self) -> bool:
        """Close the connection for another one, unless its client has not read the last answer yet."""
        if self.transport.get_write_buffer_size():
            return False
        self._is_refused = True
        self._end_connection_count()
        self._lingering.end()
        return True

    def _forget_answered_request(self) -> None:
        """Remove the request that was answered: an idle connection would hold its head until the next one."""
        if self._phase is not _IDLE or self.transport.is_closing():
            return
        if not self.parser.should_upgrade() and not self._is_answering_request():
            self.cycle = self.scope = None  # type: ignore[assignment]
            self.headers, self.url = [], b""

    def count_surplus_bytes(self) -> int:
        """Return the bytes of the head that is arriving."""
        return self._surplus_bytes

    def end_head(self) -> None:
        """End a request whose head is arriving."""
        self._is_refused = True
        self._lingering.end()

    def _find_answer_owner(self) -> str:
        """Return the workspace that the answer is for, or the network of a client without a valid key."""
        caller = None if self.cycle is None else self.cycle.scope["state"].get("caller")
        if caller is not None:
            return str(caller.workspace_id)
        return find_client_network(self.client[0] if self.client else "")

    def _take_host_of_target(self) -> None:
        """Replace the value of `Host` by the host of an absolute target, which RFC 9112 §3.2.2 puts first."""
        authority = self.url.partition(b"://")[2].partition(b"/")[0]
        if authority:
            headers = [(name, authority if name == b"host" else value) for name, value in self.headers]
            self.headers[:] = headers

    def _count_connection(self) -> None:
        """Count the connection; refuse it if its address has too many, or the process no free one."""
        counts: OpenConnections | None = self.app_state.get(CONNECTIONS)
        if counts is None or self.client is None:
            return
        try:
            counts.open(self.client[0])
        except (TooManyConnections, NoFreeConnection) as error:
            self._is_refused = True
            self._write_error_answer(error, make_limit_headers(error))
            self._close_connection()
        else:
            self._counts, self._unread.held = counts, counts.answers
            counts.add_waiting(self)

    def _end_connection_count(self) -> None:
        if self._counts is not None and self.client is not None:
            self._counts.remove_waiting(self)
            self._counts.close(self.client[0])
            self._counts = None

    def _pause_small_reads(self) -> None:
        """Let the bytes of a client that sends few at a time gather before they are read."""
        self.transport.pause_reading()
        self.loop.call_later(_SMALL_READS_EVERY_S, self._resume_small_reads)

    def _resume_small_reads(self) -> None:
        if not self.transport.is_closing() and not self.flow.read_paused:
            self.transport.resume_reading()

    def _check_deadline(self) -> None:
        """Handle a passed deadline, and schedule the next check."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        wait_s = self._next_deadline_check(now) - now
        if wait_s <= 0:
            self._end_slow_phase()
            wait_s = self.grace_s
        if not self.transport.is_closing():
            self._timer = self.loop.call_later(wait_s, self._check_deadline)

    def _next_deadline_check(self, now: float) -> float:
        """Return the time of the next check: the deadline of the phase, or earlier."""
        if self._phase is _HEAD and self._is_answering_request():
            self._since = now  # pipelined: its deadline starts after the answer before it
        if self._phase is _BODY and self.flow.read_paused:
            self._begin_body_time(now)  # the service has paused reading
            return now + min(self.body_s, _PAUSE_S)
        if self._phase is _BODY and self._arrived_bytes >= self.body_s * self.body_bytes_per_s:
            self._begin_body_time(now)
        phase_s = {_HEAD: self.head_s, _BODY: self.body_s, _LATE: self.grace_s}.get(self._phase)
        return now + self.head_s if phase_s is None else self._since + phase_s

    def _begin_body_time(self, now: float) -> None:
        """Start the time in which the body, or enough bytes of it, must arrive."""
        self._since, self._arrived_bytes = now, 0

    def _end_slow_phase(self) -> None:
        """Notify the route, answer, or close the connection, depending on the phase."""
        if self._phase is _BODY and not self.cycle.response_started:
            self._phase, self._since = _LATE, self.loop.time()
            self.scope["state"][IS_LATE] = True
            self.cycle.message_event.set()
        elif self._phase is _HEAD and not self._is_silent:
            self._refuse_request(RequestTimeout(limits.REQUEST_HEAD_SECONDS, part="head"))
        else:
            self._close_connection()

    def _refuse_request(self, error: RecorderError) -> None:
        """Answer a request that cannot be parsed, and close; requests before it are answered first."""
        self._is_refused = True
        if self._counts is not None:
            self._counts.heads.drop(self)
        if self._phase is not _HEAD or self.transport.is_closing():
            self._close_connection()
        elif self._is_answering_request():
            self.cycle.keep_alive = False
        else:
            task = self.loop.create_task(self._write_problem(error))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

    async def _write_problem(self, error: RecorderError) -> None:
        """Write a problem with the headers of every answer, and close.

        A malformed request takes a token of the client's address.
        """
        rate_limiter: RateLimiter | None = self.app_state.get(RATE_LIMITER)
        headers: list[Header] = []
        if rate_limiter is not None:  # None in other applications
            address = self.client[0] if self.client else "unknown"
            rate_decision = await rate_limiter.admit_address(address, is_signed=False)
            error, headers = rate_decision.error or error, rate_decision.headers
        if not self.transport.is_closing():
            self._write_error_answer(error, headers)
        self._close_connection()

    def _write_error_answer(self, error: RecorderError, headers: list[Header]) -> None:
        request_id = self._ids.next()
        self.transport.write(serialize_answer(make_problem_response(error, request_id), request_id, headers))

    def _is_head_too_large(self) -> bool:
        return self._surplus_bytes > limits.REQUEST_HEAD_BYTES or is_head_too_large(
            self.url, self.headers, most_bytes=self._most_head_bytes
        )

    def _close_connection(self) -> None:
        """Close the connection; abort it if the client does not read the last bytes in time."""
        self._stop_timer()
        self.transport.close()
        self._timer = self.loop.call_later(self.grace_s, self.transport.abort)

    def _is_client_sending(self) -> bool:
        """Return whether an answered or refused request may have bytes that did not arrive yet."""
        return (self._is_refused or self._phase in (_BODY, _LATE)) and not self._is_answering_request()

    def _is_answering_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
