"""Payloads of events: like those of people's recordings, or half at random.

Demonstrations of MiniWoB++, as they are imported, become events whose payloads have 231 bytes in the mean,
a third of them different ones, and pack to a 28th with zstd at level 1: the same elements again and again,
touched at other points, with a word typed here and there. `recorded` is like that, a little harder: 244
bytes, three quarters of them different, a 25th. `random` is the hard case: of a payload nothing repeats but
its frame, and it packs to a fourth.
"""

from typing import Literal

import polars as pl

Payloads = Literal["recorded", "random"]
#: Random hex digits that a payload is made with.
NOISE = 160
_NAMES = ("Amount", "Approve", "Cost centre", "Due date", "Reject", "Submit", "Supplier", "Tax code")
_URL = "https://erp.example.com/"
_ELEMENTS = 24
_TYPED_IN = 4  # events, one of which is typed


def payload(kind: Payloads) -> pl.Expr:
    """Return the payload of each event, from its `noise`, `seq` and the `number` of its session."""
    return _recorded() if kind == "recorded" else _random()


def _recorded() -> pl.Expr:
    elements = [_element(number) for number in range(_ELEMENTS)]
    drawn = _digits(0, 2) % len(elements)
    point = pl.format('{{"point":[{}.0,{}.0]}}', 40 + _digits(2, 1) * 4, 80 + _digits(3, 1))
    word = pl.format('{{"value":"{}"}}', pl.col("noise").str.slice(8, 6))
    given = pl.when(pl.col("seq") % _TYPED_IN == 0).then(word).otherwise(point)
    element = drawn.replace_strict(dict(enumerate(elements)), return_dtype=pl.String)
    return pl.format('{{"input":{},"target":{},"url":"{}"}}', given, element, pl.lit(_URL))


def _element(number: int) -> str:
    """Return an element of the page, as a browser's recorder describes it."""
    name, top = _NAMES[number % len(_NAMES)], 96.0 + 38.5 * number
    text = f"{name.lower().replace(' ', '-')}-{number}"
    return (
        f'{{"attrs":{{"id":"{text}"}},"name":"{name}","rect":[40.0,{top},108.72,28.0],"role":"textbox",'
        f'"selectors":["aria/{name}[role=\\"textbox\\"]","#{text}"],"tag":"input"}}'
    )


def _random() -> pl.Expr:
    length = NOISE // 4 + _digits(0, 2) % (NOISE * 3 // 4)
    names = (pl.col("seq") % len(_NAMES)).replace_strict(dict(enumerate(_NAMES)), return_dtype=pl.String)
    return pl.format(
        '{{"input":{{"value":"{}"}},"target":{{"name":"{}","role":"textbox"}},"url":"{}/{}"}}',
        pl.col("noise").str.head(length),
        names,
        pl.lit(_URL),
        "number",
    )


def _digits(start: int, count: int) -> pl.Expr:
    """Return a number from some of an event's random digits."""
    return pl.col("noise").str.slice(start, count).str.to_integer(base=16)
