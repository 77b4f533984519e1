"""Masked elements in pictures: painted over wherever they are in view, however many a page has."""

from typing import Any

import pytest

from recorder import Client
from tests.capture.test_captured_actions import recording_of
from tests.support.captured_pages import count_pixels, read_picture

STYLE = """<style>body { margin: 0 } [data-mask] { background: #f00; color: #f00 }
    #go { position: fixed; left: 700px; top: 0 } #go, #open { background: #00f }</style>
    <button id=go>Go</button>"""
LARGE = """<p id=wide></p><script>
    for (let at = 0; at < 30000; at += 1) wide.append(document.createElement("i"))</script>"""
ROWS = "".join(f"<tr><td data-mask>Person {number:03}</td></tr>" for number in range(150))
CELLS = "".join(
    "<b data-mask style='float: left; width: 20px; height: 20px; margin: 1px'></b>" for _ in range(150)
)
TABLE = f"<table style='font-size: 26px'>{ROWS}</table>"
SCROLLER = f"<div id=inner style='height: 300px; width: 300px; overflow: auto'>{TABLE}</div>"
DEEP = "<div>" * 450 + "<p data-mask>Person</p>"
SHADOW = """<div id=host></div><script>
    host.attachShadow({mode: "open"}).innerHTML = "<p data-mask style='background: red'>Person</p>"
    </script>"""
FIELD = """<input type=password style="background: #f00; color: #f00" value=opensesame>"""
INNER = "<style>p { background: #f00 }</style><p data-mask>Person</p>"
CONTENT = "<p style='background: #f00'>Person</p>"


@pytest.mark.parametrize(
    ("body", "script", "is_whole"),
    [
        (TABLE, "scrollTo(0, 1e6)", False),
        (SCROLLER, "inner.scrollTo(0, 1e6)", False),
        (CELLS, "", True),
        (f"{LARGE}<p data-mask>Person</p>", "", False),
        (f"{LARGE}{SHADOW}", "", False),
        (f"{LARGE}{FIELD}", "", False),
        (f'{LARGE}<iframe srcdoc="{INNER}"></iframe>', "", False),
        (DEEP, "", False),
        (f"<div data-mask style='display: contents'>{CONTENT}</div>", "", False),
        (f"<div data-mask style='height: 0'>{CONTENT}</div>", "", False),
        ("<div data-mask style='height: 0; overflow: hidden; margin-top: 9px'>Person</div>", "", False),
        (LARGE, "", False),
    ],
    ids=(
        "table",
        "scroller",
        "cells",
        "large",
        "shadow",
        "field",
        "frame",
        "deep",
        "contents",
        "overflow",
        "folded",
        "unmasked",
    ),
)
def test_no_picture_shows_a_masked_element(
    page: Any, client: Client, body: str, script: str, is_whole: bool
) -> None:
    with recording_of(page, client, f"<!doctype html><title>People</title>{STYLE}{body}") as recording:
        page.evaluate(script)
        # Two actions: a frame before each, and one after the first.
        page.click("#go")
        page.evaluate("document.title = 'Later'")
        page.click("#go")
    _, first, second = client.list_events(recording.id)
    assert first["frame_id"] != second["frame_id"]
    for frame in client.list_frames(recording.id):
        picture = read_picture(client, recording.id, frame["id"])
        assert picture.size == (800, 600)
        # Masked elements are red, and the button is blue.
        red, blue = count_pixels(picture)
        assert red == 0, frame
        assert (blue == 0) == is_whole, frame
        assert len(frame["masked_rects"] or ()) <= 100
