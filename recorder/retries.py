"""Retries of calls with growing waits, made by stamina and logged at debug level; doubling pauses."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import cache

import stamina
from stamina.instrumentation import RetryDetails, RetryHook, get_on_retry_hooks, set_on_retry_hooks

log = logging.getLogger(__name__)

_is_ours: ContextVar[bool] = ContextVar("is_retry_of_recorder", default=False)


def retry(
    on: type[Exception] | Callable[[Exception], bool | float],
    *,
    attempts: int | None,
    first_s: float,
    longest_s: float,
    jitter_s: float = 0.0,
    growth: float = 2.0,
    timeout_s: float | None = None,
) -> Iterator[stamina.Attempt]:
    """Yield attempts, each a context for the call: `for attempt in retry(…): with attempt: return call()`.

    The error of the last attempt is raised.

    Args:
        on: errors after which the call is repeated; a function returns True, False, or the seconds to wait.
        attempts: most attempts, the first included; None sets no limit.
        first_s: wait after the first attempt.
        longest_s: longest wait, jitter included.
        jitter_s: most that is added to a wait at random, so that callers do not return together.
        growth: factor from one wait to the next.
        timeout_s: seconds after which no further attempt begins; None sets no limit.
    """

    def must_repeat(error: Exception) -> bool | float:
        _wrap_retry_hooks()
        return isinstance(error, on) if isinstance(on, type) else on(error)

    rounds = iter(
        stamina.retry_context(
            on=must_repeat,
            attempts=attempts,
            timeout=timeout_s,
            wait_initial=first_s,
            wait_max=longest_s,
            wait_jitter=jitter_s,
            wait_exp_base=growth,
        )
    )
    while True:
        token = _is_ours.set(True)
        try:
            attempt = next(rounds, None)
        finally:
            _is_ours.reset(token)
        if attempt is None:
            return
        yield attempt


def compute_doubling_pause(repeats: int, *, first: float, longest: float) -> float:
    """Return the pause before something is tried again: the first one, doubled for each repeat."""
    return float(min(longest, first * 2.0 ** min(repeats, 10)))


def _log_own_retries(hook: RetryHook) -> RetryHook:
    """Return a hook that logs retries of this module and passes those of other callers on to `hook`."""

    def report(details: RetryDetails) -> AbstractContextManager[None] | None:
        if not _is_ours.get():
            return hook(details)
        log.debug("attempt %d in %.1f s: %s", details.retry_num + 1, details.wait_for, details.caused_by)
        return None

    return report


@cache
def _wrap_retry_hooks() -> None:
    """Let stamina's hooks report the retries of other callers alone.

    By default stamina reports every retry through structlog, which prints to stdout unless it is configured;
    stdout carries the data of the commands. The hooks are wrapped at the first failure, since they import
    structlog, rich and the client of Prometheus.
    """
    set_on_retry_hooks([_log_own_retries(hook) for hook in get_on_retry_hooks()])
