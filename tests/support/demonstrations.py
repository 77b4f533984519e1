"""Demonstration files for tests: made-up ones, and the real ones where the shared data is present."""

import gzip
from pathlib import Path
from typing import Any

import orjson
import pytest

REAL = Path(__file__).parents[2].parent / "shared" / "data" / "miniwob"
needs_real = pytest.mark.skipif(not REAL.is_dir(), reason="../shared/data/miniwob is absent")


def page(*children: dict[str, Any], focused: bool = False) -> dict[str, Any]:
    """Return a page with the task's frame and these elements in it."""
    wrap = element("DIV", (0, 0, 160, 210), *children, id="wrap")
    return {**element("BODY", (0, 0, 1200, 210), wrap), "focused": focused}


def element(
    tag: str, box: tuple[float, float, float, float], *children: dict[str, Any], **members: Any
) -> dict[str, Any]:
    """Return an element as the files have it."""
    left, top, width, height = box
    given = {"tag": tag, "left": left, "top": top, "width": width, "height": height, "ref": 1}
    colours = {"bgColor": "rgba(0, 0, 0, 0)", "fgColor": "rgb(0, 0, 0)"}
    return {**given, "id": "", "classes": "", **colours, **members, "children": list(children)}


def button(text: str = "Submit", **members: Any) -> dict[str, Any]:
    """Return a grey button in the task's area."""
    grey = {"bgColor": "rgb(221, 221, 221)", **members}
    return element("BUTTON", (20, 100, 90, 30), id="subbtn", text=text, **grey)


def text_field(value: str = "", **members: Any) -> dict[str, Any]:
    """Return a text field in the task's area."""
    return element("INPUT_text", (10, 60, 120, 20), id="tt", value=value, text="", **members)


def state(time: int, dom: dict[str, Any], action: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return one state of a demonstration."""
    return {"time": time, "dom": dom, "action": action}


def mouse(kind: str, timing: int, x: int = 40, y: int = 110) -> dict[str, Any]:
    """Return one half of a mouse action."""
    return {"type": kind, "x": x, "y": y, "timing": timing}


def key(kind: str, timing: int, code: int, char: int = 0) -> dict[str, Any]:
    """Return one half of a key action."""
    return {"type": kind, "keyCode": code, "charCode": char, "timing": timing}


def write_demonstration(
    folder: Path,
    states: list[dict[str, Any]],
    *,
    task: str = "click-test.2",
    name: str = "000",
    reward: float = 1,
) -> Path:
    """Return a demonstration file in its task's folder."""
    body = {"utterance": "Click the button.", "rawReward": reward, "reward": 0.5, "states": states}
    path = folder / task / f"{name}.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(orjson.dumps(body)))
    return path


def click_states() -> list[dict[str, Any]]:
    """Return a page, and one click on its button that changes it."""
    target = page(button(recordingTarget=True))
    return [
        state(0, page(button())),
        *(state(900, target, mouse("mousedown", timing)) for timing in (1, 3)),
        *(state(980, target, mouse("mouseup", timing)) for timing in (1, 3)),
        state(981, target, mouse("click", 1)),
        state(983, page(button("Done", recordingTarget=True)), mouse("click", 3)),
    ]
