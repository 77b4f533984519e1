"""Deployments to export from: filled once, on a file system in memory where there is one."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from benchmarks.exports.lake import Shape, fill
from benchmarks.seeds import new_settings
from recorder.runtime import Runtime
from recorder.settings import Settings

_IN_MEMORY = Path("/dev/shm")


@contextmanager
def scratch(*, in_memory: bool = True) -> Iterator[Path]:
    """Yield a folder for everything; in memory, where the system has `/dev/shm`, no disk is measured."""
    parent = _IN_MEMORY if in_memory and _IN_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        yield Path(folder)


def deploy(folder: Path, shape: Shape, *, files: int = 8) -> Settings:
    """Return a deployment with sessions of this shape, and a local folder to export to."""
    local = folder / "local"
    local.mkdir(parents=True)
    settings = replace(new_settings(folder), local_export_root=local)
    runtime = Runtime.open(settings)
    try:
        fill(runtime, shape, files=files)
    finally:
        runtime.close()
    return settings
