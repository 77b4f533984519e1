"""Temporary files in the data folder: where processes create them, and when they are removed."""

import os
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from recorder.cli.options import open_deployment_for_command
from recorder.storage.temporary_files import (
    CannotRemove,
    empty_temporary_folders,
    get_service_temporary_folder,
)
from recorder.supervisor.child_commands import make_service_child_environment
from recorder.supervisor.service import run_service
from tests.support.deployment_processes import ROOT
from tests.support.sealed_sessions import make_runtime, make_settings


def test_a_start_removes_what_killed_processes_left(tmp_path: Path) -> None:
    # A backup has a folder of its own, with a copy of the whole database.
    service, commands = get_service_temporary_folder(tmp_path), tmp_path / "tmp" / "commands"
    old = [commands / "old", tmp_path / "tmp" / "backup-old"]
    young = [commands / "young", tmp_path / "tmp" / "backup-young"]
    for folder in (service, *old, *young):
        folder.mkdir(parents=True)
        (folder / "page.html").write_text("recorded")
    for folders, hours in ((old, 25), (young, 23)):
        for folder in folders:
            os.utime(folder, (time.time() - hours * 3_600,) * 2)
    empty_temporary_folders(tmp_path)
    assert list(service.iterdir()) == [] and stat.S_IMODE(service.stat().st_mode) == 0o700
    assert not any(folder.exists() for folder in old) and all(folder.exists() for folder in young)


def test_a_command_that_ends_during_a_start_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "tmp" / "commands"
    commands.mkdir(parents=True)
    (commands / "page.html").write_text("recorded")
    glob = Path.glob

    def list_and_end(folder: Path, pattern: str) -> list[Path]:
        paths = list(glob(folder, pattern))
        (commands / "page.html").unlink(missing_ok=True)
        return paths

    monkeypatch.setattr(Path, "glob", list_and_end)
    empty_temporary_folders(tmp_path)
    assert get_service_temporary_folder(tmp_path).is_dir()


def test_files_that_cannot_be_removed_end_the_start_with_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "tmp").write_text("a file, where a folder should be")
    with pytest.raises(CannotRemove, match="Cannot remove the temporary files"):
        empty_temporary_folders(tmp_path)


def test_a_command_that_opens_the_deployment_uses_its_folder(tmp_path: Path) -> None:
    make_runtime(tmp_path).close()
    before = tempfile.gettempdir()
    with open_deployment_for_command(tmp_path), tempfile.NamedTemporaryFile() as file:
        assert Path(file.name).parent == tmp_path / "tmp" / "commands"
        assert stat.S_IMODE(Path(file.name).parent.stat().st_mode) == 0o700
    assert tempfile.gettempdir() == before


def test_processes_of_a_service_use_the_data_folder_however_long_its_path(tmp_path: Path) -> None:
    # Sockets take paths of 107 bytes; none is in the folder of temporary files.
    settings = make_settings(tmp_path / "long" / ("a" * 120))
    left = get_service_temporary_folder(settings.data_dir) / "recorder-summary-1" / "page.html"
    left.parent.mkdir(parents=True)
    left.write_text("recorded")
    with run_service(settings) as service:
        assert not left.exists()
        folders = {child.command.environment["TMPDIR"] for child in service.children}
        assert folders == {str(get_service_temporary_folder(settings.data_dir))}
    shown = subprocess.run(
        [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"],
        env=make_service_child_environment(settings, ROOT),
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.strip() == str(get_service_temporary_folder(settings.data_dir))
