"""Differences of paths from the common one, in words. Spec §4.2."""

import pytest

from recorder.memory.views.path_texts import describe_path, join_node_names, list_path_changes
from tests.support.graph_columns import INVOICES

COMMON = list(INVOICES[0][0])


@pytest.mark.parametrize(
    ("way", "texts"),
    [
        (1, ["− Write note"]),
        (2, ["after Open invoices: + Search supplier"]),
        (3, ["at the start: + Sign in › Bad credentials"]),
        (
            4,
            [
                "after Invoice: − Set cost centre › Write note › Tick match › Approve › Confirm › Approved "
                "+ Reject › Rejected"
            ],
        ),
        (5, ["after Confirm: − Approved + Second approver"]),
        (7, ["after Confirm: + Server error › Approve › Confirm"]),
        (0, ["the common path: 9 steps, Sign in … Approved"]),
    ],
)
def test_differences_read_as_in_the_drawing(way: int, texts: list[str]) -> None:
    assert describe_path(COMMON, list(INVOICES[way][0]), {}) == texts


def test_several_places_are_told_in_order() -> None:
    assert describe_path("abcdefgh", "axcdefg", {}) == ["after a: − b + x", "− h"]


def test_nodes_that_do_not_follow_each_other_are_joined_by_commas() -> None:
    assert join_node_names("ab", {"a": "Sign in"}, separator=", ") == "Sign in, b"
    assert join_node_names("abcdefgh", {}, separator=", ") == "a, b, c, d, … 3 more …, h"


def test_labels_stand_for_ids_and_stay_on_their_line() -> None:
    names = {"a": "Sign in", "b": "Save\n\u202enow"}
    assert describe_path("a", "ab", names) == ["after Sign in: + Save now"]


def test_long_rows_are_shortened() -> None:
    assert describe_path("a", "abcdefghij", {}) == ["after a: + b › c › d › e › … 4 more … › j"]


def test_applying_the_changes_gives_the_other_path() -> None:
    common, other = list("abcabc"), list("bcxabab")
    rest = list(other)
    for change in list_path_changes(common, other):
        for name in change.added:
            rest.remove(name)
    kept = list(common)
    for change in list_path_changes(common, other):
        for name in change.removed:
            kept.remove(name)
    assert sorted(rest) == sorted(kept)


def test_a_path_without_steps_can_be_the_common_one() -> None:
    assert describe_path([], [], {}) == ["the common path: no steps"]
    assert describe_path([], ["a"], {}) == ["at the start: + a"]


def test_of_long_paths_the_steps_from_the_first_difference_on_are_compared() -> None:
    # Loops of a session that were compared whole took the cube of their length: hours.
    common, other = ["s", *"ab" * 5_000], ["s", *"abc" * 3_333]
    texts = describe_path(common, other, {})
    assert texts[:2] == ["after b: + c", "after b: + c"]
    assert texts[-1] == "steps from number 67 on are not compared"
    assert len(texts) == 10 and texts[-2].endswith("more differences")
    assert describe_path(common, [*common[:5_000], "x", *common[5_000:]], {}) == ["after a: + x"]
