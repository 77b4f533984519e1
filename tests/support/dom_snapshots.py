"""Snapshots for tests of replays."""

from collections.abc import Mapping
from typing import Any

from recorder.replays.budget import Budget
from recorder.replays.dom import DomDocument, read_dom_document

INVOICE = [
    "html", {},
    ["head", {}, ["title", {}, "Invoice INV-1042"], ["script", {}, "Approve()"]],
    ["body", {},
     ["h1", {}, "Invoice INV-1042"],
     ["div", {"class": "bar wide"},
      ["button", {"id": "approve"}, "Approve"],
      ["button", {"id": "reject", "disabled": ""}, "Reject"],
      ["button", {"id": "old", "__h": True}, "Approve"]],
     ["label", {"for": "amount"}, "Amount"],
     ["input", {"id": "amount", "type": "text", "__v": "3"}],
     ["label", {}, "Paid ", ["input", {"type": "checkbox", "__c": True}]],
     ["x-app", {}, ["template", {"shadowrootmode": "open"}, ["button", {"class": "in"}, "Inner"]]],
     ["ul", {}, ["li", {}, "one"], ["li", {"data-testid": "second"}, "two ", ["b", {}, "bold"]]]],
]  # fmt: skip


def snapshot(html: Any, base: str | None = None) -> dict[str, Any]:
    """Return a `dom` member."""
    return {"v": 1, "format": "nodes", "html": html, **({"base": base} if base else {})}


def read(html: Any, bases: Mapping[str, Any] | None = None, base: str | None = None) -> DomDocument:
    """Return the tree of a snapshot."""
    document = read_dom_document(snapshot(html, base), (bases or {}).get, Budget(10_000_000))
    assert document is not None
    return document
