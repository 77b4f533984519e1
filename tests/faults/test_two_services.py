"""Two `recorder up` on one data folder, in every order, with kills between: one serves. Contract §9.

A quarter of the rounds runs with Dagster: after each of them the code server answers on its socket, and an
export leaves `queued`. `make faults` runs 20 rounds; `make test-faults` runs each order once.
"""

import os
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from benchmarks.seeds import new_key
from recorder.client import Client
from recorder.settings import Settings
from recorder.supervisor.child_commands import choose_child_port
from recorder.supervisor.liveness import accepts_socket_connections
from recorder.supervisor.run_records import SERVICE, read_run_record
from tests.faults.results import add_result, count_done
from tests.support.deployment_processes import left_after, processes_of, start_up

#: Rounds of starts; 0: each order once.
ROUNDS = int(os.environ.get("RECORDER_FAULT_UPS", "0"))  # noqa: TID251
_PATIENCE_S = 90.0
#: What stands in the command line of a child, of which a folder has one.
_CHILDREN = ("uvicorn", "recorder.cli deliver", "dagster api grpc", "pipelines.webserver", "pipelines.daemon")
#: One round in so many runs with Dagster; there are five orders, so 20 rounds run each of them with Dagster.
_DAGSTER_EVERY = 4


class Up:
    """A `recorder up` as a process, with the address that its API would have."""

    def __init__(self, data: Path, *, dagster: bool) -> None:
        self.data, self.has_dagster = data, dagster
        port = choose_child_port("127.0.0.1", 0, option="--port")
        self.url = f"http://127.0.0.1:{port}"
        options = ["--port", str(port)]
        if dagster:
            options += ["--dagster-port", str(choose_child_port("127.0.0.1", 0, option="--dagster-port"))]
        else:
            options += ["--no-dagster"]
        self.process = start_up(data, *options, folder=data.parent)

    def is_serving(self) -> bool:
        """Return whether the service's API answers and the service holds the folder."""
        record = read_run_record(self.data, SERVICE)
        try:
            answers = httpx.get(f"{self.url}/healthz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False
        is_holder = record is not None and record["process"] == self.process.pid
        return answers and is_holder and (not self.has_dagster or self.is_code_served())

    def is_code_served(self) -> bool:
        """Return whether a code server of Dagster answers on the folder's socket."""
        return accepts_socket_connections(self.data / "dagster" / "code.sock")

    def wait_exported(self, key: str) -> None:
        """Return once a session that stops now is sealed, and an export of it is completed."""
        with Client(self.url, key) as client:
            session_id = client.create_session("checkout", start=True)["id"]
            client.stop(session_id)
            client.wait_sealed(session_id, timeout_s=_PATIENCE_S)
            client.wait_export(client.create_export("checkout")["id"], timeout_s=_PATIENCE_S)

    def stop(self) -> None:
        """Ask it to end, and wait until it has."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(15) == 0

    def wait_serving(self) -> None:
        """Return once it serves."""
        until = time.monotonic() + _PATIENCE_S
        while not self.is_serving():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < until, self.process.pid
            time.sleep(0.05)

    def wait_refused(self, by: "Up") -> None:
        """Return once it has ended with one sentence that names the other one."""
        _, said = self.process.communicate(timeout=_PATIENCE_S)
        assert self.process.returncode == 1, said
        assert len(said.splitlines()) == 1 and f": process {by.process.pid}, since 2" in said, said

    def kill(self) -> None:
        """Kill it outright; its guard ends the children."""
        self.process.kill()

    def kill_with_guard(self) -> None:
        """Kill it and its guard, as whoever kills all that has `recorder` in its name does."""
        guards = _processes_with_parent(self.process.pid, "orphan_guard.py")
        self.process.kill()
        for guard in guards:
            os.kill(guard, signal.SIGKILL)


def _processes_with_parent(parent: int, words: str) -> list[int]:
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(") ")[2].split()
            if int(stat[1]) == parent and words in (folder / "cmdline").read_text():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


class Census:
    """Counts the children of a folder again and again: there is never a second one of a kind."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self.doubles: list[dict[int, str]] = []
        self.counts = 0

    def run(self, over: threading.Event) -> None:
        """Count until the event is set."""
        while not over.wait(0.02):
            leaders = {
                pid: command
                for pid, command in processes_of(self._data).items()
                if not command.startswith("/bin/sh") and _is_leader(pid)
            }
            kinds = Counter(kind for command in leaders.values() for kind in _CHILDREN if kind in command)
            self.counts += 1
            if any(count > 1 for count in kinds.values()):
                self.doubles.append(leaders)


def _is_leader(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False


@contextmanager
def counted(data: Path) -> Iterator[Census]:
    """Count the processes during the block, and check that none is left when it ends."""
    census, over = Census(data), threading.Event()
    thread = threading.Thread(target=census.run, args=(over,))
    thread.start()
    try:
        yield census
    finally:
        over.set()
        thread.join()
        for pid in processes_of(data):
            os.kill(pid, signal.SIGTERM)
        left_after(data, 15)


def _refuse_the_later(first: Up, start: Callable[[], Up], _: random.Random) -> Up:
    """Start a second service while the first serves; it must be refused."""
    second = start()
    second.wait_refused(first)
    assert first.is_serving()
    return first


def _start_two_at_once(first: Up, start: Callable[[], Up], chance: random.Random) -> Up:
    """Kill the first service, and start two at once, a moment later or none."""
    first.kill()
    time.sleep(chance.choice([0, 0, 0.5, 2]))
    pair = [start(), start()]
    until = time.monotonic() + _PATIENCE_S
    while all(service.process.poll() is None for service in pair):
        assert time.monotonic() < until
        time.sleep(0.05)
    loser = next(service for service in pair if service.process.poll() is not None)
    winner = pair[1 - pair.index(loser)]
    loser.wait_refused(winner)
    winner.wait_serving()
    return winner


def _follow_a_kill(first: Up, start: Callable[[], Up], chance: random.Random) -> Up:
    """Start the next service right after the kill, or just before it and then again."""
    if chance.random() < 0.5:
        second = start()
        second.wait_refused(first)
    first.kill()
    second = start()
    second.wait_serving()
    return second


def _follow_a_kill_with_guard(first: Up, start: Callable[[], Up], _: random.Random) -> Up:
    """Start a service after a kill that leaves the children running: it ends them first."""
    first.kill_with_guard()
    assert processes_of(first.data)
    second = start()
    second.wait_serving()
    assert not first.is_serving()
    return second


def _follow_a_kill_while_starting(first: Up, start: Callable[[], Up], chance: random.Random) -> Up:
    """Kill a service in the middle of its start, and start the next."""
    first.kill()
    second = start()
    time.sleep(chance.uniform(0, 4))
    second.kill() if chance.random() < 0.5 else second.kill_with_guard()
    third = start()
    third.wait_serving()
    return third


ORDERS = [
    _refuse_the_later,
    _start_two_at_once,
    _follow_a_kill,
    _follow_a_kill_with_guard,
    _follow_a_kill_while_starting,
]


def _runs_with_dagster(number: int) -> bool:
    return number % _DAGSTER_EVERY == _DAGSTER_EVERY - 1


@pytest.mark.timeout(0)
def test_one_service_serves_a_folder_whatever_is_started_and_killed(tmp_path: Path) -> None:
    name = "services started on one folder"
    done = count_done(name)
    data, chance = tmp_path / "data", random.Random(7 + done)
    wanted = max(ROUNDS - done, 0) or len(ORDERS)
    numbers = range(done, done + wanted)
    key = new_key(Settings.from_env(data_dir=data))
    started: list[Up] = []
    exports = 0

    with counted(data) as census:
        try:
            serving = None
            for number in numbers:
                with_dagster = _runs_with_dagster(number)

                def start(*, dagster: bool = with_dagster) -> Up:
                    started.append(Up(data, dagster=dagster))
                    return started[-1]

                if serving is None or serving.has_dagster != with_dagster:
                    if serving is not None:
                        serving.stop()
                    serving = start()
                    serving.wait_serving()
                order = ORDERS[number % len(ORDERS)]
                serving = order(serving, start, chance)
                assert serving.is_serving(), order
                if with_dagster:
                    serving.wait_exported(key)
                    assert serving.is_serving(), order
                    exports += 1
            assert serving is not None
            serving.stop()
        finally:
            for service in started:
                service.process.kill()
                service.process.communicate()
    with_dagster_count = sum(service.has_dagster for service in started)
    print(
        f"{wanted} rounds, {len(started)} starts, {with_dagster_count} with Dagster, {exports} exports, "
        f"{census.counts} counts: {len(census.doubles)} doubles"
    )
    assert census.doubles == [] and census.counts > wanted
    assert exports == sum(map(_runs_with_dagster, numbers)) > 0
    figures = {"starts": len(started), "with_dagster": with_dagster_count, "exports": exports}
    add_result(name, wanted, **figures, counts=census.counts)


@pytest.mark.timeout(300)
def test_a_second_service_leaves_the_socket_of_the_code_server(tmp_path: Path) -> None:
    data = tmp_path / "data"
    first = Up(data, dagster=True)
    try:
        first.wait_serving()
        socket = data / "dagster" / "code.sock"
        until = time.monotonic() + _PATIENCE_S
        while not accepts_socket_connections(socket):
            assert time.monotonic() < until
            time.sleep(0.1)
        before = socket.stat().st_ino
        second = Up(data, dagster=True)
        second.wait_refused(first)
        assert socket.stat().st_ino == before and accepts_socket_connections(socket) and first.is_serving()
        # The logs hold neither colours nor traces.
        for log in (data / "logs").iterdir():
            text = log.read_text()
            assert "\x1b" not in text and "Traceback" not in text, log
        open_files = [path for path in data.rglob("*") if path.lstat().st_mode & 0o077]
        assert open_files == []
    finally:
        first.process.send_signal(signal.SIGTERM)
        try:
            first.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            first.process.kill()
        left_after(data, 15)
