"""Another workspace's answers while a workspace sends bodies that its masking patterns are slow on."""

import itertools
import multiprocessing
import os
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import orjson

from benchmarks.figure_reports import Figure, at_most, quantile
from benchmarks.neighbours import NICENESS
from benchmarks.seeds import new_key, new_settings
from benchmarks.servers import serving
from recorder.access.workspaces import create_workspace
from recorder.masking.masker import compile_masker_rules
from recorder.masking.pattern_admission import find_refusals, measure_pattern_slowness
from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from recorder.settings import Settings

_GOAL = 2.0
_ATTACKERS = 4
#: Six patterns that a service took before it measured them; they take 10 s a megabyte together.
_OLD = [rf"(?:[ab]*a[ab]{{30{n}}}c)" for n in range(6)]


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure another workspace's p99 under each attack, divided by its p99 without one."""
    count = 100 if quick else 1_000
    # Made before: this process also measures.
    rng = random.Random(11)
    slow = ["".join(rng.choices("ab", k=50_000)) for _ in range(10)]
    signs = [" ".join(f"u{n:05d}@b{n:04d}.co" for n in range(3_000))]
    return [
        _attack("patterns of an older service", _policy(_OLD), slow, count),
        _attack("worst admitted", _policy(_find_worst()), slow, count),
        _attack("small bodies full of addresses", _policy([], builtins=["email"]), signs, count),
    ]


def _find_worst() -> list[str]:
    """Search the admitted patterns for six that are slowest on a random text of two characters."""
    rng = random.Random(5)
    texts = [["".join(rng.choices("ab", k=50_000))] for _ in range(3)]
    families = ("[ab]*a[ab]{%d}c", "a[ab]{%d}c", "(?:a[ab]{%d}|b[ab]{%d})c", "(?:[ab]?){%d}c", "ab[ab]{%d}")
    tried = [family.replace("%d", str(n)) for family in families for n in (8, 10, 12, 13, 14, 16, 18, 24)]
    admitted = [pattern for pattern in tried if not find_refusals([{"name": "p", "pattern": pattern}])]
    slowest = sorted(
        admitted,
        key=lambda item: (
            -measure_pattern_slowness(compile_masker_rules((orjson.dumps(_policy([item])).decode(),)), texts)
        ),
    )
    chosen: list[str] = []
    for item in slowest:
        if len(chosen) < 6 and not find_refusals([_named(n, p) for n, p in enumerate([*chosen, item])]):
            chosen.append(item)
    return chosen


def _attack(name: str, policy: dict[str, Any], texts: list[str], count: int) -> Figure:
    with tempfile.TemporaryDirectory() as folder:
        settings = new_settings(Path(folder))
        quiet_key = new_key(settings, "quiet")
        slow_key = _create_hostile_workspace(settings, policy)
        with (
            serving(settings) as server,
            httpx.Client(base_url=server.url, headers=_auth(quiet_key), timeout=60) as quiet,
        ):
            masking = {"builtins": ["email"], "patterns": [{"name": "own", "pattern": "ACC-[0-9]{4}"}]}
            quiet.patch("/v1/workspaces/current", json={"masking": masking}).raise_for_status()
            session = _new_session(quiet)
            before = _latencies_ms(quiet, session, count)
            with _attackers(server.url, slow_key, texts) as statuses:
                during = _latencies_ms(quiet, session, count)
    alone, attacked = (quantile(values, 0.99) for values in (before, during))
    return Figure(
        name=f"masking: another workspace's p99 by quiet, {name}",
        unit="ms",
        ours=[attacked],
        peer=[alone],
        peer_name="without the attack",
        goal=at_most(_GOAL),
        detail={
            "p50, ms": [quantile(values, 0.5) for values in (before, during)],
            "answers to the attack": [float(statuses[code]) for code in (202, 503, 422)],
        },
    )


def _latencies_ms(client: httpx.Client, session: str, count: int) -> list[float]:
    results = []
    for n in range(count):
        body = {"events": [{"t_ms": n, "type": "click", "title": f"of ACC-{n:04}"}]}
        began = time.perf_counter()
        client.post(f"/v1/sessions/{session}/events", json=body).raise_for_status()
        results.append((time.perf_counter() - began) * 1e3)
    return results


@contextmanager
def _attackers(url: str, key: str, texts: list[str]) -> Iterator[Counter[int]]:
    """Run an attack from a process of its own during the block; the counter gets the answers at the end."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe()
    process = context.Process(target=_attack_until_told, args=(url, key, texts, sender), daemon=True)
    statuses: Counter[int] = Counter()
    process.start()
    sender.close()
    try:
        receiver.recv()
        time.sleep(1)
        yield statuses
        receiver.send(None)
        statuses.update(receiver.recv())
    finally:
        process.join(30)
        if process.is_alive():
            process.kill()


def _attack_until_told(url: str, key: str, texts: list[str], pipe: Any) -> None:
    """Send bodies on several connections, at a lower priority, until the pipe has input."""
    os.nice(NICENESS)
    statuses: Counter[int] = Counter()
    ended = threading.Event()

    # Another number makes another body of each.
    rest = b",".join(orjson.dumps({"t_ms": 0, "type": "click", "data": {"x": text}}) for text in texts)
    numbers = itertools.count()

    def attack() -> None:
        kind = {"Content-Type": "application/json"}
        with httpx.Client(base_url=url, headers=_auth(key), timeout=120) as client:
            session = _new_session(client)
            while not ended.is_set():
                body = b'{"events":[{"t_ms":%d,"type":"click"},%b]}' % (next(numbers), rest)
                for _ in range(2):
                    answer = client.post(f"/v1/sessions/{session}/events", content=body, headers=kind)
                    statuses[answer.status_code] += 1

    threads = [threading.Thread(target=attack) for _ in range(_ATTACKERS)]
    for thread in threads:
        thread.start()
    pipe.send(None)
    pipe.recv()
    ended.set()
    for thread in threads:
        thread.join()
    pipe.send(statuses)


def _create_hostile_workspace(settings: Settings, policy: dict[str, Any]) -> str:
    runtime = Runtime.open(settings)
    try:
        with runtime.database.transaction(write=True) as db:
            made = create_workspace(
                db, "slow", region=settings.region, secret=settings.secret, tier="unlimited"
            )
            row = db.get_one(WorkspaceRow, made.workspace_id)
            row.masking = policy
            db.add(row)
            return made.key
    finally:
        runtime.close()


def _new_session(client: httpx.Client) -> str:
    answer = client.post("/v1/sessions", json={"workflow": "checkout", "start": True})
    return str(answer.raise_for_status().json()["id"])


def _named(n: int, pattern: str) -> dict[str, str]:
    return {"name": f"p{n}", "pattern": pattern}


def _policy(patterns: list[str], builtins: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "builtins": list(builtins),
        "patterns": [_named(n, pattern) for n, pattern in enumerate(patterns)],
    }


def _auth(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}
