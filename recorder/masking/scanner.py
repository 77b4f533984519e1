"""Scanner: finds the texts of a body that masking changes, within a budget of CPU time. Contract §3."""

import asyncio
import hashlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from cachetools import LRUCache, TTLCache

from recorder import limits
from recorder.errors import Invalid, Problem, Unavailable, ValidationFailed
from recorder.masking.masker import Changes
from recorder.masking.pattern_admission import describe_slowness
from recorder.masking.policies import MaskingPolicy
from recorder.masking.scan_pool import ScanPool, ScanTimeout
from recorder.masking.scan_process import ScanJob, ScanReport

# Text of this size with built-in kinds is searched in this process for a sign of them, for microseconds; what
# shows none is clean.
_SMALL_BYTES = 64 * 1024
#: Larger documents are hashed in a thread: 60 MB take 40 ms.
_LARGE_BYTES = 512 * 1024
_MB = 1_000_000
_BODIES_KEPT, _WORKSPACES_KEPT, _SECONDS_KEPT = 100, 1_000, 600.0


class MaskingTookTooLong(Unavailable):
    """A scan ran out of time and the body was not stored; the same body is tried once more."""

    def __init__(self) -> None:
        text = "Masking this body took too long, so nothing of it was stored. Try again once."
        super(Unavailable, self).__init__(text)


class MaskingLimitReached(Invalid):
    """A body twice exceeded the time for masking a body."""

    code = "limit_reached"
    title = "Limit reached"

    def __init__(self, rule: str | None) -> None:
        which = "the masking patterns together" if rule is None else f"the masking pattern `{rule}`"
        super().__init__(
            f"To mask this body takes {which} more than the time limit of one body, so it is not stored. "
            "Send less text in one body, or change the pattern: shorten its counted repetitions."
        )


class Scanner:
    """Search for the texts that policies change, in scan processes; small clean texts need none."""

    def __init__(
        self,
        pool: ScanPool,
        *,
        portion_bytes: int = 1_000_000,
        budget_s: float = 0.25,
        budget_s_per_mb: float = 2.0,
        admission_s: float = 10.0,
    ) -> None:
        """Create it without a memory of slow bodies.

        Args:
            pool: the scan processes.
            portion_bytes: a body goes to a scan process in portions of this size, between which bodies of
                other workspaces are scanned.
            budget_s: CPU time of a scan of any portion.
            budget_s_per_mb: CPU time for each megabyte besides. Clean text takes some milliseconds, built-in
                kinds on their worst text 700.
            admission_s: CPU time for measuring patterns that are saved; ordinary ones take 30 ms each.
        """
        self.budget_s, self.budget_s_per_mb, self.admission_s = budget_s, budget_s_per_mb, admission_s
        self._pool = pool
        self._portion_bytes = portion_bytes
        self._slow_bodies = SlowBodies()

    @staticmethod
    def is_small(policy: MaskingPolicy, size: int) -> bool:
        """Return whether a text of this size is first searched in this process, for microseconds."""
        return policy.has_only_builtins and size <= _SMALL_BYTES

    async def find_changes(
        self, workspace_id: str, policy: MaskingPolicy, documents: Sequence[bytes]
    ) -> dict[int, Changes]:
        """Return the texts that masking changes in JSON documents, by the document's index.

        Raises:
            MaskingTookTooLong: If the scan ran out of time.
            MaskingLimitReached: If an earlier scan of these documents ran out of time too.
            MaskingBusy: If too many bodies of the workspace wait.
        """
        is_small = self.is_small(policy, sum(map(len, documents)))
        if is_small and not any(map(policy.masker().may_change, documents)):
            return {}
        digest = partial(self._slow_bodies.digest, policy.described, documents)
        is_large = sum(map(len, documents)) > _LARGE_BYTES
        body = await asyncio.to_thread(digest) if is_large else digest()
        slow = self._slow_bodies.find(workspace_id, body)
        if slow is not None and slow.is_refused:
            raise MaskingLimitReached(slow.rule)
        changes: dict[int, Changes] = {}
        try:
            for first, portion in _split_documents(documents, self._portion_bytes):
                job = ScanJob(
                    budget_s=self._compute_scan_budget_s(portion) * (1 if slow is None else 3),
                    kind="mask" if slow is None else "mask_by_rule",
                    policies=policy.described,
                    key=policy.key,
                    documents=portion,
                )
                report = await self._run_scan(workspace_id, job)
                changes |= {first + index: texts for index, texts in (report.changes or {}).items()}
        except ScanTimeout as error:
            self._slow_bodies.add(workspace_id, body, SlowBody(slow is not None, error.slowest))
            if slow is None:
                raise MaskingTookTooLong from error
            raise MaskingLimitReached(error.slowest) from error
        self._slow_bodies.forget(workspace_id, body)
        return changes

    async def admit(self, workspace_id: str, patterns: Sequence[Mapping[str, str]]) -> None:
        """Check that patterns compile and take little time, alone and together.

        Raises:
            ValidationFailed: If a pattern may not be saved; `errors` lists each with the time it needs.
            MaskingBusy: If too many requests of the workspace wait.
        """
        if not patterns:
            return
        job = ScanJob(
            budget_s=self.admission_s, kind="admit", patterns=[dict(pattern) for pattern in patterns]
        )
        try:
            report = await self._run_scan(workspace_id, job)
        except ScanTimeout as error:
            problem = _describe_scan_problem(
                None, "limit_reached", describe_slowness(None, limits.MASKING_MS_PER_MB)
            )
            raise ValidationFailed([problem]) from error
        if report.refusals:
            raise ValidationFailed([_describe_scan_problem(*refusal) for refusal in report.refusals])

    def _compute_scan_budget_s(self, documents: Sequence[bytes]) -> float:
        return self.budget_s + self.budget_s_per_mb * sum(map(len, documents)) / _MB

    async def _run_scan(self, workspace_id: str, job: ScanJob) -> ScanReport:
        report = await asyncio.wrap_future(self._pool.submit(workspace_id, job))
        if report.failure is not None:
            # A failure must not count as a body without values to mask.
            raise RuntimeError(f"a masking job failed with {report.failure}")
        return report


def _split_documents(documents: Sequence[bytes], portion_bytes: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield documents in portions, each with the index of its first."""
    first, portion, size = 0, list[bytes](), 0
    for index, document in enumerate(documents):
        if portion and size + len(document) > portion_bytes:
            yield first, portion
            first, portion, size = index, [], 0
        portion.append(document)
        size += len(document)
    if portion:
        yield first, portion


def _describe_scan_problem(index: int | None, code: str, message: str) -> Problem:
    pointer = "/masking/patterns" if index is None else f"/masking/patterns/{index}/pattern"
    return Problem("body", pointer, code, message)


class SlowBody:
    """Body whose scan ran out of time, once or twice; after two times it is refused."""

    def __init__(self, is_refused: bool, rule: str | None) -> None:
        self.is_refused = is_refused
        self.rule = rule


class SlowBodies:
    """Cache of the slow bodies of the last minutes, by workspace and keyed digest, in a few megabytes."""

    def __init__(
        self,
        bodies: int = _BODIES_KEPT,
        workspaces: int = _WORKSPACES_KEPT,
        seconds: float = _SECONDS_KEPT,
    ) -> None:
        """Prepare an empty cache.

        Args:
            bodies: number of bodies kept per workspace.
            workspaces: workspaces whose bodies are kept.
            seconds: how long a body is kept.
        """
        self._bodies_kept, self._seconds = bodies, seconds
        self._bodies: LRUCache[str, TTLCache[bytes, SlowBody]] = LRUCache(workspaces)
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()

    def digest(self, policies: Sequence[str], documents: Sequence[bytes]) -> bytes:
        """Return the digest of a body under policies; a change of policies changes the digest."""
        digest = hashlib.blake2b(key=self._key, digest_size=16)
        for part in (*(policy.encode() for policy in policies), b"", *documents):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()

    def find(self, workspace_id: str, body: bytes) -> SlowBody | None:
        """Return a body that was slow before; None if it was not."""
        with self._lock:
            bodies = self._bodies.get(workspace_id)
            return None if bodies is None else bodies.get(body)

    def add(self, workspace_id: str, body: bytes, slow: SlowBody) -> None:
        """Store a slow body; if the cache is full, drop another body or another workspace's bodies."""
        with self._lock:
            bodies = self._bodies.get(workspace_id)
            if bodies is None:
                bodies = TTLCache(self._bodies_kept, self._seconds)
                self._bodies[workspace_id] = bodies
            bodies[body] = slow

    def forget(self, workspace_id: str, body: bytes) -> None:
        """Drop a body that was scanned in time."""
        with self._lock:
            if workspace_id in self._bodies:
                self._bodies[workspace_id].pop(body, None)
