"""A session as steps: which events count, fold, and separate steps. Spec §2.6, contract §3."""

from typing import Any

import pytest

from recorder.event_types import EVENT_TYPES, is_action, step_type
from recorder.memory.steps.action_tokens import text_template_of
from recorder.memory.steps.screens import FrameScreen, describe_screen
from recorder.memory.steps.session_steps import Step, session_steps

APPROVE = {"role": "button", "name": "Approve", "tag": "button"}
USER = {"tag": "input", "attrs": {"id": "user"}}


def event(t_ms: int, type: str = "click", **members: Any) -> dict[str, Any]:
    """Return an event; its id follows from its time unless one is given."""
    return {"id": f"evt_{t_ms:06d}", "t_ms": t_ms, "type": type, **members}


def frame(t_ms: int, path: str) -> FrameScreen:
    """Return a frame that shows an address."""
    screen = describe_screen(dom=None, url=f"https://a.example/{path}", title=None, cells=None)
    return FrameScreen(t_ms, f"frm_{t_ms:06d}", screen)


def steps_of(*events: dict[str, Any], frames: list[FrameScreen] | None = None) -> list[Step]:
    """Return the steps of a session."""
    return session_steps(events, frames or [])


def target_of(target: dict[str, Any] | None, type: str = "click", **members: Any) -> str:
    """Return the token of one event's target."""
    return steps_of(event(0, type, target=target, **members))[0].target


def test_steps_come_by_time_and_then_id() -> None:
    late, early = event(5, "copy", id="evt_b"), event(5, "paste", id="evt_a")
    steps = steps_of(event(9, "scroll"), late, early)
    assert [(step.pos, step.action) for step in steps] == [(0, "paste"), (1, "copy"), (2, "scroll")]


def test_noise_and_telemetry_are_no_steps() -> None:
    noise = [
        "pointer_move",
        "pointer_up",
        "key_up",
        "log",
        "request",
        "screen_change",
        "thought",
    ]
    steps = steps_of(*(event(t_ms, type) for t_ms, type in enumerate(noise)), event(50))
    assert [step.action for step in steps] == ["click"]


def test_key_strokes_on_one_element_are_one_step_on_the_screen_where_they_began() -> None:
    keys = [event(t_ms, kind, target=USER) for t_ms in (10, 20, 30) for kind in ("key_down", "key_up")]
    keys = [{**item, "id": f"evt_{index}"} for index, item in enumerate(keys)]
    steps = steps_of(*keys, frames=[frame(0, "login"), frame(15, "suggestions")])
    assert [(step.action, step.runs, step.t_in_ms, step.t_out_ms) for step in steps] == [("type", 3, 10, 30)]
    assert steps[0].screen_key == frame(0, "login").screen.state_key


def test_typing_breaks_where_the_element_changes() -> None:
    password = {"tag": "input", "attrs": {"id": "password"}}
    steps = steps_of(event(1, "key_down", target=USER), event(2, "key_down", target=password))
    assert [step.target for step in steps] == ["textbox id=user", "textbox id=password"]


def test_a_single_character_is_typed_and_a_named_key_or_hotkey_is_pressed() -> None:
    inputs = [{"key": "a"}, {"key": "B", "modifiers": 8}, {"key": "Enter"}, {"key": "s", "modifiers": 2}]
    steps = steps_of(*(event(t_ms, "press", input=given) for t_ms, given in enumerate(inputs)))
    assert [(step.action, step.runs) for step in steps] == [
        ("type", 2),
        ("press:0:enter", 1),
        ("press:2:s", 1),
    ]


def test_equal_steps_in_a_row_are_one() -> None:
    steps = steps_of(event(1, target=APPROVE), event(2, target=APPROVE), event(3), event(4, target=APPROVE))
    assert [(step.runs, step.t_in_ms, step.t_out_ms) for step in steps] == [(2, 1, 2), (1, 3, 3), (1, 4, 4)]
    assert steps[0].micro_key == steps[2].micro_key
    assert all(-(2**63) <= step.micro_key < 2**63 for step in steps)


def test_a_press_without_a_click_is_a_click() -> None:
    first, other = {"tag": "div", "attrs": {"id": "one"}}, {"tag": "div", "attrs": {"id": "two"}}
    steps = steps_of(
        event(1, "pointer_down", target=first),
        event(2, "pointer_up", target=first),
        event(3, "pointer_down", target=other, input={"button": 2}),
        event(4, "pointer_move"),
    )
    assert [(step.action, step.target) for step in steps] == [
        ("click", "div id=one"),
        ("click:2", "div id=two"),
    ]


@pytest.mark.parametrize("act", ["click", "dblclick", "drag", "check", "uncheck", "select"])
def test_a_press_belongs_to_the_act_that_follows(act: str) -> None:
    between = [event(2, "focus", target=USER), event(3, "pointer_up", target=APPROVE)]
    steps = steps_of(event(1, "pointer_down", target=APPROVE), *between, event(4, act, target=APPROVE))
    assert [(step.pos, step.action) for step in steps] == [(0, "focus"), (1, act)]


def test_a_press_before_a_key_is_a_click_of_its_own() -> None:
    kinds = ["pointer_down", "key_down", "click"]
    steps = steps_of(*(event(t_ms, kind, target=USER) for t_ms, kind in enumerate(kinds)))
    assert [step.action for step in steps] == ["click", "type", "click"]


def test_a_double_click_is_one_step_where_its_first_click_was() -> None:
    kinds = ["pointer_down", "pointer_up", "click"] * 2 + ["dblclick"]
    steps = steps_of(
        event(0, target=APPROVE),
        *(event(1_000 + 50 * n, kind, target=APPROVE) for n, kind in enumerate(kinds)),
        frames=[frame(0, "list"), frame(1_120, "opened")],
    )
    assert [(step.pos, step.action, step.t_in_ms, step.runs) for step in steps] == [
        (0, "click", 0, 1),
        (1, "dblclick", 1_100, 1),
    ]
    assert steps[1].screen_key == frame(0, "list").screen.state_key


def test_clicks_long_before_a_double_click_or_on_another_element_stay() -> None:
    steps = steps_of(
        event(0, target=APPROVE), event(1_900, target=USER), event(2_000, "dblclick", target=APPROVE)
    )
    assert [step.action for step in steps] == ["click", "click", "dblclick"]


def test_the_same_act_on_another_screen_is_another_micro_state() -> None:
    steps = steps_of(
        event(5, target=APPROVE), event(25, target=APPROVE), frames=[frame(0, "a"), frame(20, "b")]
    )
    assert [step.frame_id for step in steps] == ["frm_000000", "frm_000020"]
    assert steps[0].target == steps[1].target and steps[0].micro_key != steps[1].micro_key


def test_a_navigation_that_the_action_announced_is_no_step() -> None:
    goal = "https://a.example/invoices"
    click = event(1, target=APPROVE, signals=[{"type": "navigation", "url": goal}])
    steps = steps_of(click, event(2, "navigate", url=goal), event(3, "navigate", url=goal))
    assert [step.action for step in steps] == ["click", "navigate"]
    assert steps[1].t_in_ms == 3


@pytest.mark.parametrize(
    ("target", "token"),
    [
        ({"tag": "button", "attrs": {"data-testid": "pay-12", "id": "x"}}, "button test=pay-#"),
        ({"tag": "button", "name": "Pay", "attrs": {"id": "pay"}}, "button id=pay"),
        ({"tag": "button", "name": "Pay 12", "attrs": {"id": "b-3"}}, "button id=b-#~pay <n>"),
        ({"tag": "a", "name": "Ada", "attrs": {"id": "c-3", "href": "/c/3"}}, "link id=c-# href=/c/#"),
        ({"tag": "a", "name": "Ada", "attrs": {"href": "/people/3"}}, "link href=/people/#"),
        ({"role": "link", "name": "Open invoices"}, "link ~open invoices"),
        ({"tag": "td", "name": "Ada", "text": "Ada", "near": "Ada"}, "td"),
        ({"role": "cell", "name": "Ada"}, "cell"),
        ({"tag": "span", "name": "Ada", "attrs": {"class": "row-3 name"}}, "span class=name.row-#"),
        ({"selectors": ["text/Ada", ["#app", "#row-3"]]}, "selector=#app >> #row-#"),
        (None, ""),
    ],
)
def test_a_target_is_told_by_what_the_program_wrote_and_quotes_nobody(
    target: dict[str, Any] | None, token: str
) -> None:
    assert target_of(target) == token


def test_other_events_are_told_by_their_name_or_address() -> None:
    assert target_of(None, "tool_call", data={"name": "lookup_vendor"}) == "~lookup_vendor"
    assert target_of(None, "tool_call", data={"name": "search_v2"}) == "~search_v2"
    assert target_of(None, "activity", data={"name": "T06  Decide 2"}) == "~T06 Decide 2"
    longer = [target_of(None, "activity", data={"name": "1" * 200 + end}) for end in "ab"]
    assert longer[0] != longer[1] and max(map(len, longer)) < 120
    assert target_of(None, "llm_call", data={"name": "model-4"}) == "~model-<n>"
    assert target_of(None, "navigate", url="https://a.example/x/1?q=ada") == "a.example/x/#?q"
    assert target_of(None, "window_focus", app={"name": "excel", "window": "Ada.xlsx"}) == "~excel"


@pytest.mark.parametrize(
    ("item", "label"),
    [
        (event(0, target=APPROVE), "Click Approve"),
        (event(0, "fill", target=USER), "Fill user textbox"),
        (event(0, "press", target=USER, input={"key": "Enter"}), "Press enter in user textbox"),
        (event(0, "press", input={"key": "Escape"}), "Press escape"),
        (event(0, "click", target={"tag": "td", "text": "Ada"}), "Click cell"),
        (event(0, "navigate", url="https://a.example/invoices/12"), "Open a.example/invoices/#"),
        (event(0, "invoice.approved"), "Invoice approved"),
        (event(0, "activity", data={"name": "T06 Decide 2"}), "T06 Decide 2"),
        (event(0, "tool_call", data={"name": "search_v2"}), "Call search_v2"),
        (
            event(0, target={"tag": "div", "attrs": {"id": "ui-id-7", "class": "ui row-details"}}),
            "Click row details",
        ),
        (event(0, target={"tag": "div"}), "Click element"),
        (event(0, target={"tag": "a", "name": "Ada", "attrs": {"id": "invoice-7"}}), "Click invoice link"),
        (event(0, target={"tag": "a", "name": "17"}), "Click numbered link"),
        (event(0, target={"tag": "input", "attrs": {"placeholder": "Due date"}}), "Click Due date"),
        (event(0, target={"tag": "input", "attrs": {"id": "dueDate-3"}}), "Click due date textbox"),
        (event(0, target={"tag": "input", "attrs": {"id": "a1b2c3d4e5f6a7b8"}}), "Click textbox"),
        (
            event(0, target={"tag": "span", "attrs": {"class": "\u202e7 \u05e9\u05dc\u05d5\u05dd"}}),
            "Click \u05e9\u05dc\u05d5\u05dd",
        ),
    ],
)
def test_labels_are_templates_that_people_can_read(item: dict[str, Any], label: str) -> None:
    step = steps_of(item)[0]
    assert label in {text_template_of(step.own_label), step.words, step.label}


@pytest.mark.parametrize(
    ("item", "label", "names", "locations"),
    [
        (event(0, target={"tag": "h1", "name": "Invoices"}), "Click heading", ("Click Invoices",), ()),
        (
            event(0, target={"tag": "div", "attrs": {"aria-label": "Close", "title": "Close it", "id": "x"}}),
            "Click element",
            ("Click Close", "Click Close it"),
            (),
        ),
        (
            event(0, "type", target={"tag": "input", "text": "Ada", "near": "Director:"}),
            "Type into textbox",
            (),
            ("near Director",),
        ),
        (event(0, target={"tag": "a"}, title="Results"), "Click link", (), ("in Results",)),
        (event(0, target={"tag": "maria-kowalska"}), "Click element", (), ()),
        (
            event(0, "navigate", url="https://a.example/maria"),
            "Open page",
            ("Open a.example/maria", "Open a.example"),
            (),
        ),
        (event(0, target={"tag": "button", "name": "Room 42"}), "Click button", ("Click Room 42",), ()),
        (event(0, "tool_call", data={"name": "search_v2"}), "Call search_v2", (), ()),
        (
            event(0, "tool_call", data={"name": "search"}, target={"name": "Ada"}),
            "Call",
            ("Call Ada",),
            (),
        ),
    ],
)
def test_texts_of_a_page_are_candidates_beside_a_label_without_them(
    item: dict[str, Any], label: str, names: tuple[str, ...], locations: tuple[str, ...]
) -> None:
    step = steps_of(item)[0]
    assert (step.label, step.names, step.locations) == (label, names, locations)


def test_an_unknown_type_is_a_step_but_no_action() -> None:
    assert step_type("invoice.approved") == "invoice.approved"
    assert not is_action("invoice.approved")


def test_actions_are_what_people_and_agents_do() -> None:
    assert is_action("click") and is_action("tool_call")
    assert not any(is_action(type) for type in ("assert", "llm_call", "key_down", "error"))
    assert not any(is_action(name) for name in EVENT_TYPES if name.startswith(("pointer_", "key_")))


def test_a_session_without_events_has_no_steps() -> None:
    assert session_steps([], [frame(0, "a")]) == []
