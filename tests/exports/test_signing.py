"""Signed addresses open one path of one export for a time. Contract §5 (`signed_url`)."""

from datetime import timedelta
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recorder import clock
from recorder.errors import InvalidSignature, UrlExpired
from recorder.exports.signed_urls import check_url_signature, make_signed_url

_NOW = clock.parse_time("2026-05-04T12:00:00Z", name="now")
_PATH = "/v1/exports/exp_1/files/data/workflow=checkout/events-00000-of-00001.parquet"
_SIGNED = {"path": _PATH, "workspace_id": "wsp_1", "secret": b"secret"}


def _parts(path: str = _PATH) -> dict[str, object]:
    url = make_signed_url(
        "http://host", path, workspace_id="wsp_1", expires_at=_NOW + timedelta(minutes=5), secret=b"secret"
    )
    query = parse_qs(urlsplit(url).query)
    return {
        "path": unquote(urlsplit(url).path),
        "expires_s": int(query["exp"][0]),
        "key_id": query["kid"][0],
        "signature": query["sig"][0],
    }


def _check(**changed: object) -> None:
    check_url_signature(**{**_SIGNED, **_parts(), "now": _NOW, **changed})  # type: ignore[arg-type]


def test_a_signed_address_opens_until_its_end() -> None:
    _check()
    _check(now=_NOW + timedelta(minutes=5, milliseconds=-1))
    with pytest.raises(UrlExpired):
        _check(now=_NOW + timedelta(minutes=5))


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/v1/exports/exp_2/files/manifest.json"},
        {"path": _PATH + "/"},
        {"expires_s": 9_999_999_999},
        {"key_id": "00000000"},
        {"key_id": "é"},
        {"signature": ""},
        {"signature": "0" * 64},
        {"signature": "ü" * 64},
        {"workspace_id": "wsp_2"},
        {"secret": b"another"},
    ],
)
def test_nothing_of_a_signed_address_can_be_changed(changed: dict[str, object]) -> None:
    with pytest.raises(InvalidSignature):
        _check(**changed)


def test_a_foreign_address_does_not_tell_that_it_expired() -> None:
    with pytest.raises(InvalidSignature):
        _check(signature="0" * 64, now=_NOW + timedelta(days=1))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_every_path_survives_its_address(name: str) -> None:
    path = "/v1/exports/exp_1/files/" + name
    parts = _parts(path)
    assert parts["path"] == path
    check_url_signature(**{**_SIGNED, **parts, "now": _NOW})  # type: ignore[arg-type]
