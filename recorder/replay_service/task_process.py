"""Process that works on the tasks of a replay drain run within limits of memory and time. Decision 0044."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from typing import ClassVar, Generic, TypeVar

import msgspec

from recorder.limited_process import WAITING_FACTOR, LimitedProcess, ProcessEnded

Task = TypeVar("Task", bound=msgspec.Struct)
Reply = TypeVar("Reply")


class TaskProcess(ABC, Generic[Task, Reply]):
    """Process that works on one task after the other; the first one starts it.

    Attributes:
        serve: function that the process runs.
        serve_long: function that it runs if it is for one task that takes long.
        memory_bytes: memory of a task.
        seconds: time of a task.
    """

    serve: ClassVar[Callable[[int], None]]
    serve_long: ClassVar[Callable[[int], None]]
    memory_bytes: ClassVar[int]
    seconds: ClassVar[float]

    def __init__(
        self,
        *,
        memory_bytes: int | None = None,
        seconds: float | None = None,
        is_long: bool = False,
        waiting_factor: float = WAITING_FACTOR,
    ) -> None:
        """Set the limits.

        Args:
            memory_bytes: memory of a task instead of that of the class.
            seconds: time of a task instead of that of the class.
            is_long: whether the process is for one task that takes long: it gives way to other processes, and
                has those seconds on a processor.
            waiting_factor: times that a long task may take as long, because it waits for a processor or a
                store.
        """
        memory_bytes, seconds = memory_bytes or self.memory_bytes, seconds or self.seconds
        self._process = LimitedProcess(
            type(self).serve_long if is_long else type(self).serve,
            memory_bytes=memory_bytes,
            seconds=waiting_factor * seconds if is_long else seconds,
            processor_seconds=seconds if is_long else None,
        )
        self._limits = f"{seconds:g} seconds or {memory_bytes // 2**20} MiB"

    @property
    def is_ready(self) -> bool:
        """Return whether the process has started, so that it works on what it has."""
        return self._process.is_ready

    def start(self) -> None:
        """Start the process before the first task, unless there is one."""
        self._process.start()

    def reply_each(self, tasks: Iterable[Task], *, patience_s: float) -> Generator[Reply | None, None, None]:
        """Yield the replies to tasks, in their order; None each time that one takes so many seconds more.

        A task that takes too much memory or time ends alone. The process goes on with the next task while the
        caller has the reply to the last one; an iterator that is closed before its end ends the process.
        """
        messages = [msgspec.json.encode(task) for task in tasks]
        with closing(self._process.request_each(messages, patience_s=patience_s)) as answers:
            for answer in answers:
                yield None if answer is None else self._read_reply(answer)

    def end(self) -> None:
        """End the process."""
        self._process.end()

    @abstractmethod
    def _read_reply(self, answer: bytes | ProcessEnded) -> Reply:
        """Return the reply that an answer of the process holds; one without a result if the process ended."""
