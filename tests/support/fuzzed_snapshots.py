"""Made-up damaged DOM snapshots: odd types, depth, width, references, bombs, and bytes that are none.

Equal seeds give equal snapshots.
"""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson
import zstandard

_TAGS = (
    *("html", "body", "div", "a", "button", "label", "input", "select"),
    *("option", "title", "script", "span", "table", "h1", "p", "svg"),
)
_ROLES = ("button", "link", "heading", "", "tab", "no such role", "\u202e", "x" * 3000)
_ODD: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    -1,
    2**63,
    -(2**63),
    1.5,
    1e308,
    "",
    "x",
    "\u0000",
    [],
    {},
    [[]],
    [0],
)


class FuzzedSnapshot(NamedTuple):
    """A snapshot as it is stored; `dom` is the object that a client would send, None where it could not."""

    kind: str
    packed: bytes
    dom: dict[str, Any] | None


def pack_snapshot(dom: Any) -> bytes:
    """Return a JSON value as a snapshot is stored."""
    return zstandard.ZstdCompressor(level=1).compress(orjson.dumps(dom))


def make_page(seed: int) -> dict[str, Any]:
    """Return a snapshot without faults."""
    return {"v": 1, "format": "nodes", "html": _make_node(random.Random(seed), 4)}


def snapshot_bomb(unpacked_bytes: int) -> bytes:
    """Return a snapshot of a few kilobytes that declares, and has, this many bytes."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj(size=unpacked_bytes)
    block = b" " * 1024 * 1024
    parts = [compressor.compress(block) for _ in range(unpacked_bytes // len(block))]
    parts += [compressor.compress(block[: unpacked_bytes % len(block)]), compressor.flush()]
    return b"".join(parts)


def fuzzed_snapshots(seed: int) -> Iterator[FuzzedSnapshot]:
    """Give damaged snapshots without end; none of them is over the budget of sealing."""
    choose = random.Random(seed)
    while True:
        make = choose.choice(_KINDS)
        made = make(choose)
        kind = make.__name__.removeprefix("_")
        if isinstance(made, bytes):
            yield FuzzedSnapshot(kind, made, None)
        else:
            yield FuzzedSnapshot(kind, pack_snapshot(made), made if isinstance(made, dict) else None)


def _make_node(choose: random.Random, depth: int) -> list[Any]:
    attributes: dict[str, Any] = {
        name: choose.choice(["a", "b1", "c 2", "é", "2026-01-02"])
        for name in choose.sample(["id", "class", "role", "for", "type", "name", "aria-label", "href"], 3)
    }
    children: list[Any] = [choose.choice(["Save", "Name", "42", ""])]
    if depth:
        children += [_make_node(choose, depth - 1) for _ in range(choose.randrange(1, 4))]
    return [choose.choice(_TAGS), attributes, *children]


def _odd_values(choose: random.Random) -> dict[str, Any]:
    """Return a page in which some values are of other types."""
    page = {"v": 1, "format": "nodes", "html": _make_node(choose, 3)}
    for _ in range(choose.choice([1, 1, 3, 10])):
        _replace_one(page, choose)
    return page


def _replace_one(page: dict[str, Any], choose: random.Random) -> None:
    holder: Any = page
    while True:
        index = choose.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
        inside = holder[index]
        if not isinstance(inside, dict | list) or not inside or choose.random() < 0.2:
            # A copy: a value that is put into itself would have no end.
            holder[index] = copy.deepcopy(choose.choice(_ODD))
            return
        holder = inside


def _odd_root(choose: random.Random) -> Any:
    html = choose.choice([*_ODD, ["html"], [["html"]], ["html", *_ODD], {"html": []}])
    return choose.choice(
        [{"format": "nodes", "html": html}, {"format": choose.choice(_ODD), "html": ["a"]}, html]
    )


def _deep(choose: random.Random) -> Any:
    # Beyond what the parser takes: 1,024.
    depth = choose.choice([60, 500, 1_000, 1_020, 1_100, 5_000, 100_000])
    text = b'["div",' * depth + b'["a"]' + b"]" * depth
    return zstandard.ZstdCompressor().compress(b'{"format":"nodes","html":' + text + b"}")


def _wide(choose: random.Random) -> dict[str, Any]:
    node = choose.choice([["a"], ["b", {}, "x"], [], "text", 7, [[0, 1]]])
    return {"format": "nodes", "html": ["html", {}] + [node] * choose.choice([100, 3_000, 20_000])}


def _many_attributes(choose: random.Random) -> dict[str, Any]:
    attributes = {f"a{number}": choose.choice(_ODD) for number in range(choose.choice([100, 5_000]))}
    return {"format": "nodes", "html": ["html", attributes | {"role": choose.choice(_ROLES)}, "x"]}


def _odd_attributes(choose: random.Random) -> dict[str, Any]:
    nodes = [
        [
            choose.choice([*_TAGS, "", "\u0130", "x" * 5_000]),
            {
                name: choose.choice([*_ODD, *_ROLES])
                for name in (
                    "role",
                    "type",
                    "id",
                    "class",
                    "for",
                    "aria-label",
                    "placeholder",
                    "__h",
                    "hidden",
                )
                if choose.random() < 0.6
            },
            choose.choice([*_ODD, ["b", "inner"]]),
        ]
        for _ in range(choose.choice([1, 5, 30]))
    ]
    return {"format": "nodes", "html": ["html", {}, *nodes]}


def _references(choose: random.Random) -> dict[str, Any]:
    """Return references to subtrees of other frames, also ones that would refer to themselves."""
    node: list[Any] = [[choose.choice([0, -1, 2**40]), choose.choice([0, 3, -7])]]
    return {"format": "nodes", "html": ["html", {}, node, ["div", {}, node, [[0, 0], [0, 0]]]]}


def _named_in_named(choose: random.Random) -> dict[str, Any]:
    """Return elements with names inside each other around a wide one: each name reads the same texts."""
    node: list[Any] = ["div", {}] + ["word"] * choose.choice([10, 5_000])
    for number in range(choose.choice([10, 60])):
        node = [choose.choice(["label", "button", "a"]), {"for": f"i{number % 3}"}, node]
    return {"format": "nodes", "html": ["html", {}, node]}


def _giant_text(choose: random.Random) -> dict[str, Any]:
    text = choose.choice(["x", "1", "a1", "é", "[{", "2026-01-01 ", "\u202e"]) * choose.choice(
        [1_000, 100_000]
    )
    return {
        "format": "nodes",
        "html": ["html", {"id": text, "class": text}, ["button", text], ["title", text]],
    }


def _not_zstd(choose: random.Random) -> bytes:
    return choose.choice(
        [b"", b"\x28\xb5\x2f\xfd", choose.randbytes(50), b"{}", b"\x28\xb5\x2f\xfd" + choose.randbytes(30)]
    )


def _damaged_zstd(choose: random.Random) -> bytes:
    packed = bytearray(pack_snapshot(_odd_values(choose)))
    for _ in range(choose.choice([1, 3])):
        packed[choose.randrange(4, len(packed))] = choose.randrange(256)
    return bytes(packed[: choose.choice([len(packed), choose.randrange(len(packed))])])


def _not_json(choose: random.Random) -> bytes:
    texts = [
        b"",
        b"{",
        b"nul",
        b'{"a":NaN}',
        b'"\xff"',
        b'{"format":"nodes","html":["a"',
        b"\xef\xbb\xbf{}",
        b"\0" * 99,
    ]
    return zstandard.ZstdCompressor().compress(choose.choice(texts))


def _undeclared_size(choose: random.Random) -> bytes:
    text = orjson.dumps(_odd_values(choose)) * choose.choice([1, 500])
    return zstandard.ZstdCompressor(write_content_size=False).compress(text)


def _wrong_size(choose: random.Random) -> bytes:
    """Return a frame that declares another size than it has: 256 to 65,791 bytes, in two bytes."""
    text = b" " * 1_000 + orjson.dumps(_odd_values(choose))
    packed = bytearray(zstandard.ZstdCompressor().compress(text))
    packed[5:7] = choose.randbytes(2)
    return bytes(packed)


_KINDS: tuple[Callable[[random.Random], Any], ...] = (
    _odd_values,
    _odd_values,
    _odd_values,
    _odd_root,
    _deep,
    _wide,
    _many_attributes,
    _odd_attributes,
    _odd_attributes,
    _references,
    _named_in_named,
    _giant_text,
    _not_zstd,
    _damaged_zstd,
    _not_json,
    _undeclared_size,
    _wrong_size,
)
