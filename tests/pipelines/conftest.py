"""A deployment of its own for every test: as Dagster's resource, and with an instance of Dagster."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.resources import RecorderResource, close_shared_runtimes
from tests.support.dagster_deployment import deployment
from tests.support.sealed_sessions import make_runtime

__all__ = ["deployment", "recorder"]


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[RecorderResource]:
    """Yield the resource on a new deployment."""
    make_runtime(tmp_path / "data").close()
    yield RecorderResource(data_dir=str(tmp_path / "data"))
    close_shared_runtimes()
