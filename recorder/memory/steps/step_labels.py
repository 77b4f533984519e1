"""Labels of steps: a verb and a noun that a person reads. Spec §2.6.

A label made of the action and the kind of element alone is shown for every node. Texts of the recorded page
(names, locations, words of ids) are candidates: `graph.node_labels` decides which of them sessions share.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

#: Attributes that tests find an element by.
TEST_IDS = ("data-testid", "data-test-id", "data-test", "data-qa", "data-cy", "automation_id")
#: Attributes whose words can describe an element, the best first.
LABEL_ATTRIBUTES = (*TEST_IDS, "id", "name", "href", "class")
#: Attributes that hold a name for people, the best first.
NAME_ATTRIBUTES = ("aria-label", "title", "label", "placeholder", "alt")
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
_LOCATION_CHARACTERS = 40
#: Other words for elements without a role; of the rest the tag is shown.
_KINDS = {
    "body": "page",
    "div": "element",
    "span": "element",
    "html": "page",
    "img": "image",
    "li": "list item",
    "listitem": "list item",
    "td": "cell",
    "tr": "row",
    "": "",
}
#: Kinds that are shown as they are. Any other role or tag is text of the page, which may quote a person.
_KNOWN_KINDS = frozenset((
    "address", "alert", "alertdialog", "article", "aside", "audio", "banner", "blockquote", "button",
    "canvas", "caption", "cell", "checkbox", "circle", "code", "columnheader", "combobox",
    "complementary", "contentinfo", "data", "dataitem", "details", "dialog", "document", "edit",
    "ellipse", "em", "fieldset", "figcaption", "figure", "footer", "form", "g", "grid", "gridcell",
    "group", "header", "heading", "hyperlink", "iframe", "image", "input", "label", "legend", "line",
    "link", "list", "listbox", "log", "main", "map", "mark", "marquee", "math", "menu", "menubar",
    "menuitem", "menuitemcheckbox", "menuitemradio", "meter", "nav", "navigation", "note", "object",
    "option", "output", "pane", "paragraph", "path", "picture", "polygon", "polyline", "pre",
    "progress", "progressbar", "radio", "radiobutton", "radiogroup", "rect", "region", "row",
    "rowgroup", "rowheader", "scrollbar", "search", "searchbox", "section", "select", "separator",
    "slider", "spinbutton", "spinner", "splitbutton", "status", "statusbar", "strong", "summary", "svg",
    "switch", "symbol", "tab", "tabitem", "table", "tablist", "tabpanel", "tbody", "term", "text",
    "textarea", "textbox", "tfoot", "thead", "thumb", "time", "timer", "title", "titlebar", "toolbar",
    "tooltip", "tree", "treegrid", "treeitem", "tspan", "ul", "use", "video", "window",
))  # fmt: skip
_WORD_ENDS = re.compile(r"[\W\d_]+|(?<=[a-z])(?=[A-Z])")
#: Beside a number a word of fewer letters says nothing, such as those of `ui-id-7`.
_WORD_LETTERS = 3


def make_step_label(action: str, noun: str) -> str:
    """Return the label of an action on something.

    Args:
        action: as `action_tokens` gives it.
        noun: name or description of the object; may be empty.
    """
    return _make_label(action, noun[: 4 * _LABEL_CHARACTERS])


@lru_cache(maxsize=16_384)
def _make_label(action: str, noun: str) -> str:
    """Return the label of a step, such as "Click Save", from its action and the name of its element."""
    verb = _VERBS.get(action)
    if verb is None:
        kind, _, detail = action.partition(":")
        verb = kind.replace("_", " ").replace(".", " ").capitalize()
        if kind == "press":
            verb = f"Press {detail.partition(':')[2]} in"
    if verb.endswith(" in") and not noun.strip():
        verb = verb.removesuffix(" in")
    # The name of an activity is its whole label; without one it is called by its type.
    return " ".join(f"{verb} {noun}".split())[:_LABEL_CHARACTERS] or action.capitalize()


class StepTexts(NamedTuple):
    """Texts for the label of a step.

    Attributes:
        label: action and kind of element, or the name of an activity or tool: needs no other session.
        names: labels by the name of the element, the best first; texts of the page.
        locations: where the element is, such as `near Total` and `in results`; texts of the page, one of each
            preposition.
        words: label by words that the program wrote, such as those of an id; may be empty.
    """

    label: str
    names: tuple[str, ...] = ()
    locations: tuple[str, ...] = ()
    words: str = ""


def name_element_kind_in_step_label(role: str, tag: str) -> str:
    """Return the word for a kind of element; one that is not known is an `element`."""
    kind = role or tag
    if kind in _KINDS:
        return _KINDS[kind]
    return kind if kind in _KNOWN_KINDS else "element"


def describe_name_in_step_label(name: str, kind: str) -> str:
    """Return a name as a noun; one without letters is followed by the kind of element."""
    if any(character.isalpha() for character in name) or not kind:
        return name
    return f"{name} {kind}"


def describe_location(preposition: str, *, text: str) -> str:
    """Return the words that follow a label to say where; empty without letters."""
    words = " ".join(text[: 4 * _LOCATION_CHARACTERS].split()).rstrip(" :*")
    if not any(character.isalpha() for character in words):
        return ""
    return f"{preposition} {words}"[:_LOCATION_CHARACTERS]


def describe_words_in_step_label(kind: str, attrs: Mapping[str, str]) -> str:
    """Return words that a program wrote about an element, followed by its kind if it has one; may be empty.

    Args:
        kind: kind of the element.
        attrs: those of `LABEL_ATTRIBUTES` that it has, as templates.
    """
    for attribute in LABEL_ATTRIBUTES:
        text = attrs.get(attribute, "")
        if attribute == "href":
            path = text.partition("://")[2].partition("/")[2] if "://" in text else text
            text = path.partition("?")[0]
        elif attribute == "class":
            # The longest says the most, as of `ui-icon ui-icon-closethick`.
            text = max(text.split(), key=len, default="")
        words = _split_identifier(text)
        if words:
            return words if kind == "element" or kind in words.split() else f"{words} {kind}"
    return ""


@lru_cache(maxsize=16_384)
def _split_identifier(text: str) -> str:
    """Return the words of an identifier in lower case; empty if they only name a number, as in `ui-id-#`."""
    words = list(dict.fromkeys(word.lower() for word in _WORD_ENDS.split(text) if word))
    if "#" in text and max(map(len, words), default=0) < _WORD_LETTERS:
        return ""
    return " ".join(words)
