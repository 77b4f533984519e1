"""Lake whose first commit waits for something else."""

import threading
from collections.abc import Callable
from typing import Any

from recorder.storage.lake import Lake


class DelayedLake(Lake):
    """Lake whose first commit waits until a function has returned."""

    def __init__(self, url: str, act: Callable[[], object]) -> None:
        super().__init__(url)
        self._act: Callable[[], object] | None = act
        self._acting = threading.Lock()

    def commit(self, *arguments: Any, **named: Any) -> bool:
        """Add data files, once the function has returned."""
        with self._acting:
            if self._act is not None:
                self._act()
                self._act = None
        return super().commit(*arguments, **named)
