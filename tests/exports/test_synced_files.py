"""Files of exports in folders are synced before they count: after a power cut a manifest has all its shards.

The export runs in a process under a library that records which bytes and folder entries are synced.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.power import Disk
from tests.support.deployment_processes import ROOT
from tests.support.sealed_sessions import make_settings


def export_recorded(folder: Path, kind: str) -> Disk:
    """Run an export whose writes and syncs are recorded."""
    data = folder / "data"
    make_settings(data)
    disk = Disk.watch(data, folder)
    environment = {**os.environ, **disk.environment()}  # noqa: TID251
    command = [sys.executable, "-m", "tests.faults.power_exporter", str(data), kind]
    subprocess.run(command, cwd=ROOT, env=environment, check=True, timeout=300)
    return disk


def published(disk: Disk, root: Path) -> dict[str, int]:
    """Return the inode of each file of the exports, by path."""
    return {str(path): path.stat().st_ino for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", ["local", "signed_url"])
def test_shards_are_synced_before_they_are_marked_and_the_manifest_is_last(tmp_path: Path, kind: str) -> None:
    disk = export_recorded(tmp_path, kind)
    root = disk.root / ("local" if kind == "local" else "exports")
    files = published(disk, root)
    [manifest] = [path for path in files if path.endswith("/manifest.json")]
    shards = [path for path in files if path.endswith(".parquet")]
    assert shards
    state, seen, commits = disk.state().__class__(dict(disk.existing)), set(), 0
    for line in disk.lines():
        word, _, rest = line.partition(" ")
        if word == "E" and rest in files:
            seen.add(rest)
            if rest == manifest:
                assert seen == files.keys(), "the manifest is the last file"
                assert not [path for path in shards if path in state.pending or files[path] in state.dirty]
        if word == "S" and int(rest.split()[0]) not in files.values():
            # The database commits: what was published by then is durable.
            commits += bool(seen)
            assert not [path for path in seen if path in state.pending or files[path] in state.dirty]
        state.apply(line)
    assert commits
    assert_durable(disk, root)


def test_files_that_fsspec_puts_into_a_folder_are_synced(tmp_path: Path) -> None:
    assert_durable(export_recorded(tmp_path, "address"), tmp_path / "data/exports")


def assert_durable(disk: Disk, root: Path) -> None:
    """Check that a power cut now takes nothing of the files and the folders that they are in."""
    state = disk.state()
    files = published(disk, root)
    assert files and not [path for path, inode in files.items() if inode in state.dirty]
    needed = {str(folder) for path in files for folder in (Path(path), *Path(path).parents)}
    assert not needed & state.pending
