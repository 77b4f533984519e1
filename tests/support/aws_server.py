"""S3 and STS on this machine, as a program: moto with trust policies, and a record of every request.

Tokens of workloads are JWTs whose signature is not checked; their audience and expiry are. What they are
exchanged for is to be renewed at every request, since it expires within 15 minutes.

Usage: python -m tests.support.aws_server PORT LOG
"""

import base64
import io
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import orjson
from moto.backends import get_backend
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, run_simple

#: A role of this name trusts whoever comes; every other one the external id that is its name.
ANYBODY = "anybody"
#: The role of this name takes its own id, and for every other one STS is too busy.
BUSY = "busy-"

#: Audience that tokens of workloads must have.
AUDIENCE = "sts.amazonaws.com"
_EXCHANGE = "AssumeRoleWithWebIdentity"
_DENIED = (
    b"<ErrorResponse><Error><Type>Sender</Type><Code>AccessDenied</Code><Message>no</Message></Error>"
    b"<RequestId>1</RequestId></ErrorResponse>"
)
_THROTTLED = _DENIED.replace(b"AccessDenied", b"Throttling")


class _Quiet(WSGIRequestHandler):
    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class TrustPolicies:
    """moto asks for no external id; this does, as AWS would."""

    def __init__(self, application: Any, log: Path) -> None:
        self._application = application
        self._log = log

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Any:
        signed_by = environ.get("HTTP_AUTHORIZATION", "").partition("Credential=")[2].partition("/")[0]
        request_line = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}"
        noted: dict[str, Any] = {"request": request_line, "signed_by": signed_by}
        is_form = "x-www-form-urlencoded" in environ.get("CONTENT_TYPE", "")
        body = _form(environ) if is_form else {}
        if body.get("Action") == "AssumeRole":
            noted |= {name: body.get(name) for name in ("RoleArn", "ExternalId", "RoleSessionName")}
        claims = read_claims(body["WebIdentityToken"]) if body.get("Action") == _EXCHANGE else {}
        noted |= {name: claims[name] for name in ("jti", "aud") if name in claims}
        with self._log.open("ab") as log:
            log.write(orjson.dumps(noted) + b"\n")
        if claims:
            code = _refuse_claims(claims)
            if code is not None:
                start_response("400 Bad Request", [("Content-Type", "text/xml")])
                return [_DENIED.replace(b"AccessDenied", code)]
            _shorten(environ)
        role = body.get("RoleArn", "").rpartition("/")[2]
        external_id = body.get("ExternalId")
        if body.get("Action") == "AssumeRole" and role.startswith(BUSY) and role != f"{BUSY}{external_id}":
            start_response("400 Bad Request", [("Content-Type", "text/xml")])
            return [_THROTTLED]
        if body.get("Action") == "AssumeRole" and role not in (ANYBODY, external_id, f"{BUSY}{external_id}"):
            start_response("403 Forbidden", [("Content-Type", "text/xml")])
            return [_DENIED]
        return self._application(environ, start_response)


def read_claims(token: str) -> dict[str, Any]:
    """Return the claims of a JWT."""
    payload = token.split(".")[1]
    claims: dict[str, Any] = orjson.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return claims


def make_token(*, jti: str, audience: str = AUDIENCE, seconds: float = 3600) -> str:
    """Return a token of a workload; it has no signature."""
    claims = orjson.dumps({"jti": jti, "aud": audience, "exp": time.time() + seconds})
    parts = (b'{"alg":"none"}', claims, b"unsigned")
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def _refuse_claims(claims: dict[str, Any]) -> bytes | None:
    """Return the code of the error for claims that STS does not take."""
    if claims["aud"] != AUDIENCE:
        return b"InvalidIdentityToken"
    return b"ExpiredTokenException" if claims["exp"] < time.time() else None


def _shorten(environ: dict[str, Any]) -> None:
    """Let the credentials be those of the shortest time, which clients renew as soon as they have them."""
    body = environ["wsgi.input"].read() + b"&DurationSeconds=900"
    environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}


def _form(environ: dict[str, Any]) -> dict[str, str]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


if __name__ == "__main__":
    get_backend("s3")
    server = TrustPolicies(DomainDispatcherApplication(create_backend_app), Path(sys.argv[2]))
    run_simple("127.0.0.1", int(sys.argv[1]), server, threaded=True, request_handler=_Quiet)
