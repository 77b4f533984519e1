"""Load on the events route: 64 connections that each wait for their answer, by wrk where it is installed."""

import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.client import Answers, drive
from benchmarks.seeds import Target
from benchmarks.servers import Server

CONNECTIONS = 64
_SCRIPT = Path(__file__).with_name("load.lua")


@dataclass(frozen=True, kw_only=True)
class Load:
    """Result of a server under load."""

    requests: float
    seconds: float
    #: Requests that got another status than 202.
    refused: float
    p50_ms: float
    p99_ms: float
    #: CPU time of the server's process for one request.
    cpu_us: float

    @property
    def per_second(self) -> float:
        """Requests answered in a second."""
        return self.requests / self.seconds


def client_name() -> str:
    """Return the name of the client that loads the servers."""
    return "wrk" if shutil.which("wrk") else "the client in benchmarks/client.py"


def put_load(
    server: Server, targets: Sequence[Target], bodies: Sequence[bytes], *, seconds: float, batch_ids: str = ""
) -> Load:
    """Load a server for so long.

    Args:
        batch_ids: send each request with an `Idempotency-Key` of its own that begins so; empty sends none.
    """
    before = server.cpu_seconds()
    if shutil.which("wrk"):
        result = _wrk(server, targets, bodies, seconds, batch_ids)
    else:
        result = _own(server, targets, bodies, seconds, batch_ids)
    cpu_s = server.cpu_seconds() - before
    return Load(**result, cpu_us=cpu_s / max(result["requests"], 1) * 1e6)


def encoded_requests(
    targets: Sequence[Target], bodies: Sequence[bytes], *, count: int | None = None, batch_ids: str = ""
) -> list[bytes]:
    """Return whole HTTP requests: the sessions in turn, each with other bodies as its turn comes again."""
    wanted = len(targets) * 2 if count is None else count
    return [
        _encode(
            targets[n % len(targets)],
            bodies[(n % len(targets) + n // len(targets) * 17) % len(bodies)],
            f"{batch_ids}{n}" if batch_ids else "",
        )
        for n in range(wanted)
    ]


def _encode(target: Target, body: bytes, batch_id: str) -> bytes:
    key = f"Idempotency-Key: {batch_id}\r\n" if batch_id else ""
    head = (
        f"POST {target.path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {target.key}\r\n"
        f"Content-Type: application/json\r\n{key}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _wrk(
    server: Server, targets: Sequence[Target], bodies: Sequence[bytes], seconds: float, batch_ids: str
) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        for n, body in enumerate(bodies):
            Path(folder, f"body_{n}.json").write_bytes(body)
        lines = [f"{target.path} {target.key}\n" for target in targets]
        Path(folder, "targets.txt").write_text("".join(lines))
        arguments = ["wrk", "-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
        arguments += ["-s", str(_SCRIPT), server.url, "--", folder, batch_ids, str(len(bodies))]
        run = subprocess.run(arguments, capture_output=True, text=True, check=True)
    output = json.loads(run.stdout.strip().splitlines()[-1])
    if output["broken"]:
        raise RuntimeError(f"{output['broken']} requests under load got no answer.")
    return {
        "requests": output["requests"],
        "seconds": output["us"] / 1e6,
        "refused": output["refused"],
        "p50_ms": output["p50_us"] / 1e3,
        "p99_ms": output["p99_us"] / 1e3,
    }


def _own(
    server: Server, targets: Sequence[Target], bodies: Sequence[bytes], seconds: float, batch_ids: str
) -> dict[str, float]:
    count = 50_000 if batch_ids else None
    requests = encoded_requests(targets, bodies, count=count, batch_ids=batch_ids)
    answers = drive(server.host, server.port, requests, connections=CONNECTIONS, seconds=seconds)
    return {
        "requests": len(answers.latencies_s),
        "seconds": answers.seconds,
        "refused": answers.refused,
        "p50_ms": _quantile_ms(answers, 0.5),
        "p99_ms": _quantile_ms(answers, 0.99),
    }


def _quantile_ms(answers: Answers, share: float) -> float:
    ordered = sorted(answers.latencies_s)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] * 1e3
