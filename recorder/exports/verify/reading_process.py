"""Reading process: decodes files of a dataset for a check, within limits of memory and time. Contract §9.

A small file can ask its reader for any amount of memory, and the libraries that decode it cannot be
interrupted. So `recorder verify` decodes in a process of its own, whose end is a problem of that file.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path
from threading import Timer
from typing import Self

import msgspec

from recorder.datasets.errors import Unreadable
from recorder.datasets.formats import FileKind, FormatName
from recorder.exports.verify.contents import FileContents, read_contents

#: Memory that a file may take; those of the service take a few hundred megabytes at most.
MEMORY_BYTES = 2 * 1024**3
#: Time that a file may take; one of the service takes seconds.
SECONDS = 600.0
_PROGRAM = (
    "import sys; sys.path.insert(0, {root!r}); from recorder.exports.verify.reading_process import serve; "
    "serve({memory_bytes})"
)


class _FileToRead(msgspec.Struct):
    path: str
    name: str
    kind: FileKind
    format: FormatName


class _Reading(msgspec.Struct):
    contents: FileContents | None = None
    #: End of a sentence that begins with the path of the file.
    failure: str = ""


class ReadingProcess:
    """Process that reads files one after the other; the first file starts it."""

    def __init__(self, *, memory_bytes: int = MEMORY_BYTES, seconds: float = SECONDS) -> None:
        """Set the limits of a file.

        Args:
            memory_bytes: memory beyond what the process has before the first file.
            seconds: time.
        """
        self._memory_bytes = memory_bytes
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def read(self, path: Path, name: str, kind: FileKind, format: FormatName) -> FileContents:
        """Read a file, as `read_contents` does.

        Raises:
            Unreadable: if it does not follow its format, or takes too much memory or time.
        """
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(self._seconds, process.kill)
        timer.start()
        try:
            process.stdin.write(msgspec.json.encode(_FileToRead(str(path), name, kind, format)) + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
        if not line.endswith(b"\n"):
            self._end()
            raise Unreadable(self._explain_end(is_late=is_late))
        reading = msgspec.json.decode(line, type=_Reading)
        if reading.contents is None:
            raise Unreadable(reading.failure)
        return reading.contents

    def _start(self) -> "subprocess.Popen[bytes]":
        program = _PROGRAM.format(root=str(Path(__file__).parents[3]), memory_bytes=self._memory_bytes)
        return subprocess.Popen(
            [sys.executable, "-P", "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _explain_end(self, *, is_late: bool) -> str:
        if is_late:
            return f"takes more than {self._seconds:g} seconds to read; it was not read"
        mebibytes = self._memory_bytes // 2**20
        return f"takes more than {mebibytes} MiB of memory to read, or ends its reader; it was not read"


def serve(memory_bytes: int) -> None:
    """Read the files that standard input names, until it ends."""
    limit = _read_data_bytes() + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    # A core file would contain pictures.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for line in sys.stdin.buffer:
        job = msgspec.json.decode(line, type=_FileToRead)
        try:
            reading = _Reading(read_contents(Path(job.path), job.name, job.kind, job.format))
        except MemoryError:
            os._exit(1)
        except Unreadable as error:
            reading = _Reading(failure=str(error))
        except OSError as error:
            reading = _Reading(failure=f"cannot be read ({type(error).__name__})")
        sys.stdout.buffer.write(msgspec.json.encode(reading) + b"\n")
        sys.stdout.buffer.flush()


def _read_data_bytes() -> int:
    """Return the size of this process's data as `RLIMIT_DATA` counts it; 0 if it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    except OSError:
        return 0
