"""Resolution of targets: votes, identity, and what is only suggested."""

from typing import Any

import pytest

from benchmarks.resolve import measure_demonstrations
from recorder.replays.target_resolution import list_selectors_to_resolve, resolve_target, suggest_targets
from tests.support.demonstrations import REAL, needs_real
from tests.support.dom_snapshots import read
from tests.support.invoice_recordings import button, page

CONFIRM: dict[str, Any] = {
    "role": "button",
    "name": "Confirm",
    "tag": "button",
    "selectors": ['aria/Confirm[role="button"]', "#confirm", "text/Confirm", "xpath//html/body/button[1]"],
}


@pytest.mark.parametrize(
    ("body", "finding"),
    [
        ([button("Confirm"), button("Cancel")], "matched"),
        ([["button", {"id": "x1"}, "Confirm"], button("Cancel")], "matched"),
        ([["button", {"id": "confirm"}, "Confirm now"]], "relabelled"),
        ([["button", {"id": "confirm"}, "Send to second approver"]], "target_changed"),
        ([["a", {"id": "confirm"}, "Confirm"]], "target_missing"),
        ([button("Cancel")], "target_missing"),
        ([["button", {}, "Confirm"], ["button", {}, "Confirm"]], "target_missing"),
        # By role and name it is the second, by id and place the first.
        ([["button", {"id": "confirm"}, "No"], ["button", {}, "Confirm"]], "target_ambiguous"),
        ([["input", {"id": "confirm", "type": "hidden"}]], "target_missing"),
    ],
)
def test_only_the_recorded_element_is_acted_on(body: list[Any], finding: str) -> None:
    resolution = resolve_target(read(page("Confirm approval", *body)), CONFIRM)
    assert resolution.finding == finding
    assert resolution.is_found == (finding in ("matched", "relabelled"))


def test_a_long_selector_finds_its_element_and_is_shown_in_part() -> None:
    pad = ":not(#" + "x" * 900 + ")"
    document = read(page("Confirm approval", ["button", {"data-testid": "go"}, "Confirm"]))
    for selectors in ([f'[data-testid="go"]{pad}'], [[f"html{pad}", f'[data-testid="go"]{pad}']]):
        resolution = resolve_target(document, {"role": "button", "name": "Confirm", "selectors": selectors})
        assert resolution.finding == "matched", resolution
        assert resolution.locator is not None and len(resolution.locator) == 500
        assert resolution.locator[-2:] == "x…"


def test_equal_votes_are_ambiguous() -> None:
    target = {**CONFIRM, "selectors": ["aria/x", "#c", "xpath//html/body/b[1]"]}
    body = [["button", {}, "x"], ["b", {"id": "c"}, ""]]
    assert resolve_target(read(page("Two", *body)), target).finding == "target_ambiguous"


def test_many_paths_are_no_better_proof_than_one() -> None:
    target = {"tag": "button", "selectors": ["body > button", "html button", "button", "h1 + button"]}
    assert resolve_target(read(page("One", button("Go"))), target).finding == "target_missing"


def test_an_element_without_a_name_is_not_taken_for_one_that_has() -> None:
    target = {"role": "textbox", "tag": "input", "selectors": ["#t", "xpath//html/body/input"]}
    assert resolve_target(read(page("Form", ["input", {"id": "t"}])), target).finding == "matched"
    assert (
        resolve_target(read(page("Form", ["input", {"id": "t", "placeholder": "Amount"}])), target).finding
        == "target_changed"
    )


def test_passwords_are_never_typed_into_other_fields() -> None:
    target = {
        "role": "textbox",
        "name": "Secret",
        "attrs": {"type": "password"},
        "selectors": ["#s", "aria/Secret"],
    }
    field = ["input", {"id": "s", "aria-label": "Secret", "type": "text"}]
    assert resolve_target(read(page("Form", field)), target).finding == "target_changed"


def test_role_name_and_attributes_stand_for_missing_selectors() -> None:
    target = {"role": "link", "name": "Next", "tag": "a", "attrs": {"href": '/a"b\\c\n'}}
    assert list_selectors_to_resolve(target) == ['aria/Next[role="link"]', 'a[href="/a\\22 b\\5c c\\a "]']
    assert (
        resolve_target(read(page("List", ["a", {"href": '/a"b\\c\n'}, "Next page"])), target).finding
        == "target_missing"
    )


def test_selectors_that_are_too_long_have_no_vote_and_cost_nothing() -> None:
    endless = "a" + " " * 60_000 + "]"
    target = {"selectors": [endless, ["x-app", endless], [], ["a"] * 9, "", "#ok"]}
    assert list_selectors_to_resolve(target) == ["#ok"]


def test_suggestions_are_ranked_and_have_selectors() -> None:
    body = [
        ["button", {"id": "ok"}, "Confirm all"],
        ["button", {"class": "x"}, "Cancel"],
        ["a", {}, "Confirm"],
    ]
    suggestions = suggest_targets(read(page("Confirm", *body)), {**CONFIRM, "text": "Confirm"})
    assert suggestions[0].selector == 'aria/Confirm all[role="button"]'
    assert all(0.55 <= entry.score <= 1 for entry in suggestions)


@needs_real
def test_wrong_elements_of_real_pages_are_not_accepted() -> None:
    wrong, accepted = measure_demonstrations(REAL, every=100)
    assert wrong.ours[0] <= 0.5
    assert accepted.ours[0] > 30
