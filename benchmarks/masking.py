"""Cost of masking a batch of 100 events: the scan of a clean one, the pass over a dirty one."""

import time
from collections.abc import Callable
from typing import Any

import orjson

from benchmarks import masking_attack
from benchmarks.events import event_bodies
from benchmarks.figure_reports import Figure, at_most
from recorder.access.keys import Caller
from recorder.hashing import canonical_json
from recorder.masking.masker import Masker, compile_masker_rules
from recorder.recording.event_batches import check_and_pack_event_batch
from recorder.recording.item_masking import list_event_items_to_mask, mask_events
from recorder.tenant import Tenant

_GOAL_MS = 0.3
_CALLER = Caller(Tenant("wsp", "live"), "key")
_BUILTINS = {"builtins": ["email", "card", "token"]}
#: Patterns such as people write: numbers of their own, names of customers.
_OWN = [
    {"name": "account", "pattern": r"\bACC-[0-9]{6,10}\b"},
    {"name": "iban", "pattern": r"\b[A-Z]{2}[0-9]{2}(?: ?[0-9A-Z]{4}){3,7}\b"},
    {"name": "phone", "pattern": r"\+[0-9]{1,3}[ -]?[0-9]{2,4}(?:[ -]?[0-9]{2,4}){2,4}"},
    {"name": "customer", "pattern": "(?i)wintermute|tessier|ashpool|straylight"},
    {"name": "pin", "pattern": "^[0-9]{4}$"},
]


def measure(*, quick: bool = False) -> list[Figure]:
    """Measure milliseconds a batch: found clean, and masked with one or all of its events dirty."""
    bodies = event_bodies(20 if quick else 200)
    runs = 3 if quick else 7
    plain, patterned = _masker(_BUILTINS), _masker({**_BUILTINS, "patterns": _OWN})
    escaped = [orjson.dumps(_with_titles(body, r'aria/Open[role="button"]', 100)) for body in bodies]
    ascii_only = _in_ascii(bodies)
    reading = _ms(runs, bodies, _read)
    scanning = _ms(runs, bodies, plain.may_change)
    return [
        Figure(
            name="masking: scan of a clean batch",
            unit="ms",
            ours=scanning,
            goal=at_most(_GOAL_MS),
            detail={
                "bytes": [float(len(body)) for body in bodies[:5]],
                "with five patterns, ms": _ms(runs, bodies, patterned.may_change),
                "with escaped quotes, ms": _ms(runs, escaped, plain.may_change),
                "with code points, ms": _ms(runs, ascii_only, plain.may_change),
            },
        ),
        Figure(
            name="masking: scan by reading the batch",
            unit="ms",
            ours=scanning,
            peer=reading,
            peer_name="check and pack it",
        ),
        *(_dirty(count, plain, bodies, reading, runs) for count in (1, 100)),
        *masking_attack.measure(quick=quick),
    ]


def _dirty(count: int, masker: Masker, bodies: list[bytes], reading: list[float], runs: int) -> Figure:
    dirty = [orjson.dumps(_with_titles(body, "mail to ada@example.com", count)) for body in bodies]
    assert all(b"ada@" not in _mask(masker, body) for body in dirty)
    return Figure(
        name=f"masking: {count} of 100 events dirty",
        unit="ms",
        ours=_ms(runs, dirty, lambda body: _mask(masker, body)),
        peer=reading,
        peer_name="check and pack it",
    )


def _mask(masker: Masker, body: bytes) -> bytes:
    return mask_events(masker.find_changes(list_event_items_to_mask(body)), body)


def _masker(policy: dict[str, Any]) -> Masker:
    return Masker(compile_masker_rules((canonical_json(policy).decode(),)), b"benchmark")


def _with_titles(body: bytes, title: str, count: int) -> Any:
    value = orjson.loads(body)
    for item in value["events"][:count]:
        item["title"] = title
    return value


def _in_ascii(bodies: list[bytes]) -> list[bytes]:
    """Return the batches as a client writes them that escapes all but ASCII."""
    return [
        orjson.dumps(_with_titles(body, "Prüfung", 50)).replace("ü".encode(), rb"\u00fc") for body in bodies
    ]


def _read(body: bytes) -> object:
    return check_and_pack_event_batch(_CALLER, "ses", body, content_type="application/json", batch_key=None)


def _ms(runs: int, bodies: list[bytes], act: Callable[[bytes], object]) -> list[float]:
    """Return the CPU time a batch, run by run."""
    act(bodies[0])
    results = []
    for _ in range(runs):
        began = time.process_time()
        for body in bodies:
            act(body)
        results.append((time.process_time() - began) / len(bodies) * 1e3)
    return results
