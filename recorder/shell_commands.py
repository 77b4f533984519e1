"""Texts for the operator's terminal: sentences in its width, short paths, and shell commands.

The commands run from the current folder without an activated environment.
"""

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from textwrap import fill

_COMMAND = re.compile("`[^`]*`")
#: Stands for a space at which no line ends.
_KEPT_SPACE = "\0"


def make_shell_command(*arguments: str | Path) -> str:
    """Return a shell command that runs `recorder` with these arguments from the current folder."""
    return " ".join([_find_shell_program(), *(shlex.quote(str(argument)) for argument in arguments)])


def shorten_path(path: Path) -> str:
    """Return a path below the current folder as relative to it, and any other one as it is."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def wrap_for_terminal(sentence: str, *, indent: str = "") -> str:
    """Return a sentence in lines of the terminal's width; in one line where stderr is a file or a pipe.

    Paths, addresses and commands in backticks stay whole, so that they can be copied.

    Args:
        sentence: the sentence.
        indent: spaces before the second line and later ones.
    """
    if not sys.stderr.isatty():
        return sentence
    # It asks stdout, which may be a pipe while stderr is the terminal.
    columns = shutil.get_terminal_size(os.get_terminal_size(sys.stderr.fileno())).columns
    kept = _COMMAND.sub(lambda match: match[0].replace(" ", _KEPT_SPACE), sentence)
    lines = fill(kept, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return lines.replace(_KEPT_SPACE, " ")


def _find_shell_program() -> str:
    """Return `recorder` if the shell finds this environment's, else a path or a call of Python."""
    script = Path(sys.executable).with_name("recorder")
    if not script.is_file():
        return f"{shlex.quote(shorten_path(Path(sys.executable)))} -m recorder.cli"
    on_path = shutil.which("recorder")
    if on_path is not None and Path(on_path).resolve() == script.resolve():
        return "recorder"
    return shlex.quote(shorten_path(script))
