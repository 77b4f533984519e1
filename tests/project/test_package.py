"""What the wheel ships: the library alone, light to import. Design §2 (the wheel ships `recorder`)."""

import subprocess
import sys
import zipfile
from pathlib import Path

import recorder

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
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "recorder").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    assert not [name for name in names if "__pycache__" in name or "tests" in name]


def test_what_is_exported_is_sorted_and_there() -> None:
    assert recorder.__all__ == sorted(recorder.__all__)
    assert all(hasattr(recorder, name) for name in recorder.__all__)


def test_importing_the_library_loads_nothing_heavy() -> None:
    program = "import sys, recorder; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout
    for heavy in ("sqlmodel", "polars", "pyarrow", "deltalake", "fastapi", "dagster", "numpy"):
        assert f"'{heavy}'" not in loaded
