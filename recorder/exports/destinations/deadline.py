"""An end to waiting: client libraries bound each request, not what they make of them in all. Contract §5."""

import threading
from collections.abc import Callable
from typing import TypeVar

from recorder.errors import Unavailable

PROBE_SECONDS = 10.0
#: For what a request of the API reads; the client may ask again.
READ_SECONDS = 5.0

_Found = TypeVar("_Found")


def within(act: Callable[[], _Found], *, seconds: float = PROBE_SECONDS) -> _Found:
    """Do something that may wait for a network; its errors are raised here.

    Raises:
        Unavailable: if it is not done in time; it is then left to its own time limits.
    """
    found: list[_Found] = []
    errors: list[BaseException] = []

    def _act() -> None:
        try:
            found.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=_act, name="export-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Unavailable("The export destination")
    if errors:
        raise errors[0]
    return found[0]
