"""Content of the wheel: the library alone, light to import. Design §2 (the wheel ships `recorder`)."""

import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from typer.testing import CliRunner

import recorder
from recorder import client, loading
from recorder.cli import app
from recorder.webhooks import signing

ROOT = Path(recorder.__file__).parent.parent


def test_the_wheel_holds_recorder_alone(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--wheel",
        "--outdir",
        str(tmp_path),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    info = f"workflow_recorder-{recorder.__version__}.dist-info"
    assert {name.partition("/")[0] for name in names} == {"recorder", info}
    assert "recorder/py.typed" in names
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "recorder").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert not [name for name in names if "__pycache__" in name or "tests" in name]


def test_what_is_exported_is_sorted_and_there() -> None:
    assert recorder.__all__ == sorted(recorder.__all__)
    assert all(hasattr(recorder, name) for name in recorder.__all__)


@pytest.mark.parametrize("package", ["recorder", "recorder.capture", "recorder.sealing"])
def test_names_imported_at_first_use_are_there(package: str) -> None:
    module = import_module(package)
    missing = [name for name in module.__all__ if getattr(module, name, None) is None]
    assert missing == []


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_it"):
        recorder.nothing_like_it  # type: ignore[attr-defined]  # noqa: B018


def test_the_public_names_are_those_of_their_modules() -> None:
    assert recorder.Client is client.Client
    assert recorder.SessionRecorder is client.SessionRecorder
    assert recorder.open_export is loading.open_export
    assert recorder.verify_signature is signing.verify_signature


def test_the_command_prints_its_release_and_completes_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    version = CliRunner().invoke(app, ["--version"])
    assert (version.exit_code, version.stdout) == (0, f"recorder {recorder.__version__}\n")
    words = {"_RECORDER_COMPLETE": "complete_bash", "COMP_WORDS": "recorder wor", "COMP_CWORD": "1"}
    for variable, value in words.items():
        monkeypatch.setenv(variable, value)
    command = [Path(sys.executable).with_name("recorder")]
    completed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["workspaces"]


def test_importing_the_library_loads_nothing_heavy() -> None:
    program = "import sys, recorder; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    for heavy in (
        "httpx",
        "structlog",
        "stamina",
        "sqlmodel",
        "polars",
        "pyarrow",
        "deltalake",
        "fastapi",
        "dagster",
        "numpy",
    ):
        assert f"'{heavy}'" not in loaded
