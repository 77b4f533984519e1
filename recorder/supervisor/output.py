"""Output of a running service on the terminal: its steps, addresses and warnings."""

import io
import logging
import sys
import textwrap
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import httpx
from rich.console import Console

from recorder.access.dagster_login import LoginLinks
from recorder.number_formats import format_seconds
from recorder.settings import Settings
from recorder.shell_commands import make_shell_command, shorten_path
from recorder.supervisor.liveness import Clock, shared_probe_client

_COLUMNS = 80
_WORKSPACES_SHOWN = 3
_ASK_EVERY_S = 5.0
_FIRST_REPORT_S = 60.0

log = logging.getLogger("recorder.supervisor")


class _LenientFile(io.FileIO):
    """File that drops what cannot be written."""

    def write(self, content: Any, /) -> int:
        """Write bytes; return their number even if the reader has gone or the disk is full."""
        try:
            # None stands for a full pipe that is not waited for.
            return super().write(content) or len(content)
        except OSError:
            return len(content)


def open_operator_console() -> Console:
    """Return a console on stderr that a closed terminal, an ended reader or a full disk does not stop.

    The service must outlive all three, while `rich` ends the process after a broken pipe.
    """
    if sys.stderr is None:  # closed at the start: the number may belong to another file by now
        return Console(quiet=True)
    stream = io.TextIOWrapper(
        io.BufferedWriter(_LenientFile(sys.stderr.fileno(), "wb", closefd=False)),
        encoding=sys.stderr.encoding,
        errors="backslashreplace",
    )
    return Console(file=stream)


class Terminal:
    """Lines for the operator, which are logged too; they are held back until `release`."""

    def __init__(self, console: Console, stopping: Event) -> None:
        """Create a terminal that holds lines back.

        Args:
            console: prints the lines.
            stopping: once it is set, lines are only logged.
        """
        self._console = console
        self._stopping = stopping
        #: Lines that wait for `release`; None once lines are printed at once.
        self._held_lines: list[str] | None = []

    def say(self, sentence: str, *, wrap: bool = True, level: int = logging.INFO) -> None:
        """Log a sentence, and print it in lines of 80 characters, or unbroken without `wrap`."""
        log.log(level, sentence)
        self.show(sentence, wrap=wrap)

    def show(self, sentence: str, *, wrap: bool = True) -> None:
        """Print a sentence as `say` does without logging it: it is a secret, or explains a logged one."""
        if self._stopping.is_set():
            return
        lines = sentence
        if wrap:
            lines = textwrap.fill(
                sentence,
                _COLUMNS,
                subsequent_indent=" " * 9,
                drop_whitespace=True,
                break_long_words=False,
                break_on_hyphens=False,
            )
        if self._held_lines is not None:
            self._held_lines.append(lines)
        else:
            self._print_lines(lines)

    def release(self) -> None:
        """Print the lines that were held back, and print further lines at once."""
        held, self._held_lines = self._held_lines, None
        for lines in held or []:
            self._print_lines(lines)

    def _print_lines(self, lines: str) -> None:
        self._console.print(lines, highlight=False, markup=False, soft_wrap=True)


def print_service_addresses(
    terminal: Terminal, settings: Settings, *, api_url: str, dagster_url: str | None, workspaces: list[str]
) -> None:
    """Print the addresses of a service, a login link for Dagster's pages, and the next step.

    Args:
        terminal: prints the lines.
        settings: of the deployment.
        api_url: where the API answers.
        dagster_url: where Dagster's pages are; None without Dagster.
        workspaces: names of the deployment's workspaces.
    """
    folder = shorten_path(settings.data_dir)
    terminal.say(f"API      {api_url}   documentation: {api_url}/docs")
    if dagster_url:
        terminal.say(f"Dagster  {dagster_url}")
        terminal.show(f"Log in   {LoginLinks(settings).make_link(dagster_url)}", wrap=False)
        terminal.show("         opens Dagster's pages once, within 15 minutes; for another link:")
        terminal.show(f"         {make_shell_command('status', '--data', folder)}", wrap=False)
    else:
        terminal.say("Dagster  not started: sessions stay `stopped`, exports stay `queued`")
    # A command is on a line of its own, however long: broken in two it cannot be copied.
    if workspaces:
        shown = ", ".join(workspaces[:_WORKSPACES_SHOWN])
        more = f" and {len(workspaces) - _WORKSPACES_SHOWN} more"
        terminal.say(f"Has      workspaces: {shown}{more if len(workspaces) > _WORKSPACES_SHOWN else ''}")
        terminal.say("Next     use a key of a workspace; Ctrl-C stops the service. For a new key:")
        command = make_shell_command("keys", "create", workspaces[0], "LABEL", "--data", folder)
    else:
        terminal.say("Next     create a workspace and its first API key; Ctrl-C stops the service:")
        command = make_shell_command("workspaces", "create", "NAME", "--data", folder)
    terminal.show(f"         {command}", wrap=False)


class WarningPrinter:
    """Watch of `/readyz` that prints warnings when they appear and when they end."""

    def __init__(
        self,
        url: str,
        say: Callable[[str], object],
        *,
        has_dagster: bool,
        first_report_s: float = _FIRST_REPORT_S,
        now: Clock = time.monotonic,
    ) -> None:
        """Create a watch.

        Args:
            url: address of `/readyz`.
            say: prints a sentence.
            first_report_s: time within which Dagster's first report may be missing.
            has_dagster: whether Dagster was started with the service; if not, its silence is not printed.
            now: a clock that only rises.
        """
        self._url = url
        self._say = say
        self._now = now
        self._dagster_due = now() + first_report_s if has_dagster else float("inf")
        #: Warnings that hold: when the first of a code was printed, and the sentences of the last answer.
        self._printed: dict[str, tuple[float, list[str]]] = {}

    def run(self, stopping: Event) -> None:
        """Read the warnings every few seconds until `stopping` is set."""
        while not stopping.wait(_ASK_EVERY_S):
            try:
                answer = shared_probe_client().get(self._url, timeout=_ASK_EVERY_S)
                self.take(answer.json())
            except (httpx.HTTPError, ValueError):
                continue  # the supervisor notices the silence of the API

    def take(self, readiness: dict[str, Any]) -> None:
        """Print warnings that are new in an answer, and those that ended.

        The figures of a warning grow from answer to answer, and its words change with them. So warnings are
        compared by code; of a code that several have, those are printed by which it has more than before.
        """
        current: dict[str, list[str]] = {}
        for warning in readiness.get("warnings", []):
            current.setdefault(warning["code"], []).append(f"{warning['code']}: {warning['message']}")
        if self._now() < self._dagster_due:
            current.pop("dagster_silent", None)
        for part, state in readiness.get("parts", {}).items():
            if state != "ok":
                sentence = f"unavailable: The {part} does not answer; requests get 503."
                current[f"unavailable ({part})"] = [sentence]
        for code, sentences in current.items():
            began, printed = self._printed.get(code, (self._now(), []))
            if len(sentences) > len(printed):
                for sentence in sentences:
                    if sentence not in printed:
                        self._say(f"Warning  {sentence}")
            self._printed[code] = (began, sentences)
        for code in [code for code in self._printed if code not in current]:
            began, _ = self._printed.pop(code)
            self._say(f"Ended    {code}, after {format_seconds(self._now() - began)}")
