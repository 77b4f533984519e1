"""Shell commands shown to the operator: they run from the current folder without an activated environment."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def command_line(*arguments: str | Path) -> str:
    """Return a shell command that runs `recorder` with these arguments from the current folder."""
    return " ".join([_find_program(), *(shlex.quote(str(argument)) for argument in arguments)])


def short_path(path: Path) -> str:
    """Return a path as short as it can be written in the current folder."""
    relative = os.path.relpath(path)
    return relative if len(relative) < len(str(path)) else str(path)


def _find_program() -> str:
    """Return `recorder` if the shell finds this environment's, else a path or a call of Python."""
    script = Path(sys.executable).with_name("recorder")
    if not script.is_file():
        return f"{shlex.quote(short_path(Path(sys.executable)))} -m recorder.cli"
    on_path = shutil.which("recorder")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "recorder"
    return shlex.quote(short_path(script))
