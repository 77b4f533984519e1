"""Equal rows give equal bytes, whatever the lake's files and the threads. Spec §4.3 (determinism)."""

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from recorder.runtime import Runtime
from tests.support.export_runs import export, hashes_of, manifest_of, rows_of
from tests.support.sealed_sessions import WORKSPACE, Recording, delete, make_runtime, seal

_EXPORTS = """
import json, sys
from pathlib import Path
import recorder.exports.planning.plan as plan
from tests.support.export_runs import export, hashes_of
from tests.support.sealed_sessions import make_runtime
plan.SHARD_BYTES = 1_300_000
runtime, hashes = make_runtime(Path(sys.argv[1])), {}
for format in ("parquet", "jsonl", "arrow", "webdataset"):
    hashes |= hashes_of(export(runtime, format=format, frame_sampling={"mode": "all"}))
print(json.dumps(hashes))
"""

# Where no earlier export has shards that could be taken over.
_ELSEWHERE = {"kind": "local", "path": "elsewhere"}


def _recordings(count: int) -> Iterator[Recording]:
    """Yield sessions with nulls in every nullable column, in changing neighbourhoods."""
    for number in range(count):
        yield Recording(
            events=[(t_ms * 7 % 4_000, "click" if t_ms % 5 else "scroll") for t_ms in range(100)],
            frames=list(range(0, 4_000, 500 + number)),
            outcome=[None, "success", "error"][number % 3],
            actor_kind=[None, "human"][number % 2],
        )


def _rearrange(folder: Path, how: str) -> None:
    for path in (folder / "lake").glob("wsp_*/*/*"):
        table = DeltaTable(str(path))
        if how == "compacted":
            table.optimize.compact()
        else:
            table.optimize.z_order(["bucket"])


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return equal sessions as many small files, as few large ones, and ordered through the whole table."""
    root = tmp_path_factory.mktemp("layouts")
    runtime = make_runtime(root / "small")
    recordings = list(_recordings(60))
    for first in range(0, 60, 10):
        for session_id in seal(runtime, recordings[first : first + 10])[::4]:
            runtime.blobs.delete(f"frames/{WORKSPACE}/{session_id}/batch.pack")
    runtime.close()
    for how in ("compacted", "ordered"):
        shutil.copytree(root / "small", root / how)
        _rearrange(root / how, how)
    return [root / how for how in ("small", "compacted", "ordered")]


def test_bytes_depend_neither_on_lake_files_nor_on_threads(layouts: list[Path]) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _EXPORTS, str(layout)],
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env={"POLARS_MAX_THREADS": str(threads), "PYTHONHASHSEED": str(threads)},
        )
        for threads, layout in zip((1, 2, 8), layouts, strict=True)
    ]
    first, *others = [json.loads(run.communicate()[0]) for run in runs]
    kinds = Counter(re.sub(r".*/(\w+)-.*\.", r"\1.", path) for path in first)
    rows = {
        f"{kind}.{ending}": 4 for kind in ("events", "frames") for ending in ("parquet", "jsonl", "arrow")
    }
    assert kinds == rows | {"samples.tar": 4}, "four buckets"
    assert others == [first, first]


def test_a_repeat_is_the_same_dataset(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, list(_recordings(5)))
    first, second = manifest_of(export(runtime)), manifest_of(export(runtime, destination=_ELSEWHERE))
    ignored = {"export_id", "created_at", "spec", "spec_sha256", "plan_sha256"}
    assert {key: first[key] for key in first.keys() - ignored} == {
        key: second[key] for key in second.keys() - ignored
    }


def test_one_deleted_session_changes_one_shard_of_a_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recorder.exports.planning.plan.SHARD_BYTES", 300_000)
    runtime = make_runtime(tmp_path)
    ids = seal(runtime, list(_recordings(60)))
    before = hashes_of(export(runtime))
    delete(runtime, ids[30])
    after = hashes_of(export(runtime, destination=_ELSEWHERE))
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert len(before) > 16
    assert sorted(path.split("/")[-1].split("-")[0] for path in changed) == ["events", "frames"]


def test_equal_content_keys_mean_equal_bytes(runtime_with_outcomes: Runtime) -> None:
    first = manifest_of(export(runtime_with_outcomes, filter={"outcome": "success"}))
    other = manifest_of(export(runtime_with_outcomes, filter={"actor.kind": "human"}, destination=_ELSEWHERE))
    assert {shard["content_key"]: shard["sha256"] for shard in first["shards"]} == {
        shard["content_key"]: shard["sha256"] for shard in other["shards"]
    }
    assert first["spec_sha256"] != other["spec_sha256"]


@pytest.fixture
def runtime_with_outcomes(tmp_path: Path) -> Runtime:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(frames=[0]), Recording(outcome=None, actor_kind=None)])
    return runtime


def test_the_sampling_changes_frames_and_leaves_events(runtime_with_outcomes: Runtime) -> None:
    sampled = hashes_of(export(runtime_with_outcomes))
    every = hashes_of(
        export(runtime_with_outcomes, frame_sampling={"mode": "all", "keep_action_frames": True})
    )
    events = "data/workflow=checkout/events-00000-of-00001.parquet"
    assert sampled[events] == every[events]
    assert rows_of(export(runtime_with_outcomes)).height == 6
