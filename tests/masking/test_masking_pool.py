"""Scans run in processes that are killed at their budget; workspaces take turns. Contract §3 (masking)."""

import asyncio
import os
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.errors import Unavailable, ValidationFailed
from recorder.hashing import canonical_json
from recorder.masking import scan_pool
from recorder.masking.policies import MaskingPolicy
from recorder.masking.scan_pool import FairQueue, MaskingBusy, ScanPool, ScanTimeout
from recorder.masking.scan_process import ScanJob, ScanReport
from recorder.masking.scanner import MaskingLimitReached, MaskingTookTooLong, Scanner, SlowBodies, SlowBody
from tests.support.masking import KEY, pattern

SLOW = "(?:[ab]*a[ab]{300}c)"
QUICK = "ACC-[0-9]{4}"


def make_policy(*patterns: dict[str, str], builtins: Sequence[str] = ()) -> MaskingPolicy:
    """Return a policy as it is stored, whatever would be refused today."""
    described = canonical_json({"builtins": list(builtins), "patterns": list(patterns)}).decode()
    return MaskingPolicy((described,), KEY)


def slow_document(size: int = 400_000, seed: int = 1) -> bytes:
    """Return a JSON document on which the slow pattern takes half a second and more."""
    return orjson.dumps({"text": "".join(random.Random(seed).choices("ab", k=size))})


@pytest.fixture(scope="module")
def pool() -> Iterator[ScanPool]:
    made = ScanPool(2)
    yield made
    made.close()


@pytest.fixture
def scan(pool: ScanPool) -> Scanner:
    return Scanner(pool)


@pytest.fixture
def short(scan: Scanner) -> None:
    """Set a budget that the slow document exceeds many times over, also the second time."""
    scan.budget_s, scan.budget_s_per_mb = 0.02, 0.0


def find(scan: Scanner, policy: MaskingPolicy, *documents: bytes, workspace: str = "wsp_a") -> dict[int, Any]:
    """Return the changes that a scanner finds, from outside an event loop."""
    return asyncio.run(scan.find_changes(workspace, policy, documents))


_texts = st.lists(
    st.sampled_from(
        ["ACC-1234", "ACC-", "12", "a@b.co", "@b.co", "4111 1111 ", "1111 1111", " ", "é", "\n", "x"]
    ),
    max_size=8,
).map("".join)


@settings(max_examples=40, deadline=None)
@given(texts=st.lists(_texts, max_size=12), size=st.integers(1, 120))
def test_documents_masked_in_portions_are_masked_as_one(pool: ScanPool, texts: list[str], size: int) -> None:
    policy = make_policy(
        pattern("account", QUICK), pattern("lines", r"x\s+x|1\n"), builtins=["email", "card"]
    )
    documents = [orjson.dumps({"t": text, text: [text]}) for text in texts]
    scan = Scanner(pool, portion_bytes=size)
    assert find(scan, policy, *documents) == policy.masker().find_changes(documents)


def test_portions_keep_the_index_of_their_documents(pool: ScanPool) -> None:
    scan = Scanner(pool, portion_bytes=10)
    result = find(scan, make_policy(pattern("account", QUICK)), *[b'{"a":"x"}'] * 5, b'{"a":"ACC-1234"}')
    assert list(result) == [5]


def test_small_clean_texts_of_built_in_kinds_need_no_process() -> None:
    closed = ScanPool(1)
    closed.close()
    scan = Scanner(closed)
    assert find(scan, make_policy(builtins=["email"]), b'{"a":"x"}', b'{"a":"at example.com"}') == {}
    with pytest.raises(MaskingBusy):
        find(scan, make_policy(builtins=["email"]), b'{"a":"x"}', b'{"a":"ada@example.com"}')
    assert not scan.is_small(make_policy(pattern("p", "x")), 1)
    assert not scan.is_small(make_policy(builtins=["email"]), 64 * 1024 + 1)


@pytest.mark.usefixtures("short")
def test_a_body_that_runs_out_of_time_is_refused_and_then_its_pattern_is_named(scan: Scanner) -> None:
    policy = make_policy(pattern("quick", QUICK), pattern("crawl", SLOW), pattern("other", "b{3}z"))
    document = slow_document()
    with pytest.raises(MaskingTookTooLong) as first:
        find(scan, policy, document)
    assert (first.value.code, first.value.retry_after_s) == ("unavailable", 1)
    for _ in range(2):
        with pytest.raises(MaskingLimitReached, match="masking pattern `crawl`") as second:
            find(scan, policy, document)
        assert second.value.code == "limit_reached"
    # Another workspace's body, another body and another policy are judged for themselves.
    with pytest.raises(MaskingTookTooLong):
        find(scan, policy, document, workspace="wsp_b")
    with pytest.raises(MaskingTookTooLong):
        find(scan, policy, slow_document(seed=2))


def test_the_third_time_costs_no_scan() -> None:
    pool = ScanPool(1)
    scan = Scanner(pool, budget_s=0.02, budget_s_per_mb=0.0)
    policy, document = make_policy(pattern("crawl", SLOW)), slow_document(seed=3)
    for kind in (MaskingTookTooLong, MaskingLimitReached):
        with pytest.raises(kind):
            find(scan, policy, document)
    pool.close()
    with pytest.raises(MaskingLimitReached):
        find(scan, policy, document)


@pytest.mark.usefixtures("short")
def test_a_body_that_is_in_time_the_second_time_is_masked(scan: Scanner) -> None:
    policy, document = make_policy(pattern("crawl", SLOW)), slow_document()
    with pytest.raises(MaskingTookTooLong):
        find(scan, policy, document)
    scan.budget_s = 60.0
    assert find(scan, policy, document) == {}
    scan.budget_s = 0.02
    with pytest.raises(MaskingTookTooLong):
        find(scan, policy, document)


def test_slow_bodies_are_forgotten_after_a_while_and_when_there_are_many() -> None:
    slow = SlowBody(True, None)
    few = SlowBodies(bodies=2, workspaces=1)
    for body in (b"1", b"2", b"3"):
        few.add("wsp_a", body, slow)
    assert [few.find("wsp_a", body) for body in (b"1", b"2", b"3")] == [None, slow, slow]
    few.add("wsp_b", b"4", slow)
    assert (few.find("wsp_a", b"3"), few.find("wsp_b", b"4")) == (None, slow)
    short = SlowBodies(seconds=0.0)
    short.add("wsp_a", b"1", slow)
    assert short.find("wsp_a", b"1") is None


def test_a_job_that_fails_is_no_clean_body(scan: Scanner) -> None:
    with pytest.raises(RuntimeError, match="JSONDecodeError"):
        find(scan, make_policy(pattern("account", QUICK)), b'{"a":"ACC-1234"')


def test_measuring_patterns_is_bounded_too(scan: Scanner) -> None:
    with pytest.raises(ValidationFailed) as refused:
        asyncio.run(scan.admit("wsp_a", [pattern("fine", "x"), pattern("crawl", SLOW)]))
    assert [(problem.pointer, problem.code) for problem in refused.value.problems] == [
        ("/masking/patterns/1/pattern", "limit_reached")
    ]
    scan.admission_s = 0.02
    with pytest.raises(ValidationFailed) as stopped:
        asyncio.run(scan.admit("wsp_a", [pattern("crawl", SLOW + "?x")]))
    assert "takes too long to be measured" in stopped.value.problems[0].message


def test_an_owner_with_many_items_waits_for_the_others_after_each() -> None:
    queue = FairQueue[int](per_owner=9, waiting=9)
    for number in range(3):
        queue.put("a", number)
    queue.put("b", 10)
    assert [queue.take() for _ in range(4)] == [("a", 0), ("b", 10), ("a", 1), ("a", 2)]


def test_the_rule_that_took_most_of_the_time_is_named() -> None:
    reports = [ScanReport("quick", 0.0), ScanReport("slow", 0.1), ScanReport("last", 0.9)]
    assert scan_pool._find_slowest_rule(reports, 1.0) == "slow"


def test_owners_take_turns_and_few_of_their_items_are_at_work() -> None:
    queue = FairQueue[int](per_owner=1, waiting=3)
    assert [queue.put("a", n) for n in range(4)] == [True, True, True, False]
    assert queue.put("b", 10) and queue.put("c", 20)
    assert [queue.take(), queue.take(), queue.take()] == [("a", 0), ("b", 10), ("c", 20)]
    taken: list[Any] = []
    waiter = threading.Thread(target=lambda: taken.append(queue.take()))
    waiter.start()
    assert queue.put("b", 11)  # of b one is at work, as of a: the waiter gets neither
    assert queue.put("d", 30)
    waiter.join()
    assert taken == [("d", 30)]
    queue.finish("a")
    assert queue.take() == ("a", 1)
    queue.finish("b")
    assert queue.take() == ("b", 11)
    assert queue.close() == [2]
    assert queue.take() is None and not queue.put("e", 1)


def test_a_workspace_whose_scan_never_ends_keeps_no_other_waiting() -> None:
    pool = ScanPool(2)
    try:
        policy, slow = make_policy(pattern("crawl", SLOW)), slow_document(5_000_000)
        endless = ScanJob(budget_s=3600, kind="mask", policies=policy.described, key=KEY, documents=[slow])
        ours = [pool.submit("wsp_slow", endless) for _ in range(5)]
        quick = ScanJob(
            budget_s=60, kind="mask", policies=policy.described, key=KEY, documents=[b'{"a":"x"}']
        )
        for n in range(6):
            assert pool.submit(f"wsp_{n % 2}", quick).result(60).changes == {}
        assert not any(future.done() for future in ours)
    finally:
        pool.close()
    assert all(isinstance(future.exception(10), Unavailable | ScanTimeout) for future in ours)


def test_a_workspace_has_a_bounded_number_of_jobs_that_wait() -> None:
    pool = ScanPool(1, most_waiting=2)
    try:
        policy = make_policy(pattern("crawl", SLOW))
        job = ScanJob(3600, "mask", policy.described, KEY, [slow_document(5_000_000)])
        jobs: list[Future[ScanReport]] = []
        with pytest.raises(MaskingBusy):
            for _ in range(5):
                jobs.append(pool.submit("wsp_a", job))
        assert 2 <= len(jobs) <= 3
        pool.submit("wsp_b", job)
    finally:
        pool.close()
    with pytest.raises(MaskingBusy):
        pool.submit("wsp_a", job)


def test_a_job_that_waited_too_long_is_refused_when_its_turn_comes() -> None:
    pool = ScanPool(1, longest_wait_s=-1.0)
    try:
        with pytest.raises(MaskingBusy):
            pool.submit("wsp_a", ScanJob(1.0, "mask", make_policy().described, KEY, [])).result(30)
    finally:
        pool.close()


def _cpu_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_a_process_that_is_killed_is_replaced_and_its_body_not_taken_for_clean() -> None:
    pool = ScanPool(1)
    try:
        policy = make_policy(pattern("account", QUICK))
        job = ScanJob(60.0, "mask", policy.described, KEY, [b'{"a":"ACC-1234"}'])
        assert pool.submit("wsp_a", job).result(60).changes
        process = pool._processes[0]._process
        assert process is not None
        crawl = ScanJob(
            3600, "mask", make_policy(pattern("c", SLOW)).described, KEY, [slow_document(5_000_000)]
        )
        killed = pool.submit("wsp_a", crawl)
        used = _cpu_ticks(process.pid)
        while _cpu_ticks(process.pid) < used + 5:  # until it is at work
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(ScanTimeout):
            killed.result(60)
        assert pool.submit("wsp_a", job).result(60).changes
    finally:
        pool.close()


def test_the_budget_is_cpu_time_and_ends_a_scan_in_the_middle() -> None:
    pool = ScanPool(1)
    try:
        policy = make_policy(pattern("quick", QUICK), pattern("crawl", SLOW))
        job = ScanJob(0.1, "mask_by_rule", policy.described, KEY, [slow_document()])
        with pytest.raises(ScanTimeout) as error:
            pool.submit("wsp_a", job).result(120)
        assert error.value.slowest == "crawl"
    finally:
        pool.close()
