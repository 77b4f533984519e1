"""Token endpoint on loopback that exchanges tokens of workloads, as Google's Security Token Service does."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

import orjson

from tests.support.aws_server import read_claims

#: Audience of the exchange; one that names a project lets clients ask Google for the project's name.
POOL = "//iam.googleapis.com/locations/global/workforcePools/recorder/providers/platform"
#: Seconds that an access token is valid; clients renew one that ends within some minutes at every request.
_VALID_S = 200


class TokenService(ThreadingHTTPServer):
    """Endpoint with a record of the exchanges: their fields, and the claims of the token."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Exchange)
        self.exchanges: list[dict[str, Any]] = []

    @property
    def url(self) -> str:
        """Address of the exchange."""
        return f"http://127.0.0.1:{self.server_port}/v1/token"


class _Exchange(BaseHTTPRequestHandler):
    server: TokenService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        fields = dict(parse_qsl(body))
        claims = read_claims(fields["subject_token"])
        self.server.exchanges.append(fields | {"claims": claims})
        is_valid = fields["audience"] == claims["aud"] == POOL and claims["exp"] > time.time()
        answer = {
            "access_token": f"access-{claims['jti']}",
            "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
            "token_type": "Bearer",
            "expires_in": _VALID_S,
        }
        self.send_response(200 if is_valid else 400)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(orjson.dumps(answer if is_valid else {"error": "invalid_grant"}))

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def running_token_service() -> Iterator[TokenService]:
    """Yield a token endpoint of its own."""
    with TokenService() as service:
        Thread(target=service.serve_forever, daemon=True).start()
        yield service
        service.shutdown()
