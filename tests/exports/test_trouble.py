"""Failures of destinations during writing: full, gone, refused. Half a dataset never counts as whole."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from recorder.errors import RecorderError, Unavailable
from recorder.exports.executor import InProcess
from recorder.exports.runner.run import MAX_ATTEMPTS, run_export
from recorder.exports.verify import verify_manifest
from recorder.exports.writers import ShardTask, WrittenShard
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from tests.support.export_runs import ask, folder_of
from tests.support.sealed_sessions import Recording, make_runtime, seal
from tests.support.small_disk import run_on_small_disk


@pytest.fixture
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runtime:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 4_000)
    return make_runtime(tmp_path)


@dataclass
class Disturbed:
    """An executor that calls a function after every few shards."""

    act: Callable[[], object]
    every: int
    written: int = 0

    def run(self, tasks: Sequence[ShardTask]) -> Iterator[WrittenShard]:
        for shard in InProcess().run(tasks):
            self.written += 1
            yield shard
            if self.written % self.every == 0:
                self.act()


def test_files_that_vanish_meanwhile_are_written_again(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(12)])
    row = ask(runtime)
    folder = folder_of(runtime, row)
    once = iter([lambda: shutil.rmtree(folder)])
    executor = Disturbed(lambda: next(once, lambda: None)(), every=3)
    assert run_export(runtime, row.id, owner="test", executor=executor).status == "completed"
    assert verify_manifest(folder).is_valid


def test_files_that_vanish_again_and_again_fail_the_export(runtime: Runtime) -> None:
    seal(runtime, [Recording(frames=[0]) for _ in range(4)])
    row = ask(runtime)
    executor = Disturbed(lambda: shutil.rmtree(folder_of(runtime, row)), every=1)
    ended = run_export(runtime, row.id, owner="test", executor=executor)
    assert (ended.status, ended.error and ended.error["code"]) == ("failed", "files_missing")


def test_a_place_that_is_taken_meanwhile_leaves_the_export_to_the_next_run(runtime: Runtime) -> None:
    seal(runtime, [Recording() for _ in range(4)])
    row = ask(runtime)
    folder = folder_of(runtime, row)

    def _take() -> None:
        if folder.is_dir():
            shutil.rmtree(folder)
            folder.write_bytes(b"a file where the folder was")

    with pytest.raises(Unavailable):
        run_export(runtime, row.id, owner="test", executor=Disturbed(_take, every=1))
    folder.unlink()
    assert run_export(runtime, row.id, owner="test").status == "completed"
    assert verify_manifest(folder).is_valid


def test_what_cannot_be_taken_away_is_tried_again_and_left_in_the_end(runtime: Runtime) -> None:
    seal(runtime, [Recording() for _ in range(4)])
    row = ask(runtime)
    folder = folder_of(runtime, row)

    def _fail() -> None:
        (folder / "README.md").mkdir()  # no file can be removed here
        raise RecorderError("no")

    ended = run_export(runtime, row.id, owner="test", executor=Disturbed(_fail, every=1))
    assert (ended.status, ended.files_left) == ("failed", True)
    for _ in range(MAX_ATTEMPTS + 1):
        ended = run_export(runtime, row.id, owner="test")
    assert (ended.files_left, ended.error and ended.error["message"]) == (False, "no")
    assert not (folder / "manifest.json").exists()


_ON_A_SMALL_DISK = """
import sys
from pathlib import Path
from recorder.exports.planning import plan
from recorder.exports.runner.run import run_export
from tests.support.sealed_sessions import make_runtime
plan.SHARD_BYTES = 4_000
row = run_export(make_runtime(Path(sys.argv[1])), sys.argv[2], owner="test")
files = [path for path in Path(sys.argv[3]).rglob("*") if path.is_file()]
print(row.status, (row.error or {}).get("code"), len(files), row.reserved_rows)
"""


def test_a_disk_that_is_full_fails_the_export_and_is_left_empty(runtime: Runtime, tmp_path: Path) -> None:
    seal(runtime, [Recording(frames=list(range(0, 900, 10))) for _ in range(8)])
    row: ExportRow = ask(runtime, frame_sampling={"mode": "all"})
    disk = tmp_path / "local" / "out"
    ended = run_on_small_disk(disk, "96k", ["-c", _ON_A_SMALL_DISK, str(tmp_path), row.id, str(disk)], 120)
    assert ended.stdout.split() == ["failed", "disk_full", "0", "None"], ended.stderr
