"""Executors: equal shards from each of them; lost workers are replaced or reported. Spec §4.3."""

import pickle
import resource
import signal
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from deltalake import DeltaTable

from recorder.errors import Unavailable
from recorder.exports.executor import InProcess, open_executor
from recorder.exports.executor.base import divide_shard_tasks
from recorder.exports.executor.pool import ProcessPool
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.exports.writers import RowsMissing, ShardRows, ShardTask, WrittenShard, read_shard_task_rows
from recorder.runtime import Runtime
from recorder.setting_parsers import InvalidSetting
from recorder.settings import Settings
from tests.support.executors import InAllFormats, Watched, elsewhere, write, written_by
from tests.support.export_runs import ask, folder_of, hashes_of
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, seal
from tests.support.waiting import wait_for

_WORKER = "exports.executor.pool_worker"


def workers() -> list[psutil.Process]:
    """Return the processes of pools that this process has started."""
    children = psutil.Process().children()
    return [child for child in children if any(_WORKER in word for word in _command(child))]


def _command(process: psutil.Process) -> list[str]:
    try:
        command: list[str] = process.cmdline()
    except psutil.Error:
        return []
    return command


def kill_workers() -> None:
    for worker in workers():
        worker.send_signal(signal.SIGKILL)


def test_processes_write_the_bytes_of_one_process(written: InAllFormats, tmp_path: Path) -> None:
    assert len(written.hashes) > 30
    assert write(ProcessPool(2), written.tasks, tmp_path) == written.hashes


def test_workers_that_are_killed_are_replaced(runtime: Runtime, written: InAllFormats) -> None:
    folder = written_by(Watched(ProcessPool(2), act=kill_workers), runtime, frame_sampling={"mode": "all"})
    assert hashes_of(folder).items() <= written.hashes.items() and verify_manifest(folder).is_valid
    assert workers() == []


def test_workers_that_die_after_their_last_file_are_replaced(
    tasks: list[ShardTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each worker is killed once it has reported all files of a task, before it reports the end of the task.
    monkeypatch.setattr("recorder.exports.executor.pool.WORKER_MODULE", "tests.support.dying_pool_worker")
    monkeypatch.chdir(Path(__file__).parents[3])
    paths = {shard.path for task in tasks for shard in task.shards}
    assert write(ProcessPool(2), tasks, tmp_path).keys() == paths


@pytest.mark.usefixtures("written")
def test_workers_that_die_again_and_again_end_the_export(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHOME", "/nowhere")  # no Python starts so
    item = ask(runtime, destination={"kind": "local", "path": "lost"})
    row = run_export(runtime, item.id, owner="test", executor=ProcessPool(2))
    assert row.status == "failed" and row.error is not None
    assert row.error["code"] == "worker_lost" and "3 workers died" in row.error["message"]
    assert not (folder_of(runtime, row) / "manifest.json").exists()


def test_an_error_in_a_worker_of_the_chosen_pool_is_the_error_of_the_export(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path, export_executor="processes:1")
    ids = seal(runtime, [Recording() for _ in range(5)])
    DeltaTable(f"{runtime.lake.url}/{WORKSPACE}/live/events").delete(f"session_id = '{ids[3]}'")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    row = run_export(runtime, ask(runtime).id, owner="test")
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime > before + 0.1, "it was written here"
    assert row.status == "failed" and row.error is not None
    assert row.error["code"] == "rows_missing" and "was planned with" in row.error["message"]
    assert not (folder_of(runtime, row) / "manifest.json").exists()
    assert workers() == []


def test_the_next_task_is_read_while_one_is_written(
    tasks: list[ShardTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = list[str]()

    def noted(task: ShardTask) -> list[ShardRows]:
        read.append(task.shards[0].path)
        return read_shard_task_rows(task)

    monkeypatch.setattr("recorder.exports.executor.base.read_shard_task_rows", noted)
    one_by_one = divide_shard_tasks(elsewhere(tasks, tmp_path), 1_000)
    results = InProcess().run(one_by_one)
    first = next(results)
    wait_for(lambda: len(read) == 2)
    assert (first.path, read) == (
        one_by_one[0].shards[0].path,
        [task.shards[0].path for task in one_by_one[:2]],
    )
    results.close()
    assert len(read) == 2 and not [item for item in threading.enumerate() if item.name.startswith("read")]


def test_an_error_in_reading_ahead_comes_after_what_is_written(
    tasks: list[ShardTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_by_one = divide_shard_tasks(elsewhere(tasks, tmp_path), 1_000)
    gone = replace(one_by_one[1], lake_url=str(tmp_path / "nothing"))
    written = list[WrittenShard]()
    with pytest.raises(RowsMissing):
        for shard in InProcess().run([one_by_one[0], gone, one_by_one[2]]):
            written.append(shard)
    assert [shard.path for shard in written] == [one_by_one[0].shards[0].path]
    assert not (tmp_path / one_by_one[2].shards[0].path).exists()


def test_nothing_is_at_work_once_the_results_are_closed(tasks: list[ShardTask], tmp_path: Path) -> None:
    with closing(ProcessPool(2).run(elsewhere(tasks, tmp_path))) as results:
        next(results)
        assert {worker.environ()["POLARS_MAX_THREADS"] for worker in workers()} == {"1"}
    assert workers() == []
    assert not list(tmp_path.rglob(".staging/*"))


def test_a_pool_dies_with_its_process(tasks: list[ShardTask], tmp_path: Path) -> None:
    (tmp_path / "tasks").write_bytes(pickle.dumps(elsewhere(tasks, tmp_path)))
    program = (
        "import pickle, sys; from recorder.exports.executor.pool import ProcessPool\n"
        "results = ProcessPool(2).run(pickle.load(open(sys.argv[1], 'rb')))\n"
        "next(results); print('begun', flush=True); sys.stdin.read()"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "tasks")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    assert parent.stdin and parent.stdout and parent.stdout.readline() == b"begun\n"
    children = psutil.Process(parent.pid).children()
    with parent:
        parent.kill()
    assert len(children) == 2 and psutil.wait_procs(children, timeout=20)[1] == []


def test_an_error_keeps_its_code_and_its_words_on_the_way_between_processes() -> None:
    for error in (RowsMissing("data/x", planned=3, in_lake=2), Unavailable("The lake")):
        arrived = pickle.loads(pickle.dumps(error))
        assert (type(arrived), str(arrived)) == (type(error), str(error))
        assert (arrived.code, arrived.__dict__) == (error.code, error.__dict__)


def test_work_is_shared_out_without_loss_and_largest_first(tasks: list[ShardTask]) -> None:
    portions = divide_shard_tasks(tasks, 4)
    assert sorted(shard.path for task in portions for shard in task.shards) == sorted(
        shard.path for task in tasks for shard in task.shards
    )
    of_events = [task.shards for task in portions if task.shards[0].kind == "events"]
    sizes = [sum(shard.bytes_read for shard in shards) for shards in of_events]
    assert len(portions) >= 8 and sizes == sorted(sizes, reverse=True)
    total = sum(
        shard.bytes_read + int(shard.sessions["image_bytes"].sum()) for task in tasks for shard in task.shards
    )
    assert all(size * 12 <= total for size, shards in zip(sizes, of_events, strict=True) if len(shards) > 1)
    assert divide_shard_tasks(tasks, 1) == tasks


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "threads:2",
        "processes",
        "processes:0",
        "processes:-1",
        "processes:٢",
        "tcp://host",
        "tcp://me:secret@host:1",
        "http://host:8786",
        "dask://",
    ],
)
def test_an_executor_that_there_is_not_is_refused_at_the_start(tmp_path: Path, wrong: str) -> None:
    with pytest.raises(InvalidSetting, match=r"^RECORDER_EXPORT_EXECUTOR takes in_process, processes:N, or"):
        Settings.from_env({"RECORDER_EXPORT_EXECUTOR": wrong}, data_dir=tmp_path)


@pytest.mark.parametrize(
    ("chosen", "kind"),
    [
        ("in_process", "InProcess"),
        ("processes:4", "ProcessPool"),
        ("tls://dask.internal:8786", "DaskCluster"),
        ("tcp://[::1]:8786", "DaskCluster"),
        ("dask://dask.internal:8786", "DaskCluster"),
    ],
)
def test_the_setting_chooses_the_executor(tmp_path: Path, chosen: str, kind: str) -> None:
    settings = Settings.from_env({"RECORDER_EXPORT_EXECUTOR": chosen}, data_dir=tmp_path)
    assert type(open_executor(settings.export_executor)).__name__ == kind
    assert Settings.from_env(settings.as_env()) == settings


def test_dask_is_loaded_by_nobody_who_does_not_use_it() -> None:
    program = (
        "import sys, recorder.exports.runner.run; from recorder.exports.executor import open_executor\n"
        "open_executor('in_process'), open_executor('processes:2'), open_executor('tcp://127.0.0.1:1')\n"
        "print([name for name in ('dask', 'distributed') if name in sys.modules])"
    )
    root = Path(__file__).parents[2]
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root
    )
    assert loaded.stdout == "[]\n"
