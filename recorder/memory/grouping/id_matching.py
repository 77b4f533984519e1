"""Which new group takes over which old one's number, after the same things were grouped anew. Contract §4."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Inheritance:
    """The lasting numbers of new groups, and what becomes of the old ones that nothing took over."""

    #: By new group: an old number that it takes over, or the next free one.
    number_of: dict[int, int]
    #: By old number: the lasting number of the group that holds most of it.
    merged: dict[int, int]


def inherit(
    old_of: Mapping[int, int], new_of: Mapping[int, int], weights: Mapping[int, int], *, free: int
) -> Inheritance:
    """Match two groupings of the same things.

    A new group takes over an old one where their overlap is more than half of their union, by weight; there
    is then at most one such partner on either side.

    Args:
        old_of: the old group of each thing.
        new_of: the new group of each thing.
        weights: of each thing; things without weight count a little.
        free: the first number that no old group ever had.
    """
    shared: Counter[tuple[int, int]] = Counter()
    old_total: Counter[int] = Counter()
    new_total: Counter[int] = Counter()
    # What no session does any more still tells groups apart, but never against what sessions do.
    unit = len(old_of) + 1
    for thing, old in old_of.items():
        weight = weights.get(thing, 0) * unit + 1
        shared[old, new_of[thing]] += weight
        old_total[old] += weight
        new_total[new_of[thing]] += weight
    number_of = {
        new: old for (old, new), both in shared.items() if 2 * both > old_total[old] + new_total[new] - both
    }
    taken = set(number_of.values())
    for new in sorted(set(new_total) - set(number_of)):
        number_of[new] = free
        free += 1
    merged: dict[int, int] = {}
    for (old, new), _ in sorted(shared.items(), key=lambda item: (-item[1], item[0])):
        if old not in taken:
            merged.setdefault(old, number_of[new])
    return Inheritance(number_of, merged)
