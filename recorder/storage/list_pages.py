"""Pages of lists: items, and the position that the next page follows. Contract §1 (lists)."""

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, Generic, NamedTuple, TypeVar

import orjson
from pydantic import BaseModel
from sqlmodel import Session as DbSession

from recorder import limits

Item = TypeVar("Item")
Other = TypeVar("Other")
Position = TypeVar("Position")

#: Rows of the database that are read at once: 32 MB of frames with the most rectangles.
_ROWS_AT_ONCE = 32


class FetchedPage(NamedTuple, Generic[Item, Position]):
    """Items of one page, and the position of the last one; the position is None on the last page."""

    items: list[Item]
    position: Position | None

    def convert(self, function: Callable[[Item], Other]) -> "FetchedPage[Other, Position]":
        """Return the same page with another form of its items."""
        return FetchedPage([function(item) for item in self.items], self.position)


def stream_rows(db: DbSession, statement: Any) -> Generator[Any, None, None]:
    """Yield the rows of a statement, a few read at once: a page that ends early does not read the others."""
    with closing(db.exec(statement.execution_options(yield_per=_ROWS_AT_ONCE))) as rows:
        yield from rows


def measure_item(item: Any) -> int:
    """Return about how many bytes the loaded columns of a row, or the members of an object, take as JSON."""
    return len(orjson.dumps(item, default=_convert_to_json_value))


def _convert_to_json_value(value: Any) -> Any:
    if isinstance(value, BaseModel):  # a row of a table too
        return [member for name, member in vars(value).items() if name != "_sa_instance_state"]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return list(value) if isinstance(value, Sequence) else str(value)


def fetch_list_page(
    read: Callable[[int], Iterable[Item]],
    *,
    limit: int,
    position_of: Callable[[Item], Position],
    size_of: Callable[[Item], int] = measure_item,
) -> FetchedPage[Item, Position]:
    """Read a page, and one item more to find out whether others follow.

    The page ends before its bytes exceed `limits.PAGE_BYTES`, after at least one item.

    Args:
        read: returns the next items, at most as many as its argument.
        limit: most items of the page.
        position_of: returns the position of an item in the order of the list.
        size_of: returns the bytes of an item.
    """
    items: list[Item] = []
    size = 0
    for item in islice(read(limit + 1), limit + 1):
        size += size_of(item)
        if items and size > limits.PAGE_BYTES:
            return FetchedPage(items, position_of(items[-1]))
        items.append(item)
    if len(items) <= limit:
        return FetchedPage(items, None)
    return FetchedPage(items[:limit], position_of(items[limit - 1]))


def fetch_statement_page(
    db: DbSession, statement: Any, *, limit: int, position_of: Callable[[Any], Position]
) -> FetchedPage[Any, Position]:
    """Read a page of the rows of a statement, which has an order and follows the page before."""
    return fetch_list_page(
        lambda count: stream_rows(db, statement.limit(count)), limit=limit, position_of=position_of
    )


def fetch_newest_rows(
    db: DbSession, statement: Any, id_column: Any, *, before_id: str | None, limit: int
) -> FetchedPage[Any, str]:
    """Read a page of rows whose ids rise with their time, newest first; its position is the last id.

    Args:
        db: a transaction.
        statement: all rows of the list, without an order.
        id_column: column `id` of the rows.
        before_id: the last id of the page before.
        limit: most rows of the page.
    """
    if before_id is not None:
        statement = statement.where(id_column < before_id)
    statement = statement.order_by(id_column.desc())
    return fetch_statement_page(db, statement, limit=limit, position_of=lambda row: str(row.id))


def take_page_items(items: Iterable[Item], *, size_of: Callable[[Item], int] = measure_item) -> list[Item]:
    """Return the first items of an answer without pages: as many as a page has room for, at least one.

    Args:
        items: the items; those that have no room are not made.
        size_of: returns the bytes of an item.
    """
    size = 0
    taken: list[Item] = []
    for item in items:
        size += size_of(item)
        if taken and size > limits.PAGE_BYTES:
            break
        taken.append(item)
    return taken


def read_all_pages(fetch: Callable[[Position | None], FetchedPage[Item, Position]]) -> Iterator[Item]:
    """Yield the items of all pages.

    Args:
        fetch: returns the page that follows a position; None asks for the first page.
    """
    page = fetch(None)
    yield from page.items
    while page.position is not None:
        page = fetch(page.position)
        yield from page.items
