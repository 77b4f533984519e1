"""Worker processes that check large request bodies and write snapshots as HTML, outside of the API process.

Processes start with the first large body. If one dies, only the request of its body fails.
"""

import asyncio
import mmap
import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import anyio.to_process
import anyio.to_thread
from anyio import BrokenWorkerProcess

from api.bodies.worker_start import run_with_lowered_priority
from recorder.errors import Overloaded
from recorder.fair_scheduling import compute_workspace_share
from recorder.setting_parsers import count_cores

#: Limit of the wait for a process and of the check; no body within the caps takes 10 s.
TURN_SECONDS = 60.0

Result = TypeVar("Result")


class WorkerBodyFile:
    """Body in an anonymous file in memory, which other processes can open."""

    def __init__(self) -> None:
        self._content: mmap.mmap | None = None
        if hasattr(os, "memfd_create"):
            self.descriptor = os.memfd_create("body", os.MFD_CLOEXEC)
            #: Path under which a process of the same user opens the file.
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

    def map_content(self) -> mmap.mmap:
        """Return the content, which is readable until `close`."""
        self._content = mmap.mmap(self.descriptor, 0, access=mmap.ACCESS_READ)
        return self._content

    def close(self) -> None:
        """Release the content; parts of it that are still in use are freed after their last use."""
        if self._content is not None:
            with suppress(BufferError):
                self._content.close()
        os.close(self.descriptor)
        if self._is_named:
            Path(self.path).unlink()


@asynccontextmanager
async def open_body_file_for_workers() -> AsyncIterator[WorkerBodyFile]:
    """Yield a file for a body, and close it at the end of the block."""
    file = WorkerBodyFile()
    try:
        yield file
    finally:
        # In a thread: freeing 60 MB takes 10 ms.
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(file.close)


class BodyWorkers:
    """Worker processes of one API process; used from its event loop."""

    def __init__(self, processes: int | None = None) -> None:
        """Create the pool without processes.

        Args:
            processes: the most processes; by default one for each processor, and at least two.
        """
        self._count = processes or max(2, count_cores())
        self._all: anyio.CapacityLimiter | None = None
        # A workspace uses at most half of the processes, so that others need not wait for its bodies.
        self._of_workspace: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()

    async def run(
        self, workspace_id: str, function: Callable[..., Result], file: WorkerBodyFile, *arguments: Any
    ) -> Result:
        """Run a function on a body in a worker process.

        Args:
            workspace_id: the workspace of the request.
            function: the function, by its name in its module; the path of the file is its first argument.
            file: the body.
            *arguments: further arguments of the function.

        Raises:
            RecorderError: if the function raises it.
            Overloaded: if the process died, or took too long.
        """
        if self._all is None:
            self._all = anyio.CapacityLimiter(self._count)
        semaphore = self._of_workspace.get(workspace_id)
        if semaphore is None:
            semaphore = self._of_workspace[workspace_id] = asyncio.Semaphore(
                compute_workspace_share(self._count)
            )
        try:
            with anyio.fail_after(TURN_SECONDS):
                async with semaphore:
                    result: Result = await anyio.to_process.run_sync(
                        run_with_lowered_priority,
                        function.__module__,
                        function.__name__,
                        file.path,
                        *arguments,
                        cancellable=True,
                        limiter=self._all,
                    )
                    return result
        except (BrokenWorkerProcess, TimeoutError) as error:
            raise Overloaded("worker process for large bodies") from error
