"""Seeded mutations of DOM snapshots: renamed ids, wrappers, other labels, decoys, removals."""

import random
from dataclasses import dataclass, replace
from typing import Any

#: Attribute of the element to find; selectors cannot see names with `__`.
TRUTH = "__truth"
_VERBS = (
    "Archive",
    "Cancel",
    "Close",
    "Delete",
    "Discard",
    "Forward",
    "Hide",
    "Pause",
    "Reject",
    "Reset",
    "Share",
)
_MORE_WORDS = ("now", "all", "selected", "again", "later")


@dataclass(frozen=True)
class Rates:
    """Share of elements, or of pages, that each mutation befalls."""

    renamed_ids: float = 0.3
    renamed_classes: float = 0.3
    wrappers: float = 0.1
    siblings: float = 0.1
    decoy: float = 0.5
    #: The decoy takes over the id of the element.
    stolen_id: float = 0.1
    longer_label: float = 0.1
    removed: float = 0.1


def mutate(node: list[Any], rng: random.Random, rates: Rates) -> list[Any]:
    """Return a page as it may be later; the element to find keeps its mark, unless it was removed.

    Labels follow the ids that they are for: an element of the same role, id and label would be the same one.
    """
    is_removed = rng.random() < rates.removed
    steals = rng.random() < rates.stolen_id
    ids: dict[str, str] = {}
    page = (_mutate_element(node, rng, rates, ids, is_removed=is_removed, steals=steals) or [[node[0], {}]])[
        0
    ]
    _rename_labels(page, ids)
    return page


def _rename_labels(node: list[Any], ids: dict[str, str]) -> None:
    if node[0] == "label" and node[1].get("for") in ids:
        node[1]["for"] = ids[node[1]["for"]]
    for child in node[2:]:
        if not isinstance(child, str):
            _rename_labels(child, ids)


def _mutate_element(
    node: list[Any], rng: random.Random, rates: Rates, ids: dict[str, str], *, is_removed: bool, steals: bool
) -> list[list[Any]]:
    """Return the replacement of an element: nothing, itself, or itself with a decoy."""
    attrs = dict(node[1])
    is_target = attrs.get(TRUTH, False)
    if is_target and is_removed:
        if "id" in attrs:
            ids[attrs["id"]] = "removed"
        return [_make_decoy(node, rng, steals=True)] if rng.random() < rates.decoy else []
    if "id" in attrs and (rng.random() < rates.renamed_ids or (is_target and steals)):
        renamed = f"{rng.choice('uvwxyz')}{rng.randrange(10**6)}"
        ids[attrs["id"]] = renamed
        attrs["id"] = renamed
    if "class" in attrs and rng.random() < rates.renamed_classes:
        attrs["class"] = f"c{rng.randrange(10**4)}"
    if node[0] == "label":
        # Any control in there has the name of the label.
        rates = replace(rates, decoy=0.0)
    children: list[Any] = []
    for child in node[2:]:
        if isinstance(child, str):
            is_longer = is_target and child.strip() and rng.random() < rates.longer_label
            children.append(f"{child} {rng.choice(_MORE_WORDS)}" if is_longer else child)
            continue
        if rng.random() < rates.siblings:
            children.append(["div", {"class": "notice"}, "Updated"])
        children += _mutate_element(child, rng, rates, ids, is_removed=is_removed, steals=steals)
    changed = [node[0], attrs, *children]
    if node[0] in ("html", "head", "title", "body"):
        return [changed]
    shown = ["div", {}, changed] if rng.random() < rates.wrappers else changed
    if is_target and rng.random() < rates.decoy:
        pair = [_make_decoy(node, rng, steals=steals), shown]
        return pair if rng.random() < 0.7 else pair[::-1]
    return [shown]


def _make_decoy(node: list[Any], rng: random.Random, *, steals: bool) -> list[Any]:
    """Return an element of the same tag and classes under another name."""
    attrs = {name: value for name, value in node[1].items() if name not in (TRUTH, "id", "for", "name")}
    for name in ("aria-label", "placeholder", "data-testid"):
        if name in attrs:
            attrs[name] = rng.choice(_VERBS)
    if steals and "id" in node[1]:
        attrs["id"] = node[1]["id"]
    if node[0] in ("input", "select", "textarea"):
        return [node[0], {**attrs, "placeholder": rng.choice(_VERBS)}]
    return [node[0], attrs, rng.choice(_VERBS)]
