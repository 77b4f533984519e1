"""A deployment's children from start to stop: `serve` for people, `running` for scripts and tests."""

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from threading import Event
from types import FrameType

import httpx
from rich.console import Console

from recorder import __version__, clock
from recorder.access.dagster_login import LoginLinks, open_dagster
from recorder.errors import RecorderError
from recorder.settings import Settings
from recorder.supervisor.commands import (
    NoCheckout,
    api_command,
    claim_port,
    dagster_commands,
    delivery_command,
    environment,
    find_checkout,
    http_address,
)
from recorder.supervisor.processes import Child, ChildFailed, Guard, hear_signals, stop_children
from recorder.supervisor.run_records import SERVICE, AlreadyRunning, RunRecord

DAGSTER_HOST = "127.0.0.1"

_START_S = 90.0
_STOP_GRACE_S = 8.0  # ten seconds is the promise, and a killed group needs a moment too
_POLL_S = 0.05


class Service:
    """The API, the delivery loop and, if wanted, Dagster, as children of this process."""

    def __init__(
        self, settings: Settings, *, host: str, port: int, dagster: bool, dagster_port: int, console: Console
    ) -> None:
        hear_signals()
        checkout = find_checkout("api")
        if dagster:
            find_checkout("pipelines")
        port = claim_port(host, port, option="--port")
        #: Where the API answers.
        self.base_url = http_address(host, port)
        #: Where Dagster's pages are; None without Dagster.
        self.dagster_url: str | None = None
        #: Set it to end `start` and `watch`.
        self.stopping = Event()
        if settings.public_url == Settings.public_url:
            settings = replace(settings, public_url=self.base_url)
        variables = environment(settings, checkout)
        self._settings = settings
        self._record: RunRecord | None = None
        self._console = console
        self._guard: Guard | None = None
        self._api = Child(api_command(settings, variables, checkout, host, port))
        self._delivery = Child(delivery_command(settings, variables))
        self._dagster: list[Child] = []
        if dagster:
            dagster_port = claim_port(DAGSTER_HOST, dagster_port, option="--dagster-port")
            self.dagster_url = http_address(DAGSTER_HOST, dagster_port)
            commands = dagster_commands(settings, variables, checkout, DAGSTER_HOST, dagster_port)
            self._dagster = [Child(command) for command in commands]

    @property
    def children(self) -> list[Child]:
        """All of them, the API first."""
        return [self._api, self._delivery, *self._dagster]

    def start(self) -> None:
        """Start the children; returns when the API and Dagster's pages answer, or once told to stop.

        Raises:
            ChildFailed: if one ends or does not answer in time.
        """
        # Held first: a second service on this data folder ends here.
        self._record = RunRecord.hold(
            self._settings.data_dir,
            SERVICE,
            release=__version__,
            since=clock.to_iso(clock.now()),
            api=self.base_url,
            dagster=self.dagster_url,
        )
        self._guard = Guard()
        code, talkers = self._dagster[:1], self._dagster[1:]
        self._launch(self._api, *code)
        self._wait(self._api)
        self._say(f"API      {self.base_url}   documentation: {self.base_url}/docs")
        # The daemon's first sensor and the delivery loop read the database, whose schema the API has brought
        # up to date by now.
        self._launch(self._delivery)
        self._wait(*code)
        self._launch(*talkers)
        self._wait(*talkers)
        if self.dagster_url:
            self._say(f"Dagster  {self.dagster_url}")
            link = LoginLinks(self._settings).make_link(self.dagster_url)
            self._say(f"Log in   {link}   (once, within 15 minutes; then `recorder status` prints another)")

    def open_dagster(self) -> AbstractContextManager[httpx.Client]:
        """Give a client that is logged in to this service's Dagster pages."""
        assert self.dagster_url is not None, "this service runs without Dagster"
        return open_dagster(self._settings, self.dagster_url)

    def watch(self) -> None:
        """Start again what crashes, until told to stop."""
        while not self.stopping.wait(0.1):
            for child in self.children:
                self._revive(child)

    def stop(self) -> None:
        """End every child, and all that it started, within ten seconds."""
        stop_children(self.children, grace_s=_STOP_GRACE_S)
        if self._guard is not None:
            for child in self.children:
                self._guard.forget(child)
            self._guard.close()
        if self._record is not None:
            self._record.release()

    def _launch(self, *children: Child) -> None:
        for child in children:
            if not self.stopping.is_set():
                assert self._guard is not None
                child.start(self._guard)

    def _wait(self, *children: Child) -> None:
        until = time.monotonic() + _START_S
        for child in children:
            while not child.command.is_ready() and not self.stopping.is_set():
                if child.has_ended() or time.monotonic() > until:
                    raise ChildFailed(child.command)
                time.sleep(_POLL_S)

    def _revive(self, child: Child) -> None:
        if not child.has_ended():
            return
        pause = child.plan_restart()
        if pause is not None:
            assert self._guard is not None
            self._guard.forget(child)
            child.end_group()
            self._say(f"The {child.command.name} ended; next start in {pause:.0f} s. See {child.command.log}")
        elif child.is_due():
            self._launch(child)

    def _say(self, sentence: str) -> None:
        if not self.stopping.is_set():
            self._console.print(sentence, highlight=False, soft_wrap=True)


def serve(settings: Settings, *, host: str, port: int, dagster: bool, dagster_port: int) -> int:
    """Serve until SIGINT or SIGTERM, then stop every child; what `recorder up` does.

    Returns:
        The exit code: 0 after a stop, 1 if a part cannot start, 2 if only the library is installed.
    """
    console = Console(stderr=True)
    try:
        service = Service(
            settings, host=host, port=port, dagster=dagster, dagster_port=dagster_port, console=console
        )
    except RecorderError as error:
        console.print(str(error), highlight=False, soft_wrap=True)
        return 2 if isinstance(error, NoCheckout) else 1

    def _stop(number: int, frame: FrameType | None) -> None:
        service.stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        service.start()
        service.watch()
    except (AlreadyRunning, ChildFailed) as error:
        console.print(str(error), highlight=False, soft_wrap=True, markup=False)
        return 1
    finally:
        service.stop()
    return 0


@contextmanager
def running(
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
