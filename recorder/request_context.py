"""Request context: the id of the current request, for logs, events and Dagster runs. Contract §1."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

#: Sets the id of the current request in this context: its task and its worker threads.
follow = _request_id.set
#: Returns the id of the current request; None outside of requests.
current_request_id = _request_id.get


@contextmanager
def continue_request_context(request_id: str | None) -> Iterator[None]:
    """Make an earlier request the current one while the block runs."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)
