"""A deployment of its own for every test, as Dagster's resource."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines.resources import RecorderResource, close_runtimes


@pytest.fixture
def recorder(tmp_path: Path) -> Iterator[RecorderResource]:
    """The resource on an empty folder."""
    yield RecorderResource(data_dir=str(tmp_path / "data"))
    close_runtimes()
