"""Format of MiniWoB++ files: gzip JSON decoded, checked, and its actions turned into event members.

Design §2 (importers).
"""

import gzip
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from recorder.importers.upload import UnreadableRecording

SUFFIXES = (".json.gz", ".json")
# The largest known demonstration has some 40 MB; a small file that claims to hold far more is not one.
_MOST_BYTES = 1024 * 1024 * 1024

#: Pixels and milliseconds that can be meant; anything beyond is no demonstration.
Pixels = Annotated[float, msgspec.Meta(ge=-1e6, le=1e6)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class PageElement(msgspec.Struct):
    """An element of a page: its box, its colours, its text and its children.

    `classes` and `id` of SVG elements come as objects; `tag` names the kind of an input (`INPUT_text`), and
    the tag `t` denotes a text node.
    """

    tag: str
    left: Pixels = 0.0
    top: Pixels = 0.0
    width: Pixels = 0.0
    height: Pixels = 0.0
    id: str | dict[str, Any] | None = ""
    classes: str | dict[str, Any] | None = ""
    text: str | None = None
    value: str | bool | float | None = None
    bg: str | None = msgspec.field(name="bgColor", default=None)
    fg: str | None = msgspec.field(name="fgColor", default=None)
    focused: bool = False
    is_target: bool = msgspec.field(name="recordingTarget", default=False)
    children: list["PageElement"] | None = None


class DemonstrationAction(msgspec.Struct, frozen=True):
    """Action of the person; `timing` 1 is before the page handled it, 3 after."""

    type: str
    x: Pixels | None = None
    y: Pixels | None = None
    key_code: int | None = msgspec.field(name="keyCode", default=None)
    char_code: int | None = msgspec.field(name="charCode", default=None)
    timing: int | None = None

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for the two halves of one action."""
        return self.type, self.x, self.y, self.key_code, self.char_code


class DemonstrationState(msgspec.Struct):
    """The page at one moment, and the action seen at it."""

    time: Milliseconds
    dom: PageElement
    action: DemonstrationAction | None = None


class Demonstration(msgspec.Struct):
    """A whole file."""

    utterance: str
    raw_reward: int | float = msgspec.field(name="rawReward")
    states: list[DemonstrationState]
    reward: int | float | None = None


_decoder = msgspec.json.Decoder(Demonstration)


def read_demonstration_file(path: Path) -> tuple[Demonstration, bytes]:
    """Return a demonstration and the bytes of its file's content.

    Raises:
        UnreadableRecording: if the file is cut off, is no gzip, no JSON, or not of this shape.
    """
    content = _read_demonstration_file(path)
    try:
        return _decoder.decode(content), content
    except msgspec.ValidationError as error:
        raise UnreadableRecording(f"not a demonstration: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UnreadableRecording("not JSON, or cut off") from error
    except RecursionError as error:
        raise UnreadableRecording("nested too deep") from error


def _read_demonstration_file(path: Path) -> bytes:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except EOFError as error:
        raise UnreadableRecording("the gzip data is cut off") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UnreadableRecording("not gzip data, or damaged") from error
    except OSError as error:
        raise UnreadableRecording(f"cannot be opened ({type(error).__name__})") from error
    if len(content) > _MOST_BYTES:
        raise UnreadableRecording(f"holds more than {_MOST_BYTES} bytes")
    return content


#: DOM event types as the service names them; anything else keeps its own name.
_TYPES = {
    "mousedown": "pointer_down", "mouseup": "pointer_up", "mousemove": "pointer_move",
    "keydown": "key_down", "keyup": "key_up", "keypress": "key_press", "wheel": "scroll",
}  # fmt: skip
_NAMED_KEYS = {
    8: "Backspace", 9: "Tab", 12: "Clear", 13: "Enter", 16: "Shift", 17: "Control", 18: "Alt", 19: "Pause",
    20: "CapsLock", 27: "Escape", 32: " ", 33: "PageUp", 34: "PageDown", 35: "End", 36: "Home",
    37: "ArrowLeft", 38: "ArrowUp", 39: "ArrowRight", 40: "ArrowDown", 45: "Insert", 46: "Delete",
    91: "Meta", 92: "Meta", 93: "ContextMenu", 106: "*", 107: "+", 109: "-", 110: ".", 111: "/",
    144: "NumLock", 145: "ScrollLock",
    173: "-", 186: ";", 187: "=", 188: ",", 189: "-", 190: ".", 191: "/", 192: "`", 219: "[", 220: "\\",
    221: "]", 222: "'", 224: "Meta", 225: "AltGraph", 229: "Process",
}  # fmt: skip
#: Bits of `input.modifiers`; contract §3 takes them from Playwright.
_BITS = {"Alt": 1, "Control": 2, "Meta": 4, "Shift": 8}
_CHORD = _BITS["Alt"] | _BITS["Control"] | _BITS["Meta"]
#: Keys that do something by themselves; other keys edit text and are folded into what was typed.
_COMMANDS = {"Enter", "Tab", "Escape"} | {f"F{n}" for n in range(1, 13)}
_TYPE = re.compile(r"[a-z][a-z0-9_.]{0,63}", re.ASCII)


@dataclass(frozen=True)
class SeenAction:
    """One action and the index of the state it was first seen at (before the page handled it)."""

    index: int
    action: DemonstrationAction


def join_demonstration_action_halves(states: list[DemonstrationState]) -> list[SeenAction]:
    """Return every action once: a timing-3 half joins its timing-1 half; a lone half counts by itself.

    Halves of nested actions (a click that causes a click) may follow each other as 1 1 3 3.
    """
    seen: list[SeenAction] = []
    open_halves: list[tuple[Any, ...]] = []
    last_timing: int | None = None
    for index, state in enumerate(states):
        action = state.action
        if action is None:
            continue
        if action.timing == 3 and action.identity in open_halves:
            open_halves.remove(action.identity)
        else:
            if action.timing == 1:
                # Once a nest has begun to close, an older half in it has lost its other one.
                open_halves = [*open_halves, action.identity] if last_timing == 1 else [action.identity]
            seen.append(SeenAction(index, action))
        last_timing = action.timing
    return seen


def convert_action(seen: list[SeenAction]) -> Iterator[dict[str, Any]]:
    """Yield the members `type` and `input` of each action's event; keys that are held down are tracked."""
    held = 0
    for n, first in enumerate(seen):
        action = first.action
        if action.type in ("keydown", "keyup", "keypress"):
            typed = _find_typed_character(seen, n)
            members, held = _make_key_event(action, typed, held)
            yield members
        else:
            yield _make_pointer_event(action, held)


def _find_typed_character(seen: list[SeenAction], n: int) -> str | None:
    """Return the character of this key: its own, or that of the keypress which follows a keydown."""
    action = seen[n].action
    if action.type == "keydown" and n + 1 < len(seen) and seen[n + 1].action.type == "keypress":
        action = seen[n + 1].action
    code = action.char_code or (action.key_code if action.type == "keypress" else 0) or 0
    return chr(code) if 32 <= code < 0xD800 or 0xE000 <= code < 0x110000 else None


def _make_key_event(action: DemonstrationAction, typed: str | None, held: int) -> tuple[dict[str, Any], int]:
    key = typed or find_key_name(action.key_code)
    bit = _BITS.get(key or "", 0)
    if action.type == "keydown" and not typed:
        held |= bit
    elif action.type == "keyup":
        held &= ~bit
    elif typed:
        # Text came out, so no chord is held: the release of a key outside the page was not seen.
        held &= ~_CHORD
    kind = _TYPES[action.type]
    is_chord = held & _CHORD and not bit
    if action.type == "keydown" and (key in _COMMANDS or (is_chord and key)) and not typed:
        kind = "press"
    given: dict[str, Any] = {"key": key} if key else {}
    if held & ~bit:
        given["modifiers"] = held & ~bit
    members: dict[str, Any] = {"type": kind}
    if given:
        members["input"] = given
    if not key and action.key_code is not None:
        members["data"] = {"key_code": action.key_code}
    return members, held


def _make_pointer_event(action: DemonstrationAction, held: int) -> dict[str, Any]:
    given: dict[str, Any] = {}
    if action.x is not None and action.y is not None:
        given["point"] = [action.x, action.y]
    if held:
        given["modifiers"] = held
    members: dict[str, Any] = {"type": _map_event_type(action.type)}
    return {**members, "input": given} if given else members


def _map_event_type(dom_type: str) -> str:
    """Return the event type of the service for the type of a DOM event."""
    known = _TYPES.get(dom_type, dom_type)
    if _TYPE.fullmatch(known):
        return known
    return re.sub(r"[^a-z0-9_.]", "_", f"dom.{known.lower()}")[:64]


def find_key_name(key_code: int | None) -> str | None:
    """Return the `KeyboardEvent.key` of a legacy code; None for a code without one."""
    if key_code is None:
        return None
    if 48 <= key_code <= 57 or 65 <= key_code <= 90:
        return chr(key_code).lower()
    if 96 <= key_code <= 105:
        return str(key_code - 96)
    if 112 <= key_code <= 123:
        return f"F{key_code - 111}"
    return _NAMED_KEYS.get(key_code)
