"""Steps of live replays that go to another page, or close one. Spec §4.6."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from recorder import Client
from recorder.capture import record
from recorder.live.tab_names import find_acted_page_name
from tests.live.conftest import Recorded
from tests.support.captured_pages import running_browser
from tests.support.factories import Caller, event
from tests.support.http_service import serving
from tests.support.sealing import seal_all
from tests.support.small_sites import make_button, replay_on_ports, serving_pages, store_events

RECORDED = "http://shop.example"
URL, LOGIN, HELP = f"{RECORDED}/", f"{RECORDED}/login", f"{RECORDED}/help"
#: Each button of a name in lower case asks for the address of its name.
PAGES = {
    "/": """<!doctype html><title>Shop</title><h1>Shop</h1><ul><li>Apples<li>Pears<li>Plums</ul>
<button id=SignIn onclick="window.open('/login')">SignIn</button>
<button id=Help onclick="window.open('/help')">Help</button>
<button id=Both onclick="window.open('/login'); window.open('/help')">Both</button>
<button id=Short onclick="window.open('/short')">Short</button>
<button id=buy onclick="fetch('/buy'); Basket.textContent += ' one more'">buy</button>
<p id=Basket>Basket:</p><p id=Who>Nobody is here</p>
<script>onmessage = () => { Who.outerHTML = "<h2>Ada is here</h2><a href=/orders>Orders</a>" }</script>""",
    "/login": """<!doctype html><title>Login</title><h1>Login</h1><p>Say who you are</p>
<button id=enter onclick="setTimeout(enter_later, 400)">enter</button>
<script>async function enter_later() {
  await fetch('/enter');
  opener.postMessage("in", "*");
  window.close();
}</script>""",
    "/help": """<!doctype html><title>Help</title><h1>Help</h1><ol><li>First<li>Then<li>Last</ol>
<button id=read onclick="fetch('/read'); document.body.append('Seen. ')">read</button>
<table><tr><td>Page<td>1</table>""",
    "/short": """<!doctype html><script>window.close()</script>""",
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Yield Chromium, started once."""
    with running_browser() as running:
        yield running


def capture(caller: Caller, browser: Any, port: int, act: Callable[[Any], None]) -> str:
    """Record what is done in a page of the shop; return the sealed session."""
    context = browser.new_context()
    page = context.new_page()
    with (
        serving(caller.service.app, lifespan="off") as api_port,
        Client(f"http://127.0.0.1:{api_port}", caller.key.key) as client,
        record(page, workflow="tabs", client=client) as recording,
    ):
        page.goto(f"http://localhost:{port}/")
        act(page)
    context.close()
    seal_all(caller.service.runtime)
    # A page that closes while it is read counts as an error.
    assert recording.stats.dropped_events == 0
    return recording.id


def list_tab_events(caller: Caller, session_id: str) -> list[tuple[str, str]]:
    """Return the events of a session that go to a page or close one, with the names of the pages."""
    events = caller.get(f"/v1/sessions/{session_id}/events?limit=100").json()["data"]
    tabs = [event for event in events if event["type"] in ("tab_switch", "tab_close")]
    return [(event["type"], event["data"]["page"]) for event in tabs]


def open_popup(page: Any, button: str) -> Any:
    """Open a popup by a click on a button, and return its page."""
    with page.expect_popup() as opened:
        page.click(button)
    return opened.value


def let_popup_close_itself(page: Any) -> None:
    popup = open_popup(page, "#SignIn")
    with popup.expect_event("close"):
        popup.click("#enter")
    page.get_by_text("Ada is here").wait_for()
    page.click("#buy")


def close_popup(page: Any) -> None:
    popup = open_popup(page, "#Help")
    popup.click("#read")
    popup.close()
    page.click("#buy")


def go_back_and_forth(page: Any) -> None:
    popup = open_popup(page, "#Help")
    page.click("#buy")
    popup.click("#read")
    page.click("#buy")
    page.click("#buy")
    popup.click("#read")


def act_in_three_pages(page: Any) -> None:
    popups: list[Any] = []
    page.on("popup", lambda popup: popups.append(popup))
    page.click("#Both")
    page.wait_for_timeout(1_000)
    login, help_page = popups
    help_page.click("#read")
    help_page.close()
    page.click("#buy")
    with login.expect_event("close"):
        login.click("#enter")
    page.click("#buy")


@pytest.mark.parametrize(
    ("act", "tabs"),
    [
        (let_popup_close_itself, [("tab_close", "p2"), ("tab_switch", "p1")]),
        (close_popup, [("tab_close", "p2"), ("tab_switch", "p1")]),
        (
            go_back_and_forth,
            [("tab_switch", "p1"), ("tab_switch", "p2"), ("tab_switch", "p1"), ("tab_switch", "p2")],
        ),
        (
            act_in_three_pages,
            [
                ("tab_close", "p3"),
                ("tab_switch", "p1"),
                ("tab_switch", "p2"),
                ("tab_close", "p2"),
                ("tab_switch", "p1"),
            ],
        ),
    ],
)
def test_captured_pages_are_gone_to_and_closed(
    recorded: Recorded, browser: Any, act: Callable[[Any], None], tabs: list[tuple[str, str]]
) -> None:
    caller = recorded.caller
    with serving_pages(PAGES) as (port, paths):
        session_id = capture(caller, browser, port, act)
        captured = list(paths)
        paths.clear()
        assert list_tab_events(caller, session_id) == tabs
        shown = replay_on_ports(caller, session_id, f"http://localhost:{port}", port)
    assert shown["status"] == "completed", shown["divergence"]
    assert paths == captured
    assert list_tab_events(caller, shown["result_session_id"]) == tabs


def click(t_ms: int, name: str, url: str, *popups: str | None) -> dict[str, Any]:
    """Return a click on a button that opens popups of these names."""
    signals = [{"type": "popup", **({"page": page} if page else {})} for page in popups]
    return event(t_ms, "click", target=make_button(name), url=url, signals=signals)


def go_to(t_ms: int, page: str | None = None, *, kind: str = "tab_switch") -> dict[str, Any]:
    """Return a step that goes to a page."""
    return event(t_ms, kind, **({"data": {"page": page}} if page else {}))


def close(t_ms: int, page: str | None = None) -> dict[str, Any]:
    """Return a step that closes a page."""
    return go_to(t_ms, page, kind="tab_close")


def replay(caller: Caller, *steps: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Replay steps that begin on the shop; return the end of the replay, and its requests."""
    session_id = store_events(caller, event(0, "navigate", url=URL), *steps)
    with serving_pages(PAGES) as (port, paths):
        shown = replay_on_ports(caller, session_id, RECORDED, port)
    return shown, [path for path in paths if path.strip("/").islower() and path not in PAGES]


@pytest.mark.parametrize(
    ("steps", "requests"),
    [
        pytest.param(
            [
                click(100, "Help", URL, None),
                event(101, "tab_open"),
                go_to(200),
                click(300, "buy", URL),
                go_to(400),
                click(500, "read", HELP),
                close(600),
                go_to(601),
                click(700, "buy", URL),
            ],
            ["/buy", "/read", "/buy"],
            id="no names",
        ),
        pytest.param(
            [click(100, "SignIn", URL, None), click(200, "enter", LOGIN), close(210), click(300, "buy", URL)],
            ["/enter", "/buy"],
            id="no names, closes itself",
        ),
        pytest.param(
            [
                click(100, "SignIn", URL, "p2"),
                click(200, "enter", LOGIN),
                close(210, "p2"),
                click(300, "buy", URL),
            ],
            ["/enter", "/buy"],
            id="closes itself, and no switch follows",
        ),
        pytest.param(
            [click(100, "Short", URL, "p2"), close(150, "p2"), click(200, "buy", URL)],
            ["/buy"],
            id="closes itself at once",
        ),
        pytest.param(
            [
                click(100, "Both", URL, "p2", "p3"),
                click(200, "read", HELP),
                go_to(300, "p2"),
                close(301, "p3"),
                click(400, "enter", LOGIN),
                close(500, "p2"),
                click(600, "buy", URL),
            ],
            ["/read", "/enter", "/buy"],
            id="two popups",
        ),
        pytest.param(
            [
                event(100, "tab_open", url=HELP, app={"page": "p2"}),
                click(200, "read", HELP),
                go_to(300, "p1"),
                click(400, "buy", URL),
                close(500, "p2"),
                event(600, "tab_open"),
                event(700, "navigate", url=HELP),
                click(800, "read", HELP),
            ],
            ["/read", "/buy", "/read"],
            id="pages that no step announces",
        ),
    ],
)
def test_steps_act_in_the_page_gone_to(
    recorded: Recorded, steps: list[dict[str, Any]], requests: list[str]
) -> None:
    shown, paths = replay(recorded.caller, *steps)
    assert shown["status"] == "completed", shown
    assert paths == requests


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([close(200, "p2")], id="never opened"),
        pytest.param([go_to(200, "p2")], id="going to a page that was never opened"),
        pytest.param([close(200, "p1")], id="the only page"),
        pytest.param([close(200)], id="the only page, without a name"),
        pytest.param([go_to(200)], id="no other page"),
        pytest.param(
            [
                click(100, "Both", URL, None, "p3"),
                event(101, "tab_open"),
                event(102, "tab_open"),
                go_to(200, "p3"),
                go_to(300, "p1"),
                go_to(400),
            ],
            id="two other pages",
        ),
        pytest.param(
            [click(100, "Help", URL, "p2"), close(200, "p2"), go_to(300, "p2")],
            id="going to a page that is closed",
        ),
    ],
)
def test_a_page_that_is_unknown_or_the_only_one_is_a_divergence(
    recorded: Recorded, steps: list[dict[str, Any]]
) -> None:
    shown, paths = replay(recorded.caller, *steps, click(900, "buy", URL))
    assert shown["status"] == "diverged", shown
    first = shown["divergence"]
    assert (first["kind"], first["acted"]) == ("action_failed", False)
    assert [row["outcome"] for row in shown["rows"]][-2:] == ["matched", "diverged"]
    assert len(shown["rows"]) == 1 + len([step for step in steps if step["type"] != "tab_open"])
    assert paths == []


def test_the_first_page_of_a_part_has_the_name_that_it_has_in_the_whole() -> None:
    opens = click(100, "Both", URL, "p2", "p3")
    assert find_acted_page_name([]) == "p1"
    assert find_acted_page_name([opens]) == "p3"
    assert find_acted_page_name([opens, go_to(200, "p1")]) == "p1"
    assert find_acted_page_name([opens, go_to(200, "p1"), close(300, "p1")]) == "p3"
    assert find_acted_page_name([opens, go_to(200)]) is None
    assert find_acted_page_name([event(100, "tab_open", app={"page": "p2"}), go_to(200, "p1")]) == "p1"
    assert find_acted_page_name([event(100, "tab_open", data={"page": "p2"})]) == "p2"
    assert find_acted_page_name([click(100, "Help", URL, None)]) is None
