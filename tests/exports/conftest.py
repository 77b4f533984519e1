"""Fixtures that several files of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.runtime import Runtime
from tests.support.sealed_sessions import open_on_either_engine
from tests.support.spoiled_datasets import copy, originals

__all__ = ["copy", "many_buckets", "on_either_engine", "originals"]


@pytest.fixture(params=["sqlite", "postgresql"])
def on_either_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment with a workspace, on SQLite and on PostgreSQL."""
    yield from open_on_either_engine(request, tmp_path, tier="default")


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set buckets so small that a few sessions make many shards."""
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)
