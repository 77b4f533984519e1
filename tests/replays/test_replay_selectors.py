"""Selectors of Chrome's Recorder on snapshots: every kind, and hostile ones."""

import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder.replays.budget import Budget, BudgetExceeded
from recorder.replays.css import UnusableSelector
from recorder.replays.dom import read_dom_element_text
from recorder.replays.selectors import (
    Selector,
    find_elements_by_selector,
    find_single_element_by_selector,
    kind_of_selector,
    make_selectors,
    parse_aria_selector,
)
from tests.support.dom_snapshots import INVOICE, read

PAGE = read(INVOICE)


@pytest.mark.parametrize(
    ("selector", "texts"),
    [
        ("#approve", ["Approve"]),
        ("button", ["Approve", "Reject"]),  # neither the hidden one nor the one in the shadow root
        ("div.bar > button:nth-of-type(2)", ["Reject"]),
        ("button:nth-child(2n)", ["Reject"]),
        ("button:not([disabled])", ["Approve"]),
        ("button:is(#approve, #reject):enabled", ["Approve"]),
        ("li + li", ["two bold"]),
        ("li ~ [data-testid^=sec]", ["two bold"]),
        ("ul li:last-child", ["two bold"]),
        ("#reject, #approve", ["Reject", "Approve"]),
        ("text/Approve", ["Approve"]),
        ("text/two bold", ["two bold"]),
        ('aria/Amount[role="textbox"]', [""]),
        ("aria/Amount", [""]),
        ("aria/[role='listitem']", ["one", "two bold"]),
        ("aria/Inner", ["Inner"]),
        ("pierce/.in", ["Inner"]),
        (".in", []),
        (["x-app", ".in"], ["Inner"]),
        (["x-app", "aria/Inner"], ["Inner"]),
        (["div.bar", "text/Inner"], []),
        ("xpath//html/body/div/button[1]", ["Approve"]),
        ('xpath///*[@id="approve"]', ["Approve"]),
        ("xpath///button[normalize-space()='Reject']", ["Reject"]),
        ("xpath///li[last()]", ["two bold"]),
        ("xpath///li[contains(., 'bold') and not(@id)]", ["two bold"]),
        ("xpath///button[position()=2 or text()='Nothing']", ["Reject"]),
        ("xpath///ul/li[1]/following-sibling::li", ["two bold"]),
        ("xpath///b/..", ["two bold"]),
        ("xpath///b/ancestor::ul/li[starts-with(text(), 'on')]", ["one"]),
        ("xpath///button[@class='in']", []),
    ],
)
def test_selectors_find_visible_elements(selector: Selector, texts: list[str]) -> None:
    assert [
        read_dom_element_text(match) for match in find_elements_by_selector(PAGE, selector, Budget(10_000))
    ] == texts


@pytest.mark.parametrize(
    ("selector", "kind"),
    [
        ("[data-testid='a']", "test_id"),
        ("div [data-cy=a]", "test_id"),
        ("#a", "attribute"),
        ("input[name='a b']", "attribute"),
        ("#a > div", "path"),
        ("pierce/#a", "attribute"),
        (["x-app", "aria/A"], "aria"),
        ("xpath///a[@id='b']", "xpath"),
        ("text/#a", "text"),
        ("a" + " " * 990 + "]", "path"),
        ("[a='#x > y'] > b", "path"),
    ],
)
def test_kinds_of_selectors(selector: Selector, kind: str) -> None:
    assert kind_of_selector(selector) == kind


def test_aria_selectors_hold_name_and_role() -> None:
    assert parse_aria_selector('Approve "it"[role="button"]') == ('Approve "it"', "button")
    assert parse_aria_selector(r'[name="a \"b\""][role=\'x\']'.replace("\\'", "'")) == ('a "b"', "x")
    assert parse_aria_selector("Delete [draft]") == ("Delete [draft]", None)


@pytest.mark.parametrize(
    "selector",
    [
        "a::before", "button:has(> b)", "button:contains('x')", "[", "", "a" * 1_001,
        ":not(" * 100, "a " * 499, [],
        ["a"] * 9, "li:lang(en)", "xpath/", "xpath/a", "xpath///a[count(b) > 1]", "xpath///a[", "xpath///@id",
        "xpath///a[" + "(" * 300, "xpath///a | //b", "xpath/id('a')", "xpath///a[text() = ]", "text/ ",
        ["x-app", "xpath///button"], "xpath/" + "//a" * 334,
    ],
)  # fmt: skip
def test_selectors_that_snapshots_cannot_answer_are_refused(selector: Selector) -> None:
    with pytest.raises(UnusableSelector):
        list(find_elements_by_selector(PAGE, selector, Budget(1_000_000)))


WIDE = read(["html", {}, *[["p", {}, ["a", {}, "x"]] for _ in range(20_000)]])
_deep: list[object] = ["p", {}, "x"]
for _ in range(500):
    _deep = ["p", {"class": "a"}, _deep]
DEEP = read(_deep)


@pytest.mark.parametrize(
    "selector",
    [
        "p ~ p ~ p ~ p ~ p ~ q",
        "q " + "p " * 60,
        ".a " * 60 + "p:not(.a .a .b)",
        "*:nth-of-type(3n+2):nth-of-type(2n)",
        "p:not(:is(q p, q p p, q p p p)) q, p p p p p p p p p p q p",
        "xpath/" + "//p" * 30,
        "xpath///p/following-sibling::p/following-sibling::p/preceding-sibling::p",
        "xpath///p[. = 'y' or . = 'z']",
        "xpath///*[contains(., 'y')]",
        "xpath/" + "//*/ancestor::*" * 20,
        "aria/y",
        "text/y",
    ],
)
def test_bombs_end_within_their_budget(selector: str) -> None:
    for page in (WIDE, DEEP):
        began = time.process_time()
        with contextlib.suppress(BudgetExceeded, UnusableSelector):
            assert find_single_element_by_selector(page, selector, Budget(100_000)) is None
        assert time.process_time() - began < 3


@pytest.mark.parametrize(
    "selector",
    [
        "p.q" + ".k" * 140,
        ".q" + "[class~=k]" * 90,
        ":is(" + ",".join([".k.q"] * 100) + ")",
        "xpath///*[normalize-space(@class) = 'q' or normalize-space(text()) = 'q']",
    ],
)
def test_long_attributes_and_texts_count_by_their_length(selector: str) -> None:
    page = read(["html", {}, ["p", {"class": "k " * 200_000}, "k " * 200_000]])
    with pytest.raises(BudgetExceeded):
        find_single_element_by_selector(page, selector, Budget(5_000))


def test_selectors_that_are_made_match_their_element_alone() -> None:
    for element in PAGE.elements:
        if element.visible and element.scope == -1:
            assert (
                find_single_element_by_selector(PAGE, make_selectors(PAGE, element)[-1], Budget(10_000))
                is element
            )


@given(
    st.text("a#.[]()='\"*: >+~/@,0nbutli-{}\\|", max_size=30),
    st.sampled_from(["", "xpath/", "aria/", "pierce/"]),
)
def test_any_text_is_answered_or_refused(text: str, prefix: str) -> None:
    with contextlib.suppress(UnusableSelector, BudgetExceeded):
        list(find_elements_by_selector(PAGE, prefix + text, Budget(50_000)))
