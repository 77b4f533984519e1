"""IndexedDB databases in the stored state of a browser, in the form of Playwright. Contract §8."""

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

#: The browser opens each database and adds each record before the replay begins.
MOST_DATABASES, _MOST_STORES, _MOST_INDEXES, _MOST_RECORDS = 20, 100, 100, 2_000
_LAST_VERSION = 2**31 - 1


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
    """A database of an origin."""

    name: str
    version: int
    stores: list[StoredObjects]

    def list_values(self) -> Iterator[Any]:
        """Yield keys and values of the records."""
        for store in self.stores:
            for record in store.records:
                for value in (record.key, record.key_encoded, record.value, record.value_encoded):
                    if value is not UNSET:
                        yield value


def are_databases_within_limits(databases: list[StoredDatabase]) -> bool:
    """Return whether a browser may be asked to make databases."""
    stores = [store for database in databases for store in database.stores]
    return (
        len(databases) <= MOST_DATABASES
        and len(stores) <= _MOST_STORES
        and sum(len(store.indexes) for store in stores) <= _MOST_INDEXES
        and sum(len(store.records) for store in stores) <= _MOST_RECORDS
        and all(0 < database.version <= _LAST_VERSION for database in databases)
    )


def describe_database_limits() -> str:
    """Return the limits as a sentence."""
    return (
        f"The IndexedDB of a storage state takes at most {MOST_DATABASES} databases, {_MOST_STORES} stores, "
        f"{_MOST_INDEXES} indexes and {_MOST_RECORDS:,} records, with versions from 1; leave out what "
        "signing in does not need."
    )
