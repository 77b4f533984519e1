"""Host names that servers of a deployment answer to. Contract §1."""

from pathlib import Path

import pytest

from recorder.net.host_header import AllowedHosts, with_listening_host
from recorder.setting_parsers import InvalidSetting
from recorder.settings import Settings


def hosts(tmp_path: Path, **environment: str) -> AllowedHosts:
    variables = {f"RECORDER_{name.upper()}": value for name, value in environment.items()}
    return AllowedHosts.from_settings(Settings.from_env(variables, data_dir=tmp_path))


def allows(allowed: AllowedHosts, *values: str) -> bool:
    return allowed.allows([(b"accept", b"*/*"), *((b"host", value.encode()) for value in values)])


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "[::1]", "LocalHost"])
def test_loopback_names_are_allowed_with_any_port(tmp_path: Path, name: str) -> None:
    allowed = hosts(tmp_path)
    for _ in range(2):  # judged, then remembered
        assert allows(allowed, name) and allows(allowed, f"{name}:1") and allows(allowed, f"{name}:65535")


@pytest.mark.parametrize(
    "value",
    [
        "",
        "evil.example",
        "evil.example:8700",
        "localhost.evil.example",
        "evil.example#localhost",
        "localhost@evil.example",
        "localhost:",
        "localhost:x",
        "localhost:123456",
        "localhost ",
        " localhost",
        "localhost.",
        "localhost,evil.example",
        "127.0.0.1.evil.example",
        "127.1",
        "0.0.0.0",
        "::1",
        "[::1",
        "[::1]x",
        "[::1%25lo]",
        "http://localhost",
        "localhost/",
        "lоcalhost",
        "localhost\n",
    ],
)
def test_other_values_are_not(tmp_path: Path, value: str) -> None:
    assert not allows(hosts(tmp_path), value)


def test_exactly_one_header_is_needed(tmp_path: Path) -> None:
    allowed = hosts(tmp_path)
    assert not allows(allowed) and not allows(allowed, "localhost", "localhost")
    assert not allows(allowed, "localhost", "evil.example")


def test_the_public_host_and_listed_names_are_allowed_too(tmp_path: Path) -> None:
    allowed = hosts(
        tmp_path,
        public_url="https://Recorder.Example:8443/base",
        allowed_hosts="intern.example, [fd00::1], one.example:8700",
    )
    for name in ("recorder.example", "recorder.example:443", "intern.example:1", "[fd00::1]:8700"):
        assert allows(allowed, name), name
    assert allows(allowed, "one.example:8700") and allows(allowed, "localhost")
    assert not allows(allowed, "one.example") and not allows(allowed, "one.example:8701")
    assert allows(hosts(tmp_path, public_url="http://[fd00::2]:8700"), "[fd00::2]:8700")


def test_the_address_that_a_server_listens_on_is_allowed(tmp_path: Path) -> None:
    settings = Settings.from_env({"RECORDER_ALLOWED_HOSTS": "a.example"}, data_dir=tmp_path)
    for host, name in (("10.1.2.3", "10.1.2.3"), ("fd00::1", "[fd00::1]"), ("box", "box")):
        allowed = AllowedHosts.from_settings(with_listening_host(settings, host))
        assert allows(allowed, f"{name}:8700") and allows(allowed, "a.example")
    for host in ("0.0.0.0", "::"):
        assert with_listening_host(settings, host) == settings


def test_what_is_remembered_is_bounded(tmp_path: Path) -> None:
    allowed = hosts(tmp_path)
    for port in range(1, 3_000):
        assert allows(allowed, f"localhost:{port}") and not allows(allowed, f"evil{port}.example")
    assert len(allowed._accepted) == 1_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALLOWED_HOSTS", "*"),
        ("ALLOWED_HOSTS", "https://a.example"),
        ("ALLOWED_HOSTS", "fd00::1"),
        ("ALLOWED_HOSTS", "a.example/x"),
        ("TRUSTED_PROXIES", "proxy.example"),
        ("TRUSTED_PROXIES", "10.0.0.1/8"),
        ("DAGSTER_AUTH_HEADER", "X-User"),
    ],
)
def test_a_setting_that_cannot_be_read_is_refused(tmp_path: Path, name: str, value: str) -> None:
    with pytest.raises(InvalidSetting, match=f"RECORDER_{name}") as refused:
        Settings.from_env({f"RECORDER_{name}": value}, data_dir=tmp_path)
    assert value not in str(refused.value) or value in ("*", "X-User")


def test_the_settings_reach_children(tmp_path: Path) -> None:
    chosen = {
        "RECORDER_ALLOWED_HOSTS": "a.example,b.example:80",
        "RECORDER_TRUSTED_PROXIES": "10.0.0.0/8,fd00::1/128",
        "RECORDER_DAGSTER_AUTH_HEADER": "X-User",
    }
    settings = Settings.from_env(chosen, data_dir=tmp_path)
    assert settings.dagster_auth_header == "x-user"
    assert Settings.from_env(settings.as_env()) == settings
