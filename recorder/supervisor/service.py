"""Service of a deployment: start, supervision and stop of its child processes.

Supervision checks answers, not only exits; docs/decisions/0032-supervision.md.
"""

import logging
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from threading import Event, Thread
from types import FrameType

import httpx
from rich.console import Console

from recorder import clock
from recorder.access.dagster_login import log_in_to_dagster
from recorder.errors import RecorderError
from recorder.settings import Settings, describe_unknown_settings
from recorder.shell_commands import shorten_path, wrap_for_terminal
from recorder.storage.durable_files import keep_files_private
from recorder.storage.temporary_files import empty_temporary_folders
from recorder.supervisor.child_commands import (
    NoCheckout,
    api_command,
    choose_child_port,
    dagster_commands,
    delivery_command,
    find_checkout_for_children,
    make_child_server_url,
    make_service_child_environment,
    read_workspace_list_child,
    start_workspace_list_child,
)
from recorder.supervisor.guard_handle import GuardProcess
from recorder.supervisor.output import (
    Terminal,
    WarningPrinter,
    open_operator_console,
    print_service_addresses,
)
from recorder.supervisor.processes import (
    ChildProcess,
    Command,
    end_leftover_processes,
    reset_child_process_signals,
    stop_child_processes,
)
from recorder.supervisor.run_records import PATIENCE_S, SERVICE, RunRecord
from recorder.supervisor.service_logs import LogRotation, close_service_log, open_service_log
from recorder.supervisor.start_checks import DAGSTER_HOST, check_start
from recorder.version import __version__

_START_S = 90.0
_STOP_GRACE_S = 8.0  # ten seconds is the promise, and a killed group needs a moment too
_POLL_S = 0.05
_ASK_EVERY_S = 2.0
_ROTATE_EVERY_S = 5.0
# A link is printed after so long even if a process still does not answer.
_ANNOUNCE_WITHIN_S = 60.0

log = logging.getLogger("recorder.supervisor")


class Service:
    """The API, the delivery loop and, if wanted, Dagster, as children of this process."""

    def __init__(
        self, settings: Settings, *, host: str, port: int, dagster: bool, dagster_port: int, console: Console
    ) -> None:
        """Claim the data folder and the ports; nothing is started yet.

        Raises:
            NoCheckout: if only the library is installed.
            AlreadyRunning: if another service runs on the data folder.
            CannotListen: if a port is taken.
            SocketInUse: if another deployment keeps its Dagster files in the same folder.
        """
        reset_child_process_signals()
        keep_files_private()
        checkout = find_checkout_for_children("api")
        if dagster:
            find_checkout_for_children("pipelines")
        self._console = console
        # Held first: a second service on this data folder ends here.
        self._record = RunRecord.hold(
            settings.data_dir,
            SERVICE,
            wait_s=PATIENCE_S,
            release=__version__,
            since=clock.to_iso(clock.now()),
        )
        try:
            self._prepare_start(settings, checkout, host, port, dagster_port if dagster else None)
        except BaseException:
            self._record.release()
            raise

    def _prepare_start(
        self, settings: Settings, checkout: Path, host: str, port: int, dagster_port: int | None
    ) -> None:
        """End processes that a killed service left, claim the ports, and set up the children."""
        leftovers = end_leftover_processes(
            self._record.groups,
            f"RECORDER_DATA_DIR={settings.data_dir}",
            grace_s=_STOP_GRACE_S,
        )
        if leftovers:
            self._console.print(
                f"Ended {leftovers} processes of a service that was killed", highlight=False, soft_wrap=True
            )
        port = choose_child_port(host, port, option="--port")
        if dagster_port is not None:
            dagster_port = choose_child_port(DAGSTER_HOST, dagster_port, option="--dagster-port")
        #: Where the API answers.
        self.base_url = make_child_server_url(host, port)
        #: Where Dagster's pages are; None without Dagster.
        self.dagster_url = (
            make_child_server_url(DAGSTER_HOST, dagster_port) if dagster_port is not None else None
        )
        self._record.update(api=self.base_url, dagster=self.dagster_url, groups=[])
        #: Set it to end `start` and `watch`.
        self.stopping = Event()
        self._terminal = Terminal(self._console, self.stopping)
        if settings.public_url == Settings.public_url:
            settings = replace(settings, public_url=self.base_url)
        listening = [(host, port)] + ([] if dagster_port is None else [(DAGSTER_HOST, dagster_port)])
        own_addresses = (
            f"[{name}]:{number}" if ":" in name else f"{name}:{number}" for name, number in listening
        )
        settings = replace(settings, own_addresses=(*settings.own_addresses, *own_addresses))
        # Processes that a killed service left have ended by now.
        empty_temporary_folders(settings.data_dir)
        variables = make_service_child_environment(settings, checkout)
        self._settings = settings
        self._guard: GuardProcess | None = None
        self._guard_retry_at = 0.0
        self._log_handler: logging.Handler | None = None
        self._listing: Popen[bytes] | None = None
        self._api = self._make_child(api_command(settings, variables, checkout, host, port))
        self._delivery = self._make_child(delivery_command(settings, variables))
        self._dagster: list[ChildProcess] = []
        if dagster_port is not None:
            commands = dagster_commands(settings, variables, checkout, DAGSTER_HOST, dagster_port)
            self._dagster = [self._make_child(command) for command in commands]

    @property
    def children(self) -> list[ChildProcess]:
        """All children, the API first."""
        return [self._api, self._delivery, *self._dagster]

    def start(self) -> None:
        """Start the children; returns when the API and Dagster's pages answer, or once `stopping` is set.

        Raises:
            ChildFailed: if one ends or does not answer in time.
        """
        self._log_handler = open_service_log(self._settings.data_dir / "logs")
        self._guard = GuardProcess(
            keep_open=[self._record.descriptor],
            on_change=self._record_groups,
        )
        code, talkers = self._dagster[:1], self._dagster[1:]
        self._terminal.say(f"Data     {shorten_path(self._settings.data_dir)}")
        for warning in describe_unknown_settings():
            self._terminal.say(warning, wrap=False)
        with self._console.status("Starting the API"):
            self._launch_children(self._api, *code)
            self._wait_until_ready(self._api)
        # A start that the settings or the data do not admit ends before this: its reason is printed alone.
        self._terminal.release()
        # The daemon's first sensor and the delivery loop read the database, whose schema the API has brought
        # up to date by now.
        self._launch_children(self._delivery)
        self._wait_until_ready(*code)
        self._launch_children(*talkers)
        self._wait_until_ready(*talkers)

    def _record_groups(self, groups: list[int]) -> None:
        """Write the process groups into the record; on a full disk they stay unrecorded."""
        try:
            self._record.update(groups=groups)
        except OSError as error:
            log.warning("the record of the service cannot be written: %s", error.strerror)

    def open_dagster(self) -> AbstractContextManager[httpx.Client]:
        """Return a client that is logged in to this service's Dagster pages."""
        assert self.dagster_url is not None, "this service runs without Dagster"
        return log_in_to_dagster(self._settings, self.dagster_url)

    def watch(self) -> None:
        """Restart children that end or fall silent, and print warnings, until `stopping` is set.

        Addresses, the login link and the next step are printed once every process answers.
        """
        for child in self.children:
            Thread(
                target=self._probe_child, args=(child,), name=f"probe {child.command.name}", daemon=True
            ).start()
        announce_at: float | None = time.monotonic() + _ANNOUNCE_WITHIN_S
        rotation, rotate_at = LogRotation(), 0.0
        while not self.stopping.wait(0.1):
            self._excuse_daemon()
            self._restart_guard_if_needed()
            for child in self.children:
                self._restart_if_needed(child)
            if announce_at is not None and (self._are_all_answering() or time.monotonic() >= announce_at):
                announce_at = None
                Thread(target=self._announce_and_warn, name="announce", daemon=True).start()
            if time.monotonic() >= rotate_at:
                rotate_at = time.monotonic() + _ROTATE_EVERY_S
                rotation.rotate(child.command.log for child in self.children)

    def _are_all_answering(self) -> bool:
        return all(child.liveness.is_answering for child in self.children)

    def _announce_and_warn(self) -> None:
        """Print the addresses, a login link and the next step, and warnings from then on."""
        try:
            self._listing = start_workspace_list_child(self._settings)
            print_service_addresses(
                self._terminal,
                self._settings,
                api_url=self.base_url,
                dagster_url=self.dagster_url,
                workspaces=read_workspace_list_child(self._listing),
            )
        except OSError:  # no room for a process, or for the file of a login link
            log.exception("the addresses of the service cannot be printed")
        warnings = WarningPrinter(
            f"{self.base_url}/readyz", self._terminal.say, has_dagster=bool(self._dagster)
        )
        warnings.run(self.stopping)

    def stop(self) -> None:
        """End every child and its descendants within ten seconds."""
        log.info("the service stops")
        self.stopping.set()
        if self._listing is not None:
            self._listing.kill()
        stop_child_processes(self.children, grace_s=_STOP_GRACE_S)
        if self._guard is not None:
            for child in self.children:
                if child.was_started:
                    self._guard.release_group(child.pid)
            self._guard.close()
        self._record.release()
        if self._log_handler is not None:
            log.info("the service has stopped")
            close_service_log(self._log_handler)
            self._log_handler = None

    def _make_child(self, command: Command) -> ChildProcess:
        return ChildProcess(command, silence_s=self._settings.answer_within_s)

    def _launch_children(self, *children: ChildProcess) -> None:
        for child in children:
            if not self.stopping.is_set():
                assert self._guard is not None
                self._terminal.say(f"Starting the {child.command.name}")
                child.start(self._guard)

    def _wait_until_ready(self, *children: ChildProcess) -> None:
        until = time.monotonic() + _START_S
        for child in children:
            while not child.command.is_ready() and not self.stopping.is_set():
                if child.has_ended() or time.monotonic() > until:
                    raise child.failure
                time.sleep(_POLL_S)

    def _probe_child(self, child: ChildProcess) -> None:
        """Probe a child repeatedly; a probe may take long, so each child has a thread."""
        while not self.stopping.wait(_ASK_EVERY_S):
            starts = child.liveness.starts
            if child.has_ended():
                continue
            try:
                has_answered = child.command.answers()
            except Exception:  # a probe that fails counts as unanswered
                log.exception("the probe of the %s failed", child.command.name)
                has_answered = False
            if child.liveness.note(has_answered, starts=starts):
                self._terminal.say(f"The {child.command.name} answers")

    def _excuse_daemon(self) -> None:
        """Reset the daemon's silence while the code server, which the daemon calls, does not answer."""
        code = self._dagster[:1]
        if code and (code[0].has_ended() or not code[0].liveness.is_answering):
            for child in self._dagster[2:]:
                child.liveness.excuse()

    def _restart_guard_if_needed(self) -> None:
        """Start another guard where it was killed; where the system refuses that, try again later."""
        if self._guard is None or time.monotonic() < self._guard_retry_at:
            return
        try:
            if self._guard.restart_if_ended():
                log.warning("the guard was killed; another one watches")
        except OSError as error:
            self._guard_retry_at = time.monotonic() + _ASK_EVERY_S
            log.warning("the guard cannot be started: %s", error.strerror)

    def _restart_if_needed(self, child: ChildProcess) -> None:
        """End a silent child, plan the next start of one that ended, and start it when that is due."""
        assert self._guard is not None
        if child.is_due():
            try:
                self._launch_children(child)
            except OSError as error:
                self._terminal.say(
                    f"The {child.command.name} cannot be started ({error.strerror}): "
                    f"next try in {child.postpone_start():.0f} s",
                    level=logging.WARNING,
                )
        elif child.has_ended() or child.is_overdue:
            was_silent = child.is_ending
            pause = child.plan_restart(since_s=child.silent_s if was_silent else 0.0)
            if pause is not None:
                child.end_group()
                child.wait(1.0)
                if child.was_started:
                    self._guard.release_group(child.pid)
                words = f"did not answer for {child.silent_s:.0f} s" if was_silent else "ended"
                self._terminal.say(
                    f"The {child.command.name} {words}: restarting, pause {pause:.0f} s; "
                    f"its log: {shorten_path(child.command.log)}",
                    level=logging.WARNING,
                )
        elif child.liveness.is_silent and not child.is_ending:
            child.ask_to_end()


def serve_deployment(data: Path | None, *, host: str, port: int, dagster: bool, dagster_port: int) -> int:
    """Serve until SIGINT or SIGTERM, then stop every child, as `recorder up` does.

    Args:
        data: the data folder; None takes the environment's.
        host: address that the API listens on.
        port: port of the API.
        dagster: whether to run Dagster too.
        dagster_port: port of Dagster's pages.

    Returns:
        The exit code: 0 after a stop, 1 if a part cannot start, 2 if only the library is installed.
    """
    console = open_operator_console()
    try:
        check_start(data, host, port, dagster_port if dagster else None)
        settings = Settings.from_env(data_dir=data)
        service = Service(
            settings, host=host, port=port, dagster=dagster, dagster_port=dagster_port, console=console
        )
    except RecorderError as error:
        console.print(wrap_for_terminal(str(error)), highlight=False, soft_wrap=True, markup=False)
        return 2 if isinstance(error, NoCheckout) else 1

    def _handle_stop_signal(number: int, frame: FrameType | None) -> None:
        service.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _handle_stop_signal)
    try:
        service.start()
        service.watch()
        console.print("Stopping the service; this takes up to ten seconds", highlight=False, soft_wrap=True)
    except RecorderError as error:
        console.print(wrap_for_terminal(str(error)), highlight=False, soft_wrap=True, markup=False)
        return 1
    finally:
        service.stop()
    console.print("The service has stopped", highlight=False, soft_wrap=True)
    return 0


@contextmanager
def run_service(
    settings: Settings, *, dagster: bool = False, port: int = 0, dagster_port: int = 0
) -> Iterator[Service]:
    """Serve on loopback while the block runs; port 0 picks a free one. Prints nothing.

    Raises:
        ChildFailed: if a part ends or does not answer in time.
    """
    service = Service(
        settings,
        host="127.0.0.1",
        port=port,
        dagster=dagster,
        dagster_port=dagster_port,
        console=Console(quiet=True),
    )
    try:
        service.start()
        yield service
    finally:
        service.stop()
