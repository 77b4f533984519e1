"""Messages of the page script, checked and bounded: they come from a process that runs strangers' pages."""

from dataclasses import dataclass
from typing import Any

from recorder.capture.page_reader import (
    PageReading,
    PageUnreadable,
    decode_page_json,
    parse_page_boxes,
    parse_page_reading,
)
from recorder.capture.secret_digests import SecretDigest, parse_secret_digests

#: Event types that the page script reports.
ACTION_TYPES = frozenset(
    ("click", "dblclick", "fill", "select", "check", "uncheck", "press", "upload", "drag")
)
_MAX_VALUES, _VALUE_CHARACTERS, _LIST_CHARACTERS, _KEY_CHARACTERS = 100, 10_000, 500, 40
_MAX_FRAMES = 10


@dataclass(frozen=True)
class PageScriptDrop:
    """The element on which a drag ended."""

    index: int
    rect: tuple[int, int, int, int]
    frame_path: tuple[int, ...]


@dataclass(frozen=True)
class PageScriptAction:
    """An action in a page, as the page script saw it."""

    type: str
    #: Milliseconds since 1970, by the browser's clock.
    time_ms: int
    #: Version of the reading that shows the page before the action.
    version: str
    #: Index of the element in that reading, or -1.
    index: int
    rect: tuple[int, int, int, int] | None
    #: Members of the event's `input`.
    given: dict[str, Any]
    #: The value is a secret; it stayed in the page.
    is_secret: bool
    frame_path: tuple[int, ...]
    #: The reading, unless the recorder has it already.
    reading: PageReading | None
    #: Of a drag, where the page before it has the element.
    drop: PageScriptDrop | None = None
    #: Of a double click: its first click was an action of its own, on the same element.
    continues_click: bool = False


@dataclass(frozen=True)
class PageScriptSettled:
    """The page is at rest after an action."""


@dataclass(frozen=True)
class PageScriptSecrets:
    """Digests of the values of a document's secret fields."""

    document: str
    digests: tuple[SecretDigest, ...]


@dataclass(frozen=True)
class PageScriptProblem:
    """The page script failed to handle an event of the DOM."""

    where: str


def parse_script_message(
    payload: object,
) -> PageScriptAction | PageScriptSettled | PageScriptSecrets | PageScriptProblem:
    """Return the message in a text of the page script.

    Raises:
        PageUnreadable: if it is none.
    """
    if not isinstance(payload, str):
        raise PageUnreadable("The page sent something else than a text.")
    message = decode_page_json(payload)
    if not isinstance(message, dict):
        raise PageUnreadable("The page sent something else than an object.")
    match message.get("kind"):
        case "settled":
            return PageScriptSettled()
        case "problem":
            return PageScriptProblem(str(message.get("where"))[:_KEY_CHARACTERS])
        case "event" | "secrets" as kind:
            parse = _parse_script_secrets if kind == "secrets" else _parse_script_action
            try:
                return parse(message)
            except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
                raise PageUnreadable("The page sent a message with other members.") from error
    raise PageUnreadable("The page sent a message of an unknown kind.")


def _parse_script_secrets(message: dict[str, Any]) -> PageScriptSecrets:
    document = str(message["document"])[:_KEY_CHARACTERS]
    return PageScriptSecrets(document, parse_secret_digests(message["digests"]))


def _parse_script_action(message: dict[str, Any]) -> PageScriptAction:
    if message["type"] not in ACTION_TYPES:
        raise ValueError("No action has this type.")
    given = message["input"]
    if not isinstance(given, dict):
        raise TypeError("The input of an action is an object.")
    rect, page, drop = message.get("rect"), message.get("page"), message.get("drop")
    return PageScriptAction(
        type=message["type"],
        time_ms=int(message["time"]),
        version=str(message["version"])[:100],
        index=int(message["index"]),
        rect=parse_page_boxes([rect])[0] if rect is not None else None,
        given=_parse_script_input(given),
        is_secret=bool(given.get("secret")),
        frame_path=_parse_script_frame_path(message["frames"]),
        reading=parse_page_reading(page) if page is not None else None,
        drop=None if drop is None else _parse_script_drop(drop),
        continues_click=message.get("again") is True,
    )


def _parse_script_drop(drop: dict[str, Any]) -> PageScriptDrop:
    return PageScriptDrop(
        int(drop["index"]), parse_page_boxes([drop["rect"]])[0], _parse_script_frame_path(drop["frames"])
    )


def _parse_script_frame_path(frames: list[Any]) -> tuple[int, ...]:
    return tuple(max(0, int(index)) for index in frames[:_MAX_FRAMES])


def _parse_script_input(given: dict[str, Any]) -> dict[str, Any]:
    """Return the members of `input`, each of its type and within its limit."""
    parsed: dict[str, Any] = {}
    if given.get("masked"):
        parsed |= {"value": None, "masked": True}
    elif isinstance(given.get("value"), str):
        parsed["value"] = given["value"][:_VALUE_CHARACTERS]
    elif isinstance(given.get("value"), list):
        parsed["value"] = [str(value)[:_LIST_CHARACTERS] for value in given["value"][:_MAX_VALUES]]
    if isinstance(given.get("files"), list):
        parsed["files"] = [str(name)[:_LIST_CHARACTERS] for name in given["files"][:_MAX_VALUES]]
    if isinstance(given.get("key"), str):
        parsed["key"] = given["key"][:_KEY_CHARACTERS]
    if "button" in given:
        parsed["button"] = min(4, max(0, int(given["button"])))
    if given.get("modifiers"):
        parsed["modifiers"] = int(given["modifiers"]) & 15
    for name in ("point", "to"):
        if name in given:
            left, top = given[name]
            parsed[name] = list(parse_page_boxes([[left, top, 0, 0]])[0][:2])
    return parsed
