"""Fixtures of the HTTP service: one application per module and engine, one workspace per test."""

from collections.abc import Iterator

import pytest

from tests.factories import Caller, Service, running_app


@pytest.fixture(scope="module")
def service(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The application, once on SQLite and once on PostgreSQL."""
    with running_app(tmp_path_factory.mktemp("service"), database_url) as running:
        yield running


@pytest.fixture
def caller(service: Service) -> Caller:
    """A key of a workspace that no other test sees."""
    return service.make_caller()
