"""Sync and async pages of Playwright. A coroutine that calls a sync page never waits."""

from collections.abc import Coroutine
from typing import Any, TypeVar

Value = TypeVar("Value")


def is_async_page(page: object) -> bool:
    """Return whether a page belongs to the async interface of Playwright."""
    return type(page).__module__.startswith("playwright.async_api")


def run_sync_page_coroutine(work: Coroutine[Any, Any, Value]) -> Value:
    """Return the result of a coroutine that never waits, since all that it calls is sync."""
    try:
        work.send(None)
    except StopIteration as done:
        value: Value = done.value
        return value
    raise RuntimeError("A capture of a sync page waited for something.")
