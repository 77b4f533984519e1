"""One set of sessions, exported in each of the four formats."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest

from recorder.models.export_request import ExportFormat
from recorder.runtime import Runtime
from tests.support.export_runs import export
from tests.support.hosted_exports import WORKFLOWS, Host, hosting, seal_sessions
from tests.support.sealed_sessions import make_runtime


@pytest.fixture(scope="session")
def sealed_sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runtime]:
    """Yield sixty sessions of three workflows with real pictures, some without an outcome or an actor."""
    runtime = make_runtime(tmp_path_factory.mktemp("deployment"))
    seal_sessions(runtime, 60)
    yield runtime
    runtime.close()


@pytest.fixture(scope="session")
def exports(sealed_sessions: Runtime) -> dict[str, Path]:
    """Return the folder of an export by format: the same sessions, parts and frames in each."""
    body = {"workflow": WORKFLOWS, "frame_sampling": {"mode": "all"}}
    shares = {"split": {"by": "session", "validation": 0.2, "test": 0.2}}
    return {
        format: export(sealed_sessions, format=format, **body, **shares) for format in get_args(ExportFormat)
    }


@pytest.fixture(scope="session")
def events(exports: dict[str, Path]) -> pl.DataFrame:
    """Return all events, as polars reads them from Parquet without us."""
    return pl.read_parquet(exports["parquet"] / "data" / "*" / "events-*.parquet", hive_partitioning=False)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Yield Hugging Face `datasets`, offline, with caches that are thrown away."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "HF_HOME": str(tmp_path_factory.mktemp("hf")),
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DO_NOT_TRACK": "1",
        }.items():
            environment.setenv(name, value)
        import datasets

        environment.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("datasets"))
        environment.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        datasets.disable_progress_bars()
        yield datasets


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """Yield a running service with twelve sealed sessions."""
    with hosting(tmp_path_factory.mktemp("host")) as running:
        yield running
