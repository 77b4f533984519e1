"""Checks of replays whose process was killed: what ended, which processes are left, and what is on disk."""

from collections.abc import Iterable
from pathlib import Path

from recorder.models.replay import ReplayRow
from recorder.runtime import Runtime
from tests.support.stored_content import read_stored_file
from tests.support.waiting import wait_for

#: Seconds after the end of a lease within which a replay must have ended.
AFTER_LEASE_S = 60.0
#: Seconds within which the processes of a killed one must be gone.
_LEFT_S = 20.0


def list_descendants(process: int) -> set[int]:
    """Return the processes that a process has started, and those that these have started."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (parent := _read_stat(int(folder.name))[1]):
            children.setdefault(parent, []).append(int(folder.name))
    descendants: set[int] = set()
    waiting = [process]
    while waiting:
        started = children.get(waiting.pop(), [])
        descendants.update(started)
        waiting += started
    return descendants


def find_command(process: int) -> str:
    """Return the command line of a process; nothing if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def is_running(process: int) -> bool:
    """Return whether a process is there, and no zombie."""
    return _read_stat(process)[0] not in ("", "Z")


def wait_until_gone(processes: Iterable[int]) -> None:
    """Wait until none of some processes runs."""
    commands = {process: find_command(process) for process in processes}

    def list_left() -> list[str]:
        return [command for process, command in commands.items() if is_running(process)]

    wait_for(lambda: not list_left(), seconds=_LEFT_S)


def assert_no_inputs(runtime: Runtime, replay_ids: Iterable[str], *inputs: str) -> None:
    """Require that replays keep no inputs, and that no file of the deployment has their values."""
    with runtime.database.transaction(write=False) as db:
        assert not any(db.get_one(ReplayRow, replay_id).input_values for replay_id in replay_ids)
    files = [path for path in runtime.settings.data_dir.rglob("*") if path.is_file()]
    for path in files:
        content = read_stored_file(path)
        assert not any(value.encode() in content for value in inputs), path


def _read_stat(process: int) -> tuple[str, int]:
    """Return state and parent of a process; no state if it has ended."""
    try:
        state, parent = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return "", 0
    return state, int(parent)
