"""The client under the limits of the specification: it waits as long as answers say. Spec §8.1."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from recorder.access.rate_tiers import TIERS
from recorder.client import ApiError, Client
from tests.support.http_service import running_service
from tests.support.limiter_clock import limited_key

RATE = TIERS["default"].rates["create_session"].per_key


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the address of a service, and a key of a workspace as `recorder workspaces create` makes it."""
    folder = tmp_path_factory.mktemp("service")
    with running_service(folder) as service:
        yield service.url, limited_key(folder)


def test_many_threads_create_more_sessions_than_the_bucket_holds(opened: tuple[str, str]) -> None:
    count = RATE.burst + RATE.limit
    with Client(*opened) as client, ThreadPoolExecutor(16) as pool:
        began = time.monotonic()
        made = list(pool.map(lambda _: client.create_session("limits"), range(count)))
        took_s = time.monotonic() - began
        assert len({session["id"] for session in made}) == count
        assert took_s >= (count - RATE.burst) / RATE.per_second
        assert len(list(client.list_sessions(workflow="limits"))) == count


def test_a_client_without_patience_is_told_how_long_to_wait(opened: tuple[str, str]) -> None:
    with Client(*opened, patience_s=0.5) as client, pytest.raises(ApiError) as raised:
        for _ in range(RATE.burst * 30):
            client.create_session("impatient")
    assert (raised.value.code, raised.value.retry_after_s) == ("rate_limited", 1)
