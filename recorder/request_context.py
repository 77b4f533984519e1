"""Which request brought about what runs now: logs, events and Dagster runs carry its id. Contract §1."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_request_id: ContextVar[str | None] = ContextVar("request_id", default=None)

#: Makes an id the current one for what follows in this context: a request's task and its worker threads.
follow = _request_id.set
#: Id of the request at work; None where no request is.
current_request_id = _request_id.get


@contextmanager
def following(request_id: str | None) -> Iterator[None]:
    """Work on behalf of an earlier request while the block runs."""
    token = _request_id.set(request_id)
    try:
        yield
    finally:
        _request_id.reset(token)
