"""Destinations: accepted names, messages to workers, full disks. Contract §5."""

import errno
import os
import pickle
import stat
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from recorder.errors import InvalidDestination, Unavailable
from recorder.exports.destinations import DiskFull, open_destination_url, resolve_export_location
from recorder.exports.destinations.base import call_within_time_limit
from recorder.exports.destinations.factory import _resolve_allowed_folder
from recorder.exports.destinations.local import LocalFolderDestination
from recorder.exports.runner.run import run_export
from recorder.ids import new_id
from recorder.models.export import ExportRow
from recorder.models.export_request import ExportCreate
from recorder.setting_parsers import InvalidSetting
from recorder.settings import Settings
from tests.support.export_runs import ask, folder_of
from tests.support.sealed_sessions import WORKSPACE, Recording, make_runtime, make_settings, seal

_S3 = {"kind": "s3", "bucket": "data"}
_GCS = {"kind": "gcs", "bucket": "data"}
_AZURE = {"kind": "azure_blob", "account": "acme", "container": "data"}


def read(destination: dict[str, Any]) -> dict[str, Any]:
    """Return the destination as it is stored."""
    body = {"workflow": "checkout", "format": "parquet", "destination": destination}
    return ExportCreate.model_validate(body).destination.model_dump(exclude_none=True)


@pytest.mark.parametrize(
    "prefix",
    [
        "..", "a/../b", "/a", "a//b", "//", "/", "", ".", "a/./b", "a\\b", "a\0b", "a\nb", "a/b.", "a/ b",
        "x" * 513, "é" * 257, "a\u202eb",
    ],
)  # fmt: skip
def test_a_prefix_cannot_leave_its_place(prefix: str) -> None:
    for destination in (_S3, _GCS, _AZURE):
        with pytest.raises(ValidationError):
            read(destination | {"prefix": prefix})


@pytest.mark.parametrize("prefix", ["a", "team a/β/2026-05", "a/..b", "x" * 512, "a#b?c%2F"])
def test_other_prefixes_are_taken_without_the_slash_at_their_end(prefix: str) -> None:
    assert read(_S3 | {"prefix": f"{prefix}/"})["prefix"] == prefix


@pytest.mark.parametrize(
    ("destination", "name"),
    [
        *((_S3, {"bucket": name}) for name in (
            "", "a", "Data", "data/x", "data.", "-data", "a..b", "127.0.0.1", "169.254.169.254", "a@b",
            "x" * 64, "arn:aws:s3:us-east-1:123456789012:accesspoint/x", "data\n", "data?x", "a%2fb", "a:80",
        )),
        *((_S3, {"region": name}) for name in ("", "x", "us-east-1.evil.com", "us-east-1/", "a-1:80")),
        *((_S3, {"role_arn": name}) for name in (
            "", "arn:aws:iam::1:role/x", "arn:aws:iam::123456789012:user/x",
            "arn:aws:iam::123456789012:role/x y",
        )),
        *((_S3, {"endpoint_url": "http://169.254.169.254"}), (_GCS, {"endpoint": "http://127.0.0.1"})),
        *((_GCS, {"bucket": name}) for name in ("", "a", "Data", "data/o", "10.0.0.1", "a..b", "b?x")),
        *((_GCS, {"service_account": name}) for name in (
            "", "x", "x@evil.example", "x/../y@p.iam.gserviceaccount.com", "a@b@p.iam.gserviceaccount.com",
        )),
        *((_AZURE, {"account": name}) for name in ("", "ab", "acme.evil", "Acme", "a-b", "acme/x", "a:1")),
        *((_AZURE, {"container": name}) for name in ("", "a", "$root", "a--b", "A", "a/b", "-ab", "x" * 64)),
    ],
)  # fmt: skip
def test_a_name_that_could_lead_elsewhere_is_refused(
    destination: dict[str, Any], name: dict[str, str]
) -> None:
    with pytest.raises(ValidationError):
        read(destination | name)


@pytest.mark.parametrize(
    "destination",
    [
        _S3 | {"region": "us-gov-west-1", "role_arn": "arn:aws-us-gov:iam::123456789012:role/a/b+c@d"},
        _GCS | {"bucket": "a_b.example.com", "service_account": "w@p-1.iam.gserviceaccount.com"},
        _AZURE | {"container": "a-1"},
    ],
)
def test_names_as_the_clouds_give_them_are_taken(destination: dict[str, Any]) -> None:
    assert read(destination) == destination


def test_a_directory_is_named_by_its_export_below_the_prefix(tmp_path: Path) -> None:
    row = ExportRow(id=new_id("exp"), workspace_id=WORKSPACE, destination=_S3 | {"prefix": "a/b"})
    assert resolve_export_location(row, make_settings(tmp_path)).root == f"a/b/{row.id}"
    bare = ExportRow(id=new_id("exp"), workspace_id=WORKSPACE, destination=_S3)
    assert resolve_export_location(bare, make_settings(tmp_path)).root == bare.id


def test_a_bucket_is_trusted_only_where_the_operator_lists_it(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, export_buckets=("s3://data", "az://acme/data"))
    trusted = [
        resolve_export_location(
            ExportRow(id="exp_x", workspace_id=WORKSPACE, destination=destination), settings
        ).is_trusted
        for destination in (_S3, _AZURE, _GCS, _AZURE | {"account": "other"}, _S3 | {"bucket": "data2"})
    ]
    assert trusted == [True, True, False, False, False]


def test_a_target_can_be_sent_to_a_worker_and_shows_no_secret(tmp_path: Path) -> None:
    settings = make_settings(tmp_path, s3_endpoint="http://127.0.0.1:1")
    row = ExportRow(id=new_id("exp"), workspace_id=WORKSPACE, destination=_S3)
    target = resolve_export_location(row, settings)
    assert pickle.loads(pickle.dumps(target)) == target and hash(target)
    assert settings.secret.decode() not in repr(target)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RECORDER_S3_ENDPOINT", "minio:9000"),
        ("RECORDER_GCS_ENDPOINT", "file:///x"),
        ("RECORDER_EXPORT_BUCKETS", "data"),
        ("RECORDER_EXPORT_BUCKETS", "az://container"),
        ("RECORDER_EXPORT_BUCKETS", "s3://data/prefix"),
        ("RECORDER_EXPORT_BUCKETS", "s3://"),
        ("RECORDER_EXPORT_BUCKETS", "az:///container"),
    ],
)
def test_addresses_and_buckets_of_the_operator_are_checked(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        Settings.from_env({name: value}, data_dir=tmp_path)


def test_a_child_gets_the_addresses_of_stores(tmp_path: Path) -> None:
    chosen = {
        "RECORDER_S3_ENDPOINT": "http://127.0.0.1:1",
        "RECORDER_GCS_ENDPOINT": "http://127.0.0.1:2",
        "RECORDER_AZURE_ENDPOINT": "http://127.0.0.1:3",
        "RECORDER_EXPORT_BUCKETS": "s3://a,az://b/c",
    }
    settings = Settings.from_env(chosen, data_dir=tmp_path)
    assert chosen.items() <= settings.as_env().items()
    assert Settings.from_env(settings.as_env()) == settings


def test_who_does_not_answer_in_time_is_away() -> None:
    done = threading.Event()
    with pytest.raises(Unavailable):
        call_within_time_limit(lambda: assert_true(done.wait(5)), seconds=0.05)
    done.set()
    with pytest.raises(ZeroDivisionError):
        call_within_time_limit(lambda: assert_true(1 / 0 > 1))


def assert_true(value: bool) -> None:
    assert value


def test_a_full_disk_fails_the_export_with_its_cause_and_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = make_runtime(tmp_path)
    seal(runtime, [Recording(frames=[0])])
    row = ask(runtime)
    monkeypatch.setattr("os.fstatvfs", _full)
    row = run_export(runtime, row.id, owner="test")
    assert (row.status, (row.error or {})["code"]) == ("failed", "disk_full")
    assert [path for path in folder_of(runtime, row).rglob("*") if path.is_file()] == []


def test_room_is_left_on_the_disk_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fstatvfs(1)
    crowded = os.statvfs_result((*real[:4], 1_000, *real[5:]))
    monkeypatch.setattr("os.fstatvfs", lambda _: crowded)
    for url in (str(tmp_path / "exp"), "memory://full/exp"):
        with pytest.raises(DiskFull), open_destination_url(url).create("data/a") as file:
            file.write(b"bytes")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_writer_that_buries_a_full_disk_does_not_hide_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def _write() -> None:
        with open_destination_url(str(tmp_path / "exp")).create("data/a") as file:
            monkeypatch.setattr("os.fstatvfs", _full)
            try:
                file.write(b"bytes")
            except Exception as error:
                raise ValueError("the writer failed") from error

    with pytest.raises(DiskFull):
        _write()


def _full(*_: Any) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_local_copy_is_taken_over_only_with_its_bytes(tmp_path: Path) -> None:
    older, newer = open_destination_url(str(tmp_path / "a")), open_destination_url(str(tmp_path / "b"))
    with older.create("data/x") as file:
        file.write(b"bytes")
    newer.copy("data/x", older, size_bytes=5, sha256=file.sha256)
    with pytest.raises(KeyError):
        newer.copy("data/y", older, size_bytes=5, sha256=file.sha256)
    with pytest.raises(KeyError):
        open_destination_url(str(tmp_path / "c")).copy("data/x", older, size_bytes=5, sha256="0" * 64)
    assert (list(newer.list_destination_paths()), newer.read("data/x")) == (["data/x"], b"bytes")
    assert newer.fetch("data/x", tmp_path, size_bytes=5, sha256=file.sha256) == tmp_path / "b/data/x"


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (OSError(errno.ENOSPC, "full"), DiskFull),
        (OSError(errno.EIO, "broken"), Unavailable),
        (PermissionError(), InvalidDestination),
        (ValueError("of a writer"), ValueError),
        (DiskFull(), DiskFull),
    ],
)
def test_an_error_in_writing_is_told_with_an_end_to_its_causes(
    tmp_path: Path, failure: Exception, expected: type[Exception]
) -> None:
    with pytest.raises(expected) as raised, LocalFolderDestination(tmp_path).create("data/file"):
        raise failure
    causes: list[BaseException | None] = [raised.value]
    while causes[-1] is not None:
        assert causes[-1].__cause__ not in causes[:-1] and causes[-1].__cause__ is not causes[-1]
        causes.append(causes[-1].__cause__)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENAMETOOLONG, InvalidDestination),
        (errno.ELOOP, InvalidDestination),
        (errno.EINVAL, InvalidDestination),
        (errno.EIO, Unavailable),
    ],
)
def test_a_path_that_the_file_system_never_takes_is_an_invalid_destination(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception]
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(expected):
        LocalFolderDestination(tmp_path / "a").probe()


def test_a_local_path_of_64_names_of_255_bytes_is_allowed(tmp_path: Path) -> None:
    for path in ("/".join("a" * 64), "a" * 255):
        assert _resolve_allowed_folder(path, tmp_path) == tmp_path.resolve() / path


@pytest.mark.parametrize(
    ("around", "folder", "file"),
    [(0o700, 0o700, 0o600), (0o750, 0o750, 0o640), (0o755, 0o755, 0o644), (0o777, 0o755, 0o644)],
    ids=oct,
)
def test_a_local_export_is_open_to_whom_the_folder_around_it_is_open_to(
    tmp_path: Path, around: int, folder: int, file: int
) -> None:
    tmp_path.chmod(around)
    before = os.umask(0o077)
    try:
        destination = LocalFolderDestination(tmp_path / "team" / "exp_1")
        destination.probe()
        with destination.create("data/part/events.parquet") as written:
            written.write(b"rows")
        destination.remove_unfinished_files()
    finally:
        os.umask(before)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {True: folder, False: file}
    tmp_path.chmod(0o700)


def test_a_probe_leaves_no_folders(tmp_path: Path) -> None:
    (tmp_path / "team").mkdir()
    destination = LocalFolderDestination(tmp_path / "team" / "a" / "b" / "exp_1")
    destination.probe()
    assert [path.name for path in tmp_path.rglob("*")] == ["team"]
    with destination.create("data/part/events.parquet") as written:
        written.write(b"rows")
    destination.probe()
    assert destination.size("data/part/events.parquet") == 4


def test_probes_at_once_leave_the_rights_of_shared_folders(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    before = os.umask(0o077)

    def probe_and_write(number: int) -> None:
        destination = LocalFolderDestination(tmp_path / str(number // 4) / "team" / f"exp_{number}")
        destination.probe()
        with destination.create("file") as written:
            written.write(b"rows")

    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(probe_and_write, range(400)))
    finally:
        os.umask(before)
    modes = Counter((path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in tmp_path.rglob("*"))
    assert modes == {(True, 0o755): 2 * 100 + 2 * 400, (False, 0o644): 400}
    tmp_path.chmod(0o700)


def test_folders_of_an_export_whose_files_are_removed_are_removed(tmp_path: Path) -> None:
    destination = LocalFolderDestination(tmp_path / "team" / "exp_1")
    for path in ("data/part/events.parquet", "data/whole/events.parquet"):
        with destination.create(path) as written:
            written.write(b"rows")
    destination.remove("data/part/events.parquet")
    destination.remove_unfinished_files()
    assert [path.name for path in (destination.root / "data").iterdir()] == ["whole"]
    destination.remove("data/whole/events.parquet")
    destination.remove_unfinished_files()
    assert [path.name for path in tmp_path.rglob("*")] == ["team"]


def test_an_empty_folder_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left, fresh, other = (tmp_path / name for name in (".req_01old", ".req_01new", ".req_01full"))
    for folder in (left, fresh, other):
        folder.mkdir()
    (other / "file").touch()
    for folder in (left, other):
        os.utime(folder, (0, 0))
    with LocalFolderDestination(tmp_path / "dataset").create("data/a") as file:
        file.write(b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".req_01full", ".req_01new", "dataset"]
