"""Fixtures of the HTTP service, called or over a socket: one per module and engine, a workspace per test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.recording.streams import StreamTimes
from tests.support.factories import Caller, Service, running_app
from tests.support.stream_clients import Streamer, StreamService, streaming_service


@pytest.fixture(scope="module")
def service(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Yield the application, once on SQLite and once on PostgreSQL."""
    with running_app(tmp_path_factory.mktemp("service"), database_url) as running:
        yield running


@pytest.fixture
def caller(service: Service) -> Caller:
    """Return a key of a workspace that no other test sees."""
    return service.make_caller()


@pytest.fixture
def second_process(service: Service, tmp_path: Path) -> Iterator[Service]:
    """Yield a second process of the deployment: the application on the same database and secret."""
    settings = service.runtime.settings
    (tmp_path / "secret").write_bytes(settings.secret)
    with running_app(tmp_path, settings.database_url) as running:
        yield running


@pytest.fixture(scope="module")
def stream_service(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StreamService]:
    """Yield a running service on either engine, which reads keys again more often than by default."""
    folder = tmp_path_factory.mktemp("service")
    with streaming_service(
        folder, times=StreamTimes(key_check_s=0.1, poll_s=0.2), database_url=database_url
    ) as running:
        yield running


@pytest.fixture
def streamer(stream_service: StreamService) -> Iterator[Streamer]:
    """Yield a key of a workspace that no other test sees."""
    with stream_service.streamer() as made:
        yield made
