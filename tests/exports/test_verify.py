"""Datasets that were spoiled: `verify` finds and describes each fault. docs/exports.md."""

import shutil
from collections.abc import Callable
from pathlib import Path

import fsspec
import orjson
import polars as pl
import pytest

import recorder
from recorder.exports.verify import verify_manifest
from recorder.exports.verify.manifest_check import ANOTHER_MANIFEST
from tests.support.dataset_readers import FORMATS
from tests.support.export_runs import manifest_of
from tests.support.spoiled_datasets import exchange_file, file_of_rows, problems_of


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("how", ["cut", "garbled", "emptied", "other"])
def test_a_broken_file_is_told_of_in_a_sentence(copy: Callable[[str], Path], format: str, how: str) -> None:
    folder = copy(format)
    path = file_of_rows(folder)
    data = path.read_bytes()
    spoiled = {
        "cut": data[: len(data) // 3],
        "garbled": data[: len(data) // 4] + bytes(byte ^ 0x5A for byte in data[len(data) // 4 :]),
        "emptied": b"",
        "other": b'{"rows": [[[[' + b"[" * 100_000,
    }[how]
    exchange_file(folder, path, spoiled)
    assert path.name in problems_of(folder)


@pytest.mark.parametrize("format", FORMATS)
def test_a_changed_event_is_found_though_the_manifest_was_made_to_fit(
    copy: Callable[[str], Path], format: str
) -> None:
    folder = copy(format)
    path = file_of_rows(folder)
    match format:
        case "parquet":
            pl.read_parquet(path).with_columns(t_ms=pl.col("t_ms") + 1).write_parquet(path)
        case "arrow":
            rows = pl.read_ipc(path.read_bytes()).with_columns(t_ms=pl.col("t_ms") + 1)
            rows.write_ipc(path)
        case "jsonl":
            path.write_text(path.read_text().replace('"t_ms":500', '"t_ms":501'))
        case _:
            path.write_bytes(path.read_bytes().replace(b'"event_id":"evt_', b'"event_id":"evu_'))
    exchange_file(folder, path, path.read_bytes())
    assert "not the row set" in problems_of(folder)


@pytest.mark.parametrize("format", ["arrow", "webdataset"])
def test_an_exchanged_picture_is_found(copy: Callable[[str], Path], format: str) -> None:
    folder = copy(format)
    path = next(path for path in folder.glob("data/*/*") if not path.name.startswith("events"))
    exchange_file(folder, path, path.read_bytes().replace(b"\x89PNG\r\n", b"\x89PNG\r\r"))
    assert "another picture" in problems_of(folder)


def test_a_file_of_another_hash_is_not_parsed(copy: Callable[[str], Path]) -> None:
    folder = copy("parquet")
    path = file_of_rows(folder)
    pl.read_parquet(path).with_columns(t_ms=pl.col("t_ms") + 1).write_parquet(path)
    report = verify_manifest(folder)
    assert report.rows == 0 and "its rows were not read" in " ".join(report.problems)
    report = verify_manifest(folder, manifest_sha256="0" * 64)
    assert (report.problems, report.shards) == ([ANOTHER_MANIFEST], 0)


def test_a_wholly_wrong_dataset_is_told_of_briefly(copy: Callable[[str], Path]) -> None:
    folder = copy("parquet")
    manifest = manifest_of(folder)
    entry = manifest["shards"][0]
    manifest["shards"] = [
        entry | {"path": f"data/workflow=checkout/events-{number:05d}-of-01024.parquet"}
        for number in range(1_000)
    ]
    (folder / "manifest.json").write_bytes(orjson.dumps(manifest))
    problems = verify_manifest(folder).problems
    assert len(problems) == 201
    assert problems[-1] == "There are more problems; the list ends here."


@pytest.mark.parametrize("format", FORMATS)
def test_progress_goes_from_nothing_to_everything(originals: dict[str, Path], format: str) -> None:
    reports: list[tuple[int, int]] = []
    verify_manifest(originals[format], on_progress=lambda done, total: reports.append((done, total)))
    done, totals = zip(*reports, strict=True)
    size = manifest_of(originals[format])["totals"]["bytes"]
    assert list(done) == sorted(done)
    assert (done[-1], set(totals)) == (size, {size})


def test_a_dataset_in_a_store_is_verified_there(copy: Callable[[str], Path]) -> None:
    folder = copy("webdataset")
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/verified", recursive=True)
    assert verify_manifest("memory://verified").problems == []
    store.pipe("/verified/" + str(file_of_rows(folder).relative_to(folder)), b"x" * 100_000)
    assert "another SHA-256" in " ".join(verify_manifest("memory://verified/manifest.json").problems)


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_tools_read_and_the_manifest_does_not_list_is_a_problem(
    copy: Callable[[str], Path], tmp_path: Path, format: str
) -> None:
    folder = copy(format)
    path = file_of_rows(folder)
    kind = path.name.split("-")[0]
    other = folder / "data" / "workflow=other" / "notes"
    other.mkdir(parents=True)
    for name in (f"{kind}.txt", f"my-{kind}-00000-of-00001{path.suffix}", f"notes/{kind}-1{path.suffix}"):
        (other.parent / name).write_bytes(b"")
    assert verify_manifest(folder).is_valid
    shutil.copyfile(path, other.parent / f"{kind}-train-00000-of-00002{path.suffix}")
    shutil.copyfile(path, path.with_name(f"{kind}-\x1b[2J{path.suffix}"))
    problems = verify_manifest(folder).problems
    assert problems == recorder.open_export(folder).verify().problems
    assert [problem.split(" is not in the manifest, and tools read its rows")[0] for problem in problems] == [
        f"'{path.relative_to(folder).parent}/{kind}-\\x1b[2J{path.suffix}'",
        f"data/workflow=other/{kind}-train-00000-of-00002{path.suffix}",
    ]
    store = fsspec.filesystem("memory")
    store.put(str(folder), f"/unlisted-{format}", recursive=True)
    opened = recorder.open_export(f"memory://unlisted-{format}", cache=tmp_path / "cache")
    assert verify_manifest(f"memory://unlisted-{format}").problems == opened.verify().problems == problems
