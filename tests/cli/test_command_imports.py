"""Commands that need only the database import no libraries of the lake and no Alembic: half of their time."""

import subprocess
import sys
from pathlib import Path

from recorder.access.workspaces import create_workspace
from tests.support.sealed_sessions import make_runtime

_SLOW = {"alembic", "deltalake", "fsspec", "numpy", "polars", "pyarrow", "rich", "structlog"}
_COMMANDS = (
    "audit verify",
    "audit head",
    "hold list",
    "keys list acme",
    "sessions quarantined",
    "workspaces list",
)
_PROGRAM = """
import sys
from recorder.cli import app
for line in sys.argv[2:]:
    app([*line.split(), "--data", sys.argv[1]], standalone_mode=False)
    print(line, *sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_commands_on_the_database_import_no_lake_and_no_alembic(tmp_path: Path) -> None:
    runtime = make_runtime(tmp_path)
    with runtime.database.transaction(write=True) as db:
        create_workspace(db, "acme", region="us", secret=runtime.settings.secret)
    runtime.close()
    (tmp_path / "secret").write_bytes(runtime.settings.secret)
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path), *_COMMANDS],
        capture_output=True,
        text=True,
        check=True,
    )
    for command in _COMMANDS:
        imported = next(line for line in done.stdout.splitlines() if line.startswith(f"{command} "))
        assert not _SLOW.intersection(imported.split()), command
