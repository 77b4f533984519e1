"""Values of XES attributes: from text, and into text. IEEE 1849 §4.3 (attributes).

Text that does not fit its type is kept as text: logs in the wild mark what is missing with words.
"""

import math
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from recorder import clock
from recorder.errors import InvalidTime

_LARGEST_INT = 2**63 - 1


def parse_value(kind: str, text: str) -> Any:
    """The value of an attribute's text.

    Args:
        kind: name of its element: string, date, int, float, boolean, id.
    """
    parse = _PARSERS.get(kind)
    if parse is None:
        return text
    try:
        return parse(text)
    except (KeyError, ValueError, OverflowError):
        return text


def parse_date(text: str) -> datetime:
    """An instant; one without a zone is taken for UTC.

    Raises:
        ValueError: if the text is none, or lies outside the years 1 to 9999.
    """
    moment = datetime.fromisoformat(text.strip())
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(text) from error


def format_value(value: Any) -> tuple[str, str]:
    """Element name and text of a value; text that reads as an instant is one."""
    if isinstance(value, bool):
        return "boolean", "true" if value else "false"
    if isinstance(value, int):
        return "int", str(value)
    if isinstance(value, float):
        return "float", repr(value)
    if isinstance(value, datetime):
        return "date", clock.to_iso(value)
    text = "" if value is None else str(value)
    return ("date" if _is_instant(text) else "string"), text


def _is_instant(text: str) -> bool:
    if not (20 <= len(text) <= 35 and text[:4].isdecimal()):
        return False
    try:
        clock.parse_time(text, name="value")
    except InvalidTime:
        return False
    return True


def _int(text: str) -> int:
    # Long texts are not even tried: the time of reading them grows with their square.
    number = int(text) if len(text) <= 20 else _LARGEST_INT + 1
    if abs(number) > _LARGEST_INT:
        raise OverflowError(text)
    return number


def _float(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number


def _boolean(text: str) -> bool:
    return {"true": True, "1": True, "false": False, "0": False}[text.strip().lower()]


_PARSERS: dict[str, Callable[[str], Any]] = {
    "date": parse_date,
    "int": _int,
    "float": _float,
    "boolean": _boolean,
}
