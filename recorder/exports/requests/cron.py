"""Cron lines of five fields in a time zone, for recipes. docs/recipes.md."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from recorder.errors import Invalid
from recorder.number_formats import format_count

_FIELDS = 5
# 29 February comes every four years, and once in eight.
_LOOKS_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=9 * 366))


class InvalidCron(Invalid):
    """The cron line has no time that ever comes, or the zone is unknown."""

    def __init__(self, why: str, *, about_line: bool = True) -> None:
        form = " A cron line has five fields, minute hour day month weekday, such as `0 6 * * 1-5`."
        super().__init__(why + (form if about_line else ""))


@dataclass(frozen=True)
class Cron:
    """Schedule of a cron line in a time zone; times that clocks skip or repeat follow Debian's cron."""

    line: str
    zone: ZoneInfo

    def next_after(self, moment: datetime) -> datetime:
        """Return the first instant after a moment, UTC.

        Raises:
            InvalidCron: if none comes in fifty years.
        """
        try:
            return next(CronSim(self.line, moment.astimezone(self.zone))).astimezone(UTC)
        except StopIteration as error:
            raise InvalidCron("This day never comes.") from error

    def find_last(self, moment: datetime) -> datetime | None:
        """Return the last instant up to a moment, UTC; None if there was none for nine years.

        The line is read forwards, as for ticks: backwards, an hour that clocks repeat gives other instants.
        """
        for reach in _LOOKS_BACK:
            last, following = None, self.next_after(moment - reach)
            while following <= moment:
                last, following = following, self.next_after(following)
            if last is not None:
                return last
        return None

    def find_nearest(self, moment: datetime, *, within: timedelta) -> datetime | None:
        """Return the instant that is closest to a moment, UTC; None if there is none so close."""
        near, following = [], self.next_after(moment - within - timedelta(seconds=1))
        while following <= moment + within:
            near.append(following)
            following = self.next_after(following)
        return min(near, key=lambda instant: abs(instant - moment), default=None)


def parse_cron(line: str, timezone: str) -> Cron:
    """Return the schedule that a cron line describes.

    Args:
        line: five fields of `*`, numbers, names of months and days, ranges, steps and lists of them.
        timezone: name of the zone whose clocks are meant, such as `Europe/Berlin`.

    Raises:
        InvalidCron: if there is none.
    """
    texts = line.upper().split()
    if len(texts) != _FIELDS:
        raise InvalidCron(f"This line has {format_count(len(texts), 'field')}.")
    cron = Cron(" ".join(texts), _parse_time_zone(timezone))
    try:
        cron.next_after(datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidCron(f"{error}.") from error
    return cron


def _parse_time_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidCron(
            "The time zone is unknown; give a name such as UTC or Europe/Berlin.", about_line=False
        ) from error
