"""Actions of demonstrations as events. Contract §3 (event item)."""

from typing import Any

import msgspec
import pytest

from recorder.importers.miniwob.format import (
    DemonstrationState,
    convert_action,
    join_demonstration_action_halves,
)
from tests.support.demonstrations import key, mouse, page


def actions(*halves: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events' members of these halves, one state each."""
    raw = [{"time": n, "dom": page(), "action": half} for n, half in enumerate(halves)]
    return list(
        convert_action(join_demonstration_action_halves(msgspec.convert(raw, list[DemonstrationState])))
    )


def both(kind: str, code: int, char: int = 0) -> list[dict[str, Any]]:
    """Return the two halves of a key action."""
    return [key(kind, 1, code, char), key(kind, 3, code, char)]


def stroke(code: int, char: int) -> list[dict[str, Any]]:
    """Return a key that types a character."""
    return [*both("keydown", code), *both("keypress", char, char), *both("keyup", code)]


@pytest.mark.parametrize(
    ("timings", "count"),
    [
        ([1, 3], 1),
        ([1], 1),
        ([3], 1),
        ([2], 1),
        ([1, 1, 3], 2),
        ([1, 3, 3], 2),
        ([1, 1, 3, 3], 2),
        ([3, 1], 2),
    ],
)
def test_two_halves_are_one_action_and_a_lone_half_counts_once(timings: list[int], count: int) -> None:
    assert len(actions(*(mouse("click", timing) for timing in timings))) == count


def test_halves_of_different_places_do_not_join() -> None:
    assert len(actions(mouse("click", 1, x=10), mouse("click", 3, x=11))) == 2


def test_a_click_that_causes_a_click_is_two_actions() -> None:
    nested = [mouse("click", 1, x=1), mouse("click", 1, x=2), mouse("click", 3, x=2), mouse("click", 3, x=1)]
    assert [event["input"]["point"][0] for event in actions(*nested)] == [1, 2]


@pytest.mark.parametrize(
    ("dom_type", "kind"),
    [
        ("click", "click"),
        ("dblclick", "dblclick"),
        ("mousedown", "pointer_down"),
        ("mouseup", "pointer_up"),
        ("scroll", "scroll"),
        ("touchstart", "touchstart"),
        ("Weird Type!", "dom.weird_type_"),
    ],
)
def test_types_are_those_of_the_service(dom_type: str, kind: str) -> None:
    (members,) = actions(mouse(dom_type, 1), mouse(dom_type, 3))
    assert members["type"] == kind


def test_a_typed_character_is_the_key_of_its_keydown() -> None:
    down, press, up = actions(*stroke(65, 97))
    assert (down["type"], press["type"], up["type"]) == ("key_down", "key_press", "key_up")
    assert [event["input"]["key"] for event in (down, press, up)] == ["a", "a", "a"]


def test_a_capital_carries_shift() -> None:
    shift, down, *_ = actions(*both("keydown", 16), *stroke(65, 65))
    assert "modifiers" not in shift["input"]
    assert down["input"] == {"key": "A", "modifiers": 8}


@pytest.mark.parametrize(("code", "name"), [(13, "Enter"), (9, "Tab"), (27, "Escape"), (115, "F4")])
def test_a_key_that_commands_is_a_press(code: int, name: str) -> None:
    down, up = actions(*both("keydown", code), *both("keyup", code))
    assert (down["type"], down["input"]["key"]) == ("press", name)
    assert up["type"] == "key_up"


@pytest.mark.parametrize(
    ("code", "name"), [(8, "Backspace"), (37, "ArrowLeft"), (46, "Delete"), (16, "Shift")]
)
def test_a_key_that_edits_stays_raw(code: int, name: str) -> None:
    (down,) = actions(*both("keydown", code))
    assert (down["type"], down["input"]["key"]) == ("key_down", name)


def test_a_hotkey_is_a_press_with_its_modifiers() -> None:
    _, down = actions(*both("keydown", 17), *both("keydown", 67))
    assert down == {"type": "press", "input": {"key": "c", "modifiers": 2}}


def test_a_release_that_was_not_seen_does_not_turn_typing_into_hotkeys() -> None:
    _, _, typed, *_ = actions(*both("keydown", 17), *both("keydown", 67), *stroke(65, 97))
    _, *later = actions(*both("keydown", 17), *stroke(65, 97), *both("keydown", 66))
    assert typed == {"type": "key_down", "input": {"key": "a"}}
    assert later[-1]["type"] == "key_down"


def test_a_key_without_a_name_keeps_its_code() -> None:
    (members,) = actions(*both("keydown", 255))
    assert members == {"type": "key_down", "data": {"key_code": 255}}
