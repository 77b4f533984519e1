"""Pages of lists: one more item than the page is read, never more. Contract §1 (lists)."""

from collections.abc import Iterator
from itertools import islice

import pytest

from recorder import limits
from recorder.storage.list_pages import FetchedPage, fetch_list_page, read_all_pages


def fetch(count: int, after: int | None, limit: int, read: list[int]) -> FetchedPage[int, int]:
    """Return a page of the numbers below a count; the numbers that were read are added to `read`."""

    def read_numbers(most: int) -> Iterator[int]:
        for number in islice(range(0 if after is None else after + 1, count), most):
            read.append(number)
            yield number

    return fetch_list_page(read_numbers, limit=limit, position_of=lambda number: number)


@pytest.mark.parametrize(("count", "position"), [(0, None), (2, None), (3, None), (4, 2), (9, 2)])
def test_a_page_has_a_position_where_another_page_follows(count: int, position: int | None) -> None:
    read: list[int] = []
    page = fetch(count, None, 3, read)
    assert page == (list(range(min(count, 3))), position)
    assert len(read) == min(count, 4)


def test_a_source_that_ignores_the_count_is_not_read_to_its_end() -> None:
    numbers = iter(range(100))
    page = fetch_list_page(lambda count: numbers, limit=3, position_of=lambda number: number)
    assert page.items == [0, 1, 2]
    assert next(numbers) == 4


@pytest.mark.parametrize("count", [0, 3, 7, 9])
def test_all_pages_hold_every_item_once(count: int) -> None:
    read: list[int] = []
    assert list(read_all_pages(lambda after: fetch(count, after, 3, read))) == list(range(count))
    assert len(read) <= count + count // 3


@pytest.mark.parametrize(("share", "count"), [(0.6, 1), (0.4, 2), (1.5, 1)])
def test_a_page_ends_before_it_has_too_many_bytes(share: float, count: int) -> None:
    size = int(limits.PAGE_BYTES * share)
    page = fetch_list_page(
        lambda most: range(most), limit=3, position_of=lambda number: number, size_of=lambda _: size
    )
    assert page == (list(range(count)), count - 1)


def test_converted_items_keep_the_position() -> None:
    assert fetch(5, None, 2, []).convert(str) == (["0", "1"], 1)
