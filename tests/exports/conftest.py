"""Fixtures that several files of this folder share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from recorder.models.workspace import WorkspaceRow
from recorder.runtime import Runtime
from tests.support.databases import create_database
from tests.support.sealed_sessions import START, WORKSPACE, make_runtime
from tests.support.spoiled_datasets import copy, originals

__all__ = ["copy", "many_buckets", "on_either_engine", "originals"]


@pytest.fixture(params=["sqlite", "postgresql"])
def on_either_engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Runtime]:
    """A deployment with a workspace, on SQLite and on PostgreSQL."""
    chosen = {}
    if request.param == "postgresql":
        chosen["database_url"] = create_database(request.getfixturevalue("postgres"))
    made = make_runtime(tmp_path, **chosen)
    with made.database.transaction(write=True) as db:
        db.add(WorkspaceRow(id=WORKSPACE, name="acme", region="us", tier="default", created_at=START))
    yield made
    made.close()


@pytest.fixture
def many_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few sessions make many shards."""
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)
