"""Run records: a locked JSON file in a data folder for each process that runs on it. Contract §9.

The record of `recorder up` is the lock of the data folder: one service runs on a folder at a time.
"""

import fcntl
import json
import os
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from recorder.data_folder import DataFolderUnusable
from recorder.errors import Conflict
from recorder.process_states import is_process_running

#: Names of records: `recorder up` itself, and the server of Dagster's pages.
SERVICE: Final = "service"
DAGSTER_WEBSERVER: Final = "dagster-webserver"
#: The guard of a killed service ends its children within eight seconds, and holds the lock until then.
PATIENCE_S: Final = 10.0

_FOLDER = "run"
_POLL_S = 0.1
_RECORD_BYTES = 65_536
_TITLES = {SERVICE: "service", DAGSTER_WEBSERVER: "server of Dagster's pages"}


class AlreadyRunning(Conflict):
    """Another process of the same kind runs on the data folder."""

    def __init__(self, data: Path, name: str, holder: dict[str, Any]) -> None:
        #: The record of that process, as far as it is written.
        self.holder = holder
        facts = [f"process {holder['process']}"] if "process" in holder else []
        facts += [f"since {holder['since']}"] if "since" in holder else []
        facts += [f"at {holder[part]}" for part in ("api", "url") if part in holder]
        who = f": {', '.join(facts)}" if facts else ""
        super().__init__(
            f"Another {_TITLES[name]} runs on the data folder {data}{who}. Stop it first, or choose another "
            "folder with --data."
        )


class RunRecord:
    """A record that this process holds; the lock ends with the processes that hold its descriptor."""

    def __init__(self, descriptor: int, members: dict[str, Any]) -> None:
        #: Open file that carries the lock; a process that inherits it holds the lock too.
        self.descriptor = descriptor
        self._members = members

    @classmethod
    def hold(cls, data: Path, name: str, *, wait_s: float = 0.0, **members: Any) -> "RunRecord":
        """Write a record of this process into the data folder, and lock it.

        Args:
            data: the data folder.
            name: `SERVICE` or `DAGSTER_WEBSERVER`.
            wait_s: longest wait for processes that a killed service left.
            members: members of the record besides the process id.

        Raises:
            AlreadyRunning: if another process holds the record of this name.
            DataFolderUnusable: if the record cannot be written.
        """
        path = _make_record_path(data, name)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise DataFolderUnusable(data, error) from error
        until = time.monotonic() + wait_s
        try:
            while not _lock_record_file(descriptor):
                holder = _read_record_members(descriptor)
                if _has_running_process(holder) or time.monotonic() >= until:
                    raise AlreadyRunning(data, name, holder)
                time.sleep(_POLL_S)
        except BaseException:
            os.close(descriptor)
            raise
        # The groups stay until they are ended: this process may be killed before that.
        groups = _read_record_members(descriptor).get("groups", [])
        record = cls(descriptor, {"process": os.getpid(), "groups": groups})
        try:
            record.update(**members)
        except OSError as error:
            record.release()
            raise DataFolderUnusable(data, error) from error
        return record

    @property
    def groups(self) -> list[int]:
        """Process groups that this process, or a killed one before it, has started."""
        groups: list[int] = self._members["groups"]
        return groups

    def update(self, **members: Any) -> None:
        """Set members of the record; the others stay."""
        self._members.update(members)
        content = json.dumps(self._members).encode()
        # One write, padded with spaces: a concurrent reader never reads an empty record.
        os.pwrite(self.descriptor, content.ljust(os.fstat(self.descriptor).st_size), 0)

    def release(self) -> None:
        """Unlock the record: this process no longer serves. Further calls do nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1

    def __enter__(self) -> "RunRecord":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def has_run_record(data: Path, name: str) -> bool:
    """Return whether a process of this kind has ever written a record into the data folder."""
    return _make_record_path(data, name).exists()


def read_run_record(data: Path, name: str) -> dict[str, Any] | None:
    """Return the record of a process that runs now; None if there is none."""
    try:
        descriptor = os.open(_make_record_path(data, name), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if _lock_record_file(descriptor, fcntl.LOCK_SH):
            return None  # its process has ended
        members = _read_record_members(descriptor)
    finally:
        os.close(descriptor)
    # The guard of a killed service holds the lock for some seconds more.
    return members if _has_running_process(members) else None


def _has_running_process(members: dict[str, Any]) -> bool:
    """Return whether the process of a record runs."""
    process_id = members.get("process")
    return isinstance(process_id, int) and is_process_running(process_id)


def _lock_record_file(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_record_members(descriptor: int) -> dict[str, Any]:
    try:
        members = json.loads(os.pread(descriptor, _RECORD_BYTES, 0))
    except ValueError:  # not written yet
        return {}
    return members if isinstance(members, dict) else {}


def _make_record_path(data: Path, name: str) -> Path:
    return data / _FOLDER / f"{name}.json"
