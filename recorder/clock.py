"""Clock: the only source of the current time, in UTC and milliseconds. Spec §1, contract §1 (time)."""

import re
import time
from datetime import UTC, datetime, timedelta

from recorder.errors import InvalidTime

_RELATIVE = re.compile(r"([0-9]{1,9})([smhdw])", re.ASCII)
_ISO = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: The present instant as seconds since 1970.
unix_seconds = time.time
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def now() -> datetime:
    """Return the present instant, UTC, cut to whole milliseconds."""
    return truncate_to_ms(datetime.now(UTC))


def now_ms() -> int:
    """Return the present instant as milliseconds since 1970."""
    return to_ms(datetime.now(UTC))


def truncate_to_ms(moment: datetime) -> datetime:
    """Return the instant without its microseconds below a millisecond."""
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def to_ms(moment: datetime) -> int:
    """Return exact milliseconds since 1970 (no float is involved)."""
    return (moment - EPOCH) // timedelta(milliseconds=1)


def from_ms(milliseconds: int) -> datetime:
    """Return the instant of a number of milliseconds since 1970."""
    return EPOCH + timedelta(milliseconds=milliseconds)


def to_iso(moment: datetime) -> str:
    """Return ISO 8601 with milliseconds and `Z`, the form of all instants in answers."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def parse_time(text: str, *, name: str) -> datetime:
    """Return the instant of an ISO 8601 string with a time zone.

    Raises:
        InvalidTime: if the text is not one, or is outside the years 1 to 9999.
    """
    if not _ISO.fullmatch(text):
        raise InvalidTime(name)
    try:
        return truncate_to_ms(datetime.fromisoformat(text.upper()).astimezone(UTC))
    except (ValueError, OverflowError) as error:
        raise InvalidTime(name) from error


def resolve_time(text: str, *, now: datetime, name: str) -> datetime:
    """Return an ISO instant, or a duration (`90s 15m 1h 30d 2w`) counted back from `now`, UTC.

    Days and weeks are counted by the clocks of the time zone of `now`: a day of 23 or 25 hours is one day.

    Raises:
        InvalidTime: if the text is neither, or the instant is before the year 1.
    """
    relative = _RELATIVE.fullmatch(text)
    detail = f"{name} takes an ISO 8601 time with a zone, or a duration such as 90s, 15m, 1h, 30d, 2w."
    try:
        if relative is None:
            return parse_time(text, name=name)
        # Python's arithmetic within one zone follows its clocks.
        start = now if relative[2] in "dw" else now.astimezone(UTC)
        return (start - timedelta(seconds=int(relative[1]) * _SECONDS[relative[2]])).astimezone(UTC)
    except (InvalidTime, OverflowError) as error:
        raise InvalidTime(name, detail) from error
