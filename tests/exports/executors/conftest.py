"""One set of sessions in each format, and the tasks that wrote it."""

from collections.abc import Iterator

import pytest

from recorder.exports.writers import ShardTask
from recorder.runtime import Runtime
from tests.support.executors import InAllFormats, write_all_formats
from tests.support.sealed_sessions import make_runtime


@pytest.fixture(scope="module", autouse=True)
def small_shards() -> Iterator[None]:
    """Yield with buckets so small that a few sessions make many shards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)
        yield


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory, small_shards: None) -> Iterator[Runtime]:
    """Yield a deployment of its own for each file."""
    made = make_runtime(tmp_path_factory.mktemp("executors"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def written(runtime: Runtime) -> InAllFormats:
    """Return the dataset of the sessions, as this process exported them."""
    return write_all_formats(runtime)


@pytest.fixture(scope="module")
def tasks(written: InAllFormats) -> list[ShardTask]:
    """Return the tasks that write their Parquet files."""
    return written.of("parquet")
