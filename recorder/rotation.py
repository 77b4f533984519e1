"""Rotation: owners with waiting items take turns, so that many items of one hold up no other."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class Rotation(Generic[_Item]):
    """Items that wait, by owner; the items of an owner keep their order."""

    def __init__(self) -> None:
        #: Owners in the order of their turns, each with at least one item.
        self._waiting: dict[str, deque[_Item]] = {}

    def __iter__(self) -> Iterator[_Item]:
        for items in self._waiting.values():
            yield from items

    def list_of(self, owner: str) -> Sequence[_Item]:
        """Return the items of an owner."""
        return self._waiting.get(owner, ())

    def add(self, owner: str, item: _Item) -> None:
        """Add the last item of an owner; one without others is the last in the rotation."""
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self, may_take: Callable[[str, _Item], bool] = lambda *_: True) -> tuple[str, _Item] | None:
        """Remove and return the next item, whose owner goes to the end of the rotation.

        Args:
            may_take: whether an item of an owner may be taken now; others are passed over.

        Returns:
            The owner and the item; None if there is none that may be taken.
        """
        for owner, items in self._waiting.items():
            for index, item in enumerate(items):
                if may_take(owner, item):
                    del items[index], self._waiting[owner]
                    if items:
                        self._waiting[owner] = items
                    return owner, item
        return None
