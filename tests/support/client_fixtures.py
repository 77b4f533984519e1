"""Fixtures of a client and the service that it calls, over a socket: one service per module, on SQLite."""

from collections.abc import Iterator

import pytest

from recorder.client import Client
from tests.support.http_service import RunningService, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Yield one service for the tests of a module."""
    with running_service(tmp_path_factory.mktemp("service")) as running:
        yield running


@pytest.fixture
def client(service: RunningService) -> Iterator[Client]:
    """Yield a client with the first key."""
    with Client(service.url, service.key) as connected:
        yield connected
