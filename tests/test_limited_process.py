"""Requests to a process with limits: order, what ends it, and callers that do not wait."""

import time
from collections.abc import Iterator

import pytest

from recorder.limited_process import LimitedProcess, ProcessEnded
from tests.support.limited_processes import serve


@pytest.fixture
def process() -> Iterator[LimitedProcess]:
    process = LimitedProcess(serve, memory_bytes=2**28, seconds=2)
    yield process
    process.end()


def test_messages_that_fill_the_pipe_are_answered_in_order(process: LimitedProcess) -> None:
    messages = [b"%d" % number + size * b"x" for number, size in enumerate([10, 500_000, 0, 300_000] * 5)]
    assert list(process.request_each(messages)) == [message.upper() for message in messages]
    assert process.request(b"again") == b"AGAIN"


def test_what_ends_the_process_ends_alone(process: LimitedProcess) -> None:
    answers = list(process.request_each([b"a", b"end", b"b", b"wait", b"c", b"end"]))
    assert [answer for answer in answers if isinstance(answer, bytes)] == [b"A", b"B", b"C"]
    ended = {
        number: answer.is_late for number, answer in enumerate(answers) if isinstance(answer, ProcessEnded)
    }
    assert ended == {1: False, 3: True, 5: False}
    with pytest.raises(ProcessEnded):
        process.request(b"end")


def test_a_caller_need_not_wait_and_may_leave(process: LimitedProcess) -> None:
    assert process.request(b"first") == b"FIRST"
    answers = process.request_each([b"a", b"wait", b"b"], patience_s=0.05)
    assert next(answer for answer in answers if answer is not None) == b"A"
    assert [next(answers) for _ in range(3)] == [None, None, None]
    answers.close()
    assert process.request(b"c") == b"C"


def test_a_process_that_uses_its_processor_time_ends_however_long_it_may_wait() -> None:
    process = LimitedProcess(serve, memory_bytes=2**28, seconds=600, processor_seconds=0.1)
    try:
        assert process.request(b"a") == b"A"
        time.sleep(1.2)  # longer than that, on no processor
        assert process.request(b"b") == b"B"
        ended, *others = process.request_each([b"work", b"c"])
        assert isinstance(ended, ProcessEnded) and not ended.is_late
        assert others == [b"C"]
    finally:
        process.end()
