"""One scan of a batch's bytes shows whether masking changes it, however its JSON is written. Contract §3."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder import limits
from recorder.masking.masker import Masker, split_json_strings_to_mask
from tests.support.masking import ALL, make_masker, pattern

_PATTERNS = [
    pattern("line", "^pin [0-9]+$"),
    pattern("edge", r"\bagent\b"),
    pattern("spread", r"(?s)begin.*end"),
    pattern("quoted", r'"[a-z]+"'),
    pattern("folder", r"C:\\[a-z]+"),
    pattern("tabs", r"a\tb"),
    pattern("greek", r"\p{Greek}{3,}"),
    pattern("face", "😀"),
]


@pytest.fixture(scope="module")
def masker() -> Masker:
    """Return a masker of all kinds, and of patterns that depend on ends of texts and on JSON's escapes."""
    return make_masker(*ALL, patterns=_PATTERNS)


# What hides a match from a scan of the bytes as they are.
HIDDEN = {
    "code point in place of the at sign": r'{"a":"ada\u0040example.com"}',
    "code points throughout": '{"a":"' + "".join(f"\\u{ord(letter):04x}" for letter in "a@b.co") + '"}',
    "upper-case digits of a code point": r'{"a":"C\u003A\u005Cusers"}',
    "surrogate pair": r'{"a":"\ud83d\ude00"}',
    "code points of another script": r'{"a":"\u03b1\u03b2\u03b3"}',
    "escaped solidus in a token": r'{"a":"Bearer abcdefgh\/ijklmnop"}',
    "escaped quotes": r'{"a":"say \"hello\" twice"}',
    "escaped backslash": r'{"a":"C:\\users"}',
    "escaped backslash before an escaped quote": r'{"a":"x\\\"hello\""}',
    "letter escape before a card": r'{"a":"x\n4111111111111111"}',
    "letter escape before the line of a pattern": r'{"a":"x\npin 12\ny"}',
    "tab within a match": r'{"a":"a\tb"}',
    "match over several lines": r'{"a":"begin\r\nmiddle\fend"}',
    "whole text": '{"a":"pin 12"}',
    "word at both ends": '{"a":["agent"]}',
    "key of an object": r'{"ada\u0040example.com":1}',
    "spaces around": '{ "a" : "pin 12" }',
    "control character beside": r'{"a":"\u0001pin 12 ada@example.com"}',
    "backslash and u that are no escape": r'{"a":"C:\\users\\u0041"}',
}


@pytest.mark.parametrize("text", HIDDEN.values(), ids=HIDDEN)
def test_no_escape_hides_a_match(masker: Masker, text: str) -> None:
    value = json.loads(text)
    assert masker.mask_value(value) != value
    assert masker.may_change(text.encode())


def test_text_split_over_strings_is_no_match() -> None:
    masker = make_masker("email")
    value = ["ada@", "example.com"]
    assert masker.mask_value(value) == value
    assert not masker.may_change(json.dumps(value).encode())


@pytest.mark.parametrize(
    "text", [r'{"a":"C:\\users \"x\" \/ \n \u00fc"}', '{"a":"plain"}', r'["\\", "\\\\u"]']
)
def test_clean_text_with_escapes_is_found_clean(text: str) -> None:
    assert not make_masker(*ALL).may_change(text.encode())


def test_what_is_no_json_counts_as_suspect() -> None:
    assert split_json_strings_to_mask(rb'{"a":"\u00"}') is None


_PARTS = ["ada@example.com", "pin 12", "agent", '"word"', "C:\\dir", "a\tb", "begin", "end", "αβγ", "😀"]
_PARTS += [
    "4111 1111 1111 1111",
    "nsk_live_" + "x" * 49,
    "\n",
    " ",
    "\\",
    '"',
    "/",
    "é",
    "x",
    "@",
    "\x01",
    "",
]
_texts = st.lists(st.sampled_from(_PARTS) | st.text(max_size=3), max_size=6).map("".join)
_values = st.recursive(
    _texts | st.integers() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)


@given(value=_values, ensure_ascii=st.booleans(), solidus=st.booleans(), indent=st.sampled_from([None, 1]))
def test_the_scan_never_misses_what_masking_changes(
    masker: Masker, value: object, ensure_ascii: bool, solidus: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    text = text.replace("/", "\\/") if solidus else text
    assert masker.mask_value(value) == value or masker.may_change(text.encode("utf-8", "surrogatepass"))


@given(texts=st.lists(_texts, max_size=5, unique=True))
def test_many_texts_at_once_are_masked_as_each_alone(masker: Masker, texts: list[str]) -> None:
    alone = {text: masker.mask_text(text) for text in texts}
    assert masker.changes(texts) == {text: became for text, became in alone.items() if became != text}


def test_keys_that_become_one_are_kept_apart() -> None:
    masked = make_masker("email").mask_value({"Ada@example.com": 1, "ada@example.com": 2})
    assert list(masked.values()) == [1, 2]
    first, second = masked
    assert re.fullmatch("‹email:[0-9a-f]{16}›", first) and second == f"{first} 2"


def test_spans_that_overlap_become_one_token() -> None:
    masker = make_masker("email", patterns=[pattern("user", r"user [^ ]+"), pattern("end", r"com now")])
    assert re.fullmatch("‹user:[0-9a-f]{16}›", masker.mask_text("user ada@example.com now"))


def test_a_text_with_too_many_hits_is_masked_as_a_whole() -> None:
    masker = make_masker(patterns=[pattern("digit", "[0-9]", "#")])
    assert masker.mask_text("1" * 250).count("#") == 250
    assert re.fullmatch("#‹digit:[0-9a-f]{16}›", masker.mask_text("1" * 251))


def test_a_replacement_stands_before_the_token() -> None:
    masker = make_masker(patterns=[pattern("account", "ACC-[0-9]+", r"[account \1]")])
    assert re.fullmatch(r"to \[account \\1\]‹account:[0-9a-f]{16}›!", masker.mask_text("to ACC-12!"))


def test_texts_behind_many_others_are_masked_too(masker: Masker) -> None:
    texts = [f"ada{number}@example.com" for number in range(limits.MASKING_HITS + 50)]
    masked = masker.mask_value(texts)
    assert all("@example.com" not in text for text in masked)
