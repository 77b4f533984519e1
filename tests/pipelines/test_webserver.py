"""Rights on Dagster's own application, which the gate protects. Decision 0031."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dagster as dg
import httpx
import pytest
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from starlette.testclient import TestClient
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect
from websockets.typing import Origin

from pipelines import webserver_gate
from pipelines.webserver import create_app
from recorder.access.dagster_login import LoginCookies, LoginLinks
from recorder.settings import Settings
from tests.support.http_service import serving

BASE = "http://127.0.0.1:3000"
JSON = "application/json"
VERSION = {"query": "{ version }"}
MUTATION = "mutation { setNuxSeen }"
PAGE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def context() -> Iterator[WorkspaceProcessContext]:
    with (
        dg.DagsterInstance.local_temp() as instance,
        WorkspaceProcessContext(instance, EmptyWorkspaceTarget()) as opened,
    ):
        yield opened


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.from_env({}, data_dir=tmp_path)


def make_client(context: WorkspaceProcessContext, settings: Settings, peer: str = "127.0.0.1") -> TestClient:
    """Return a client of the application without a login; it calls from this address."""
    app = create_app(context, settings)
    return TestClient(app, base_url=BASE, client=(peer, 50_000), follow_redirects=False)


@pytest.fixture
def client(context: WorkspaceProcessContext, settings: Settings) -> TestClient:
    return make_client(context, settings)


@pytest.fixture
def operator(client: TestClient, settings: Settings) -> TestClient:
    """Return the same client, logged in; it sends `Origin` as a page does."""
    log_in(client, settings)
    client.headers["Origin"] = BASE
    return client


def log_in(client: TestClient, settings: Settings) -> Any:
    answer = client.get(LoginLinks(settings).make_link(BASE))
    assert answer.status_code == 200 and client.cookies
    return answer


def ask(client: TestClient, **options: Any) -> Any:
    return client.post("/graphql", **({"json": VERSION} | options))


def test_after_login_pages_and_graphql_work(operator: TestClient) -> None:
    assert list(ask(operator).json()["data"]) == ["version"]
    assert "dagster" in operator.get("/assets", headers=PAGE).text.lower()
    assert operator.get("/server_info").json()["dagster_version"] == dg.__version__
    assert "GraphiQL" in operator.get("/graphql", headers=PAGE).text


@pytest.mark.parametrize("path", ["/", "/runs", "/server_info", "/graphql", "/logs/a.out", "/favicon.png"])
def test_without_login_nothing_is_served(client: TestClient, path: str) -> None:
    answer = client.get(path, headers=PAGE)
    assert answer.status_code == 401 and "recorder status" in answer.text
    assert "dagster_version" not in answer.text and "<script" not in answer.text
    assert "recorder status" in client.get(path).text and "<" not in client.get(path).text
    assert ask(client, headers={"Origin": BASE}).status_code == 401


def test_health_needs_no_login_and_holds_no_data(client: TestClient) -> None:
    for host in ("127.0.0.1:3000", "10.0.0.7", "evil.example"):
        assert client.get("/healthz", headers={"Host": host}).json() == {"status": "ok"}
    assert client.post("/healthz").status_code == 403


def test_a_link_logs_one_browser_in(client: TestClient, settings: Settings) -> None:
    link = LoginLinks(settings).make_link(BASE)
    assert client.head(link).status_code == 405
    assert client.get(link, headers={"Sec-Purpose": "prefetch"}).status_code == 405
    answer = client.get(link)
    cookie = answer.headers["set-cookie"]
    assert re.fullmatch(
        r"recorder_dagster_[0-9a-f]{8}=\S+; HttpOnly; Max-Age=43200; Path=/; SameSite=strict", cookie
    )
    assert 'content="0;url=/asset-groups"' in answer.text and answer.headers["cache-control"] == "no-store"
    client.cookies.clear()
    again = client.get(link, headers=PAGE)
    assert again.status_code == 401 and "used already" in again.text and "set-cookie" not in again.headers


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": ""},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:3001"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:3000.evil.example"},
        {"Origin": BASE, "Sec-Fetch-Site": "same-site"},
        {"Origin": BASE, "Sec-Fetch-Site": "cross-site"},
        {"Origin": BASE, "Sec-Fetch-Site": "none"},
        {"Host": "evil.example:3000", "Origin": "http://evil.example:3000"},
    ],
)
def test_another_page_changes_nothing(operator: TestClient, headers: dict[str, str]) -> None:
    assert ask(operator, headers=headers).status_code in (400, 403)
    assert operator.post("/logout", headers=headers).status_code in (400, 403)
    assert operator.options("/graphql", headers=headers).status_code in (400, 403)
    assert ask(operator).status_code == 200


def test_a_request_that_does_not_say_where_it_comes_from_changes_nothing(operator: TestClient) -> None:
    del operator.headers["Origin"]
    assert ask(operator).status_code == 403
    twice = [("Origin", BASE), ("Origin", BASE)]
    assert ask(operator, headers=twice).status_code == 403
    assert ask(operator, headers={"Origin": BASE, "Sec-Fetch-Site": "same-origin"}).status_code == 200


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "text/plain; application/json",
        "text/plain;application/json",
        "application/json, text/plain",
        "application/json; charset=utf-16",
        "application/json; boundary=x",
        "application/jsonx",
        "Application/JSON",  # Dagster would look for the query in the address
        "application/graphql",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=application/json",
    ],
)
def test_graphql_is_taken_as_json_alone(operator: TestClient, content_type: str | None) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    options = {"json": None, "content": b'{"query": "{ version }"}', "headers": headers}
    assert ask(operator, params={"query": MUTATION}, **options).status_code == 415


@pytest.mark.parametrize("content_type", [JSON, "application/json; charset=UTF-8"])
def test_json_is_taken_in_every_spelling(operator: TestClient, content_type: str) -> None:
    options = {
        "json": None,
        "content": b'{"query": "{ version }"}',
        "headers": {"Content-Type": content_type},
    }
    assert ask(operator, **options).status_code == 200


@pytest.mark.parametrize("query", [MUTATION, "{ version }"])
@pytest.mark.parametrize("path", ["/graphql", "/%67raphql"])
def test_nothing_is_executed_by_get(operator: TestClient, query: str, path: str) -> None:
    for headers in ({}, PAGE):
        answer = operator.get(f"{path}?query={query}", headers=headers)
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


@pytest.mark.parametrize("kind", ["materialization", "check", "observation"])
def test_reports_about_assets_are_not_taken(
    operator: TestClient, context: WorkspaceProcessContext, kind: str
) -> None:
    path = f"/report_asset_{kind}/made_up"
    assert (
        operator.post(path, json={"check_name": "a", "passed": True, "data_version": "1"}).status_code == 405
    )
    assert not context.instance.all_asset_keys()


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_another_page_may_link_here_but_load_nothing(operator: TestClient, site: str) -> None:
    visit = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert operator.get("/runs", headers=visit).status_code == 200
    for changed in (
        {"Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"},
    ):
        assert operator.get("/runs", headers=visit | changed).status_code == 403


def test_no_answer_can_be_framed_or_loaded_by_another_origin(
    operator: TestClient, client: TestClient
) -> None:
    for answer in (operator.get("/runs"), operator.get("/logout"), client.get("/healthz")):
        policies = ", ".join(answer.headers.get_list("content-security-policy"))
        assert "frame-ancestors 'self'" in policies
        assert answer.headers["x-frame-options"] == "SAMEORIGIN"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_logging_out_ends_the_login_everywhere(operator: TestClient, settings: Settings) -> None:
    cookie = dict(operator.cookies)
    assert "<form" in operator.get("/logout", headers=PAGE).text
    assert operator.put("/logout").status_code == 405
    answer = operator.post("/logout")
    assert answer.status_code == 200 and "Max-Age=0" in answer.headers["set-cookie"]
    operator.cookies.update(cookie)
    assert ask(operator).status_code == 401


def test_cookies_of_others_do_not_disturb_a_login(operator: TestClient, settings: Settings) -> None:
    name = LoginCookies(settings).name
    ((_, value),) = operator.cookies.items()
    operator.cookies.clear()
    for cookie in (f"{name}=x; {name}={value}", f'a="; {name}={value}', f"{name}={value}; b"):
        assert ask(operator, headers={"Cookie": cookie}).status_code == 200, cookie
    assert ask(operator, headers={"Cookie": f"{name}=x; other={value}"}).status_code == 401


def test_a_proxy_names_the_user_only_from_a_trusted_address(
    context: WorkspaceProcessContext, settings: Settings
) -> None:
    behind = replace(settings, trusted_proxies=("10.1.0.0/16",), dagster_auth_header="x-forwarded-user")
    origin, user = {"Origin": BASE}, {"Origin": BASE, "X-Forwarded-User": "ada"}
    for peer, status in (("10.1.2.3", 200), ("::ffff:10.1.2.3", 200), ("10.2.0.1", 401), ("127.0.0.1", 401)):
        assert ask(make_client(context, behind, peer), headers=user).status_code == status, peer
    trusted = make_client(context, behind, "10.1.2.3")
    assert ask(trusted, headers=origin).status_code == 401
    assert ask(trusted, headers=origin | {"X-Forwarded-User": " "}).status_code == 401
    twice = [*origin.items(), ("X-Forwarded-User", "ada"), ("X-Forwarded-User", "eve")]
    assert ask(trusted, headers=twice).status_code == 401
    assert ask(trusted, headers=user | {"Origin": "http://evil.example"}).status_code == 403
    assert ask(make_client(context, settings, "10.1.2.3"), headers=user).status_code == 401


def test_a_cookie_over_https_is_for_https_alone(context: WorkspaceProcessContext, settings: Settings) -> None:
    behind = replace(settings, trusted_proxies=("10.1.0.0/16",))
    secure = {"X-Forwarded-Proto": "https"}
    for peer, expected in (("10.1.2.3", True), ("10.2.0.1", False)):
        link = LoginLinks(settings).make_link(BASE)
        cookie = make_client(context, behind, peer).get(link, headers=secure).headers["set-cookie"]
        assert ("; Secure" in cookie) == expected


@pytest.fixture
def server(context: WorkspaceProcessContext, settings: Settings) -> Iterator[str]:
    """Yield an application that listens on a socket."""
    with serving(create_app(context, settings), http=HttpToolsProtocol, ws=WebSocketsSansIOProtocol) as port:  # type: ignore[arg-type]
        yield f"127.0.0.1:{port}"


def open_socket(host: str, cookie: str | None, origin: str | None, **more: str) -> Any:
    headers = more | ({} if cookie is None else {"Cookie": cookie})
    return connect(
        f"ws://{host}/graphql",
        origin=None if origin is None else Origin(origin),
        additional_headers=headers,
        proxy=None,
        subprotocols=["graphql-ws"],  # type: ignore[list-item]
    )


def test_a_socket_needs_login_and_origin(server: str, settings: Settings) -> None:
    cookies, origin = LoginCookies(settings), f"http://{server}"
    cookie = f"{cookies.name}={cookies.make_cookie()}"
    for refused, status in (
        ((None, origin), 401),
        ((cookie, None), 403),
        ((cookie, "null"), 403),
        ((cookie, "http://evil.example"), 403),
        ((cookie, "http://127.0.0.1:1"), 403),
    ):
        with pytest.raises(InvalidStatus) as error, open_socket(server, *refused):
            pass
        assert error.value.response.status_code == status, refused
    with open_socket(server, cookie, origin) as socket:
        socket.send('{"type": "connection_init", "payload": {}}')
        assert "connection_ack" in str(socket.recv(timeout=10))


def test_a_socket_ends_with_its_login(
    server: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    cookies, origin = LoginCookies(settings), f"http://{server}"
    cookie = f"{cookies.name}={cookies.make_cookie()}"
    with open_socket(server, cookie, origin) as first, open_socket(server, cookie, origin) as second:
        answer = httpx.post(f"{origin}/logout", headers={"Cookie": cookie, "Origin": origin}, trust_env=False)
        assert answer.status_code == 200
        for socket in (first, second):
            with pytest.raises(ConnectionClosed) as closed:
                socket.recv(timeout=10)
            assert closed.value.rcvd is not None and closed.value.rcvd.code == 1008
    now_ms = webserver_gate.clock.now_ms
    fresh = f"{cookies.name}={cookies.make_cookie()}"
    nearly_over_ms = (webserver_gate.LOGIN_SECONDS - 2) * 1000
    monkeypatch.setattr(webserver_gate.clock, "now_ms", lambda: now_ms() + nearly_over_ms)
    with open_socket(server, fresh, origin) as socket, pytest.raises(ConnectionClosed):
        socket.recv(timeout=10)
