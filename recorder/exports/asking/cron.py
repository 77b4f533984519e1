"""When a recipe is due: a cron line of five fields, in a time zone. docs/recipes.md."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from recorder.errors import Invalid

_FIELDS = 5
# 29 February comes every four years, and once in eight.
_LOOKS_BACK = (timedelta(hours=1), timedelta(days=1), timedelta(days=32), timedelta(days=9 * 366))


class InvalidCron(Invalid):
    """No time can be read from the five fields, or the zone is unknown."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"{why} A cron line has five fields, minute hour day month weekday, such as `0 6 * * 1-5`."
        )


@dataclass(frozen=True)
class Cron:
    """The instants at which local clocks match a line; times that clocks skip or repeat, as Debian's cron."""

    line: str
    zone: ZoneInfo

    def next_after(self, moment: datetime) -> datetime:
        """The first instant after this one, UTC.

        Raises:
            InvalidCron: if none comes in fifty years.
        """
        try:
            return next(CronSim(self.line, moment.astimezone(self.zone))).astimezone(UTC)
        except StopIteration as error:
            raise InvalidCron("This day never comes.") from error

    def last_until(self, moment: datetime) -> datetime | None:
        """The last instant up to this one, UTC; None if there was none for nine years.

        Read forwards, as the ticks were: backwards, an hour that comes twice names other instants.
        """
        for reach in _LOOKS_BACK:
            found, following = None, self.next_after(moment - reach)
            while following <= moment:
                found, following = following, self.next_after(following)
            if found is not None:
                return found
        return None


def read_cron(line: str, timezone: str) -> Cron:
    """The schedule that a cron line describes.

    Args:
        line: five fields of `*`, numbers, names of months and days, ranges, steps and lists of them.
        timezone: name of the zone whose clocks are meant, such as `Europe/Berlin`.

    Raises:
        InvalidCron: if there is none.
    """
    texts = line.upper().split()
    if len(texts) != _FIELDS:
        raise InvalidCron(f"This has {len(texts)} fields.")
    cron = Cron(" ".join(texts), _zone(timezone))
    try:
        cron.next_after(datetime(2024, 1, 1, tzinfo=UTC))
    except CronSimError as error:
        raise InvalidCron(f"{error}.") from error
    return cron


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InvalidCron("The time zone is unknown; give a name such as UTC or Europe/Berlin.") from error
