"""The texts of a JSON value, read out and put back: values and the keys of objects alike."""

from collections.abc import Iterator, Mapping
from typing import Any


def texts_of(value: Any) -> Iterator[str]:
    """Every string of a value, keys of objects among them."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from value
        for member in value.values():
            yield from texts_of(member)
    elif isinstance(value, list):
        for member in value:
            yield from texts_of(member)


def with_texts(value: Any, changed: Mapping[str, str]) -> Any:
    """The value with these texts in the place of those; keys that become one are kept apart by a number."""
    if isinstance(value, str):
        return changed.get(value, value)
    if isinstance(value, list):
        return [with_texts(member, changed) for member in value]
    if not isinstance(value, dict):
        return value
    result: dict[str, Any] = {}
    numbers: dict[str, int] = {}
    for key, member in value.items():
        result[_free_key(changed.get(key, key), result, numbers)] = with_texts(member, changed)
    return result


def _free_key(key: str, taken: Mapping[str, Any], numbers: dict[str, int]) -> str:
    """The key, or the key with the lowest free number; `numbers` holds where the count of each key stands."""
    if key not in taken:
        return key
    # Counting on, not anew: what was taken stays taken.
    number = numbers.get(key, 2)
    while (free := f"{key} {number}") in taken:
        number += 1
    numbers[key] = number + 1
    return free
