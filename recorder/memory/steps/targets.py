"""ARIA roles: the one an element has, and which ones name a screen or a control. Spec §2.6."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from recorder.memory.steps.templates import normal_name, readable, template_of, url_template

_IMPLICIT = {
    "a": "link",
    "area": "link",
    "button": "button",
    "dialog": "dialog",
    "h1": "heading",
    "h2": "heading",
    "h3": "heading",
    "h4": "heading",
    "h5": "heading",
    "h6": "heading",
    "label": "label",
    "output": "status",
    "p": "paragraph",
    "select": "combobox",
    "summary": "button",
    "textarea": "textbox",
    "th": "columnheader",
}
_INPUT = {
    "button": "button",
    "checkbox": "checkbox",
    "hidden": "",
    "image": "button",
    "number": "spinbutton",
    "radio": "radio",
    "range": "slider",
    "reset": "button",
    "search": "searchbox",
    "submit": "button",
}
#: Roles whose elements a person fills in: their text is what was typed, never their name.
FIELD_ROLES = frozenset(["textbox", "searchbox", "combobox", "listbox", "spinbutton", "slider"])
#: Roles whose elements a person operates; what they are called belongs to the program.
CONTROL_ROLES = FIELD_ROLES | frozenset(
    ["button", "link", "checkbox", "radio", "switch", "tab", "menuitem", "menuitemcheckbox", "menuitemradio"]
)
#: Controls that programs repeat for every item of a list, and call by the item.
ITEM_ROLES = frozenset(["link", "checkbox", "radio", "switch", "menuitemcheckbox", "menuitemradio"])
#: Roles that make up what a screen says; cells and list items are data.
SCREEN_ROLES = CONTROL_ROLES | frozenset(
    ["title", "heading", "dialog", "alertdialog", "alert", "status", "label", "columnheader", "paragraph"]
)


def role_of(tag: str, attrs: Mapping[str, Any]) -> str:
    """The role an element states, if it is one that counts here, else the one its tag implies; may be empty.

    Args:
        tag: element name in lower case.
    """
    stated = attrs.get("role")
    if type(stated) is str:
        first = stated.lower().split(" ", 1)[0]
        if first in SCREEN_ROLES:
            return first
        if first in ("none", "presentation"):
            return ""
    if tag == "input":
        kind = attrs.get("type")
        return _INPUT.get(kind.lower(), "textbox") if type(kind) is str else "textbox"
    return _IMPLICIT.get(tag, "")


_TEST_IDS = ("data-testid", "data-test-id", "data-test", "data-qa", "data-cy", "automation_id")
#: Types whose object is the address they lead to.
_PLACES = frozenset(("navigate", "tab_open"))
_VERBS = {
    # A step of an event log is called what it is called there.
    "activity": "",
    "dblclick": "Double-click",
    "llm_call": "Ask",
    "navigate": "Open",
    "select": "Choose",
    "tool_call": "Call",
    "type": "Type into",
    "fill": "Fill",
    "click:2": "Right-click",
}
_LABEL_CHARACTERS = 80
_NO_MEMBERS: dict[str, Any] = {}


def action_token(step_type: str, given: Mapping[str, Any]) -> str:
    """The type, with the key of a press and the button of a click where it is not the first.

    Args:
        given: the event's `input`, or nothing.
    """
    if step_type == "press":
        key = readable(str(given.get("key") or ""))[:32].lower()
        return f"press:{given.get('modifiers') or 0}:{key}"
    if step_type == "click" and given.get("button"):
        return f"click:{given['button']}"
    return step_type


def target_token(action: str, event: Mapping[str, Any]) -> tuple[str, str]:
    """Token and label of what an event acted on.

    Args:
        action: as `action_token` gives it.
        event: the item.
    """
    if action in _PLACES and event.get("url"):
        token = url_template(event["url"])
        return token, _label(action, token)
    target = event.get("target") or _NO_MEMBERS
    attrs = target.get("attrs") or _NO_MEMBERS
    tag = (target.get("tag") or attrs.get("control_type") or "").lower()
    role = (target.get("role") or role_of(tag, attrs)).lower()
    identity = _identity(attrs)
    name = target.get("name") if role in CONTROL_ROLES else None
    if not (role or tag):
        name = target.get("name") or _given_name(action, event)
    elif "#" in identity and role in ITEM_ROLES:
        name = None
    if name and (not identity or "#" in identity):
        identity = f"{identity}~{normal_name(name)}"
    noun = template_of(readable(name)) if name else identity.partition("=")[2]
    identity = identity or _last_resort(target, attrs)
    return _token(role or tag, identity), _label(action, noun or role or tag)


def _given_name(action: str, event: Mapping[str, Any]) -> str | None:
    """What a tool, a model, a program or an event of one's own is called."""
    if action in ("window_focus", "tab_switch"):
        return (event.get("app") or _NO_MEMBERS).get("name")
    data = event.get("data")
    name = data.get("name") if type(data) is dict else None
    return name if type(name) is str else None


def _identity(attrs: Mapping[str, Any]) -> str:
    for attribute in _TEST_IDS:
        if attrs.get(attribute):
            return f"test={template_of(readable(attrs[attribute]))}"
    goal = f"href={url_template(attrs['href'])}" if attrs.get("href") else ""
    for attribute in ("id", "name"):
        if attrs.get(attribute):
            own = f"{attribute}={template_of(readable(attrs[attribute]))}"
            return f"{own} {goal}".strip() if "#" in own else own
    return goal


def _last_resort(target: Mapping[str, Any], attrs: Mapping[str, Any]) -> str:
    """Classes, else the best selector that does not go by text."""
    if attrs.get("class"):
        return "class=" + ".".join(sorted({template_of(readable(word)) for word in attrs["class"].split()}))
    for selector in target.get("selectors") or ():
        path = selector if type(selector) is str else " >> ".join(selector)
        if not path.startswith("text/"):
            return f"selector={template_of(readable(path[:256]))}"
    return ""


def _token(kind: str, identity: str) -> str:
    return readable(f"{kind[:64]} {identity}").strip()


def _label(action: str, noun: str) -> str:
    return _short_label(action, noun[: 4 * _LABEL_CHARACTERS])


@lru_cache(maxsize=16_384)
def _short_label(action: str, noun: str) -> str:
    verb = _VERBS.get(action)
    if verb is None:
        kind, _, detail = action.partition(":")
        verb = kind.replace("_", " ").replace(".", " ").capitalize()
        if kind == "press":
            verb = f"Press {detail.partition(':')[2]} in"
    if verb.endswith(" in") and not noun.strip():
        verb = verb.removesuffix(" in")
    return " ".join(f"{verb} {noun}".split())[:_LABEL_CHARACTERS]
