"""Worker processes that check large request bodies: the event loop and its GIL stay free for other requests.

Processes are started when the first large body comes. One that dies costs the request it worked for, and
nothing else.
"""

import asyncio
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_process
from anyio import BrokenWorkerProcess

from recorder.errors import Overloaded

#: A larger body is checked in a worker process: a smaller one takes less time than the way there and back.
LARGE_BYTES = 256 * 1024
#: A body waits for a process, and is checked, within this; no body that the caps let through takes 10 s.
_SECONDS = 60.0

Answer = TypeVar("Answer")


class BodyFile:
    """A body in memory that other processes can open: an anonymous file, freed with its last descriptor."""

    def __init__(self) -> None:
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("body", os.MFD_CLOEXEC)
            #: Where a process of the same user opens it.
            self.path = f"/proc/{os.getpid()}/fd/{self.descriptor}"
            self._is_named = False
        else:
            self.descriptor, self.path = tempfile.mkstemp(prefix="recorder-body-")
            self._is_named = True

    def write(self, data: bytes) -> None:
        """Append a part."""
        view = memoryview(data)
        while view:
            view = view[os.write(self.descriptor, view) :]

    def map(self) -> mmap.mmap:
        """Return its content, which outlives this object."""
        return mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        """Close it; what is mapped stays readable."""
        os.close(self.descriptor)
        if self._is_named:
            Path(self.path).unlink()


@contextmanager
def body_file() -> Iterator[BodyFile]:
    """Open a file for a body while the block runs."""
    file = BodyFile()
    try:
        yield file
    finally:
        file.close()


class BodyWorkers:
    """The worker processes of one API process; used from its event loop."""

    def __init__(self, processes: int | None = None) -> None:
        """Start nothing yet.

        Args:
            processes: how many at most; by default as many as there are processors, and two at least.
        """
        self._count = processes or max(2, os.cpu_count() or 2)
        self._all: anyio.CapacityLimiter | None = None
        # A workspace takes at most half of them, so that others need not wait for its bodies.
        self._of_workspace: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def check(
        self, workspace_id: str, function: Callable[..., Answer], file: BodyFile, *arguments: Any
    ) -> Answer:
        """Run a function of `api.bodies.checks` on a body.

        Args:
            workspace_id: whose body it is.
            function: what to run; the path of the file is its first argument.
            file: the body.
            arguments: further ones.

        Raises:
            RecorderError: what the function raises.
            Overloaded: if the process died, or took too long.
        """
        if self._all is None:
            self._all = anyio.CapacityLimiter(self._count)
        turn = self._of_workspace.get(workspace_id)
        if turn is None:
            turn = self._of_workspace[workspace_id] = asyncio.Semaphore(max(1, self._count // 2))
        try:
            with anyio.fail_after(_SECONDS):
                async with turn:
                    return await anyio.to_process.run_sync(
                        function, file.path, *arguments, cancellable=True, limiter=self._all
                    )
        except (BrokenWorkerProcess, TimeoutError) as error:
            raise Overloaded("worker process for large bodies") from error
