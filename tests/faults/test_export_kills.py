"""kill -9 of an export's run at any moment: the next one ends it, and the dataset is as if nothing had been.

`RECORDER_FAULT_EXPORT_KILLS` says how often it is killed on each engine; `make test-faults` does a few. The
moments follow `RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from recorder.exports.verify import verify_manifest
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from tests.faults.results import add_result, count_done
from tests.support.deployment_processes import ROOT
from tests.support.export_runs import ask, folder_of, hashes_of, manifest_of
from tests.support.sealed_sessions import Recording, make_runtime, seal

KILLS = int(os.environ.get("RECORDER_FAULT_EXPORT_KILLS", "4"))  # noqa: TID251
SEED = int(os.environ.get("RECORDER_FAULT_SEED", "1"))  # noqa: TID251
_LEASE_MS = 300
#: Then an export is left in peace: else chance alone might let none of its runs get on.
_KILLS_OF_ONE = 5
_PATIENCE_S = 60.0
_LONG_PATIENCE_S = 120.0


@dataclass
class Lives:
    """The runs of exports; at most one at a time."""

    launcher: "subprocess.Popen[bytes]"

    def start(self, export_id: str) -> int:
        """Begin a life; gives its process id."""
        assert self.launcher.stdin is not None
        self.launcher.stdin.write(export_id.encode() + b"\n")
        self.launcher.stdin.flush()
        while (line := self._read_line(_PATIENCE_S)) == "ended":
            pass  # of a life that was killed just behind its end
        return int(line)

    def ends_within(self, seconds: float) -> bool:
        """Return whether the process ends within the time."""
        return self._read_line(seconds) == "ended"

    def kill_until_ended(
        self, line: str, chance: random.Random, whole: float, *, most: int
    ) -> tuple[int, float]:
        """Begin lives and kill them at random moments until one ends its work.

        Args:
            line: the work, as the launcher reads it.
            chance: chooses the moments.
            whole: seconds that an undisturbed life takes.
            most: kills after which a life is left in peace.

        Returns:
            The number of kills, and the seconds of the life that ended.
        """
        for kills in range(most + 1):
            life = self.start(line)
            began = time.monotonic()
            if self.ends_within(_LONG_PATIENCE_S if kills == most else chance.uniform(0, 1.1 * whole)):
                return kills, time.monotonic() - began
            if kills < most:
                os.kill(life, signal.SIGKILL)
        raise AssertionError(f"seed {SEED}: nothing goes on")

    def _read_line(self, seconds: float) -> str:
        assert self.launcher.stdout is not None
        readable, _, _ = select.select([self.launcher.stdout], [], [], seconds)
        return self.launcher.stdout.readline().decode().strip() if readable else ""


@contextmanager
def lives_of(
    folder: Path, database_url: str, *, launcher: str = "export_launcher", lease_ms: int = _LEASE_MS
) -> Iterator[Lives]:
    """Yield lives in the deployment of a folder."""
    command = [sys.executable, "-m", f"tests.faults.{launcher}"]
    with subprocess.Popen(
        [*command, str(folder), database_url, str(lease_ms)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    ) as process:
        try:
            yield Lives(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()


@pytest.fixture
def deployment(database_url: str, tmp_path: Path) -> Iterator[Runtime]:
    """Yield a deployment with sealed sessions whose exports have some dozen shards."""
    runtime = make_runtime(tmp_path, database_url=database_url)
    seal(runtime, [Recording(frames=[0, 600]) for _ in range(40)])
    yield runtime
    runtime.close()


def test_a_killed_export_is_ended_by_the_next_run(deployment: Runtime, tmp_path: Path) -> None:
    name = f"export kills on {'SQLite' if deployment.database.is_sqlite else 'PostgreSQL'}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    kills = 0
    with lives_of(tmp_path, deployment.database.url) as lives:
        undisturbed = ask_for(deployment, "undisturbed")
        lives.start(undisturbed.id)
        began = time.monotonic()
        assert lives.ends_within(_PATIENCE_S)
        whole = time.monotonic() - began
        expected = folder_of(deployment, undisturbed)
        number = 0
        while kills < missing:
            number += 1
            # Every other one finds an export before it, whose files it takes over.
            row = ask_for(deployment, "shared" if number % 2 else f"own-{number}")
            kills += kill_until_it_ends(lives, deployment, row, chance, whole, most=missing - kills)
            require_whole(deployment, row, expected)
    print(f"{kills} kills, {number} exports, one alone takes {whole:.1f} s")
    add_result(name, kills, seed=SEED, exports=number)


def ask_for(runtime: Runtime, path: str) -> ExportRow:
    """Create an export to a folder of this name."""
    return ask(runtime, destination={"kind": "local", "path": path})


def kill_until_it_ends(
    lives: Lives, runtime: Runtime, row: ExportRow, chance: random.Random, whole: float, *, most: int
) -> int:
    """Work on an export, killing at random moments; gives how often.

    Args:
        whole: seconds that an undisturbed run takes.
    """
    kills = 0
    while True:
        life = lives.start(row.id)
        left_in_peace = kills == min(most, _KILLS_OF_ONE)
        if lives.ends_within(_PATIENCE_S if left_in_peace else chance.uniform(0, 1.1 * whole)):
            return kills
        assert not left_in_peace, f"seed {SEED}: nothing goes on"
        os.kill(life, signal.SIGKILL)
        kills += 1
        folder = folder_of(runtime, row)
        if (folder / "manifest.json").exists():
            assert verify_manifest(folder).is_valid, f"seed {SEED}: half a set is called complete"


def require_whole(runtime: Runtime, row: ExportRow, expected: Path) -> None:
    """Require the dataset of an undisturbed run, and no other file in its folder."""
    with runtime.database.transaction(write=False) as db:
        ended = db.get_one(ExportRow, row.id)
    assert ended.status == "completed", f"seed {SEED}: {ended.error}"
    folder = folder_of(runtime, row)
    manifest = manifest_of(folder)
    assert hashes_of(folder) == hashes_of(expected), f"seed {SEED}"
    assert manifest["row_set_sha256"] == manifest_of(expected)["row_set_sha256"] == ended.row_set_sha256
    totals = manifest["totals"]
    assert (totals["rows"], totals["shards"]) == (ended.rows, ended.shards) == (120, ended.shards_done)
    assert verify_manifest(folder).is_valid, f"seed {SEED}"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"manifest.json", "README.md", *hashes_of(folder)}, f"seed {SEED}"
