"""Shell commands shown to the operator: they run from the current folder without an activated environment."""

import os
import shlex
import shutil
import sys
from pathlib import Path


def make_shell_command(*arguments: str | Path) -> str:
    """Return a shell command that runs `recorder` with these arguments from the current folder."""
    return " ".join([_find_shell_program(), *(shlex.quote(str(argument)) for argument in arguments)])


def shorten_path(path: Path) -> str:
    """Return a path below the current folder as relative to it, and any other one as it is."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _find_shell_program() -> str:
    """Return `recorder` if the shell finds this environment's, else a path or a call of Python."""
    script = Path(sys.executable).with_name("recorder")
    if not script.is_file():
        return f"{shlex.quote(shorten_path(Path(sys.executable)))} -m recorder.cli"
    on_path = shutil.which("recorder")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "recorder"
    return shlex.quote(shorten_path(script))
