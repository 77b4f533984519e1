"""Warnings of a running service on its terminal: printed when they appear and when they go."""

import re
import time
from collections.abc import Callable
from threading import Event
from typing import Any

import httpx

_ASK_EVERY_S = 5.0
_FIRST_REPORT_S = 60.0
_DIGITS = re.compile(r"[0-9]+")


class WarningWatch:
    """Reader of `/readyz` that knows which warnings it has printed."""

    def __init__(self, url: str, say: Callable[[str], object], *, has_dagster: bool) -> None:
        """Take where to ask.

        Args:
            url: address of `/readyz`.
            say: prints a sentence.
            has_dagster: whether Dagster was started with the service; without it, its silence is no news.
                With it, its first report takes some seconds.
        """
        self._url = url
        self._say = say
        self._dagster_due = time.monotonic() + _FIRST_REPORT_S if has_dagster else float("inf")
        self._shown: dict[tuple[str, str], str] = {}

    def run(self, stopping: Event) -> None:
        """Ask every few seconds until told to stop."""
        while not stopping.wait(_ASK_EVERY_S):
            try:
                answer = httpx.get(self._url, timeout=_ASK_EVERY_S, trust_env=False)
                self.take(answer.json())
            except (httpx.HTTPError, ValueError):
                continue  # the API's own silence is noticed elsewhere

    def take(self, readiness: dict[str, Any]) -> None:
        """Print what is new in an answer, and what is over.

        Figures grow from answer to answer; a warning that differs in them alone was printed before.
        """
        warnings = [(one["code"], one["message"]) for one in readiness.get("warnings", [])]
        if time.monotonic() < self._dagster_due:
            warnings = [one for one in warnings if one[0] != "dagster_silent"]
        for part, state in readiness.get("parts", {}).items():
            if state != "ok":
                warnings.append(("unavailable", f"The {part} does not answer; requests get 503."))
        found = {(code, _DIGITS.sub("#", message)): message for code, message in warnings}
        for key, message in found.items():
            if key not in self._shown:
                self._say(f"Warning  {key[0]}: {message}")
        for key, message in self._shown.items():
            if key not in found:
                self._say(f"Over     {key[0]}: {message}")
        self._shown = found
