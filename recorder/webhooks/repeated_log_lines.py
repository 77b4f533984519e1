"""Log lines about webhooks that occur often: once an hour for each webhook, with a count."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

log = logging.getLogger("recorder.webhooks")

_EVERY_S = 3_600.0
#: Most webhooks that are remembered; the line of a forgotten one is written again.
_MOST_WEBHOOKS = 10_000


@dataclass
class _WrittenLine:
    """Time of the last line of a webhook, and the occurrences since then."""

    written_s: float
    count: int = 0


class RepeatedLogLine:
    """Log line that is written at its first occurrence for a webhook, then at most once an hour."""

    def __init__(self, level: int, message: str, *, read_clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without occurrences.

        Args:
            level: level of the line.
            message: text of the line.
            read_clock: returns the seconds of a monotonic clock.
        """
        self._level = level
        self._message = message
        self._read_clock = read_clock
        self._written: dict[str, _WrittenLine] = {}

    def add(self, webhook_id: str, **names: object) -> None:
        """Count an occurrence, and write the line with the count if the last one was an hour ago.

        Args:
            webhook_id: the webhook.
            names: further members of the line.
        """
        now_s = self._read_clock()
        before = self._written.pop(webhook_id, None)
        count = 1 if before is None else before.count + 1
        if before is not None and now_s - before.written_s < _EVERY_S:
            self._written[webhook_id] = _WrittenLine(before.written_s, count)
            return
        if len(self._written) >= _MOST_WEBHOOKS:
            del self._written[next(iter(self._written))]
        self._written[webhook_id] = _WrittenLine(now_s)
        log.log(self._level, self._message, extra={"webhook_id": webhook_id, "count": count, **names})
