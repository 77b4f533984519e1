"""One browser and one service for the tests of a module."""

from collections.abc import Iterator
from typing import Any

import pytest

from recorder import Client
from tests.support.captured_pages import running_browser
from tests.support.http_service import running_service


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield Chromium, started once."""
    with running_browser() as running:
        yield running


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """Yield a client of a running service."""
    with (
        running_service(tmp_path_factory.mktemp("service")) as service,
        Client(service.url, service.key) as made,
    ):
        yield made


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """Yield a page of its own context."""
    context = browser.new_context(viewport={"width": 800, "height": 600})
    yield context.new_page()
    context.close()
