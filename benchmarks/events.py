"""Bodies of `POST …/events` as a capture client sends them: 100 varied events, about 25 KB. Contract §3."""

import random
from typing import Any

import orjson

from recorder import limits
from recorder.ids import encode_ulid

_VOCABULARY = (
    "account address amount approve archive article assign balance booking branch budget cancel carrier case "
    "category change claim close comment company contract country currency customer date delivery department "
    "discount document draft due edit email employee export field file filter group hotel invoice item label "
    "ledger line list location manager message month name note number open order owner partner passenger "
    "payment period person phone plan policy price priority product profile project quantity quote reason "
    "receipt record refund region report request review route sales save schedule search section seller "
    "service share shipment source state status stock submit summary supplier table task tax team ticket "
    "time title total transfer travel type unit update user value vendor visit week worker year"
)
_WORDS = _VOCABULARY.split()
_ROLES = ("button", "link", "textbox", "combobox", "checkbox", "menuitem", "tab", "cell", "row", "option")
_TYPES = (
    *(["pointer_move"] * 4),
    *(["click"] * 6),
    *(["key_down"] * 3),
    *(["fill"] * 3),
    *(["scroll"] * 2),
    "navigate",
    "select",
    "request",
    "screen_change",
)


def event_bodies(count: int, *, seed: int = 1) -> list[bytes]:
    """Return so many different bodies, each a stretch of one person's work."""
    return [_body(random.Random(seed * 1_000_003 + n)) for n in range(count)]


def event_items(count: int, *, seed: int, first_ms: int = 0) -> list[dict[str, Any]]:
    """Return event items in order of time; equal seeds give equal items."""
    rng = random.Random(seed)
    page = _Page(rng)
    t_ms = first_ms
    items = []
    for _ in range(count):
        t_ms += rng.randint(8, 900)
        kind = rng.choice(_TYPES)
        if kind == "navigate":
            page = _Page(rng)
        items.append({"t_ms": t_ms, "type": kind, **page.members(kind, rng)})
    return items


def _body(rng: random.Random) -> bytes:
    items = event_items(limits.EVENTS_PER_BATCH, seed=rng.randrange(2**32), first_ms=rng.randrange(10**6))
    return orjson.dumps({"events": items})


class _Page:
    """A page of a web application with a few elements that events act on."""

    def __init__(self, rng: random.Random) -> None:
        self.name = " ".join(rng.sample(_WORDS, 3)).capitalize()
        self.url = (
            f"https://crm.example.com/{rng.choice(_WORDS)}/{rng.randrange(10**6)}?view={rng.choice(_WORDS)}"
        )
        self.targets = [_target(rng) for _ in range(16)]

    def members(self, kind: str, rng: random.Random) -> dict[str, Any]:
        """Return the members of an event of this type beside its time."""
        point = [rng.randrange(1280), rng.randrange(720)]
        if kind == "pointer_move":
            return {"input": {"point": point}}
        if kind == "key_down":
            return {
                "url": self.url,
                "input": {"key": rng.choice("abcdefghijklmnopqrstuvwxyz0123456789"), "modifiers": 0},
            }
        if kind == "scroll":
            return {"input": {"point": point, "delta": [0, rng.choice((-120, 120, 240))]}, "url": self.url}
        if kind == "navigate":
            return {"url": self.url, "title": self.name, "app": {"name": "Firefox", "window": self.name}}
        if kind == "request":
            return {"data": {"method": "GET", "status": 200, "ms": rng.randrange(900), "url": self.url}}
        if kind == "screen_change":
            return {"state_key": f"s{rng.getrandbits(64):016x}", "title": self.name}
        frame = f"frm_{encode_ulid(rng.getrandbits(128))}"
        target = rng.choice(self.targets)
        members: dict[str, Any] = {
            "target": target,
            "url": self.url,
            "title": self.name,
            "frame_id": frame,
        }
        if kind == "click":
            members["input"] = {"button": 0, "point": point}
        else:
            members["input"] = {"value": " ".join(rng.choices(_WORDS, k=rng.randint(1, 5)))}
        return members


def _target(rng: random.Random) -> dict[str, Any]:
    name = " ".join(rng.sample(_WORDS, rng.randint(1, 3))).capitalize()
    css = f"#{rng.choice(_WORDS)}-{rng.randrange(500)} > form > div:nth-child({rng.randint(1, 9)}) > span"
    rect = [rng.randrange(1100), rng.randrange(690), rng.randrange(20, 180), rng.randrange(16, 40)]
    near = rng.choice(_WORDS).capitalize()
    return {
        "role": rng.choice(_ROLES),
        "name": name,
        "tag": "div",
        "attrs": {"data-testid": f"{near.lower()}-{rng.randrange(100)}"},
        "rect": rect,
        "selectors": [css, f"role={near}"],
        "near": near,
    }
