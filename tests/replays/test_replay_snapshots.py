"""Snapshots as trees: names, hidden elements, references, and hostile input."""

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.dom import find_dom_element_role, read_dom_document, read_dom_element_text
from recorder.replays.recorded_session import InvalidRecording
from tests.support.dom_snapshots import INVOICE, read, snapshot


def test_names_come_from_labels_text_and_values() -> None:
    page = read(INVOICE)
    boxes = page.by_tag["input"]
    assert [(find_dom_element_role(box), page.find_name(box)) for box in boxes] == [
        ("textbox", "Amount"),
        ("checkbox", "Paid"),
    ]
    assert page.find_name(page.by_id["approve"][0]) == "Approve"


def test_what_a_person_does_not_see_is_not_visible() -> None:
    page = read(INVOICE)
    assert [button.visible for button in page.by_tag["button"]] == [True, True, False, True]
    assert not page.by_tag["script"][0].visible
    assert "Approve()" not in read_dom_element_text(page.elements[0])


def test_a_reference_stands_for_a_subtree_of_the_base() -> None:
    base = snapshot(["html", {}, ["body", {}, ["p", {}, "a"], ["p", {}, "b"]]])
    # Post-order with texts: 0 "a", 1 <p>a, 2 "b", 3 <p>b, 4 body, 5 html.
    middle = snapshot(["html", {}, ["body", {}, [[1, 3]], ["p", {}, "c"]]], "frm_1")
    page = read(["html", {}, [[1, 2]], ["p", {}, [[2, 0]]]], {"frm_1": base, "frm_2": middle}, "frm_2")
    assert [read_dom_element_text(paragraph) for paragraph in page.by_tag["p"]] == ["b", "c", "a"]


def test_a_reference_into_a_base_is_followed_from_there() -> None:
    base = snapshot(["p", {}, "a"])
    middle = snapshot(["div", {}, [[1, 1]]], "frm_1")
    page = read(["main", {}, [[1, 0]]], {"frm_1": base, "frm_2": middle}, "frm_2")
    assert [element.tag for element in page.elements] == ["main", "div", "p"]


def nest(depth: int) -> list[Any]:
    node: list[Any] = ["b", {}, "x"]
    for _ in range(depth):
        node = ["b", {}, node]
    return node


HOSTILE = {
    "cyclic base": snapshot(["a", {}, [[2, 0]]], "self"),
    "no base": snapshot(["a", {}, [[1, 0]]]),
    "base without a snapshot": snapshot(["a", {}, [[1, 0]]], "absent"),
    "refers to itself": snapshot(["a", {}, [[0, 0]]], "self"),
    "refers ahead": snapshot(["a", {}, [[-1, 0]]], "self"),
    "no such node": snapshot(["a", {}, [[1, 99]]], "leaf"),
    "too deep": snapshot(nest(5_000)),
    "too large": snapshot(["a", {}, *["x"] * 1_000_000]),
    "doubling references": snapshot(["a", {}, *[[[1, 8]]] * 20_000], "leaf"),
    "a number": snapshot(["a", {}, 5]),
    "an empty node": snapshot(["a", {}, []]),
    "no tag": snapshot(["", {}]),
    "no root": snapshot(None),
    "a text": snapshot("x"),
    "a long reference": snapshot(["a", {}, [[1, 2, 3]]], "leaf"),
    "truths": snapshot(["a", {}, [[True, True]]], "leaf"),
}
BASES = {"self": HOSTILE["cyclic base"], "leaf": snapshot(["div", {}, *[["p", {}, "x"] for _ in range(4)]])}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_snapshots_are_refused_at_once(name: str) -> None:
    began = time.process_time()
    with pytest.raises(InvalidRecording):
        read_dom_document(HOSTILE[name], BASES.get, Budget(10_000_000))
    assert time.process_time() - began < 5


def test_many_texts_in_one_element_cost_little() -> None:
    page = read(["a", {}, *["word" * 100] * 90_000])
    assert len(page.elements[0].own_text) < 3_000


def test_the_budget_counts_every_node() -> None:
    with pytest.raises(BudgetExceeded):
        read_dom_document(snapshot(["a", {}, *["x"] * 100]), BASES.get, Budget(50))


def test_attributes_of_other_types_than_browsers_have_are_left_out() -> None:
    odd = {
        "role": "button",
        "type": ["submit"],
        "id": {"a": 1},
        "class": [0] * 100_000,
        "__v": [1],
        "size": 3,
    }
    page = read(["form", {}, ["input", odd]])
    field = page.elements[1]
    assert page.find_name(field) == "" and page.by_id == {}
    assert [field.read_attribute(name) for name in ("type", "class", "size")] == [None, None, "3"]


def test_other_formats_are_no_documents() -> None:
    assert read_dom_document({"format": "rrweb", "html": []}, BASES.get, Budget(10)) is None


_NODES = st.recursive(
    st.text(max_size=3)
    | st.none()
    | st.integers()
    | st.tuples(st.tuples(st.integers(0, 3), st.integers(0, 9))),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.builds(
            lambda tag, rest: [tag, {"id": tag}, *rest], st.sampled_from("ab"), st.lists(inner, max_size=4)
        )
    ),
    max_leaves=20,
)


@settings(max_examples=50)
@given(_NODES)
def test_any_json_is_a_tree_or_refused(html: Any) -> None:
    try:
        page = read(html, {"frm_1": snapshot(["a", {}, ["b", {}, "x"]])}, "frm_1")
    except InvalidRecording:
        return
    for element in page.elements:
        assert element.index < element.end <= len(page.elements)
        assert all(element.index < child.index < element.end for child in element.list_elements())
        page.find_name(element)
