"""Tokens of actions and of the elements they act on: templates without varying texts, and 64-bit keys.

Spec §2.6.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import orjson
import xxhash

from recorder.memory.steps.step_labels import (
    LABEL_ATTRIBUTES,
    NAME_ATTRIBUTES,
    TEST_IDS,
    StepTexts,
    describe_location,
    describe_name_in_step_label,
    describe_words_in_step_label,
    make_step_label,
    name_element_kind_in_step_label,
)

_DIGIT = re.compile(r"\d")
# Possessive quantifiers: no input can make these backtrack.
_RANDOM = (
    r"(?<![0-9a-z])(?:"
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?=[a-f]*[0-9])[0-9a-f]{8,}+"
    r"|(?=[0-9a-z]{10})(?:[a-z]*+[0-9]++){2,}+[a-z]*+"
    r")(?![0-9a-z])"
)
_ISO_TIME = r"\d{4}-\d{2}-\d{2}(?:[t ]\d{2}:\d{2}(?::\d{2}(?:\.\d{1,9})?)?(?:z|[+-]\d{2}:?\d{2})?)?"
_VOLATILE = re.compile(rf"{_ISO_TIME}|{_RANDOM}|\d+", re.IGNORECASE)
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}\.?"
_NAME_PARTS = re.compile(
    rf"(?P<time>{_ISO_TIME}|\d{{1,2}}:\d{{2}}(?::\d{{2}})?(?: ?[ap]m\b)?"
    rf"|\d{{1,2}}[./-]\d{{1,2}}[./-]\d{{2,4}}|\d{{1,2}} {_MONTH} \d{{4}}|{_MONTH} \d{{1,2}}, \d{{4}})"
    r"|(?P<money>[$€£¥] ?\d[\d.,]*|\d[\d.,]*+ ?(?:[$€£¥]|(?:usd|eur|gbp|chf|jpy)\b))"
    rf"|(?P<hex>{_RANDOM})"
    r"|(?P<n>\d+(?:[.,]\d+)*)"
)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.\-]*:")
_NAME_CHARACTERS = 80
_URL_CHARACTERS = 256
#: Names of an element that are candidates for its label.
_NAMES = 2


def text_template_of(text: str) -> str:
    """Return the text with every number, date, UUID and random id replaced by `#`."""
    return _VOLATILE.sub("#", text) if _DIGIT.search(text) else text


def normal_name(text: str) -> str:
    """Return a name in lower case, ≤ 80 characters, with `<time> <money> <hex> <n>` for what varies."""
    return _shorten_normal_name(text[: 4 * _NAME_CHARACTERS])


def _shorten_exact_name(text: str) -> str:
    """Return a name with what varies in it; of a longer one 80 characters and a digest."""
    words = " ".join(make_action_text_storable(text).split())
    if len(words) <= _NAME_CHARACTERS:
        return words
    return f"{words[:_NAME_CHARACTERS]}~{hash_texts(words)}"


@lru_cache(maxsize=65_536)
def _shorten_normal_name(text: str) -> str:
    words = " ".join(make_action_text_storable(text).lower().split())
    if _DIGIT.search(words):
        words = _NAME_PARTS.sub(lambda match: f"<{match.lastgroup}>", words)
    return words[:_NAME_CHARACTERS]


def url_template(url: str) -> str:
    """Return host and path without what varies, the names of the query's parameters, and a hash route.

    Credentials, parameter values and other fragments are left out; of `data:` and its like only the scheme
    stays.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        opaque = _SCHEME.match(url)
        if opaque:
            return opaque[0].lower()
        rest = scheme
    rest, _, fragment = rest.partition("#")
    rest, _, query = rest.partition("?")
    if separator:
        host, slash, path = rest.partition("/")
        rest = host.rpartition("@")[2].lower() + slash + path
    route = fragment.partition("?")[0] if fragment.startswith(("/", "!")) else ""
    names = sorted({part.partition("=")[0] for part in query.split("&")} - {""}) if query else ()
    text = rest.rstrip("/") + ("?" + "&".join(names) if names else "") + ("#" + route if route else "")
    return make_action_text_storable(text_template_of(text[: 4 * _URL_CHARACTERS]))[:_URL_CHARACTERS]


def make_action_text_storable(text: str) -> str:
    """Return the text as valid UTF-8: halves of surrogate pairs and NULs, which stores refuse, become `?`."""
    if text.isascii():
        return text.replace("\0", "?")
    return text.encode("utf-8", "replace").decode().replace("\0", "?")


def hash_texts(*parts: str) -> int:
    """Return a signed 64-bit key of some texts, the same on every machine (xxh64)."""
    digest = xxhash.xxh64_intdigest("\0".join(parts).encode("utf-8", "replace"))
    return make_signed_key(digest)


def make_signed_key(value: int) -> int:
    """Return an unsigned 64-bit number as the signed one that databases store."""
    return value - 2**64 if value >= 2**63 else value


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


def find_acted_role(tag: str, attrs: Mapping[str, Any]) -> str:
    """Return the role an element states, if it counts here, else the one its tag implies; may be empty.

    Args:
        tag: element name in lower case.
        attrs: the element's attributes.
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


#: Types whose object is the address they lead to.
_ADDRESS_ACTIONS = frozenset(("navigate", "tab_open"))
#: Actions whose object has a name given by a program, not by a page.
NAMED_ACTIONS = frozenset(("activity", "tool_call"))
_NO_MEMBERS: dict[str, Any] = {}
#: Members of a target that its token and texts are made of.
_TARGET_MEMBERS = ("role", "tag", "name", "text", "near", "attrs", "selectors")
#: A larger target is described again each time it occurs.
_REMEMBERED_BYTES = 2_048


def action_token(step_type: str, given: Mapping[str, Any]) -> str:
    """Return the type, with the key of a press and the button of a click where it is not the first.

    Args:
        step_type: type of the step.
        given: the event's `input`, or nothing.
    """
    if step_type == "press":
        key = make_action_text_storable(str(given.get("key") or ""))[:32].lower()
        return f"press:{given.get('modifiers') or 0}:{key}"
    if step_type == "click" and given.get("button"):
        return f"click:{given['button']}"
    return step_type


def make_action_target_token(
    action: str, event: Mapping[str, Any], screen_locations: Sequence[str] = ()
) -> tuple[str, StepTexts]:
    """Return the token of what an event acted on, and the texts that may name the step.

    Args:
        action: as `action_token` gives it.
        event: the item.
        screen_locations: as `locate_elements_on_screen` gives them.
    """
    if action in _ADDRESS_ACTIONS and event.get("url"):
        token = url_template(event["url"])
        host = token.partition("/")[0].partition("?")[0]
        names = dict.fromkeys(make_step_label(action, noun) for noun in (token, host))
        return token, StepTexts(make_step_label(action, "page"), names=tuple(names))
    target = event.get("target") or _NO_MEMBERS
    is_named_elsewhere = event.get("app") or event.get("data")
    if target.get("role") or target.get("tag") or not is_named_elsewhere:
        # Elements occur many times, in one session and in others that do the same work.
        given = [*(target.get(name) for name in _TARGET_MEMBERS), event.get("title"), screen_locations]
        try:
            packed = orjson.dumps(given)
        except TypeError:  # halves of surrogate pairs
            packed = b""
        if 0 < len(packed) <= _REMEMBERED_BYTES:
            return _describe_acted_element(action, packed)
    return _describe_step_target(action, event, target, screen_locations)


@lru_cache(maxsize=8_192)
def _describe_acted_element(action: str, packed: bytes) -> tuple[str, StepTexts]:
    """Return token and texts of an element that the program and the event's data do not name."""
    *members, title, screen_locations = orjson.loads(packed)
    target = dict(zip(_TARGET_MEMBERS, members, strict=True))
    return _describe_step_target(action, {"title": title}, target, screen_locations)


def _describe_step_target(
    action: str, event: Mapping[str, Any], target: Mapping[str, Any], screen_locations: Sequence[str]
) -> tuple[str, StepTexts]:
    attrs = target.get("attrs") or _NO_MEMBERS
    tag = (target.get("tag") or attrs.get("control_type") or "").lower()
    role = (target.get("role") or find_acted_role(tag, attrs)).lower()
    identity = _describe_element_identity(attrs)
    name = target.get("name") if role in CONTROL_ROLES else None
    given_name = None
    if not (role or tag):
        given_name = None if target.get("name") else _find_name_given_by_action(action, event)
        name = target.get("name") or given_name
    elif "#" in identity and role in ITEM_ROLES:
        name = None
    is_program_name = given_name is not None and action in NAMED_ACTIONS
    if name and (not identity or "#" in identity):
        # Numbers of a page vary from run to run; those of a program are part of its names.
        is_numbered = is_program_name and _DIGIT.search(name)
        identity = f"{identity}~{_shorten_exact_name(name) if is_numbered else normal_name(name)}"
    identity = identity or _describe_class_or_selector(target, attrs)
    token = _make_acted_element_token(role or tag, identity)
    if given_name and is_program_name:
        return token, StepTexts(make_step_label(action, make_action_text_storable(given_name)))
    kind = name_element_kind_in_step_label(role, tag)
    nouns = [*_list_names(target, attrs, role), *([given_name] if given_name else [])]
    texts = _make_action_step_texts(action, kind, nouns, attrs)
    return token, texts._replace(locations=_list_locations(event, target, screen_locations))


def _list_names(target: Mapping[str, Any], attrs: Mapping[str, Any], role: str) -> list[str]:
    """Return the texts that name an element to people, the best first; of a field never its content."""
    names = [target.get("name"), *(attrs.get(attribute) for attribute in NAME_ATTRIBUTES)]
    if role not in FIELD_ROLES:
        names.append(target.get("text"))
    return [name for name in names if type(name) is str and any(map(str.isalnum, name[:_NAME_CHARACTERS]))]


def _list_locations(
    event: Mapping[str, Any], target: Mapping[str, Any], screen_locations: Sequence[str]
) -> tuple[str, ...]:
    """Return where an element is: near what, in what, on which page; the page's title is the last resort."""
    if not target:
        return ()
    given = [(target.get("near"), "near")]
    if not any(location.startswith("in ") for location in screen_locations):
        given.append((event.get("title"), "in"))
    described = [
        describe_location(preposition, text=make_action_text_storable(text))
        for text, preposition in given
        if type(text) is str
    ]
    return tuple(location for location in (*described, *screen_locations) if location)


def _make_action_step_texts(
    action: str, kind: str, nouns: Sequence[str], attrs: Mapping[str, Any]
) -> StepTexts:
    names = dict.fromkeys(
        make_step_label(
            action, describe_name_in_step_label(make_action_text_storable(noun[: 4 * _NAME_CHARACTERS]), kind)
        )
        for noun in nouns
    )
    given = {key: attrs.get(key) for key in LABEL_ATTRIBUTES}
    words = {
        key: text_template_of(make_action_text_storable(value))
        for key, value in given.items()
        if isinstance(value, str)
    }
    described = describe_words_in_step_label(kind, words)
    is_number = bool(nouns and kind) and not any(map(str.isalpha, nouns[0]))
    return StepTexts(
        make_step_label(action, f"numbered {kind}" if is_number else kind),
        names=tuple(names)[:_NAMES],
        words=make_step_label(action, described) if described else "",
    )


def step_texts_of_label(action: str, *, target: str, label: str) -> StepTexts:
    """Return the texts of a step whose label is all that was stored; that of an activity quotes no page.

    Args:
        action: action of the step.
        target: its token.
        label: its label.
    """
    if action == "activity":
        return StepTexts(label)
    kind = (
        "page"
        if action in _ADDRESS_ACTIONS
        else name_element_kind_in_step_label("", target.partition(" ")[0])
    )
    return StepTexts(make_step_label(action, kind), names=(label,))


def _find_name_given_by_action(action: str, event: Mapping[str, Any]) -> str | None:
    """Return the name of a tool, a model, a program or a custom event."""
    if action in ("window_focus", "tab_switch"):
        return (event.get("app") or _NO_MEMBERS).get("name")
    data = event.get("data")
    name = data.get("name") if type(data) is dict else None
    return name if type(name) is str else None


def _describe_element_identity(attrs: Mapping[str, Any]) -> str:
    """Return a text that identifies an element: its test id, else its id or name, else its link."""
    for attribute in TEST_IDS:
        if attrs.get(attribute):
            return f"test={text_template_of(make_action_text_storable(attrs[attribute]))}"
    goal = f"href={url_template(attrs['href'])}" if attrs.get("href") else ""
    for attribute in ("id", "name"):
        if attrs.get(attribute):
            template = f"{attribute}={text_template_of(make_action_text_storable(attrs[attribute]))}"
            return f"{template} {goal}".strip() if "#" in template else template
    return goal


def _describe_class_or_selector(target: Mapping[str, Any], attrs: Mapping[str, Any]) -> str:
    """Return the classes, else the best selector that does not match by text."""
    if attrs.get("class"):
        return "class=" + ".".join(
            sorted({text_template_of(make_action_text_storable(word)) for word in attrs["class"].split()})
        )
    for selector in target.get("selectors") or ():
        path = selector if type(selector) is str else " >> ".join(selector)
        if not path.startswith("text/"):
            return f"selector={text_template_of(make_action_text_storable(path[:256]))}"
    return ""


def _make_acted_element_token(kind: str, identity: str) -> str:
    return make_action_text_storable(f"{kind[:64]} {identity}").strip()
