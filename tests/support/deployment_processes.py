"""`recorder up` as a process, and the processes of a deployment, found by their data folder."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start_up(data: Path, *options: str, folder: Path, checkout: Path = ROOT) -> subprocess.Popen[str]:
    """Start `recorder up` from a folder, as if this checkout were installed."""
    # Variables of the tests are no settings: `up` would print a warning for each.
    tests_own = ("RECORDER_REQUIRE_PARTS", "RECORDER_FAULT_", "RECORDER_FUZZ_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(tests_own)}  # noqa: TID251
    environment = {**kept, "PYTHONPATH": str(checkout)}
    command = [sys.executable, "-m", "recorder.cli", "up", "--data", str(data), *options]
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def released_together(program: str, count: int) -> list[tuple[int, str]]:
    """Run a program so many times; gives exit codes and what was printed.

    Args:
        program: prints `ready` when all is loaded, and reads a byte before it does what is tested.
    """
    pipe = subprocess.PIPE
    starting = [
        subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, text=True)
        for _ in range(count)
    ]
    for process in starting:
        assert process.stdout and process.stdout.readline() == "ready\n"
    for process in starting:
        assert process.stdin
        process.stdin.write("x")
        process.stdin.flush()
    printed = [process.communicate()[0] for process in starting]
    return [(process.returncode, words) for process, words in zip(starting, printed, strict=True)]


def processes_of(data: Path) -> dict[int, str]:
    """Return id and command line of each process that runs for this data folder."""
    values = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            variables = (folder / "environ").read_bytes()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if command and f"RECORDER_DATA_DIR={data}".encode() in variables:
            values[int(folder.name)] = command.replace(b"\0", b" ").decode()
    return values


def left_after(data: Path, seconds: float) -> dict[int, str]:
    """Return the processes that still run when the time is up."""
    until = time.monotonic() + seconds
    while (result := processes_of(data)) and time.monotonic() < until:
        time.sleep(0.1)
    return result
