"""Screens of events. Spec §2.6, design §3 (state of an event)."""

import io
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from recorder.memory.steps.action_tokens import (
    make_action_target_token,
    normal_name,
    text_template_of,
    url_template,
)
from recorder.memory.steps.screens import (
    NO_SCREEN,
    FrameScreen,
    Screen,
    bind_screen_frames_to_events,
    describe_screen,
    event_screen,
    locate_elements_on_screen,
)
from recorder.sealing.frame_digests import read_cells_of_frame_picture


def dom(*body: Any) -> dict[str, Any]:
    """Return a snapshot with these elements in its body."""
    return {"v": 1, "format": "nodes", "html": ["html", {}, ["body", {}, *body]]}


def screen_of(snapshot: Any = None, **members: Any) -> Screen:
    """Return the screen of a frame with only these members."""
    return describe_screen(**{"dom": snapshot, "url": None, "title": None, "cells": None, **members})


def jaccard(first: Screen, other: Screen) -> float:
    """Return the similarity of two screens."""
    mine, theirs = set(first.features), set(other.features)
    return len(mine & theirs) / len(mine | theirs)


INVOICE = [
    "div",
    {"id": "invoice-1042", "class": "card open"},
    ["h1", {}, "Invoice 1042"],
    ["button", {}, "Pay"],
]


def test_text_and_numbers_do_not_change_a_state() -> None:
    other = ["div", {"id": "invoice-7", "class": "open card"}, ["h1", {}, "Rechnung"], ["button", {}, "Send"]]
    assert screen_of(dom(INVOICE)).state_key == screen_of(dom(other)).state_key
    assert screen_of(dom(INVOICE)).state_tokens != screen_of(dom(other)).state_tokens


def test_another_structure_is_another_state() -> None:
    dialog = ["dialog", {}, ["button", {}, "Confirm"]]
    plain, opened = screen_of(dom(INVOICE)), screen_of(dom(INVOICE, dialog))
    assert plain.state_key != opened.state_key
    assert 0 < jaccard(plain, opened) < 1


def test_what_is_hidden_is_not_on_the_screen() -> None:
    hidden = ["dialog", {"__h": True}, ["button", {}, "Confirm"]]
    script = ["script", {}, "track()"]
    assert screen_of(dom(INVOICE, hidden, script)) == screen_of(dom(INVOICE))


def test_tokens_are_roles_and_normal_names_in_order() -> None:
    fields = [
        ["label", {"for": "due"}, "Due date"],
        ["input", {"id": "due", "type": "text"}],
        ["input", {"type": "submit", "aria-label": "Pay $ 12.50"}],
        ["table", {}, ["tr", {}, ["th", {}, "Supplier"], ["td", {}, "Ada Lovelace"]]],
        ["p", {}, "Sent 2026-05-01 at 09:30, ref 3f2a77d0c1"],
    ]
    assert screen_of(dom(*fields)).state_tokens == (
        "button pay <money>",
        "columnheader supplier",
        "label due date",
        "paragraph sent <time> at <time>, ref <hex>",
        "textbox due date",
    )


@pytest.mark.parametrize(
    "unreadable",
    [
        {},
        {"format": "rrweb", "html": ["html"]},
        {"format": "nodes"},
        {"format": "nodes", "html": "<html>"},
        {"format": "nodes", "html": []},
        {"format": "nodes", "html": [[1, 2]]},
        {"format": "nodes", "html": ["html", {}, [[3, 17]]]},
        ["html"],
        "html",
    ],
)
def test_an_unreadable_snapshot_counts_as_none(unreadable: Any) -> None:
    assert screen_of(unreadable, url="https://a.example/x") == screen_of(url="https://a.example/x")


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=8)
        | st.sampled_from(["div", "p", "label"]),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["id", "class", "for", "role", "__h", "type"]), inner, max_size=3
            )
        ),
        max_leaves=30,
    )
)
def test_no_snapshot_raises(anything: Any) -> None:
    screen = screen_of({"v": 1, "format": "nodes", "html": ["html", {}, anything]})
    "\n".join(screen.state_tokens).encode()
    assert screen == screen_of({"v": 1, "format": "nodes", "html": ["html", {}, anything]})


def test_depth_is_no_matter() -> None:
    node: list[Any] = ["b", {}, "deep"]
    for _ in range(5_000):
        node = ["label", {}, node]
    assert screen_of(dom(node)).state_tokens == ("label", "label deep")


def test_a_large_page_keeps_a_sample_of_its_features() -> None:
    rows = [["i", {"class": "c" * (index // 26) + chr(97 + index % 26)}] for index in range(3_000)]
    assert len(screen_of(dom(*rows)).features) == 1_024


def test_without_snapshot_the_address_decides() -> None:
    first = screen_of(url="https://erp.example/invoices/1042?page=2#top", title="Invoice 1042")
    other = screen_of(url="https://erp.example/invoices/77?page=9", title="Invoice 77", cells=bytes(72))
    elsewhere = screen_of(url="https://erp.example/suppliers/77?page=9", title="Invoice 77")
    assert first == other
    assert first.state_key != elsewhere.state_key


def test_without_address_the_picture_decides() -> None:
    shades = [25 * (index % 9 // 3) + 60 * (index // 18) for index in range(72)]
    noisy = bytes(shade + index % 3 for index, shade in enumerate(shades))
    shown, other = screen_of(cells=bytes(shades)), screen_of(cells=bytes(reversed(shades)))
    assert screen_of(cells=noisy).state_key == shown.state_key
    assert jaccard(shown, other) < 0.6
    assert (
        screen_of(cells=bytes(72)).state_key
        == screen_of(cells=bytes([200]) * 72).state_key
        != shown.state_key
    )


def _draw_screen(*boxes: tuple[int, int, int, int]) -> Image.Image:
    picture = Image.new("RGB", (1280, 720), (240, 240, 240))
    pen = ImageDraw.Draw(picture)
    for number, box in enumerate(boxes):
        pen.rectangle(box, fill=(30 + 40 * number, 60, 120))
    return picture


def _read_picture(picture: Image.Image, form: str = "PNG", **options: Any) -> Screen:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return screen_of(cells=read_cells_of_frame_picture(file.getvalue()))


def test_pictures_alike_are_one_screen_and_others_are_not() -> None:
    picture = _draw_screen((0, 0, 1279, 60), (0, 61, 260, 719), (500, 200, 1000, 420))
    first = _read_picture(picture)
    clock = picture.copy()
    ImageDraw.Draw(clock).rectangle((1100, 640, 1270, 700), fill=(20, 20, 20))
    alike = [
        _read_picture(picture, "JPEG", quality=60),
        _read_picture(picture, "WEBP", quality=60),
        _read_picture(picture.resize((1024, 576))),
        _read_picture(picture.point([min(255, shade + 6) for shade in range(256)] * 3)),
        _read_picture(clock),
    ]
    assert [round(jaccard(first, screen), 2) for screen in alike if jaccard(first, screen) < 0.6] == []
    other = _read_picture(_draw_screen((100, 300, 600, 719), (700, 40, 1200, 300)))
    assert jaccard(first, other) < 0.3
    assert first.state_key is not None and first.state_key.startswith("s1:g2")


@pytest.mark.parametrize(
    ("tokens", "locations"),
    [
        (("button pay", "heading invoice <n>"), ("in invoice #", "on page with pay")),
        (("button cancel", "button pay", "dialog payment"), ("in payment",)),
        (("button <n>", "link next"), ()),
        ((), ()),
    ],
)
def test_elements_are_in_the_heading_or_on_the_page_with_its_only_button(
    tokens: tuple[str, ...], locations: tuple[str, ...]
) -> None:
    assert locate_elements_on_screen(tokens) == locations


def test_without_anything_there_is_no_state() -> None:
    assert screen_of() == NO_SCREEN


def test_the_clients_own_state_key_comes_first() -> None:
    frame = screen_of(dom(INVOICE))
    client_screen = event_screen({"state_key": "cart", "url": "https://a.example"}, frame)
    assert client_screen == event_screen({"state_key": "cart"}, None)
    assert client_screen.state_key != frame.state_key
    assert "cart" not in str(client_screen)


def test_then_the_frame_and_then_the_address() -> None:
    frame, event = screen_of(dom(INVOICE)), {"url": "https://a.example/x", "title": "X"}
    assert event_screen(event, frame) == frame
    assert event_screen(event, NO_SCREEN) == event_screen(event, None) == screen_of(**event)


def test_an_event_is_bound_to_the_frame_it_names_else_to_the_last_before_it() -> None:
    frames = [FrameScreen(100, "frm_a", NO_SCREEN), FrameScreen(200, "frm_b", NO_SCREEN)]
    events = [(50, None), (100, None), (199, None), (500, "frm_a"), (500, "frm_of_nobody")]
    bound = bind_screen_frames_to_events(events, [(frame.t_ms, frame.frame_id) for frame in frames])
    assert bound == [None, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("url", "template"),
    [
        ("https://ada:secret@ERP.example:8443/Invoices/1042/", "erp.example:#/Invoices/#"),
        ("https://a.example/s?q=ada&page=2&q=x", "a.example/s?page&q"),
        ("https://a.example/#/users/6f9619ff-8b86-d011-b42d-00c04fc964ff?x=1", "a.example#/users/#"),
        ("https://a.example/doc/01k8zq5h3v9x2m7c4n6b8p0r1s/edit#heading", "a.example/doc/#/edit"),
        ("/orders/12", "/orders/#"),
        ("data:text/html,<p>Ada</p>", "data:"),
        ("about:blank", "about:"),
    ],
)
def test_an_address_becomes_a_template(url: str, template: str) -> None:
    assert url_template(url) == template


def test_words_stay_and_what_varies_goes() -> None:
    assert text_template_of("cafe-decade deadbeef01 2026-05-01T09:30:00Z v2") == "cafe-decade # # v#"
    assert normal_name("  Total:\n€ 1.204,50  (3 of 12) ") == "total: <money> (<n> of <n>)"
    assert normal_name("\ud800" * 3) == "???"


def test_an_element_has_the_same_token_and_texts_wherever_it_is_shown() -> None:
    event = {"target": {"role": "button", "name": "Save", "rect": [1, 2, 3, 4]}, "title": "Orders", "t_ms": 1}
    moved = {"target": {"role": "button", "name": "Save", "rect": [9, 9, 3, 4]}, "title": "Orders", "t_ms": 2}
    assert make_action_target_token("click", event) == make_action_target_token("click", moved)
    assert make_action_target_token("click", {**event, "title": "Users"})[1].locations == ("in Users",)
    assert make_action_target_token("click", event, ["in Invoices"])[1].locations == ("in Invoices",)
    assert (
        make_action_target_token("fill", event)[1].label != make_action_target_token("click", event)[1].label
    )
    half = {"target": {"role": "button", "name": "Save \ud800"}, "title": "Orders"}
    assert make_action_target_token("click", half) == make_action_target_token("click", half)
    assert make_action_target_token("click", half)[0] == "button ~save ?"


def test_long_names_and_addresses_are_not_remembered() -> None:
    tracemalloc.start()
    try:
        for number in range(300):
            long = f"{number} " + "x" * 60_000
            event = {
                "type": "click",
                "url": f"https://a.example/{long}",
                "title": long,
                "data": {"name": long},
            }
            event_screen(event, None)
            make_action_target_token("click", event)
            make_action_target_token("click", {**event, "target": {"role": "button", "name": "Save"}})
            make_action_target_token(
                "click", {**event, "target": {"role": "button", "name": long}, "title": "Orders"}
            )
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 2_000_000
