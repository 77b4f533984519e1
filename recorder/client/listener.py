"""A receiver of deliveries for the terminal: verifies what comes and hands it on. Contract §6."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from recorder.webhooks.signing import verify_signature

_BODY_BYTES = 64 * 1024 * 1024
_SECRET_S = 5.0


@dataclass(frozen=True)
class Received:
    """A delivery as it came; without a payload where its signature does not hold."""

    delivery_id: str
    payload: dict[str, Any] | None


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    # With the default of 5 the kernel turns deliveries away that come together.
    request_queue_size = 256


class Listener:
    """Answers 204 to what is signed with the secret, and 401 to everything else."""

    def __init__(self, take: Callable[[Received], None], *, host: str, port: int) -> None:
        """Begin to listen.

        Args:
            take: is given each delivery, one at a time.
            port: 0 takes a free one.

        Raises:
            OSError: if nothing can listen there.
        """
        self._take = take
        self._turn = threading.Lock()
        self._secret: str | None = None
        self._has_secret = threading.Event()
        self._server = _Server((host, port), self._handler())

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._server.server_port

    def trust(self, secret: str) -> None:
        """From now on, take what is signed with this secret; what came before waits a moment for it."""
        self._secret = secret
        self._has_secret.set()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take deliveries while the block runs."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.1})
        thread.start()
        try:
            yield
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()

    def _receive(self, body: bytes, signature: str, delivery_id: str) -> int:
        """The status to answer with."""
        self._has_secret.wait(_SECRET_S)
        is_ours = self._secret is not None and verify_signature(body, signature, self._secret)
        with self._turn:
            self._take(Received(delivery_id, json.loads(body) if is_ours else None))
        return 204 if is_ours else 401

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receive = self._receive

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = self.headers.get("Content-Length", "")
                if not length.isdecimal() or int(length) > _BODY_BYTES:
                    self.send_error(411 if not length else 413)
                    return
                body = self.rfile.read(int(length))
                signature = self.headers.get("Service-Signature", "")
                status = receive(body, signature, self.headers.get("Service-Delivery-Id", ""))
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *values: object) -> None:
                """Keep quiet: what matters is handed on."""

        return Handler
