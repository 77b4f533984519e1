"""Reading process: decodes files of a dataset for a check, within limits of memory and time. Contract §9.

A small file can ask its reader for any amount of memory, and the libraries that decode it cannot be
interrupted. So `recorder verify` decodes in a process of its own, whose end is a problem of that file.
"""

from pathlib import Path
from typing import Self

import msgspec

from recorder.datasets.errors import DatasetUnreadable
from recorder.datasets.formats import FileKind, FormatName
from recorder.exports.verify.file_contents import FileContents, read_contents
from recorder.limited_process import LimitedProcess, ProcessEnded, serve_limited_process

#: Memory that a file may take; those of the service take a few hundred megabytes at most.
MEMORY_BYTES = 2 * 1024**3
#: Time that a file may take; one of the service takes seconds.
SECONDS = 600.0


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
        self._process = LimitedProcess(serve_reading_requests, memory_bytes=memory_bytes, seconds=seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()

    def read(self, path: Path, name: str, kind: FileKind, format: FormatName) -> FileContents:
        """Read a file, as `read_contents` does.

        Raises:
            DatasetUnreadable: if it does not follow its format, or takes too much memory or time.
        """
        file = _FileToRead(str(path), name, kind, format)
        try:
            answer = self._process.request(msgspec.json.encode(file))
        except ProcessEnded as end:
            raise DatasetUnreadable(self._explain_unread_file(is_late=end.is_late)) from None
        reading = msgspec.json.decode(answer, type=_Reading)
        if reading.contents is None:
            raise DatasetUnreadable(reading.failure)
        return reading.contents

    def _explain_unread_file(self, *, is_late: bool) -> str:
        if is_late:
            return f"takes more than {self._seconds:g} seconds to read; it was not read"
        mebibytes = self._memory_bytes // 2**20
        return f"takes more than {mebibytes} MiB of memory to read, or ends its reader; it was not read"


def serve_reading_requests(memory_bytes: int) -> None:
    """Read the files that standard input names, until it ends."""
    serve_limited_process(_answer_reading_request, memory_bytes)


def _answer_reading_request(message: bytes) -> bytes:
    job = msgspec.json.decode(message, type=_FileToRead)
    try:
        reading = _Reading(read_contents(Path(job.path), job.name, job.kind, job.format))
    except DatasetUnreadable as error:
        reading = _Reading(failure=str(error))
    except OSError as error:
        reading = _Reading(failure=f"cannot be read ({type(error).__name__})")
    return msgspec.json.encode(reading)
