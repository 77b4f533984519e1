"""Records of what runs on a data folder: a file that its process keeps locked, for `recorder status`."""

import fcntl
import json
import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TextIO

from recorder.errors import Conflict, NotFound

#: Names of records: `recorder up` itself, and the server of Dagster's pages.
SERVICE: Final = "service"
DAGSTER_WEBSERVER: Final = "dagster-webserver"

_FOLDER = "run"
_MARKS = ("secret", "recorder.db", _FOLDER, "logs", "dagster")


class AlreadyRunning(Conflict):
    """Another process of the same kind serves this data folder."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"A {name} runs on this data folder already (`recorder status` shows it). Stop it first, or "
            "choose another folder with --data."
        )


class NoDeployment(NotFound):
    """A data folder that holds no deployment."""

    def __init__(self, data: Path) -> None:
        super().__init__(
            "deployment",
            f"There is no deployment in {data}. Choose its folder with --data, or run `recorder up`.",
        )


@dataclass
class RunRecord:
    """A record that this process holds; the lock ends with the process, whatever ends it."""

    _file: TextIO

    @classmethod
    def hold(cls, data: Path, name: str, **members: Any) -> "RunRecord":
        """Write a record of this process into the data folder, and lock it.

        Raises:
            AlreadyRunning: if another process holds the record of this name.
        """
        path = _path(data, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise AlreadyRunning(name) from error
        record = cls(file)
        record.update(process=os.getpid(), **members)
        return record

    def update(self, **members: Any) -> None:
        """Replace the record's content."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(json.dumps(members))
        self._file.flush()

    def release(self) -> None:
        """Unlock the record: this process no longer serves."""
        self._file.close()

    def __enter__(self) -> "RunRecord":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def read_record(data: Path, name: str) -> dict[str, Any] | None:
    """Return the record of a process that runs now; None if there is none."""
    try:
        with _path(data, name).open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                members: dict[str, Any] = json.loads(file.read() or "{}")
                return members
    except FileNotFoundError:
        return None
    return None  # its process has ended


def require_deployment(data: Path) -> None:
    """Check that a data folder holds a deployment, without making one.

    Raises:
        NoDeployment: if it does not.
    """
    if not any((data / mark).exists() for mark in _MARKS):
        raise NoDeployment(data)


def _path(data: Path, name: str) -> Path:
    return data / _FOLDER / f"{name}.json"
