"""Login to Dagster's pages: one-time links that only the operator's user can make, then a signed cookie.

A link is a file of mode 600 in the data folder, so whoever can make one can read the deployment's secret too.
The file holds a hash of the link's secret part; opening the link deletes the file. Contract §9.
"""

import hmac
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

import httpx

from recorder import clock
from recorder.hashing import compute_keyed_digest
from recorder.settings import Settings

#: Seconds for which a link may be opened, and for which the login that follows holds.
LINK_SECONDS: Final = 15 * 60
LOGIN_SECONDS: Final = 12 * 3600
#: Path of a link, before its token.
LINK_PATH: Final = "/login/"

_FOLDER = "dagster-login"
_ENDED = "ended"
#: Links that wait to be opened; the oldest is deleted.
_MOST_LINKS = 20
#: Eight characters name the file, the others are the secret: 144 bits.
_TOKEN = re.compile(r"([0-9A-Za-z_-]{8})([0-9A-Za-z_-]{24})")
_COOKIE = re.compile(r"([0-9]{1,12})\.([0-9a-f]{32})\.([0-9a-f]{64})")


class LoginLinks:
    """One-time links of a deployment."""

    def __init__(self, settings: Settings) -> None:
        self._folder = settings.data_dir / _FOLDER / "links"

    def make_link(self, dagster_url: str) -> str:
        """Return an address below `dagster_url` that logs one browser in, once, within `LINK_SECONDS`."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._delete_surplus()
        token = secrets.token_urlsafe(24)
        name, secret = token[:8], token[8:]
        _write_private_login_file(
            self._folder / name, f"{_read_login_clock_s() + LINK_SECONDS} {_hash_login_secret(secret)}"
        )
        return f"{dagster_url}{LINK_PATH}{token}"

    def redeem(self, token: str) -> bool:
        """Return whether this token opens a link now; it does so once."""
        parts = _TOKEN.fullmatch(token)
        if parts is None:
            return False
        path = self._folder / parts[1]
        try:
            expires_s, expected = path.read_text().split()
        except (OSError, ValueError):
            return False
        if not hmac.compare_digest(_hash_login_secret(parts[2]), expected):
            return False
        try:
            path.unlink()  # of two requests at once, one deletes it
        except FileNotFoundError:
            return False
        return _read_login_clock_s() < int(expires_s)

    def _delete_surplus(self) -> None:
        """Delete expired links, and the oldest ones where too many wait."""
        made_s = {}
        for path in self._folder.iterdir():
            try:
                made_s[path] = path.stat().st_mtime
            except FileNotFoundError:
                continue  # it was opened just now
        newest_first = sorted(made_s, key=lambda path: made_s[path], reverse=True)
        for number, path in enumerate(newest_first, start=1):
            if number >= _MOST_LINKS or made_s[path] < _read_login_clock_s() - LINK_SECONDS:
                path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Login:
    """Login of a browser that opened a link; it names no person."""

    id: str
    expires_s: int


class LoginCookies:
    """Cookies of one server process, signed under the deployment's secret."""

    def __init__(self, settings: Settings) -> None:
        self._secret = settings.secret
        self._ended_folder = settings.data_dir / _FOLDER / _ENDED
        #: A browser sends the cookies of a host to all its ports: another deployment's has another name.
        self.name = (
            f"recorder_dagster_{compute_keyed_digest(self._secret, 'dagster-login-name', b'').hex()[:8]}"
        )
        self._ended = self._read_ended()

    def make_cookie(self) -> str:
        """Return the value of a new login's cookie."""
        signed = f"{_read_login_clock_s() + LOGIN_SECONDS}.{secrets.token_hex(16)}"
        return f"{signed}.{self._sign_text(signed)}"

    def find_login(self, values: list[str]) -> Login | None:
        """Return the first valid login among these cookies: signed here, not expired, not ended."""
        for value in values:
            parts = _COOKIE.fullmatch(value)
            if parts is None or not hmac.compare_digest(self._sign_text(f"{parts[1]}.{parts[2]}"), parts[3]):
                continue
            login = Login(parts[2], int(parts[1]))
            if _read_login_clock_s() < login.expires_s and login.id not in self._ended:
                return login
        return None

    def end_login(self, login: Login) -> None:
        """Make a login's cookie invalid, also after a restart."""
        self._ended.add(login.id)
        self._ended_folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_private_login_file(self._ended_folder / login.id, str(login.expires_s))

    def _read_ended(self) -> set[str]:
        """Return the ids of logins that were ended by a logout, and delete the marks of expired ones."""
        ended = set()
        for path in self._ended_folder.glob("*"):
            if path.stat().st_mtime < _read_login_clock_s() - LOGIN_SECONDS:
                path.unlink(missing_ok=True)  # its cookie has expired
            else:
                ended.add(path.name)
        return ended

    def _sign_text(self, text: str) -> str:
        return compute_keyed_digest(self._secret, "dagster-login", text.encode()).hex()


@contextmanager
def log_in_to_dagster(settings: Settings, dagster_url: str) -> Iterator[httpx.Client]:
    """Yield a client that is logged in to a deployment's Dagster pages, for programs of its operator.

    It sends `Origin`, as a page of Dagster does: without it nothing that changes state is served.

    Raises:
        httpx.HTTPError: if the pages do not answer, or refuse the link.
    """
    origin = {"Origin": dagster_url}
    with httpx.Client(base_url=dagster_url, headers=origin, timeout=30, trust_env=False) as client:
        client.get(LoginLinks(settings).make_link(dagster_url)).raise_for_status()
        yield client


def _read_login_clock_s() -> int:
    return clock.now_ms() // 1000


def _hash_login_secret(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()


def _write_private_login_file(path: Path, text: str) -> None:
    """Write a file that only this user can read; it appears with its content."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
