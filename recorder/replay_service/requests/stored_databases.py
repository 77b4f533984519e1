"""IndexedDB databases in the stored state of a browser, in the form of Playwright. Contract §8."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from recorder import limits

#: The browser opens each database and adds each record before the replay begins.
MOST_DATABASES, _MOST_STORES, _MOST_INDEXES, _MOST_RECORDS = 20, 100, 100, 2_000
_LAST_VERSION = 2**31 - 1
#: Larger binary values are files, of which pages show parts.
_MOST_BINARY_CHARACTERS = 8_192
#: Members that hold binary values: buffers, and arrays of a type.
_BUFFER, _ARRAY = "ab", "ta"
_BYTE_ARRAYS = frozenset(("ui8", "ui8c"))


class StoredIndex(msgspec.Struct, rename="camel"):
    """An index of a store."""

    name: str
    multi_entry: bool
    unique: bool
    key_path: str | UnsetType = UNSET
    key_path_array: list[str] | UnsetType = UNSET


class StoredRecord(msgspec.Struct, rename="camel"):
    """A record: key and value as JSON, or encoded where they have other types."""

    key: Any = UNSET
    key_encoded: Any = UNSET
    value: Any = UNSET
    value_encoded: Any = UNSET


class StoredObjects(msgspec.Struct, rename="camel"):
    """A store of records."""

    name: str
    auto_increment: bool
    records: list[StoredRecord]
    indexes: list[StoredIndex]
    key_path: str | UnsetType = UNSET
    key_path_array: list[str] | UnsetType = UNSET


class StoredDatabase(msgspec.Struct):
    """IndexedDB database of an origin in a stored browser state."""

    name: str
    version: int
    stores: list[StoredObjects]

    def list_values(self) -> Iterator[Any]:
        """Yield the keys and values of the records in a stored IndexedDB database."""
        for store in self.stores:
            for record in store.records:
                for value in (record.key, record.key_encoded, record.value, record.value_encoded):
                    if value is not UNSET:
                        yield value


def list_stored_binary_texts(value: Mapping[str, Any]) -> list[str]:
    """Return the texts by which pages may show a binary value; none if a value is not binary.

    Those are the characters that its bytes encode, hexadecimal digits, base64 in both alphabets, and numbers
    with commas.
    """
    packed = value.get(_BUFFER) or value.get(_ARRAY)
    if not isinstance(packed, dict):
        return []
    encoded, kind = packed.get("b"), packed.get("k")
    if not isinstance(encoded, str) or len(encoded) > _MOST_BINARY_CHARACTERS:
        return []
    try:
        content = base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        return []
    texts = [content.hex(), encoded.rstrip("="), base64.urlsafe_b64encode(content).decode().rstrip("=")]
    if _BUFFER in value or kind in _BYTE_ARRAYS:
        texts.append(",".join(map(str, content)))
    with suppress(UnicodeDecodeError):  # no text
        texts.append(content.decode("utf-16-le" if kind == "ui16" else "utf-8").strip("\0"))
    return texts


def are_databases_within_limits(databases: list[StoredDatabase]) -> bool:
    """Return whether a browser may be asked to make databases."""
    stores = [store for database in databases for store in database.stores]
    return (
        len(databases) <= MOST_DATABASES
        and len(stores) <= _MOST_STORES
        and sum(len(store.indexes) for store in stores) <= _MOST_INDEXES
        and sum(len(store.records) for store in stores) <= _MOST_RECORDS
        and all(0 < database.version <= _LAST_VERSION for database in databases)
        and not any(_are_stored_values_too_deep(list(database.list_values())) for database in databases)
    )


def _are_stored_values_too_deep(values: list[Any]) -> bool:
    """Return whether some of these values have more levels than the JSON of requests."""
    level = values
    for _ in range(limits.JSON_DEPTH):
        level = [
            child
            for node in level
            if isinstance(node, list | dict)
            for child in (node.values() if isinstance(node, dict) else node)
        ]
        if not level:
            return False
    return True


def describe_stored_database_limits() -> str:
    """Return the limits as a sentence."""
    return (
        f"The IndexedDB of a storage state takes at most {MOST_DATABASES} databases, {_MOST_STORES} stores, "
        f"{_MOST_INDEXES} indexes and {_MOST_RECORDS:,} records, with versions from 1, and values of at most "
        f"{limits.JSON_DEPTH} levels; leave out what signing in does not need."
    )
