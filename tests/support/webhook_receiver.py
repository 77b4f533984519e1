"""A small HTTP server that answers from a script and keeps what it was sent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import orjson


@dataclass(frozen=True)
class Answer:
    """One scripted answer; without a status the connection is closed in the middle.

    One that echoes sends the body of the request back.
    """

    status: int | None
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    echoes: bool = False


@dataclass(frozen=True)
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Receiver:
    """Address, next answers (the last one repeats), and received deliveries."""

    url: str
    answers: list[Answer]
    received: list[Received] = field(default_factory=list)


class _Server(ThreadingHTTPServer):
    # With the default of 5 the kernel turns connections away that come together.
    request_queue_size = 256


@contextmanager
def running_receiver(*answers: Answer, hold: threading.Event | None = None) -> Iterator[Receiver]:
    """Yield a receiver on a free port of the loopback.

    Args:
        hold: nothing is answered before this is set.
    """
    receiver = Receiver("", list(answers))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.command, self.path, headers, body))
            if hold is not None:
                hold.wait(30)
            answer = receiver.answers.pop(0) if len(receiver.answers) > 1 else receiver.answers[0]
            if answer.status is None:
                self.close_connection = True
                return
            content = orjson.dumps(answer.body) if answer.body is not None else b""
            content = body if answer.echoes else content
            self.send_response(answer.status)
            for name, value in {**answer.headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(BrokenPipeError):  # nobody waits for it any more
                self.wfile.write(content)

        do_GET = do_POST = do_DELETE = handle_any

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    receiver.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield receiver
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
