"""Functions of another process, called down a pipe: every way of writing files has a process of its own.

One process per way keeps their caches, threads and memory apart. It stays until all rounds are done, so that
imports fall into the first, which is not counted.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.figure_reports import Skipped
from recorder.settings import Settings, make_child_environment

#: Threads that each way may use: all of this machine.
THREADS = os.cpu_count() or 1
_THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "ARROW_IO_THREADS", "RAYON_NUM_THREADS")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "DO_NOT_TRACK": "1"}


@dataclass(frozen=True)
class WriterProcess:
    """A module of this package on the other side of a pipe."""

    process: "subprocess.Popen[str]"
    module: str

    def call(self, name: str, **given: Any) -> dict[str, Any]:
        """Return the result of a function there, with `seconds`, `cpu_s` and `peak_mb` of its process."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps([name, given]) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{self.module} ended in {name}; its output is above.")
        output: dict[str, Any] = json.loads(answer)
        return output


@contextmanager
def started(
    module: str, settings: Settings, folder: Path, *, threads: int = THREADS
) -> Iterator[WriterProcess]:
    """Yield a process that answers calls of `benchmarks.exports.<module>`.

    Args:
        folder: where its libraries may keep what they like.
    """
    extra = _OFFLINE | dict.fromkeys(_THREADS, str(threads)) | {"HF_HOME": str(folder / "hf")}
    with subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.exports.{module}"],
        cwd=Path(__file__).parents[2],
        env=make_child_environment(settings, extra),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"{module} did not start; its output is above.")
        yield WriterProcess(process, module)
        process.stdin.close()


def answer(calls: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """Serve calls until stdin ends; what libraries print goes to stderr."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        name, given = json.loads(line)
        print(json.dumps(calls[name](**given) | {"peak_mb": peak_mb()}), file=answers, flush=True)


def require(*libraries: str) -> None:
    """Let pass where peers are installed.

    Raises:
        Skipped: if one is missing.
    """
    for name in libraries:
        if find_spec(name) is None:
            raise Skipped(f"{name} is not installed; it is one of the development requirements")


@contextmanager
def timed(timing: dict[str, Any]) -> Iterator[None]:
    """Add the seconds of the block, and the CPU seconds of all threads in it."""
    began, cpu_began = time.perf_counter(), time.process_time()
    yield
    timing["seconds"] = time.perf_counter() - began
    timing["cpu_s"] = time.process_time() - cpu_began


def peak_mb() -> float:
    """Return the peak memory of this process; `getrusage` would include its parent's."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) / 1024
