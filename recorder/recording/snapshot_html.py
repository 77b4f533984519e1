"""DOM snapshots as inert HTML: allowed tags and attributes alone, texts escaped. Contract §8."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import orjson

#: Sent with the HTML: it may run, load and submit nothing, whatever it holds, and only we may frame it.
SNAPSHOT_POLICY: Final = (
    "sandbox; default-src 'none'; img-src data: 'self'; style-src 'unsafe-inline'; font-src data:; "
    "form-action 'none'; base-uri 'none'; frame-ancestors 'self'"
)
#: Elements and texts written at most; a snapshot of 4 MiB can hold a million, which no browser shows well.
MAX_NODES = 50_000
#: Characters written at most.
MAX_CHARACTERS = 8 * 1024 * 1024
#: Shown in the place of nodes that the snapshot of another frame holds.
_REFERENCE = "[a part that the snapshot of an earlier frame holds]"
#: Elements inside elements written at most; requests hold no deeper ones.
_MAX_DEPTH = 64

_TAG_NAMES = (
    "a abbr address article aside b blockquote br button caption cite code col colgroup dd del details "
    "dfn dialog div dl dt em fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 header hr i img "
    "input ins kbd label legend li main mark meter nav ol optgroup option output p pre progress q s samp "
    "section select small span strong sub summary sup table tbody td textarea tfoot th thead time tr u ul "
    "var wbr"
)
_TAGS = frozenset(_TAG_NAMES.split())
_VOID_TAG_NAMES = "br col hr img input wbr"
_VOID_TAGS = frozenset(_VOID_TAG_NAMES.split())
#: Left out with their content: it is code, belongs to another document, or is parsed by other rules.
_DROPPED_TAG_NAMES = (
    "applet audio base basefont bgsound canvas embed frame frameset head iframe link listing map marquee "
    "math meta noembed noframes noscript object param picture plaintext portal script source style svg "
    "template track video xmp"
)
_DROPPED_TAGS = frozenset(_DROPPED_TAG_NAMES.split())
#: Written as their children alone.
_ROOT_TAGS = frozenset({"html", "body"})
_ATTRIBUTE_NAMES = (
    "abbr align alt checked class cols colspan dir disabled for headers height hidden high id label lang "
    "low max maxlength min multiple name open optimum placeholder readonly required reversed role rows "
    "rowspan scope selected size span start step style title type value width"
)
_ATTRIBUTES = frozenset(_ATTRIBUTE_NAMES.split())
_ARIA = re.compile(r"aria-[a-z]{1,30}", re.ASCII)
_STATES = {"__v": "value", "__c": "checked", "__h": "hidden"}
_INPUT_TYPE_NAMES = (
    "button checkbox color date datetime-local email file month number password radio range reset search "
    "submit tel text time url week"
)
_INPUT_TYPES = frozenset(_INPUT_TYPE_NAMES.split())
# Pictures of types that hold no script; never SVG, never an address.
_PICTURE = re.compile(r"data:image/(?:png|jpeg|webp|gif);base64,[A-Za-z0-9+/]*={0,2}", re.ASCII)
# No quotes, escapes, comments or at-rules, so nothing hides a function that loads an address.
_STYLE = re.compile(r"[A-Za-z0-9\s:;.,%#()!+*-]{0,4096}", re.ASCII)
_FUNCTION = re.compile(r"([A-Za-z0-9-]*)\(")
_STYLE_FUNCTION_NAMES = "rgb rgba hsl hsla calc min max clamp translate scale rotate"
_STYLE_FUNCTIONS = frozenset(_STYLE_FUNCTION_NAMES.split())


def render_snapshot_as_html(stored: bytes) -> str | None:
    """Return a snapshot as an HTML document without scripts, addresses and handlers.

    Nodes beyond the bounds are left out, and the document says so. Subtrees that refer to another frame's
    snapshot are replaced by a text that says so.

    Args:
        stored: JSON of the snapshot, as a client sent it; nothing about its form is known.

    Returns:
        The document, or None if the snapshot is not in the format `nodes`.
    """
    dom = orjson.loads(stored)
    if not isinstance(dom, dict) or dom.get("format") != "nodes" or not isinstance(dom.get("html"), list):
        return None
    pieces: list[str] = []
    left = MAX_CHARACTERS
    is_cut = False
    nodes = 0
    for piece, is_end in _write_snapshot_node(dom["html"], 0):
        if not is_end:
            nodes += 1
            is_cut = is_cut or nodes > MAX_NODES or len(piece) > left
            if is_cut:
                break  # browsers close by themselves what is open at the end of a document
        left -= len(piece)
        pieces.append(piece)
    if is_cut:
        pieces.insert(0, "<p>A part of this snapshot is left out: it is too large to show.</p>")
    title = html.escape(_find_snapshot_html_title(dom["html"]))
    # Browsers request an icon of the service where a document names none.
    icon = '<link rel="icon" href="data:,">'
    head = f'<head><meta charset="utf-8">{icon}<title>{title}</title></head>'
    return f"<!doctype html><html>{head}<body>{''.join(pieces)}</body></html>"


def render_snapshot_file(path: str) -> str | None:
    """Return the snapshot in a file as `render_snapshot_as_html` does; worker processes call it."""
    return render_snapshot_as_html(Path(path).read_bytes())


def _write_snapshot_node(node: Any, depth: int) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a node, each with whether it is an end tag."""
    if isinstance(node, str):
        yield html.escape(node), False
        return
    if _is_snapshot_reference(node):
        yield _REFERENCE, False
        return
    if not isinstance(node, list) or not node or not isinstance(node[0], str) or depth > _MAX_DEPTH:
        return
    tag = node[0].lower()
    if tag in _DROPPED_TAGS:
        return
    has_attributes = len(node) > 1 and isinstance(node[1], dict)
    children = node[2 if has_attributes else 1 :]
    if tag not in _ROOT_TAGS:
        # An element of a name that is not known, such as a custom one, is shown as a plain one.
        tag = tag if tag in _TAGS else "div"
        attributes = _list_html_attributes(tag, node[1]) if has_attributes else {}
        text = attributes.pop("value", None) if tag == "textarea" else None
        children = children if text is None else [text]
        written = "".join(f' {name}="{html.escape(value)}"' for name, value in attributes.items())
        yield f"<{tag}{written}>", False
        if tag in _VOID_TAGS:
            return
    for child in children:
        yield from _write_snapshot_node(child, depth + 1)
    if tag not in _ROOT_TAGS:
        yield f"</{tag}>", True


def _is_snapshot_reference(node: Any) -> bool:
    """Return whether a node is `[[k, n]]`: node n of the snapshot k frames back."""
    inner = node[0] if isinstance(node, list) and len(node) == 1 else None
    return isinstance(inner, list) and len(inner) == 2 and all(type(number) is int for number in inner)


def _list_html_attributes(tag: str, sent: dict[str, Any]) -> dict[str, str]:
    """Return the attributes of an element that are written."""
    attributes: dict[str, str] = {}
    for key, value in sent.items():
        name = _STATES.get(key, key.lower())
        if key in ("__c", "__h"):
            if value is True:
                attributes[name] = ""
            continue
        if isinstance(value, str) and _is_allowed_attribute(tag, name=name, value=value):
            attributes[name] = value
    return attributes


def _is_allowed_attribute(tag: str, *, name: str, value: str) -> bool:
    if name == "src":
        return tag == "img" and _PICTURE.fullmatch(value) is not None
    if name == "style":
        return _is_harmless_style(value)
    if name == "type" and tag == "input":
        return value.lower() in _INPUT_TYPES
    return name in _ATTRIBUTES or _ARIA.fullmatch(name) is not None


def _is_harmless_style(value: str) -> bool:
    return _STYLE.fullmatch(value) is not None and all(
        name.lower() in _STYLE_FUNCTIONS for name in _FUNCTION.findall(value)
    )


def _find_snapshot_html_title(root: list[Any]) -> str:
    """Return the text of the title in the head of a document."""
    for head in root:
        if isinstance(head, list) and head and head[0] in ("head", "HEAD"):
            for node in head:
                if isinstance(node, list) and node and node[0] in ("title", "TITLE"):
                    return "".join(text for text in node[1:] if isinstance(text, str))[:500]
    return ""
