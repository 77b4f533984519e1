"""S3 and STS on this machine, as a program: moto with trust policies, and a record of every request.

Usage: python -m tests.support.aws_server PORT LOG
"""

import io
import sys
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
        with self._log.open("ab") as log:
            log.write(orjson.dumps(noted) + b"\n")
        role = body.get("RoleArn", "").rpartition("/")[2]
        external_id = body.get("ExternalId")
        if body.get("Action") == "AssumeRole" and role.startswith(BUSY) and role != f"{BUSY}{external_id}":
            start_response("400 Bad Request", [("Content-Type", "text/xml")])
            return [_THROTTLED]
        if body.get("Action") == "AssumeRole" and role not in (ANYBODY, external_id, f"{BUSY}{external_id}"):
            start_response("403 Forbidden", [("Content-Type", "text/xml")])
            return [_DENIED]
        return self._application(environ, start_response)


def _form(environ: dict[str, Any]) -> dict[str, str]:
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    environ["wsgi.input"] = io.BytesIO(body)
    return {name: values[0] for name, values in parse_qs(body.decode()).items()}


if __name__ == "__main__":
    get_backend("s3")
    server = TrustPolicies(DomainDispatcherApplication(create_backend_app), Path(sys.argv[2]))
    run_simple("127.0.0.1", int(sys.argv[1]), server, threaded=True, request_handler=_Quiet)
