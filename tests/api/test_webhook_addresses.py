"""Addresses that a webhook may have. Spec §4.4, contract §6."""

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from api.app import create_app
from tests.support.factories import Caller, Service, assert_problem
from tests.support.sealed_sessions import make_settings
from tests.support.webhooks import LOCAL, URL, WEBHOOKS, body, make


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    """Yield a caller of a deployment whose operator lists nothing."""
    folder = tmp_path_factory.mktemp("strict")
    app = create_app(make_settings(folder, allowed_outbound=()))
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Service(app, client, app.state.runtime).make_caller()


#: Cases 57 to 62 of the hostile corpus; tests/net/isolated holds many more.
REFUSED = {
    "invalid_url": (
        "file:///etc/passwd",
        "gopher://example.com/",
        "ftp://example.com/",
        "javascript:alert(1)",
        "example.com/hooks",
        "https://",
        "https:///path",
        "https://user@example.com/",
        "https://user:secret@example.com/",
        "https://example.com/#part",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://exa mple.com/",
        "https://example.com\\@127.0.0.1/",
        "https://example.com/\n",
        f"https://example.com/{'x' * 2_048}",
    ),
    "url_not_allowed": (
        "http://example.invalid/",
        "https://127.0.0.1/",
        "https://10.0.0.1/",
        "https://100.64.0.1/",
        "https://localhost/",
        "https://localhost./",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0177.0.0.1/",
        "https://127.1/",
        "https://①②⑦.⓪.⓪.①/",
        "https://[::1]/",
        "https://[::ffff:127.0.0.1]/",
        "https://[::127.0.0.1]/",
        "https://[64:ff9b::7f00:1]/",
        "https://[fec0::1]/",
        "https://169.254.169.254/latest/meta-data",
        "https://[fd00:ec2::254]/",
        "https://100.100.100.200/",
        "https://168.63.129.16/",
        "http://93.184.216.34/",
    ),
}


@pytest.mark.parametrize(("code", "url"), [(code, url) for code, urls in REFUSED.items() for url in urls])
def test_an_address_that_must_not_be_called_is_refused(strict: Caller, code: str, url: str) -> None:
    problem = assert_problem(strict.post(WEBHOOKS, body(url=url)), 422, code)
    assert [item["pointer"] for item in problem["errors"]] == ["/url"]
    assert "93.184" not in str(problem) and "169.254" not in str(problem)


@pytest.mark.parametrize("url", [URL, "https://93.184.216.34/in", "https://[2606:2800:220:1::1]:8443/in"])
def test_a_public_address_is_taken_and_a_name_that_does_not_resolve_yet(strict: Caller, url: str) -> None:
    assert strict.post(WEBHOOKS, body(url=url)).status_code == 201


@pytest.mark.parametrize("url", [LOCAL, "http://localhost:9/in", "https://127.0.0.1/in", "http://[::1]:9/in"])
def test_what_the_operator_lists_may_be_called(caller: Caller, url: str) -> None:
    assert caller.post(WEBHOOKS, body(url=url)).status_code == 201


def test_the_same_address_may_be_registered_twice(caller: Caller) -> None:
    assert make(caller)["id"] != make(caller)["id"]
