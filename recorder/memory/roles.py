"""ARIA roles: the one an element has, and which ones name a screen or a control. Spec §2.6."""

from collections.abc import Mapping
from typing import Any

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
