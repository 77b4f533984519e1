"""Environments of Python packages that our figures are compared with: the project never depends on them."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.figure_reports import Skipped


@contextmanager
def find_peer_python(requirement: str, *others: str, variable: str) -> Iterator[str]:
    """Yield a Python that has a package: the one that the environment names, else a fresh environment.

    Args:
        requirement: the package with its version, as pip takes it.
        others: more packages that are installed beside it.
        variable: environment variable that names a Python with all of them.

    Raises:
        Skipped: if the packages cannot be installed.
    """
    if given := os.environ.get(variable):
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
        python = f"{folder}/bin/python"
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True, stdout=sys.stderr)
            install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, requirement, *others], check=True, stdout=sys.stderr)
        except subprocess.CalledProcessError as error:
            raise Skipped(f"{requirement} cannot be installed here") from error
        yield python
