"""Processes that ask for more than their workspace may have, and what they are granted. Spec §8.1."""

import asyncio
import math
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import uvloop

from recorder.access.rate_limits.bucket_stores import RedisBuckets
from recorder.access.rate_limits.token_buckets import InProcessBuckets, TokenBucket
from recorder.access.rate_tiers import Rate
from recorder.ids import new_id

#: Of the two, the workspace's is the one that is reached: its keys ask for more together.
PER_KEY = Rate(400)
PER_WORKSPACE = Rate(500)
_KEYS = 4
_AT_ONCE = 16
_START_S = 60.0


@dataclass(frozen=True)
class Grants:
    """Requests granted under load, and those that the limits admit."""

    #: By key.
    granted_each: dict[str, int]
    requests: int
    #: From before the first request to after the last answer: more than the limits admit in it is too much.
    outer_s: float
    #: From the first answer to the last: less than they admit in it is too little.
    inner_s: float

    @property
    def granted(self) -> int:
        """All of it."""
        return sum(self.granted_each.values())

    @property
    def share(self) -> float:
        """Of what the workspace's limit admits."""
        return self.granted / admitted(PER_WORKSPACE, self.inner_s)

    @property
    def over(self) -> int:
        """Grants beyond a limit: the workspace's, or one of its keys'."""
        beyond = [self.granted - admitted(PER_WORKSPACE, self.outer_s)]
        beyond += [each - admitted(PER_KEY, self.outer_s) for each in self.granted_each.values()]
        return max(0, math.ceil(max(beyond)))


class _Report(NamedTuple):
    """Result of one process with its times; all processes of a machine share the monotonic clock."""

    granted_each: dict[str, int]
    requests: int
    began: float
    first_answer: float
    ended: float


def admitted(rate: Rate, seconds: float) -> float:
    """Return the requests that a limit admits in some seconds: burst + rate × T."""
    return rate.burst + rate.per_second * seconds


def overload(redis_url: str | None, *, processes: int, seconds: float) -> Grants:
    """Let processes ask for more than their workspace may have, and count what is granted.

    Args:
        redis_url: where they share their buckets; None for one process with its own.
    """
    workspace, keys = new_id("wsp"), [new_id("key") for _ in range(_KEYS)]
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    heard: Any = context.SimpleQueue()
    started = [
        context.Process(target=_offer, args=(redis_url, workspace, keys, seconds, start, heard), daemon=True)
        for _ in range(processes)
    ]
    for process in started:
        process.start()
    for process in started:
        process.join(_START_S + 2 * seconds)
    if any(process.exitcode != 0 for process in started):
        raise RuntimeError("A process of the load failed; its output is above.")
    reports: list[_Report] = [heard.get() for _ in started]
    ended = max(report.ended for report in reports)
    return Grants(
        {key: sum(report.granted_each[key] for report in reports) for key in keys},
        sum(report.requests for report in reports),
        ended - min(report.began for report in reports),
        ended - min(report.first_answer for report in reports),
    )


def _offer(
    redis_url: str | None, workspace: str, keys: Sequence[str], seconds: float, start: Any, heard: Any
) -> None:
    """Send many requests at once from one process, by each key in turn, for so long."""
    pairs = [
        (TokenBucket.of(PER_KEY, "per_key", key), TokenBucket.of(PER_WORKSPACE, "per_workspace", workspace))
        for key in keys
    ]

    async def run() -> _Report:
        store = InProcessBuckets() if redis_url is None else RedisBuckets(redis_url, timeout_s=30)
        # Connects, and takes nothing.
        await store.take_tokens(pairs[0], cost=0)
        granted, requests, first_answer, last_answer = dict.fromkeys(keys, 0), 0, 0.0, 0.0
        await asyncio.to_thread(start.wait, _START_S)
        began = time.monotonic()

        async def ask(turn: int) -> None:
            nonlocal requests, first_answer, last_answer
            while time.monotonic() < began + seconds:
                turn += 1
                is_granted, _ = await store.take_tokens(pairs[turn % _KEYS])
                requests += 1
                granted[keys[turn % _KEYS]] += is_granted
                last_answer = time.monotonic()
                first_answer = first_answer or last_answer
                if redis_url is None:  # it never waits, so others would have no turn
                    await asyncio.sleep(0)

        await asyncio.gather(*(ask(n) for n in range(_AT_ONCE)))
        await store.close()
        return _Report(granted, requests, began, first_answer, last_answer)

    heard.put(uvloop.run(run()))
