"""Stored states of browsers with which live replays begin: cookies and storage. Contract §8."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Literal

import msgspec

from recorder.errors import InvalidUrl
from recorder.net.addresses import parse_called_address
from recorder.net.reachable_hosts import ReachableHosts
from recorder.replay_service.requests.stored_databases import (
    StoredDatabase,
    are_databases_within_limits,
    describe_stored_database_limits,
    list_stored_binary_texts,
)

#: Texts of one state that pages must not show: each is looked for in every page that is read.
MOST_SECRETS = 1_000
#: Each origin costs the browser the opening of an empty page.
_MOST_ORIGINS = 100
#: Session ids have 64 random bits or more, so 16 hex digits; shorter texts are settings such as `dark`.
_LEAST_SECRET_CHARACTERS = 16
#: Beyond these browsers refuse a cookie.
_MOST_COOKIE_BYTES, _MOST_PATH_CHARACTERS, _LAST_EXPIRES = 4_096, 1_024, 253_402_300_799
_FORM = (
    "The input that policy.storage_state_ref names takes what Playwright's context.storage_state() "
    "returns, as JSON: cookies (name, value, domain, path, expires, httpOnly, secure, sameSite) and origins "
    "(origin, localStorage, indexedDB)."
)


class InvalidStorageState(Exception):
    """The text is no storage state that a replay takes; the message says what is allowed, without values."""


class StoredCookie(msgspec.Struct, rename="camel"):
    """A cookie; members of later releases of Playwright are left out."""

    name: str
    value: str
    domain: str
    path: str = "/"
    #: Seconds since 1970; -1 for a cookie that ends with the browser.
    expires: float = -1
    http_only: bool = False
    secure: bool = False
    same_site: Literal["Strict", "Lax", "None"] = "Lax"


class StoredItem(msgspec.Struct):
    """An item of local storage."""

    name: str
    value: str


class StoredOrigin(msgspec.Struct):
    """The local storage and the databases of an origin."""

    origin: str
    local_storage: list[StoredItem] = msgspec.field(default_factory=list, name="localStorage")
    indexed_db: list[StoredDatabase] = msgspec.field(default_factory=list, name="indexedDB")


class StorageState(msgspec.Struct):
    """Cookies and storage of origins, as Playwright stores them."""

    cookies: list[StoredCookie] = []
    origins: list[StoredOrigin] = []

    def select(self, hosts: ReachableHosts) -> "StorageState":
        """Return the part of the state that belongs to some hosts."""
        return StorageState(
            [cookie for cookie in self.cookies if hosts.match_domain(cookie.domain)],
            [stored for stored in self.origins if hosts.contains_target(parse_called_address(stored.origin))],
        )

    def to_browser(self) -> dict[str, Any]:
        """Return the state as Playwright takes it."""
        state: dict[str, Any] = msgspec.to_builtins(self)
        return state

    def list_secrets(self) -> dict[str, str]:
        """Return the texts that pages must not show, by made-up names.

        Those are the values of cookies that scripts cannot read, and every text of 16 characters or more
        without spaces: of other cookies, of local storage and databases, and of JSON that is stored in them.
        Binary values of databases count as the texts by which pages may show them.
        """
        hidden = {cookie.value for cookie in self.cookies if cookie.http_only and cookie.value}
        readable = [cookie.value for cookie in self.cookies if not cookie.http_only]
        for stored in self.origins:
            for item in stored.local_storage:
                readable += _list_stored_state_texts(item.value)
            for database in stored.indexed_db:
                for value in database.list_values():
                    readable += _list_stored_state_texts(value)
        hidden.update(text for text in readable if _may_be_stored_secret(text))
        return {f"storage state {number}": text for number, text in enumerate(sorted(hidden))}


def read_storage_state(text: str) -> StorageState:
    """Return the state that a JSON text holds.

    Raises:
        InvalidStorageState: if it is none, or larger than a replay takes.
    """
    try:
        state = msgspec.json.decode(text.encode(), type=StorageState)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        raise InvalidStorageState(_FORM) from None  # the error may quote a value
    for number, cookie in enumerate(state.cookies):
        if not _is_valid_cookie(cookie):
            raise InvalidStorageState(
                f"Cookie {number} of the storage state is one that no browser takes: it needs a name and a "
                "domain, a path that begins with /, no control characters, and at most 4,096 bytes; expires "
                "is -1 or a time in seconds."
            )
    for number, stored in enumerate(state.origins):
        try:
            is_origin = parse_called_address(stored.origin).path == "/" and "?" not in stored.origin
        except InvalidUrl:
            is_origin = False
        if not is_origin:
            raise InvalidStorageState(
                f"Origin {number} of the storage state takes an origin such as https://shop.example.com."
            )
    if not are_databases_within_limits(
        [database for stored in state.origins for database in stored.indexed_db]
    ):
        raise InvalidStorageState(describe_stored_database_limits())
    if len(state.origins) > _MOST_ORIGINS or len(state.list_secrets()) > MOST_SECRETS:
        raise InvalidStorageState(
            f"A storage state takes at most {_MOST_ORIGINS} origins and {MOST_SECRETS:,} texts that must be "
            "hidden; leave out those of other sites."
        )
    return state


def _is_valid_cookie(cookie: StoredCookie) -> bool:
    texts = (cookie.name, cookie.value, cookie.domain, cookie.path)
    return (
        bool(cookie.name and cookie.domain.strip("."))
        and cookie.path.startswith("/")
        and len(cookie.path) <= _MOST_PATH_CHARACTERS
        and len(f"{cookie.name}{cookie.value}".encode()) <= _MOST_COOKIE_BYTES
        and not any(character < " " or character == "\x7f" for text in texts for character in text)
        and (cookie.expires == -1 or 0 < cookie.expires <= _LAST_EXPIRES)
    )


def _may_be_stored_secret(text: str) -> bool:
    return len(text) >= _LEAST_SECRET_CHARACTERS and not any(map(str.isspace, text))


def _list_stored_state_texts(stored: Any) -> Iterator[str]:
    """Yield the texts inside a value of JSON types, and inside those that are JSON themselves."""
    waiting = [(stored, True)]
    while waiting:
        value, may_hold_more = waiting.pop()
        if isinstance(value, str):
            yield value
            if may_hold_more and value.startswith(("{", "[", '"')):
                with suppress(msgspec.DecodeError, RecursionError):
                    waiting.append((msgspec.json.decode(value.encode()), False))
        elif isinstance(value, dict):
            waiting.extend((member, may_hold_more) for member in value.values())
            waiting.extend((shown, may_hold_more) for shown in list_stored_binary_texts(value))
        elif isinstance(value, list):
            waiting.extend((member, may_hold_more) for member in value)
