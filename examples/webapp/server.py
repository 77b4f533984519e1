"""Server of the example web application; it keeps a list of what it was asked to do."""

import json
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from examples.webapp.pages import Site, Variant

PASSWORD = "correct-horse-42"  # noqa: S105, the example needs one that everybody knows
#: Seconds that the variant `slow` takes for each answer.
SLOW_S = 1.2
_MAX_BODY = 10_000
_MAX_CALLS = 10_000


class WebApp(ThreadingHTTPServer):
    """The application on a port of the loopback; port 0 chooses a free one."""

    daemon_threads = True

    def __init__(self, variant: Variant, port: int = 0, *, delay_s: float = SLOW_S) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.delay_s = delay_s if variant == "slow" else 0.0
        self.site = Site(variant)
        #: Requests other than for pages: `{"method", "path"}`, oldest first.
        self.calls: list[dict[str, str]] = []
        self.sessions: set[str] = set()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def run_webapp(variant: Variant, *, delay_s: float = SLOW_S) -> Iterator[WebApp]:
    """Serve a variant in a thread while the block runs."""
    with WebApp(variant, delay_s=delay_s) as app:
        thread = threading.Thread(target=app.serve_forever, kwargs={"poll_interval": 0.05}, name="webapp")
        thread.start()
        try:
            yield app
        finally:
            app.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: WebApp
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answer with a page."""
        path = urlsplit(self.path).path
        if path == "/calls":
            self._send(200, json.dumps({"calls": self.server.calls}), kind="application/json")
            return
        if path == "/favicon.ico":
            self._send(204, "")
            return
        site = self.server.site
        self._wait()
        if path == "/login" or not self._is_signed_in():
            self._send(200, site.make_sign_in())
            return
        parts = path.strip("/").split("/")
        invoice = site.find_invoice(parts[1]) if len(parts) > 1 else None
        if path in ("/", "/invoices"):
            self._send(200, site.make_list())
        elif invoice is not None and len(parts) == 2:
            self._send(200, site.make_invoice(invoice))
        elif invoice is not None and parts[2] == "approved":
            self._send(200, site.make_message("Approved", f"{invoice.name} will be paid."))
        elif invoice is not None and parts[2] == "forwarded":
            self._send(200, site.make_message("Sent", "Waiting for a colleague."))
        else:
            self._send(404, site.make_message("Not found", "There is no such page.", is_alert=True))

    def do_POST(self) -> None:
        """Do what a form asks for."""
        path = urlsplit(self.path).path
        size = min(int(self.headers.get("Content-Length") or 0), _MAX_BODY)
        form = parse_qs(self.rfile.read(size).decode("utf-8", "replace"))
        if len(self.server.calls) < _MAX_CALLS:
            self.server.calls.append({"method": "POST", "path": path})
        site = self.server.site
        self._wait()
        if path == "/login":
            if form.get("password") != [PASSWORD]:
                self._send(200, site.make_sign_in(is_refused=True))
                return
            session = secrets.token_hex(16)
            self.server.sessions.add(session)
            self._redirect("/invoices", cookie=f"session={session}; HttpOnly; SameSite=Strict; Path=/")
            return
        if not self._is_signed_in():
            self._redirect("/login")
            return
        _, _, number, action = [*path.split("/"), "", "", ""][:4]
        invoice = site.find_invoice(number)
        if invoice is None or action not in ("approve", "forward"):
            self._send(404, site.make_message("Not found", "There is no such page.", is_alert=True))
        elif action == "approve" and site.variant == "error":
            text = "Error 500: the payment service does not answer. Nothing was paid."
            self._send(500, site.make_message("Something went wrong", text, is_alert=True))
        else:
            self._redirect(f"/invoices/{number}/{'approved' if action == 'approve' else 'forwarded'}")

    def log_message(self, format: str, *args: object) -> None:
        """Write no access log."""

    def _is_signed_in(self) -> bool:
        cookie = SimpleCookie(self.headers.get("Cookie") or "").get("session")
        return cookie is not None and cookie.value in self.server.sessions

    def _wait(self) -> None:
        time.sleep(self.server.delay_s)

    def _redirect(self, path: str, *, cookie: str = "") -> None:
        self.send_response(303)
        self.send_header("Location", path)
        if cookie:
            self.send_header("Set-Cookie", cookie)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _send(self, status: int, text: str, *, kind: str = "text/html; charset=utf-8") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)
