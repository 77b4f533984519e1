"""Shards written by the workers of a real Dask cluster on loopback. Spec §4.3."""

import time
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import dask
import distributed  # noqa: F401  # sets defaults; what `dask.config.set` puts back must hold them
import pytest
from deltalake import DeltaTable

from recorder import clock
from recorder.errors import Unavailable
from recorder.exports.executor import cluster as module
from recorder.exports.executor.cluster import DaskCluster, write_dask_task
from recorder.exports.planning.plan import list_library_versions
from recorder.exports.runner.run import run_export
from recorder.exports.verify import verify_manifest
from recorder.exports.writers import ShardTask
from recorder.governance.retention import run_retention
from recorder.models.export import ExportRow
from recorder.runtime import Runtime
from tests.support.certificates import write_authority
from tests.support.executors import (
    Cluster,
    InAllFormats,
    Watched,
    elsewhere,
    running_cluster,
    write,
    written_by,
)
from tests.support.export_runs import ask, folder_of, hashes_of
from tests.support.sealed_sessions import WORKSPACE, Recording, add_workspace, make_runtime, seal


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster(workers=2) as started:
        yield started


def test_the_cluster_writes_the_bytes_of_one_process(
    written: InAllFormats, cluster: Cluster, tmp_path: Path
) -> None:
    assert write(DaskCluster(cluster.address), written.tasks, tmp_path) == written.hashes


def test_the_cluster_writes_the_same_bytes_from_archived_frames(cluster: Cluster, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    add_workspace(runtime)
    seal(runtime, [Recording(frames=[0, 600]) for _ in range(6)])
    body = {"format": "webdataset", "frame_sampling": {"mode": "all"}}
    hot = hashes_of(written_by(DaskCluster(cluster.address), runtime, **body))
    report = run_retention(runtime, "tests", at=clock.now() + timedelta(days=100))
    assert report is not None and report.counts[WORKSPACE, "archived_sessions"] == 6
    assert len(hot) > 1 and not runtime.blobs.list_objects("frames/")
    assert hashes_of(written_by(DaskCluster(cluster.address), runtime, **body)) == hot
    runtime.close()


def test_an_error_in_a_worker_is_the_error_of_the_export(cluster: Cluster, tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    ids = seal(runtime, [Recording() for _ in range(5)])
    DeltaTable(f"{runtime.lake.url}/{WORKSPACE}/live/events").delete(f"session_id = '{ids[3]}'")
    row = run_export(runtime, ask(runtime).id, owner="test", executor=DaskCluster(cluster.address))
    assert row.status == "failed" and row.error is not None
    assert row.error["code"] == "rows_missing" and "was planned with" in row.error["message"]
    assert not (folder_of(runtime, row) / "manifest.json").exists()


def test_no_file_comes_once_the_results_are_closed(
    cluster: Cluster, tasks: list[ShardTask], tmp_path: Path
) -> None:
    with closing(DaskCluster(cluster.address).run(elsewhere(tasks, tmp_path))) as results:
        next(results)
    written = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    time.sleep(0.5)
    assert 0 < len(written) < sum(len(task.shards) for task in tasks)
    assert written == sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_files_that_only_the_worker_sees_are_not_taken_for_written(
    cluster: Cluster, tasks: list[ShardTask], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A relative folder: this process and the workers take it for two.
    monkeypatch.chdir(tmp_path)
    with pytest.raises(module.WrittenElsewhere, match="does not find it at the destination"):
        list(DaskCluster(cluster.address).run(elsewhere(tasks, Path("not-shared"))))


def test_a_worker_of_another_release_writes_nothing(tasks: list[ShardTask], tmp_path: Path) -> None:
    ours = list_library_versions() | {"polars": "1.0.0"}
    with pytest.raises(Exception, match=r"has polars .* and not 1\.0\.0; install the same release"):
        write_dask_task(elsewhere(tasks, tmp_path)[0], ours)
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_is_not_there_leaves_the_export_for_the_next_run(
    runtime: Runtime, cluster: Cluster
) -> None:
    absent = DaskCluster("tcp://127.0.0.1:1", module.ClusterTimes(connect_s=0.5))
    row = ask(runtime, destination={"kind": "local", "path": "nobody"})
    with pytest.raises(Unavailable, match="The Dask cluster does not answer"):
        run_export(runtime, row.id, owner="first", executor=absent)
    assert runtime_status(runtime, row.id) == "running"


def test_a_worker_killed_in_mid_export_is_made_good_by_the_other(
    runtime: Runtime, written: InAllFormats, cluster: Cluster
) -> None:
    watched = Watched(DaskCluster(cluster.address), act=cluster.kill_worker)
    folder = written_by(watched, runtime, frame_sampling={"mode": "all"})
    assert hashes_of(folder).items() <= written.hashes.items() and verify_manifest(folder).is_valid
    assert len(cluster.workers) == 1


def test_tls_is_as_dask_is_told(written: InAllFormats, tmp_path: Path) -> None:
    write_authority(pem := tmp_path / "both.pem")
    options = [f"--tls-{name}={pem}" for name in ("ca-file", "cert", "key")]
    client = {f"distributed.comm.tls.{name}": str(pem) for name in ("ca-file", "client.cert", "client.key")}
    with running_cluster(1, "--protocol", "tls", *options) as cluster:
        assert cluster.address.startswith("tls://")
        with dask.config.set(client):
            result = write(DaskCluster(cluster.address), written.of("arrow"), tmp_path / "out")
    assert result.items() <= written.hashes.items()


def test_without_workers_the_export_waits_for_some_and_then_for_the_next_run(
    tasks: list[ShardTask], tmp_path: Path
) -> None:
    times = module.ClusterTimes(no_worker_s=0.3, poll_s=0.2)
    with running_cluster(workers=0) as empty, pytest.raises(Unavailable):
        list(DaskCluster(empty.address, times).run(elsewhere(tasks, tmp_path)))


def runtime_status(runtime: Runtime, export_id: str) -> str:
    with runtime.database.transaction(write=False) as db:
        return db.get_one(ExportRow, export_id).status
