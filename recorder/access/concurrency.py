"""Limits on work under way: per key, per workspace and per process. Contract §1 (rate limits)."""

from dataclasses import dataclass
from threading import RLock
from types import TracebackType

from recorder.errors import RateLimited

KEY_SCOPE = "per_key_concurrency"
WORKSPACE_SCOPE = "per_workspace_concurrency"
PROCESS_SCOPE = "per_process_concurrency"


@dataclass(frozen=True, slots=True)
class ConcurrencyLimits:
    """Most pieces of work under way at once; None sets no limit.

    Attributes:
        per_key: for one API key.
        per_workspace: for all keys of one workspace.
        per_process: for all workspaces, in this process. Where others have so many under way, a workspace
            without any may still begin one, until there are twice as many: none is kept out by others.
    """

    per_key: int | None = None
    per_workspace: int | None = None
    per_process: int | None = None


class ConcurrencySlot:
    """One piece of work under way; a context manager that ends it.

    `release` may be called any number of times, in any thread; the first call counts. A slot that is
    dropped without a release, such as that of a response whose body was never started, releases itself.
    """

    __slots__ = ("_is_held", "_limiter", "key_id", "workspace_id")

    def __init__(self, limiter: "ConcurrencyLimiter", key_id: str, workspace_id: str) -> None:
        self._limiter = limiter
        self.key_id = key_id
        self.workspace_id = workspace_id
        self._is_held = False

    def release(self) -> None:
        """End the work; never waits for other work."""
        if self._is_held:
            self._limiter._release_slot(self)

    def __enter__(self) -> "ConcurrencySlot":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class ConcurrencyLimiter:
    """Counts of work under way in this process; usable from any thread.

    Memory follows the work: a key or workspace without any is not remembered.
    """

    def __init__(self, limits: ConcurrencyLimits, *, retry_after_s: int = 1) -> None:
        """Create a limiter with nothing under way.

        Args:
            limits: for every caller; `acquire` may be given others, such as those of a tier.
            retry_after_s: seconds that a refusal asks the client to wait.
        """
        self._limits = limits
        self._retry_after_s = retry_after_s
        # A slot may be finalised in a thread that is just counting here, so the lock is reentrant.
        self._lock = RLock()
        self._of_key: dict[str, int] = {}
        self._of_workspace: dict[str, int] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Pieces of work under way in this process."""
        return self._count

    def acquire(
        self, key_id: str, workspace_id: str, *, limits: ConcurrencyLimits | None = None
    ) -> ConcurrencySlot:
        """Begin a piece of work; use the slot in `with`, or call its `release` at the end.

        Args:
            key_id: the key that asked for the work.
            workspace_id: the key's workspace.
            limits: these instead of the limiter's own.

        Raises:
            RateLimited: if the key, the workspace or the process has as much under way as it may.
        """
        most = self._limits if limits is None else limits
        # Allocated before the lock: collecting garbage, which finalises slots, begins with an allocation.
        slot = ConcurrencySlot(self, key_id, workspace_id)
        refused = None
        with self._lock:
            of_key = self._of_key.get(key_id, 0)
            of_workspace = self._of_workspace.get(workspace_id, 0)
            if most.per_key is not None and of_key >= most.per_key:
                refused = KEY_SCOPE, most.per_key
            elif most.per_workspace is not None and of_workspace >= most.per_workspace:
                refused = WORKSPACE_SCOPE, most.per_workspace
            elif most.per_process is not None and self._count >= most.per_process * (
                1 if of_workspace else 2
            ):
                refused = PROCESS_SCOPE, most.per_process
            else:
                self._of_key[key_id] = of_key + 1
                self._of_workspace[workspace_id] = of_workspace + 1
                self._count += 1
                slot._is_held = True
        if refused is not None:
            scope, limit = refused
            raise RateLimited(scope, self._retry_after_s, limit=limit)
        return slot

    def _release_slot(self, slot: ConcurrencySlot) -> None:
        with self._lock:
            if not slot._is_held:
                return
            slot._is_held = False
            self._count -= 1
            for counts, name in ((self._of_key, slot.key_id), (self._of_workspace, slot.workspace_id)):
                left = counts[name] - 1
                if left:
                    counts[name] = left
                else:
                    del counts[name]


class WorkCount:
    """Pieces of work under way of one key or workspace, counted from one event loop.

    A `ConcurrencyLimiter` costs 0.8 µs a request, which the gate does not have; two of these cost 0.2 µs.
    """

    __slots__ = ("__weakref__", "count")

    def __init__(self) -> None:
        self.count = 0
