"""Last lines of the demonstration: the printed command serves its folder with its settings."""

import shlex
from pathlib import Path

import pytest

from examples.demo import list_ways_to_return
from recorder.access.keys import NewKey
from recorder.settings import Settings


def test_printed_command_accepts_the_destination_of_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = tmp_path / "recorder-data" / "demo"
    lines = list_ways_to_return(data, NewKey("wsp_1", "key_1", "rk_live_x"))
    first = next(number for number, line in enumerate(lines) if "RECORDER_LOCAL_EXPORT_ROOT=" in line)
    setting, *command = shlex.split("\n".join(lines[first : first + 2]))
    assert command[-3:] == ["up", "--data", "recorder-data/demo"]
    # Commands begin with the folder of the environment, which may be long.
    assert max(len(line) for line in lines if not line.endswith(("demo", '/key)"'))) <= 80
    assert any("--port 0 --dagster-port 0" in line for line in lines)
    settings = Settings.from_env(dict([setting.split("=", 1)]), data_dir=Path(command[-1]))
    assert settings.local_export_root == data / "datasets"
