"""An end to waiting: client libraries bound each request, not what they make of them in all. Contract §5."""

import threading
from collections.abc import Callable

from recorder.errors import Unavailable

PROBE_SECONDS = 10.0


def within(act: Callable[[], None], *, seconds: float = PROBE_SECONDS) -> None:
    """Do something that may wait for a network; its errors are raised here.

    Raises:
        Unavailable: if it is not done in time; it is then left to its own time limits.
    """
    errors: list[BaseException] = []

    def _act() -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=_act, name="export-probe", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Unavailable("The export destination")
    if errors:
        raise errors[0]
