"""Pages of lists: items, and the position that the next page follows. Contract §1 (lists)."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

from recorder import limits

Item = TypeVar("Item")
Other = TypeVar("Other")
Position = TypeVar("Position")


class FetchedPage(NamedTuple, Generic[Item, Position]):
    """Items of one page, and the position of the last one; the position is None on the last page."""

    items: list[Item]
    position: Position | None

    def convert(self, function: Callable[[Item], Other]) -> "FetchedPage[Other, Position]":
        """Return the same page with another form of its items."""
        return FetchedPage([function(item) for item in self.items], self.position)


def fetch_list_page(
    read: Callable[[int], Iterable[Item]],
    *,
    limit: int,
    position_of: Callable[[Item], Position],
    size_of: Callable[[Item], int] | None = None,
) -> FetchedPage[Item, Position]:
    """Read a page, and one item more to find out whether others follow.

    Args:
        read: returns the next items, at most as many as its argument.
        limit: most items of the page.
        position_of: returns the position of an item in the order of the list.
        size_of: returns the bytes of an item; the page ends before they exceed those of a page.
    """
    items: list[Item] = []
    size = 0
    for item in islice(read(limit + 1), limit + 1):
        size += 0 if size_of is None else size_of(item)
        if items and size > limits.PAGE_BYTES:
            return FetchedPage(items, position_of(items[-1]))
        items.append(item)
    if len(items) <= limit:
        return FetchedPage(items, None)
    return FetchedPage(items[:limit], position_of(items[limit - 1]))


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
