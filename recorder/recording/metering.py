"""Metering of captured time, charged once per workspace and group commit. Spec §8.2, contract §7.

The row of `usage` is shared by all processes and locked last, after the sessions of a group, so that a stop,
which takes both in the same order, cannot wait in a circle. A workspace with a limit is therefore let in by
what this process last knew of the row; the row itself, once it is locked, shows whether that was right. If
other processes used up the rest, the group is rolled back and stored again without the batches that
came too late: never more than one batch goes over the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlmodel import SQLModel

from recorder import clock
from recorder.access.quota import (
    MINUTE_MS,
    QuotaPeriod,
    compute_quota,
    compute_quota_metric_notices,
    list_due_quota_notices,
    quota_period_at,
)
from recorder.access.rate_tiers import Tier
from recorder.tenant import Tenant
from recorder.webhooks.outbox import make_outbox_event

_ADD = (
    "INSERT INTO usage (workspace_id, period, captured_ms) VALUES (?, ?, ?) "
    "ON CONFLICT (workspace_id, period) DO UPDATE SET captured_ms = usage.captured_ms + excluded.captured_ms "
    "RETURNING captured_ms, exported_rows, captured_told"
)
_SET_NOTICE_LEVEL = "UPDATE usage SET captured_told = ? WHERE workspace_id = ? AND period = ?"


class UsageChanged(Exception):
    """Others used up what a group was let in for."""


class MeteringStatements(Protocol):
    """Statements that settling needs of a cursor."""

    def all(self, statement: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
        """Run a statement and fetch its rows."""

    def many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement once per row."""

    def insert(self, row: SQLModel) -> None:
        """Insert a row of a table."""


@dataclass(slots=True)
class _Owed:
    """Charge of a group to a workspace, with and without the group's last batch."""

    tier: Tier
    ms: int = 0
    before_last_ms: int = 0


class CapturedTimeCharges:
    """The charges of one writer: of the group at hand, and what is known of each limited workspace."""

    def __init__(self) -> None:
        #: Instant of the group at hand.
        self.now_ms = 0
        self._period: QuotaPeriod | None = None
        self._period_end_ms = 0
        self._owed: dict[str, _Owed] = {}
        #: Captured time that is used for certain: it only grows within a period.
        self._known: dict[str, int] = {}
        self._settled: dict[str, int] = {}

    def begin(self) -> None:
        """Start a group."""
        self.now_ms = clock.now_ms()
        self._owed.clear()
        self._settled.clear()
        if self.now_ms >= self._period_end_ms:
            self._period = quota_period_at(clock.from_ms(self.now_ms))
            self._period_end_ms = clock.to_ms(self._period.end)
            self._known.clear()

    def is_used_up(self, workspace_id: str, tier: Tier) -> bool:
        """Return whether a workspace has no captured minutes left, as far as this process knows."""
        limit = tier.captured_minutes
        if limit is None:
            return False
        owed = self._owed.get(workspace_id)
        used = self._known.get(workspace_id, 0) + (0 if owed is None else owed.ms)
        return used >= limit * MINUTE_MS

    def add(self, workspace_id: str, tier: Tier, ms: int) -> None:
        """Charge a batch; under a limit also one that adds no time, since it was let in."""
        if ms == 0 and tier.captured_minutes is None:
            return
        owed = self._owed.get(workspace_id)
        if owed is None:
            owed = self._owed[workspace_id] = _Owed(tier)
        owed.before_last_ms = owed.ms
        owed.ms += ms

    def settle(self, cursor: MeteringStatements) -> None:
        """Write what the group owes, in its transaction and as its last statements.

        Raises:
            UsageChanged: if a batch was let in that should not have been; the next try knows.
        """
        for workspace_id in sorted(self._owed):
            self._settle_captured_time(cursor, workspace_id, self._owed[workspace_id])

    def keep(self) -> None:
        """Remember the usage that the committed group settled."""
        self._known.update(self._settled)

    def _settle_captured_time(self, cursor: MeteringStatements, workspace_id: str, owed: _Owed) -> None:
        assert self._period is not None
        period_key = (workspace_id, self._period.key)
        ((captured_ms, exported_rows, notice_level),) = cursor.all(_ADD, (*period_key, owed.ms))
        limit = owed.tier.captured_minutes
        if limit is None:
            return
        before = captured_ms - owed.ms
        if before + owed.before_last_ms >= limit * MINUTE_MS:
            self._known[workspace_id] = before
            raise UsageChanged
        self._settled[workspace_id] = captured_ms
        quota = compute_quota(self._period, owed.tier, captured_ms=captured_ms, exported_rows=exported_rows)
        level = compute_quota_metric_notices(quota, "captured_minutes")
        if level > notice_level:
            for type, data in list_due_quota_notices(quota, "captured_minutes", notice_level):
                cursor.insert(
                    make_outbox_event(
                        tenant=Tenant(workspace_id, "live"), type=type, subject_id=workspace_id, data=data
                    )
                )
            cursor.many(_SET_NOTICE_LEVEL, [(level, *period_key)])
