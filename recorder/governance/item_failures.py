"""Loops over items that go on past an item that fails, and fail at their end. Contract §7."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from recorder.errors import RecorderError, Unavailable
from recorder.storage.leases import LeaseLost

log = logging.getLogger("recorder.retention")

#: Items that fail may use so much time together: a store that does not answer fails all of them, slowly.
_LONGEST_FAILURES_S = 600.0


class ItemsFailed(Unavailable):
    """Some items of a loop failed; all others were worked on, unless the failures took too long."""

    code = "items_failed"

    def __init__(self, kind: str, count: int, first: Exception, *, is_over: bool) -> None:
        """Create the error.

        Args:
            kind: items of the loop, such as `exports`.
            count: number of items that failed.
            first: error of the first one.
            is_over: whether all items were tried.
        """
        rest = "" if is_over else " Items after the last of them were not tried."
        RecorderError.__init__(
            self, f"Failed {kind}: {count}. The first error: {describe_item_error(first)}{rest}"
        )


class ItemFailures:
    """Errors of the items of one loop."""

    def __init__(self, kind: str, *, longest_s: float = _LONGEST_FAILURES_S) -> None:
        """Begin without errors.

        Args:
            kind: items of the loop, such as `exports`.
            longest_s: seconds that items which fail may take together.
        """
        self._kind = kind
        self._longest_s = longest_s
        self._count = 0
        self._first: Exception | None = None
        self._failing_s = 0.0

    @contextmanager
    def collect(self, name: str) -> Iterator[None]:
        """Keep the error of the block, which works on the item of a name, instead of raising it.

        Raises:
            LeaseLost: if another run took over.
            ItemsFailed: if the items that failed took too long.
        """
        began_s = time.monotonic()
        try:
            yield
        except LeaseLost:
            raise
        except Exception as error:
            log.warning("%s: %s is left to the next run: %s", self._kind, name, describe_item_error(error))
            self._count += 1
            self._first = self._first or error
            self._failing_s += time.monotonic() - began_s
        if self._failing_s > self._longest_s:
            self._raise_failures(is_over=False)

    def raise_at_end(self) -> None:
        """Raise the error of the loop if an item failed; call it after the last item.

        Raises:
            ItemsFailed: with the number of items that failed, caused by the first error.
        """
        self._raise_failures(is_over=True)

    def _raise_failures(self, *, is_over: bool) -> None:
        if self._first is not None:
            raise ItemsFailed(self._kind, self._count, self._first, is_over=is_over) from self._first


def describe_item_error(error: Exception) -> str:
    """Return the text of an error for a report: messages of errors of libraries may quote rows."""
    return str(error) if isinstance(error, RecorderError) else f"{type(error).__name__}; see the log."
