"""Deployments on both engines, each with a database of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.backups import Deployments
from tests.support.databases import create_database, create_empty_database, create_file
from tests.support.factories import Caller, running_app


@pytest.fixture(params=["sqlite", "postgresql"])
def deployments(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployments]:
    """Yield a deployment that nothing else uses, and empty databases to restore to."""
    is_sqlite = request.param == "sqlite"
    cluster = "" if is_sqlite else request.getfixturevalue("postgres")
    data = tmp_path / "data"
    url = create_file(data) if is_sqlite else create_database(cluster)

    def make_database(folder: Path) -> str:
        return f"sqlite:///{folder / 'recorder.db'}" if is_sqlite else create_empty_database(cluster)

    with running_app(data, url) as service:
        yield Deployments(service, tmp_path, make_database)


@pytest.fixture
def caller(deployments: Deployments) -> Caller:
    """Return a key of a workspace of that deployment."""
    return deployments.service.make_caller()
