"""Quotas as arithmetic: months, what is left of them, and when that is told. Spec §2.9, §8.2; contract §7."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from recorder.access.surfaces import Tier
from recorder.models.usage import Quota

Metric = Literal["captured_minutes", "exported_rows"]

MINUTE_MS = 60_000
_WARNING_PERCENT = 80
#: What is told of a metric, in this order; each once a period.
_NOTICES = ("quota.warning", "quota.exhausted")
#: How the errors and pages call the metrics.
NAMES: dict[Metric, str] = {"captured_minutes": "captured minutes", "exported_rows": "exported rows"}


@dataclass(frozen=True, slots=True)
class Period:
    """A calendar month, UTC: from `start` up to, not including, `end`."""

    start: datetime
    end: datetime

    @property
    def key(self) -> str:
        """`YYYY-MM`, the name under which its usage is kept."""
        return self.start.strftime("%Y-%m")


def period_of(moment: datetime) -> Period:
    """The period that an instant lies in."""
    start = moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return Period(start, _next_month(start))


def period_named(key: str) -> Period:
    """The period that is kept under a name."""
    start = datetime.strptime(key, "%Y-%m").replace(tzinfo=UTC)
    return Period(start, _next_month(start))


def quota_of(period: Period, tier: Tier, *, captured_ms: int, exported_rows: int) -> Quota:
    """What was used of a period, beside the limits of a tier."""
    return Quota(
        period_start=period.start,
        period_end=period.end,
        captured_minutes=captured_ms // MINUTE_MS,
        captured_minutes_limit=tier.captured_minutes,
        exported_rows=exported_rows,
        exported_rows_limit=tier.exported_rows,
    )


def due_level(used: int, limit: int | None) -> int:
    """How many of the two notices are due: none, the warning, or both."""
    if limit is None or used * 100 < limit * _WARNING_PERCENT:
        return 0
    return 1 if used < limit else 2


def due_level_of(quota: Quota, metric: Metric) -> int:
    """The same for a metric of a quota."""
    return due_level(getattr(quota, metric), getattr(quota, f"{metric}_limit"))


def due_notices(quota: Quota, metric: Metric, told: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events that are due and were not told: type and `data`.

    Args:
        told: the level up to which they were.
    """
    for type in _NOTICES[told : due_level_of(quota, metric)]:
        yield (
            type,
            {
                "quota": quota.model_dump(mode="json"),
                "metric": metric,
                "used": getattr(quota, metric),
                "limit": getattr(quota, f"{metric}_limit"),
            },
        )


def _next_month(start: datetime) -> datetime:
    return start.replace(year=start.year + start.month // 12, month=start.month % 12 + 1)
