"""Stored states of browsers: what is read of them, for which hosts, and what pages must not show."""

import base64
import json
from typing import Any

import pytest

from recorder.live.hidden_inputs import HiddenInputs
from recorder.net.reachable_hosts import ReachableHosts
from recorder.replay_service.requests.storage_state import InvalidStorageState, read_storage_state

COOKIE = {
    "name": "sid", "value": "9f8e7d6c", "domain": "shop.example", "path": "/", "expires": -1,
    "httpOnly": True, "secure": True, "sameSite": "None", "partitionKey": "later",
}  # fmt: skip
TOKEN = "eyJhbGciOiJub25lIn0.e30."


def make_state(cookies: list[Any] | None = None, **storage: str) -> str:
    """Return a state with cookies, and local storage of the shop."""
    items = [{"name": name, "value": value} for name, value in storage.items()]
    origins = [{"origin": "https://shop.example", "localStorage": items, "indexedDB": []}]
    return json.dumps({"cookies": [COOKIE] if cookies is None else cookies, "origins": origins})


def test_a_state_is_narrowed_to_hosts() -> None:
    domains = ("shop.example", ".shop.example", ".example", "pay.example", ".pay.example", "evilshop.example")
    state = read_storage_state(make_state([COOKIE | {"domain": domain} for domain in domains], theme="dark"))
    chosen = state.select(ReachableHosts(["shop.example"]))
    assert [cookie.domain for cookie in chosen.cookies] == ["shop.example", ".shop.example", ".example"]
    assert [stored.origin for stored in chosen.origins] == ["https://shop.example"]
    assert state.select(ReachableHosts(["shop.example:8443"])).origins == []
    first = chosen.to_browser()["cookies"][0]
    assert first == {name: value for name, value in COOKIE.items() if name != "partitionKey"}


def test_pages_must_not_show_what_may_be_secret() -> None:
    script = COOKIE | {"httpOnly": False}
    cookies = [COOKIE, script | {"value": "dashboard"}, script | {"value": "0123456789abcdef"}]
    account = json.dumps({"name": "Ada Lovelace of Ledgerly", "tokens": [{"access": TOKEN}], "n": 1})
    state = read_storage_state(
        make_state(cookies, theme="dark", note="a text with some spaces", account=account)
    )
    assert set(state.list_secrets().values()) == {"9f8e7d6c", "0123456789abcdef", TOKEN}


def make_databases(records: list[Any], *, count: int = 1, version: int = 1) -> str:
    """Return a state with databases of one store."""
    store = {"name": "keys", "autoIncrement": True, "indexes": [], "records": records, "keyPath": "id"}
    databases = [{"name": f"hush {n}", "version": version, "stores": [store]} for n in range(count)]
    return json.dumps({"origins": [{"origin": "https://shop.example", "indexedDB": databases}]})


def test_databases_reach_the_browser_and_their_texts_stay_hidden() -> None:
    encoded = {"o": [{"k": "token", "v": TOKEN}], "id": 1}
    state = read_storage_state(
        make_databases([{"value": {"id": 1, "key": "0123456789abcdef"}}, {"valueEncoded": encoded}])
    )
    assert set(state.list_secrets().values()) == {"0123456789abcdef", TOKEN}
    ((origin,),) = (state.to_browser()["origins"],)
    assert origin["indexedDB"][0]["stores"][0] == {
        "name": "keys", "autoIncrement": True, "indexes": [], "keyPath": "id",
        "records": [{"value": {"id": 1, "key": "0123456789abcdef"}}, {"valueEncoded": encoded}],
    }  # fmt: skip


def test_binary_values_stay_hidden_in_the_forms_that_pages_show() -> None:
    key, text = bytes(range(120, 137)), "t0ken-in-an-array"
    account = base64.b64encode(json.dumps({"t": text}).encode()).decode()
    arrays = [
        {"ta": {"k": "ui8", "b": base64.b64encode(key).decode()}},
        {"o": [{"k": "login", "v": {"ab": {"b": account}}}]},
        {"ta": {"k": "ui16", "b": base64.b64encode("utf-16-secret-text".encode("utf-16-le")).decode()}},
        {"ta": {"k": "ui8", "b": "no base64"}}, {"ta": 1}, {"ab": {"b": ["x"]}},
    ]  # fmt: skip
    state = read_storage_state(make_databases([{"valueEncoded": array} for array in arrays]))
    hidden = HiddenInputs(state.list_secrets())
    numbers = ", ".join(map(str, key))
    for shown in (
        key.hex(), key.hex().upper(), numbers, f"[{numbers}]", text, "utf-16-secret-text",
        base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode().rstrip("="),
    ):  # fmt: skip
        seen = hidden.hide_text(f"before {shown} after")
        assert "•••" in seen and shown not in seen


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        "\ud800",
        '{"cookies": [{"name": "a"}]}',
        make_state([COOKIE | {"sameSite": "hush"}]),
        make_state([COOKIE | {"value": "a\r\nb"}]),
        make_state([COOKIE | {"value": "x" * 5_000}]),
        make_state([COOKIE | {"path": "hush"}]),
        make_state([COOKIE | {"domain": "."}]),
        make_state([COOKIE | {"expires": -2}]),
        json.dumps({"origins": [{"origin": "file:///etc/hush", "localStorage": []}]}),
        json.dumps({"origins": [{"origin": "https://shop.example/hush", "localStorage": []}]}),
        json.dumps({"origins": [{"origin": f"https://{n}.example"} for n in range(101)]}),
        make_databases([], count=21),
        make_databases([], version=0),
        make_databases([], version=2**53),
        make_databases([{"value": 1}] * 2_001),
        make_databases([{"value": json.loads("[" * 100 + "]" * 100)}]),
        json.dumps({"origins": [{"origin": "https://shop.example", "indexedDB": [{"name": "hush"}]}]}),
        make_state(tokens=json.dumps([f"{number:016}" for number in range(1_001)])),
    ],
)
def test_other_texts_are_refused_without_quoting_them(text: str) -> None:
    with pytest.raises(InvalidStorageState) as refused:
        read_storage_state(text)
    assert "hush" not in str(refused.value)
