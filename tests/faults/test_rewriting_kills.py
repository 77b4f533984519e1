"""kill -9 of a purge at any moment: the next run ends it, and the exports are as if nothing had been.

`RECORDER_FAULT_PURGE_KILLS` gives the number of kills on each engine; `make test-faults` does a few. The
moments follow `RECORDER_FAULT_SEED`, which a failure names.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest

from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.runtime import Runtime
from tests.faults.export_launcher import SHARD_BYTES
from tests.faults.results import add_result, count_done
from tests.faults.test_export_kills import SEED, deployment, lives_of
from tests.support.export_runs import ask, folder_of, hashes_of, manifest_of, rows_of
from tests.support.purges import open_purges
from tests.support.rewritten_exports import hide_for_purge, row_now

__all__ = ["deployment"]

KILLS = int(os.environ.get("RECORDER_FAULT_PURGE_KILLS", "2"))  # noqa: TID251
_KILLS_OF_ONE = 5
_LEASE_MS = 1_000
_PATIENCE_S = 120.0


def test_a_killed_purge_is_ended_by_the_next_run(
    deployment: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", SHARD_BYTES)
    name = f"purge kills on {'SQLite' if deployment.database.is_sqlite else 'PostgreSQL'}"
    done = count_done(name)
    missing = max(KILLS - done, 0)
    chance = random.Random(SEED + done)
    folders = [written(deployment), written(deployment), written(deployment, kind="signed_url")]
    ids = sorted(set(rows_of(folders[0])["session_id"]))
    kills, whole = 0, 1.0
    with lives_of(tmp_path, deployment.database.url, launcher="purge_launcher", lease_ms=_LEASE_MS) as lives:
        for number, session_id in enumerate(ids):
            before = [hashes_of(folder) for folder in folders]
            hide_for_purge(deployment, session_id)
            began = time.monotonic()
            most = min(missing - kills, _KILLS_OF_ONE) if number else 0
            for left in range(most, -1, -1):
                life = lives.start("")
                if lives.ends_within(chance.uniform(0, 1.1 * whole) if left else _PATIENCE_S):
                    break
                assert left, f"seed {SEED}: nothing goes on: {open_purges(deployment)}"
                os.kill(life, signal.SIGKILL)
                kills += 1
            whole = whole if number else time.monotonic() - began
            for folder, hashes in zip(folders, before, strict=True):
                require_rewritten(deployment, folder, session_id, hashes)
            if number and kills >= missing:
                break
    print(f"{kills} kills, {number + 1} purges of three exports, one alone takes {whole:.1f} s")
    assert kills >= min(missing, 1)
    add_result(name, kills, seed=SEED, purges=number + 1)


def written(runtime: Runtime, *, kind: str = "local") -> Path:
    """Return a finished export; the second one takes over the files of the first."""
    destination = {"kind": kind} | ({"path": "out"} if kind == "local" else {})
    row = run_export(runtime, ask(runtime, destination=destination).id, owner="test")
    return folder_of(runtime, row)


def require_rewritten(runtime: Runtime, folder: Path, session_id: str, before: dict[str, str]) -> None:
    """Require a valid dataset without the session, whose other files are those from before."""
    row = row_now(runtime, folder.name)
    manifest, after = manifest_of(folder), hashes_of(folder)
    assert verify_manifest(folder).is_valid, f"seed {SEED}: {verify_manifest(folder).problems}"
    assert session_id not in set(rows_of(folder)["session_id"]), f"seed {SEED}"
    changed = {path for path, digest in before.items() if after.get(path) != digest}
    assert 0 < len(changed) <= 2 and after.keys() <= before.keys(), f"seed {SEED}"
    assert manifest["revision"] == row.revision and row.next_manifest_sha256 is None
    # Each purge is counted once, however often it was begun.
    assert manifest["tombstones"]["deleted"] == row.revision - 1, f"seed {SEED}"
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert names == {"manifest.json", "README.md", *after}, f"seed {SEED}"
