"""The deployment that a command works on, beside a running service or without one. Contract §9."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from recorder.runtime import Runtime
from recorder.settings import Settings


@contextmanager
def opened(data: Path | None) -> Iterator[Runtime]:
    """The parts of the deployment in this data folder, or in the environment's."""
    runtime = Runtime.open(Settings.from_env(data_dir=data))
    try:
        yield runtime
    finally:
        runtime.close()
