"""The limiter: what a decision costs, and whether as much is granted as the limits say. Spec §8.1."""

import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from api.gate.endpoints import find_endpoint
from api.gate.rate_limiter import RateLimiter
from benchmarks.figure_reports import Figure, at_least, at_most
from benchmarks.overload import PER_WORKSPACE, Grants, admitted, overload
from benchmarks.redis_server import running_redis
from benchmarks.seeds import new_settings
from recorder.access.keys import Caller
from recorder.access.rate_tiers import TIERS
from recorder.tenant import Tenant

_EVENTS = "/v1/sessions/ses_01k00000000000000000000000/events"


def measure(*, quick: bool = False) -> list[Figure]:
    """Return the cost of a decision; grants of 1, 2 and 4 processes under too much load."""
    rounds, count = (3, 20_000) if quick else (7, 100_000)
    seconds = 2.0 if quick else 10.0
    figures = [Figure(name="limiter: a decision in memory", unit="µs", ours=decision_us(rounds, count))]
    with running_redis() as server:
        values = {"memory, 1 process": overload(None, processes=1, seconds=seconds)}
        for processes in (1, 2, 4):
            name = f"Redis, {processes} process{'es' if processes > 1 else ''}"
            values[name] = overload(server.url, processes=processes, seconds=seconds)
    return figures + [figure for name, grants in values.items() for figure in _figures(name, grants)]


def decision_us(rounds: int, count: int) -> list[float]:
    """Return the CPU time to draw on a key's and its workspace's bucket and to write the four headers."""

    async def run() -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            limiting = RateLimiter(new_settings(Path(folder)))
        caller = Caller(Tenant("wsp_benchmark", "live"), "key_benchmark", tier=TIERS["unlimited"])
        endpoint = find_endpoint("POST", _EVENTS)
        return [await _us(lambda: limiting.admit(caller, endpoint), count) for _ in range(rounds)]

    return uvloop.run(run())


def _figures(name: str, grants: Grants) -> list[Figure]:
    """Return the figures of granted requests against both bounds."""
    detail = {
        "granted": grants.granted,
        "burst + rate × T": f"{admitted(PER_WORKSPACE, grants.inner_s):.0f} to "
        f"{admitted(PER_WORKSPACE, grants.outer_s):.0f}",
        "T s": round(grants.outer_s, 3),
        "requests/s": round(grants.requests / grants.outer_s),
    }
    share = Figure(
        name=f"limiter: granted of burst + rate × T, {name}",
        unit="",
        ours=[grants.share],
        goal=at_least(0.99),
        detail=detail,
    )
    over = Figure(
        name=f"limiter: granted beyond it, {name}", unit="requests", ours=[grants.over], goal=at_most(0)
    )
    return [share, over]


async def _us(call: Callable[[], Awaitable[Any]], count: int) -> float:
    began = time.process_time()
    for _ in range(count):
        await call()
    return (time.process_time() - began) / count * 1e6
