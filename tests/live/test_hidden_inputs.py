"""Inputs in texts and snapshots of pages: replaced however the page writes them. Contract §8."""

import time
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from recorder.live.hidden_inputs import HIDDEN_TEXT, HiddenInputs
from recorder.masking.masker import Masker, compile_masker_rules
from recorder.replay_service.requests.encrypted_inputs import decrypt_inputs, encrypt_inputs

SECRET = "Grüße + 7/Q&a"
HIDDEN = HiddenInputs({"note": SECRET, "pin": "417"})


@pytest.mark.parametrize(
    "written",
    [
        SECRET,
        SECRET.upper(),
        SECRET.replace(" ", "\n  "),
        SECRET.replace(" ", "\u00a0"),
        quote(SECRET),
        quote(SECRET, safe=""),
        quote_plus(SECRET),
        quote(quote(SECRET, safe=""), safe=""),
        quote(SECRET).lower(),
    ],
)
def test_an_input_is_hidden_in_any_case_spacing_and_encoding(written: str) -> None:
    assert (
        HIDDEN.hide_text(f"https://x.example/?q={written}&n=1") == f"https://x.example/?q={HIDDEN_TEXT}&n=1"
    )


def test_other_texts_and_short_inputs_stay() -> None:
    assert HIDDEN.hide_text("Invoice 417, 100 %41 +1") == "Invoice 417, 100 %41 +1"
    assert not HiddenInputs({})


def test_a_long_input_is_hidden_whole() -> None:
    text = "".join(f" {number}é" for number in range(1_500)).strip()
    hidden = HiddenInputs({"text": text})
    assert hidden.hide_text(f"<{quote(text)}>") == f"<{HIDDEN_TEXT}>"
    assert hidden.hide_text(f"<{text}>").startswith(f"<{HIDDEN_TEXT}")


def test_an_input_that_masking_replaces_is_shown_as_its_token() -> None:
    masker = Masker(compile_masker_rules(('{"builtins":["email"]}',)), b"k" * 32)
    hidden = HiddenInputs({"mail": "ada@ledgerly.example"}, masker.mask_value)
    shown = hidden.hide_text("for ADA@ledgerly.example")
    assert shown == "for " + masker.mask_text("ada@ledgerly.example")


def test_an_input_that_masking_replaces_in_part_is_hidden_whole() -> None:
    masker = Masker(compile_masker_rules(('{"builtins":["email"]}',)), b"k" * 32)
    hidden = HiddenInputs({"note": "from ada@ledgerly.example"}, masker.mask_value)
    assert hidden.hide_text("from ada@ledgerly.example") == HIDDEN_TEXT


def test_inputs_that_overlap_are_hidden_together() -> None:
    hidden = HiddenInputs({"first": "abcdef", "second": "defghi"})
    assert hidden.hide_text("<abcdefghi>") == f"<{HIDDEN_TEXT}>"


def test_stored_inputs_need_their_replay_and_the_secret_of_the_deployment() -> None:
    inputs = {"note": SECRET}
    stored = encrypt_inputs(b"secret", "rpl_1", inputs)
    assert stored is not None and decrypt_inputs(b"secret", "rpl_1", stored) == inputs
    assert stored[:12] != (encrypt_inputs(b"secret", "rpl_1", inputs) or b"")[:12]
    for secret, replay_id in ((b"other", "rpl_1"), (b"secret", "rpl_2")):
        with pytest.raises(ValueError, match="cannot be decrypted"):
            decrypt_inputs(secret, replay_id, stored)


def test_a_snapshot_is_without_inputs_and_says_where_a_picture_would_show_them() -> None:
    html: list[Any] = [
        "html",
        {},
        ["a", {"href": f"/?q={quote_plus(SECRET)}", "class": "plain"}, "Search"],
        ["p", {}, "for ", "Grüße", ["b", {}, " + 7/"], "q&A", ["i", {}, " now"]],
        ["input", {"__v": "417", "placeholder": "PIN 417"}],
        ["input", {"__v": SECRET}],
        ["div", {}, ["canvas", {}], ["iframe", {}], ["iframe", {}, ["html", {}]]],
    ]
    page = HIDDEN.hide_page(html)
    assert page.html[2][1]["href"] == f"/?q={HIDDEN_TEXT}"
    assert page.html[3] == ["p", {}, "for ", HIDDEN_TEXT, ["b", {}, ""], "", ["i", {}, " now"]]
    assert page.html[4][1] == {"__v": HIDDEN_TEXT, "placeholder": "PIN 417"}
    assert page.html[5][1] == {"__v": HIDDEN_TEXT}
    # In document order: html 0, a 1, p 2, b 3, i 4, input 5, input 6, div 7, canvas 8, iframes 9 and 10.
    assert (page.shows_input, page.unread) == ((2, 3, 5, 6), (8, 9))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("abcd" + "%20" * 40 + "e", "abcde" + ("abcd" + "%20" * 2_000) * 50),
        ("ab" * 2_000, "ab" * 2_000 + ("ab" * 1_999 + "c") * 500),
        ("aaaa", "a" * 2_000_000),
    ],
    ids=["encoded separators", "long beginnings", "many places"],
)
def test_hostile_texts_take_time_in_proportion_to_their_length(value: str, text: str) -> None:
    inputs = HiddenInputs({"secret": value})
    assert value not in inputs.hide_text(text)
    page: list[Any] = ["html", {}, ["p", {}, text], ["p", {}, text[:1_000]]]
    assert 1 in inputs.hide_page(page).shows_input
    assert value not in page[2][2]


def test_attributes_are_searched_apart_and_all_at_once() -> None:
    secrets = {f"text {number}": f"stored{number:04}value" for number in range(1_000)}
    inputs = HiddenInputs({**secrets, "split": "half%41half"})
    # The end of an attribute and the begin of the next are no text.
    rows = [["p", {"id": f"row{n}", "title": "half%4", "alt": "1half"}, f"Row {n}"] for n in range(5_000)]
    html: list[Any] = ["html", {}, ["img", {"alt": "of stored0007value", "src": "/half%41half"}], *rows]
    began = time.process_time()
    page = inputs.hide_page(html)
    # A search for each of the texts in each of the attributes took half a minute.
    assert time.process_time() - began < 5
    assert html[2][1] == {"alt": f"of {HIDDEN_TEXT}", "src": f"/{HIDDEN_TEXT}"}
    assert page.shows_input == (1,) and html[3][1] == {"id": "row0", "title": "half%4", "alt": "1half"}
