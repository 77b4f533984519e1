"""Screens of a session: snapshot or address read as role tokens, and the frame of each event. Spec §2.6.

Two digests of a screen, both versioned: `state_key` is its structure without text (graph nodes, keyframes),
`state_tokens` are its roles and names (comparison in replays).
"""

import re
from array import array
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import xxhash

from recorder.memory.steps.action_tokens import (
    FIELD_ROLES,
    SCREEN_ROLES,
    find_acted_role,
    hash_texts,
    normal_name,
    text_template_of,
    url_template,
)
from recorder.memory.steps.picture_features import PICTURE_VERSION, picture_features
from recorder.memory.steps.step_labels import describe_location

#: Rises when equal screens would get other keys or tokens than before.
STATE_VERSION = 1
_VARYING = re.compile("<(?:time|money|hex|n)>")
_PREFIX = f"s{STATE_VERSION}:"
#: The smallest hashes stand for a larger set: Jaccard between such samples estimates that of the sets.
_MAX_FEATURES = 1_024
_MAX_TOKENS = 1_000
_UNSEEN = frozenset(["base", "link", "meta", "noscript", "script", "style", "template"])
_BLOCK_NODES, _BLOCK_CHARACTERS = 64, 160
#: Screens of longer addresses and titles are described again each time, so that the cache stays small.
_REMEMBERED_CHARACTERS = 1_000


@dataclass(frozen=True, slots=True)
class Screen:
    """The digests of one screen.

    `state_key` is None where nothing is known of it; `features` are signed 64-bit hashes, sorted.
    """

    state_key: str | None
    features: tuple[int, ...]
    state_tokens: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FrameScreen:
    """A frame of a session with the screen it shows."""

    t_ms: int
    frame_id: str
    screen: Screen
    #: As `locate_elements_on_screen` gives them.
    locations: tuple[str, ...] = ()


NO_SCREEN = Screen(None, (), ())


def describe_screen(
    *, dom: Mapping[str, Any] | None, url: str | None, title: str | None, cells: bytes | None
) -> Screen:
    """Return the screen that a snapshot shows, by the first that can be read of DOM, address and picture.

    The structure of a DOM is the set of its visible `parent>child` pairs, each `tag#id.classes` as a
    template; of an address the URL's template and the title's; of a picture the steps of luminance.

    Args:
        dom: a snapshot of format `nodes`; other formats, odd shapes and snapshots that refer back to another
            frame's count as none.
        url: address of the page.
        title: title of the page.
        cells: luminance of 9 × 8 cells of the picture, row by row.
    """
    reading = _read_screen_dom(dom)
    if reading is not None:
        hashes = sorted(reading.pairs)
        return Screen(_make_state_key("d", hashes), tuple(hashes[:_MAX_FEATURES]), reading.tokens)
    is_short = len(url or "") + len(title or "") <= _REMEMBERED_CHARACTERS
    page = _screen_of_address(url, title) if is_short else _screen_of_address.__wrapped__(url, title)
    if page is not NO_SCREEN:
        return page
    if cells is not None:
        features = picture_features(cells)
        return Screen(_make_state_key(f"g{PICTURE_VERSION}", list(features)), features, ())
    return NO_SCREEN


def event_screen(event: Mapping[str, Any], frame: Screen | None) -> Screen:
    """Return the screen of an event: the `state_key` the client sent, else its frame's, else its address.

    Args:
        event: the item; `state_key`, `url` and `title` count.
        frame: screen of the frame the event is bound to (see `bind_screen_frames_to_events`).
    """
    client_key = event.get("state_key")
    if client_key:
        # Hashed, for the client's key may say anything, and screens outlive sessions.
        feature = hash_texts("client", client_key)
        return Screen(_make_state_key("c", [feature]), (feature,), ())
    if frame is not None and frame.state_key is not None:
        return frame
    return describe_screen(dom=None, url=event.get("url"), title=event.get("title"), cells=None)


def screen_heading_of(tokens: Sequence[str]) -> str:
    """Return the text of a screen's only heading, of its only dialog, or else its title; it may be empty.

    Args:
        tokens: the `state_tokens` of the screen.
    """
    for role in ("heading ", "dialog ", "title "):
        texts = [token.removeprefix(role) for token in tokens if token.startswith(role)]
        if len(texts) == 1:
            return _VARYING.sub("#", texts[0])
    return ""


def locate_elements_on_screen(tokens: Sequence[str]) -> tuple[str, ...]:
    """Return where the elements of a screen are, for labels: in its heading, on the page with its button.

    Args:
        tokens: the `state_tokens` of the screen; only a button that is alone counts.
    """
    buttons = [token for token in tokens if token.startswith("button ")]
    button = buttons[0].removeprefix("button ") if len(buttons) == 1 else ""
    located = (
        describe_location("in", text=screen_heading_of(tokens)),
        describe_location("on page with", text=_VARYING.sub("#", button)),
    )
    return tuple(location for location in located if location)


def bind_screen_frames_to_events(
    events: Sequence[tuple[int, str | None]], frames: Sequence[tuple[int, str]]
) -> list[int | None]:
    """Return the index of the frame of each event: the one it names, else the last at or before it.

    Args:
        events: `(t_ms, frame_id)` of each event.
        frames: `(t_ms, frame_id)` of each frame, in this order.
    """
    positions = {frame_id: index for index, (_, frame_id) in enumerate(frames)}
    times = [t_ms for t_ms, _ in frames]
    bound = []
    for t_ms, frame_id in events:
        index = positions.get(frame_id) if frame_id is not None else None
        if index is None:
            index = bisect_right(times, t_ms) - 1
        bound.append(index if index >= 0 else None)
    return bound


def _make_state_key(source: str, hashes: list[int]) -> str:
    """Return the state key of a screen: its source and the digest of its hashes."""
    return f"{_PREFIX}{source}{xxhash.xxh64_hexdigest(array('q', hashes).tobytes())}"


@lru_cache(maxsize=4_096)
def _screen_of_address(url: str | None, title: str | None) -> Screen:
    """Return the screen that an address and a title describe; `NO_SCREEN` without both."""
    features = [hash_texts("url", url_template(url))] if url else []
    if title:
        features.append(hash_texts("title", text_template_of(normal_name(title))))
    if not features:
        return NO_SCREEN
    features.sort()
    tokens = (f"title {normal_name(title)}",) if title else ()
    return Screen(_make_state_key("u", features), tuple(features), tokens)


@dataclass(slots=True)
class _ScreenReading:
    pairs: set[int]
    tokens: tuple[str, ...]


def _read_screen_dom(dom: Mapping[str, Any] | None) -> _ScreenReading | None:
    """Walk a snapshot once, with a stack of its own: depth is the sender's choice."""
    if not isinstance(dom, Mapping) or dom.get("format") != "nodes":
        return None
    root = dom.get("html")
    if type(root) is not list or not root or type(root[0]) is not str:
        return None
    pairs: set[int] = set()
    named: list[tuple[str, Mapping[str, Any], list[Any]]] = []
    stack: list[tuple[str, list[Any]]] = [("", root)]
    while stack:
        parent, node = stack.pop()
        if not node:
            continue
        tag = node[0]
        if type(tag) is not str:
            return None  # a reference to a subtree of another frame: what is there cannot be told
        attrs = node[1] if len(node) > 1 and type(node[1]) is dict else _NO_ATTRS
        tag = tag.lower()
        if tag in _UNSEEN or attrs.get("__h") or "hidden" in attrs:
            continue
        token = _make_screen_token(
            tag[:64], _attribute_text_of(attrs, "id"), _attribute_text_of(attrs, "class")
        )
        pairs.add(_make_screen_pair_key(parent, token))
        role = find_acted_role(tag, attrs)
        if tag == "title" and parent.startswith("head"):
            role = "title"
        if role:
            named.append((role, attrs, node))
        stack.extend([(token, child) for child in node[:0:-1] if type(child) is list])
    return _ScreenReading(pairs, _screen_tokens(named))


_NO_ATTRS: dict[str, Any] = {}


def _attribute_text_of(attrs: Mapping[str, Any], name: str) -> str:
    value = attrs.get(name)
    return value[:256] if type(value) is str else ""


@lru_cache(maxsize=65_536)
def _make_screen_token(tag: str, identity: str, classes: str) -> str:
    names = sorted({text_template_of(name) for name in classes.split()})
    return ".".join([f"{tag}#{text_template_of(identity)}", *names])


@lru_cache(maxsize=65_536)
def _make_screen_pair_key(parent: str, child: str) -> int:
    return hash_texts(parent, child)


def _screen_tokens(named: list[tuple[str, Mapping[str, Any], list[Any]]]) -> tuple[str, ...]:
    """Return `role name` of the elements that make up the text of the screen."""
    labels = {
        attrs["for"]: _text_inside_element(node)
        for role, attrs, node in named
        if role == "label" and type(attrs.get("for")) is str
    }
    tokens: set[str] = set()
    for role, attrs, node in named:
        if role in SCREEN_ROLES:
            tokens.add(f"{role} {normal_name(_element_name_of(role, attrs, node, labels))}".rstrip())
        if len(tokens) >= _MAX_TOKENS:
            break
    return tuple(sorted(tokens))


def _element_name_of(role: str, attrs: Mapping[str, Any], node: list[Any], labels: Mapping[str, str]) -> str:
    name = _attribute_text_of(attrs, "aria-label") or labels.get(_attribute_text_of(attrs, "id"), "")
    if not name and role in FIELD_ROLES:
        return _attribute_text_of(attrs, "placeholder") or _attribute_text_of(attrs, "name")
    return (
        name
        or _text_inside_element(node)
        or _attribute_text_of(attrs, "alt")
        or _attribute_text_of(attrs, "title")
    )


def _text_inside_element(node: list[Any]) -> str:
    """Return the first words inside an element; bounded, since elements with names may be nested."""
    texts: list[str] = []
    stack: list[Any] = [node]
    characters = 0
    for _ in range(_BLOCK_NODES):
        if not stack or characters >= _BLOCK_CHARACTERS:
            break
        item = stack.pop()
        if type(item) is str:
            texts.append(item[:_BLOCK_CHARACTERS])
            characters += len(texts[-1])
        elif type(item) is list and item and type(item[0]) is str and item[0].lower() not in _UNSEEN:
            # No more of its children are visited than nodes in all: copies of long lists would add up.
            stack.extend(item[_BLOCK_NODES:0:-1])
    return " ".join(texts)
