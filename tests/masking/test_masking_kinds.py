"""Texts that the built-in kinds match, and texts that they leave unchanged. Contract §3 (masking)."""

import re

import pytest

from recorder.masking.masker import Masker
from tests.support.masking import ALL, make_masker, shown

_TOKEN = re.compile("‹([a-z0-9_]+):[0-9a-f]{16}›")

# A masked text is written with ‹kind› in the place of its tokens.
EMAILS = {
    "ada@example.com": "‹email›",
    "write to ada.lovelace+bills@mail.example.co.uk.": "write to ‹email›.",
    "<ada@example.com>,(bob@example.org)": "<‹email›>,(‹email›)",
    "mailto:ada@example.com?subject=x": "mailto:‹email›?subject=x",
    "https://x.example/?email=ada%40example.com&n=1": "https://x.example/?email=‹email›&n=1",
    "ada＠example.com": "‹email›",
    "jörg@müller.de": "‹email›",
    "иван@почта.рф": "‹email›",
    "联系ada@example.com请": "联系‹email›请",
    "o'brien@example.com": "‹email›",
    "ada@xn--bcher-kva.xn--p1ai": "‹email›",
    "a@b.co": "‹email›",
}
CARDS = {
    "4111111111111111": "‹card›",
    "4111 1111 1111 1111": "‹card›",
    "4111-1111-1111-1111": "‹card›",
    "4111\u00a01111\u00a01111\u00a01111": "‹card›",
    "378282246310005": "‹card›",
    "3782 822463 10005": "‹card›",
    "3056 930902 5904": "‹card›",
    "5555555555554444": "‹card›",
    "6011111111111117": "‹card›",
    "card 4111 1111 1111 1111 123": "card ‹card› 123",
    "0123 4111 1111 1111 1111": "0123 ‹card›",
    "4111111111111111,5555555555554444": "‹card›,‹card›",
    "card_4111111111111111": "card_‹card›",
    "line\n4111111111111111\nline": "line\n‹card›\nline",
    "paid.4111111111111111": "paid.‹card›",
    "4222222222222": "‹card›",
    "6304000000000000000": "‹card›",
}
TOKENS = {
    "nsk_live_" + "a1" * 22 + "abcdef": "‹token›",
    "whsec_" + "Zm9v" * 8: "‹token›",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl": "‹token›",
    "Authorization: Bearer abcdefghijklmnop0123": "Authorization: Bearer ‹token›",
    "bearer%20abcdefghijklmnop0123": "bearer%20‹token›",
    "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==": "Basic ‹token›",
    "AKIAIOSFODNN7EXAMPLE": "‹token›",
    "ghp_" + "a1B2" * 9: "‹token›",
    "github_pat_" + "a1B2c3" * 5: "‹token›",
    "glpat-" + "a1B2c3" * 4: "‹token›",
    "xoxb-123456789012-abcdefABCDEF": "‹token›",
    "sk_live_" + "a1B2" * 6: "‹token›",
    "sk-proj-" + "a1B2" * 6: "‹token›",
    "sk-ant-api03-" + "a1B2" * 6: "‹token›",
    "AIza" + "a1B2c" * 7: "‹token›",
    "hf_" + "a1B2c3" * 6: "‹token›",
    "https://x.example/?api_key=s3cr3t-value&n=1": "https://x.example/?api_key=‹token›&n=1",
    "https://x.example/#access_token%3Dabcdef12345": "https://x.example/#access_token%3D‹token›",
    "https://ada:hunter2@x.example/path": "https://ada:‹token›@x.example/path",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIB\n-----END RSA PRIVATE KEY----- rest": "‹token› rest",
    "-----BEGIN PRIVATE KEY-----\nMIIB": "‹token›",
    "key=%22nsk_test_" + "a1" * 22 + "abcdef%22": "key=%22‹token›%22",
}
LEFT_ALONE = (
    "ada at example dot com",
    "react@18.2.0",
    "@media screen",
    "https://cdn.example/logo@2x.png",
    "user@localhost",
    "4111111111111112",
    "1717171717171717",
    "1.4111111111111111",
    "0.41111111111111111",
    "x4111111111111111",
    "4111111111111111b",
    "41111111111111111111111111",
    "+49 170 1234567",
    "2026-05-01T10:00:00Z 2026-05-02",
    "task-management-of-something-long-enough",
    "token",
    "the bearer of this letter has no name",
    "frm_01kb3yq2x4f5g6h7j8k9mnpqrs",
    "‹email:0123456789abcdef›",
)


@pytest.mark.parametrize(
    ("kind", "text"), [(k, t) for k, table in zip(ALL, (EMAILS, CARDS, TOKENS), strict=True) for t in table]
)
def test_a_kind_finds_what_it_is_for(kind: str, text: str) -> None:
    expected = {**EMAILS, **CARDS, **TOKENS}[text]
    assert shown(make_masker(kind).mask_text(text)) == expected


@pytest.mark.parametrize("text", LEFT_ALONE)
def test_what_only_looks_alike_stays(text: str) -> None:
    assert make_masker(*ALL).mask_text(text) == text


@pytest.mark.parametrize("text", [*EMAILS, *CARDS, *TOKENS])
def test_masking_twice_changes_nothing_more(text: str) -> None:
    masker = make_masker(*ALL)
    once = masker.mask_text(text)
    assert masker.mask_text(once) == once


@pytest.mark.parametrize(
    ("kind", "first", "other"),
    [
        ("email", "Ada@Example.com", "ada%40example.com"),
        ("card", "4111 1111 1111 1111", "4111111111111111"),
        ("token", "Bearer sk-proj-a1B2a1B2a1B2a1B2", "sk-proj-a1B2a1B2a1B2a1B2"),
    ],
)
def test_spellings_of_one_value_get_one_token(kind: str, first: str, other: str) -> None:
    masker = make_masker(kind)
    tokens = {match.group() for text in (first, other) for match in _TOKEN.finditer(masker.mask_text(text))}
    assert len(tokens) == 1


def test_workspaces_give_one_value_different_tokens() -> None:
    texts = [make_masker("email", key=key).mask_text("ada@example.com") for key in (b"one", b"two")]
    assert texts[0] != texts[1]


def test_a_card_is_found_in_every_place_of_a_long_row_of_groups() -> None:
    masker: Masker = make_masker("card")
    for before in range(5):
        text = "0000 " * before + "4111 1111 1111 1111"
        assert shown(masker.mask_text(text)) == "0000 " * before + "‹card›"
