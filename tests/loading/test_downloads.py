"""Downloads into folders that hold another dataset, half a dataset, or files of the user. docs/loading.md."""

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import recorder
from recorder.datasets.errors import FileGone, UnlistedFiles
from recorder.datasets.sources import FolderSource
from recorder.runtime import Runtime
from tests.support.export_runs import export, hashes_of

UNLISTED = "data/workflow=checkout/events-00000-of-00777.parquet"


@pytest.fixture(scope="module")
def versions(sealed_sessions: Runtime, exports: dict[str, Path]) -> list[Path]:
    """Return three versions of a dataset: three workflows with a split, one workflow, one with pictures."""
    options = {"workflow": "checkout", "format": "parquet"}
    return [
        exports["parquet"],
        export(sealed_sessions, **options),
        export(sealed_sessions, frame_sampling={"mode": "all"}, split={"test": 0.5}, **options),
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return everything in a folder, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_a_folder_then_has_the_newest_download_alone(versions: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "set"
    for version in [*versions, *reversed(versions)]:
        recorder.open_export(version).download(folder)
        assert files_of(folder) == files_of(version)
        read = pl.read_parquet(folder / "data" / "*" / "events-*.parquet", hive_partitioning=False)
        assert read.height == read["event_id"].n_unique() == recorder.open_export(folder).rows
    without_card = Path(shutil.copytree(versions[1], tmp_path / "without_card"))
    (without_card / "README.md").unlink()
    recorder.open_export(without_card).download(folder)
    assert files_of(folder) == files_of(without_card)


def test_files_of_the_user_are_kept(versions: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "set"
    recorder.open_export(versions[0]).download(folder)
    notes = {
        "notes.md": b"mine",
        "data/workflow=refund/events.csv": b"1,2",
        "data/workflow=triage/my-events-00000-of-00001.parquet": b"PAR1",
    }
    for path, data in notes.items():
        (folder / path).write_bytes(data)
    recorder.open_export(versions[1]).download(folder)
    assert files_of(folder) == files_of(versions[1]) | notes


def cut_off(version: Path, folder: Path, tmp_path: Path) -> None:
    """Download a version whose last file that the folder lacks is gone."""
    broken = Path(shutil.copytree(version, tmp_path / "broken", dirs_exist_ok=True))
    present = files_of(folder)
    paths = [path for path in hashes_of(broken) if present.get(path) != (broken / path).read_bytes()]
    (broken / paths[-1]).unlink()
    with pytest.raises(FileGone, match="does not exist in the dataset's folder") as raised:
        recorder.open_export(broken).download(folder)
    assert "30 days" not in str(raised.value)
    shutil.rmtree(broken)


def test_a_download_that_was_cut_off_leaves_no_manifest_and_nothing_to_the_next(
    versions: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    recorder.open_export(versions[1]).download(folder)
    cut_off(versions[0], folder, tmp_path)
    fetched = files_of(folder)
    assert "manifest.json" not in fetched
    assert not hashes_of(versions[1]).keys() & fetched.keys()
    assert len(hashes_of(versions[0]).keys() & fetched.keys()) == len(hashes_of(versions[0])) - 1
    cut_off(versions[2], folder, tmp_path)
    recorder.open_export(versions[0]).download(folder)
    assert files_of(folder) == files_of(versions[0])


def test_a_folder_with_rows_of_no_known_dataset_is_refused_and_left_as_it_is(
    versions: list[Path], tmp_path: Path
) -> None:
    folder = tmp_path / "set"
    recorder.open_export(versions[1]).download(folder)
    (folder / UNLISTED).write_bytes(b"PAR1")
    before = files_of(folder)
    with pytest.raises(UnlistedFiles, match=rf"{folder} has '{UNLISTED}', which .* use another folder"):
        recorder.open_export(versions[0]).download(folder)
    assert files_of(folder) == before
    (folder / UNLISTED).unlink()
    recorder.open_export(versions[0]).download(folder)
    assert files_of(folder) == files_of(versions[0])


@pytest.mark.parametrize("step", ["read_card", "list_data_paths"])
def test_a_dataset_that_another_process_completes_meanwhile_stays_complete(
    versions: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    folder = tmp_path / "set"
    recorder.open_export(versions[0]).download(folder)
    read = getattr(FolderSource, step)

    def complete_before(self: FolderSource) -> Any:
        monkeypatch.undo()
        recorder.open_export(versions[1]).download(folder)
        return read(self)

    monkeypatch.setattr(FolderSource, step, complete_before)
    opened = recorder.open_export(versions[1])
    # Each time bytes were fetched, the process that was complete can open its dataset.
    rows = []
    opened.download(folder, on_progress=lambda *_: rows.append(recorder.open_export(folder).rows))
    assert {*rows} == {opened.rows} and files_of(folder) == files_of(versions[1])


def test_a_link_out_of_the_folder_is_not_followed(versions: list[Path], tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "set", tmp_path / "elsewhere"
    recorder.open_export(versions[0]).download(folder)
    (folder / "data" / "workflow=refund").rename(elsewhere)
    (folder / "data" / "workflow=refund").symlink_to(elsewhere)
    before = files_of(elsewhere)
    recorder.open_export(versions[1]).download(folder)
    assert files_of(elsewhere) == before


def test_a_download_into_its_own_folder_changes_nothing(versions: list[Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(versions[0], tmp_path / "set"))
    dataset = recorder.open_export(folder)
    shutil.copyfile(versions[2] / "manifest.json", folder / "manifest.json")
    before = files_of(folder)
    dataset.download(folder)
    assert files_of(folder) == before
