"""One-time links and login cookies of Dagster's pages. Decision 0031."""

import stat
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from recorder import clock
from recorder.access import dagster_login
from recorder.access.dagster_login import LINK_SECONDS, LOGIN_SECONDS, LoginCookies, LoginLinks
from recorder.settings import Settings

URL = "http://127.0.0.1:3000"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path)


def move_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now_ms = clock.now_ms
    monkeypatch.setattr(dagster_login.clock, "now_ms", lambda: now_ms() + int(seconds * 1000))


def token_of(link: str) -> str:
    assert link.startswith(f"{URL}/login/")
    return link.rpartition("/")[2]


def test_a_link_works_once(settings: Settings) -> None:
    links = LoginLinks(settings)
    token = token_of(links.make_link(URL))
    assert LoginLinks(settings).redeem(token)
    assert not links.redeem(token)


def test_links_are_unlike_and_fit_a_terminal(settings: Settings) -> None:
    made = {LoginLinks(settings).make_link(URL) for _ in range(10)}
    assert len(made) == 10 and all(len(link) <= 66 for link in made)


def test_only_this_user_can_read_a_link_and_it_holds_no_secret(settings: Settings) -> None:
    token = token_of(LoginLinks(settings).make_link(URL))
    folder = settings.data_dir / "dagster-login" / "links"
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert token[8:] not in file.read_text()


def test_a_wrong_secret_neither_opens_a_link_nor_uses_it_up(settings: Settings) -> None:
    links = LoginLinks(settings)
    token = token_of(links.make_link(URL))
    for wrong in (token[:8] + "A" * 24, "A" * 8 + token[8:], token[:-1], token + "A", "", "../" + token):
        assert not links.redeem(wrong)
    assert not links.redeem(f"{token[:8]}/../{token[:8]}")
    assert links.redeem(token)


def test_a_link_expires(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    links = LoginLinks(settings)
    early, late = token_of(links.make_link(URL)), token_of(links.make_link(URL))
    move_clock(monkeypatch, LINK_SECONDS - 5)
    assert links.redeem(early)
    move_clock(monkeypatch, 10)
    assert not links.redeem(late)


def test_links_that_nobody_opens_do_not_pile_up(settings: Settings) -> None:
    links = LoginLinks(settings)
    tokens = [token_of(links.make_link(URL)) for _ in range(50)]
    assert len(list((settings.data_dir / "dagster-login" / "links").iterdir())) == 20
    assert links.redeem(tokens[-1]) and not links.redeem(tokens[0])


def test_of_many_who_open_a_link_at_once_one_gets_in(settings: Settings) -> None:
    links = LoginLinks(settings)
    for _ in range(20):
        token, opened = token_of(links.make_link(URL)), []
        barrier = threading.Barrier(8)

        def redeem(
            token: str = token, opened: list[bool] = opened, barrier: threading.Barrier = barrier
        ) -> None:
            barrier.wait()
            opened.append(links.redeem(token))

        threads = [threading.Thread(target=redeem) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert opened.count(True) == 1


def test_a_cookie_holds_until_it_expires(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    cookies = LoginCookies(settings)
    cookie = cookies.make_cookie()
    assert LoginCookies(settings).find_login(["rubbish", cookie]) is not None
    move_clock(monkeypatch, LOGIN_SECONDS - 5)
    assert cookies.find_login([cookie]) is not None
    move_clock(monkeypatch, 10)
    assert cookies.find_login([cookie]) is None


def test_a_cookie_that_was_changed_or_signed_elsewhere_is_none(settings: Settings) -> None:
    cookies = LoginCookies(settings)
    expires, nonce, signature = cookies.make_cookie().split(".")
    later = str(int(expires) + 1)
    for wrong in (
        f"{later}.{nonce}.{signature}",
        f"{expires}.{nonce[::-1]}.{signature}",
        f"{expires}.{nonce}.{signature[:-1]}0",
        f"{expires}.{nonce}.",
        f"{expires}.{nonce}",
        "",
    ):
        assert wrong == f"{expires}.{nonce}.{signature}" or cookies.find_login([wrong]) is None
    other = LoginCookies(replace(settings, secret=b"another"))
    assert other.find_login([f"{expires}.{nonce}.{signature}"]) is None
    assert other.name != cookies.name


def test_an_ended_login_stays_ended_after_a_restart(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies = LoginCookies(settings)
    ended, other = cookies.make_cookie(), cookies.make_cookie()
    login = cookies.find_login([ended])
    assert login is not None
    cookies.end_login(login)
    for reader in (cookies, LoginCookies(settings)):
        assert reader.find_login([ended]) is None and reader.find_login([other]) is not None
    assert reader.find_login([ended, other]) is not None
    move_clock(monkeypatch, LOGIN_SECONDS - 60)
    reader = LoginCookies(settings)
    assert reader.find_login([ended]) is None and reader.find_login([other]) is not None
    move_clock(monkeypatch, 65)
    LoginCookies(settings)
    assert list((settings.data_dir / "dagster-login" / "ended").iterdir()) == []
