"""Programs that run with a folder on a small disk of its own."""

import subprocess
import sys
from pathlib import Path

from tests.support.databases import part_is_missing

ROOT = Path(__file__).parents[2]


def run_on_small_disk(
    disk: Path, size: str, arguments: list[str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Run Python in the project's root with `arguments` while `disk` is a new file system of `size`.

    Skips the test where the user may not mount one; the mount ends with the program.

    Args:
        disk: folder to mount at; created if it is missing.
        size: as `mount -o size=` takes it, such as `96k`.
        arguments: what follows `python`.
        timeout_s: longest time of the program.
    """
    disk.mkdir(parents=True, exist_ok=True)
    mount = f"mount -t tmpfs -o size={size} tmpfs {disk}"
    tried = subprocess.run(["unshare", "-m", "sh", "-c", mount], check=False, capture_output=True, text=True)
    if tried.returncode:
        part_is_missing(f"This user may not mount a disk (unshare -m, mount): {tried.stderr.strip()}")
    return subprocess.run(
        ["unshare", "-m", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
