"""Failures of a capture never reach the program, and messages of a page are checked."""

import random
import socket
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import orjson
import pytest

from examples.webapp.approval import approve_invoice
from examples.webapp.server import run_webapp
from recorder import Client
from recorder.capture import record
from recorder.capture.capture_journal import CaptureJournal, redact_journal_url
from recorder.capture.page_reader import PageUnreadable, parse_page_reading
from recorder.capture.script_messages import PageScriptAction, parse_script_message
from recorder.capture.sender import MAX_EVENTS, MAX_FRAME_BYTES, MAX_FRAMES, Sender, SessionChoice
from recorder.client.upload_batches import CapturedFrame
from tests.support.ports import find_free_port


@pytest.fixture
def down() -> Iterator[Client]:
    """Yield a client of a service that does not answer."""
    with Client(f"http://127.0.0.1:{find_free_port()}", "nsk_local_nobody", patience_s=0.5) as client:
        yield client


def test_a_service_that_is_down_changes_nothing_for_the_program(page: Any, down: Client) -> None:
    with run_webapp("base") as app:
        with record(page, workflow="capture_test", client=down, patience_s=5) as recording:
            approve_invoice(page, app.url, recording)
        assert [call["path"] for call in app.calls] == ["/login", "/invoices/1042/approve"]
    assert recording.id == ""
    assert recording.stats.events == 0
    assert recording.stats.dropped_events == 13
    assert recording.stats.errors >= 1
    # The page is as it was before.
    page.set_content("<button>Later</button>")
    page.click("button")


def test_a_service_that_hangs_holds_the_program_up_for_the_patience_alone(page: Any) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(50)
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Client(url, "nsk_local_nobody", timeout_s=20, patience_s=20) as client:
            page.set_content("<button>One</button>")
            with record(page, workflow="capture_test", client=client, patience_s=0.5) as recording:
                page.click("button")
                began = time.monotonic()
            assert time.monotonic() - began < 5
    assert recording.stats.errors >= 1


def test_an_error_of_the_program_is_raised_and_tagged(page: Any, client: Client) -> None:
    page.set_content("<button>One</button>")
    with (
        pytest.raises(KeyError, match="missing"),
        record(page, workflow="capture_test", client=client) as recording,
    ):
        page.click("button")
        raise KeyError("missing")
    (tag,) = client.list_tags(recording.id)
    assert (tag["name"], tag["data"]) == ("error", {"type": "KeyError"})
    session = client.get_session(recording.id)
    assert session["status"] in ("stopped", "sealed")
    assert session["event_count"] == 1


def test_a_page_that_goes_away_in_the_middle_ends_its_capture_only(browser: Any, client: Client) -> None:
    page = browser.new_page()
    page.set_content("<button onclick='setTimeout(() => location = \"about:blank\")'>Go</button>")
    with record(page, workflow="capture_test", client=client) as recording:
        page.click("button")
        page.wait_for_url("about:blank")
        page.close()
    assert [event["type"] for event in client.list_events(recording.id)] == ["click"]


def test_a_crashed_page_ends_its_capture_only(browser: Any, client: Client) -> None:
    page = browser.new_page()
    page.set_content("<button>One</button>")
    crashed = threading.Event()
    page.on("crash", lambda _: crashed.set())
    with record(page, workflow="capture_test", client=client) as recording:
        page.click("button")
        with pytest.raises(Exception, match=r"(?i)crash"):
            page.goto("chrome://crash")
    page.close()
    assert [event["type"] for event in client.list_events(recording.id)] == ["click"]


HOSTILE = """<button type=button style="position: fixed; top: 0; left: 0">One</button>
    <form><input name=attributes><input name=parentNode><input name=localName></form>
    <script>
    JSON.stringify = JSON.parse = () => { throw new Error("no") };
    for (const name of ["push", "map", "indexOf", "join"])
      Array.prototype[name] = () => { throw new Error("no") };
    Object.prototype.toJSON = () => "made up"; String.prototype.slice = () => "made up";
    Element.prototype.getAttribute = () => "made up"; Date.now = () => 0; globalThis.recorderPage = {};
    Node.prototype.contains = Element.prototype.closest = () => { throw new Error("no") };
    addEventListener("click", (event) => event.stopImmediatePropagation(), true);
    </script>"""


def test_a_page_that_redefines_its_objects_is_recorded_all_the_same(page: Any, client: Client) -> None:
    page.route("**", lambda route: route.fulfill(body=HOSTILE, content_type="text/html"))
    with record(page, workflow="capture_test", client=client) as recording:
        page.goto("https://hostile.example/")
        # By the mouse: what Playwright itself looks up in the page fails here.
        page.mouse.click(10, 10)
        page.wait_for_timeout(300)
    _, event = client.list_events(recording.id)
    assert (event["type"], event["target"]["name"]) == ("click", "One")
    assert [frame["has_dom"] for frame in client.list_frames(recording.id)].count(True) >= 1
    assert recording.stats.errors == 0


def test_a_page_neither_sees_nor_reaches_the_recorder(page: Any, client: Client) -> None:
    page.set_content("<button>One</button>")
    with record(page, workflow="capture_test", client=client) as recording:
        seen = page.evaluate(
            "[typeof recorderPage, typeof recorderSend, Object.keys(window).filter(n => /record/i.test(n))]"
        )
        assert seen == ["undefined", "undefined", []]
        page.evaluate("""() => {
          for (const kind of ["event", "settled"]) {
            window.postMessage({kind, type: "click"}, "*");
            try { recorderSend(JSON.stringify({kind})) } catch {}
          }
        }""")
        page.click("button")
    assert [event["type"] for event in client.list_events(recording.id)] == ["click"]


def make_message(**members: Any) -> dict[str, Any]:
    """Return a valid message of a click."""
    page = {
        "version": "v", "html": ["html", {}], "boxes": [], "truncated": False, "url": "https://a.example/",
        "title": "T", "ready": "complete", "viewport": [800, 600], "scale": 1,
    }  # fmt: skip
    return {
        "kind": "event", "type": "click", "time": 1, "version": "v", "index": 0, "rect": [0, 0, 1, 1],
        "input": {"button": 0, "point": [1, 2]}, "frames": [], "page": page, **members,
    }  # fmt: skip


def test_a_message_is_read() -> None:
    message = parse_script_message(orjson.dumps(make_message()).decode())
    assert isinstance(message, PageScriptAction)
    assert message.given == {"button": 0, "point": [1, 2]}


def test_messages_of_any_other_form_are_refused() -> None:
    for payload in (
        None,
        7,
        b"{}",
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"kind": "other"}',
        "9" * 5_000_000,
    ):
        with pytest.raises(PageUnreadable):
            parse_script_message(payload)
    random_values = random.Random(20)
    odd: list[Any] = [None, -1, 1e308, 10**30, "x" * 100, [], {}, [[]], True, ["a"], {"a": 1}, float("nan")]
    valid = make_message()
    refused = 0
    for _ in range(3_000):
        message = orjson.loads(orjson.dumps(valid))
        objects = [message, message["page"], message["input"]]
        chosen = random_values.choice(objects)
        name = random_values.choice(list(chosen))
        if random_values.random() < 0.2:
            del chosen[name]
        else:
            chosen[name] = random_values.choice(odd)
        try:
            parse_script_message(orjson.dumps(message, option=orjson.OPT_PASSTHROUGH_DATACLASS).decode())
        except (PageUnreadable, orjson.JSONEncodeError, TypeError) as error:
            assert isinstance(error, (PageUnreadable, orjson.JSONEncodeError, TypeError))
            refused += isinstance(error, PageUnreadable)
    assert refused > 1_000


def test_a_snapshot_that_is_nested_too_deep_is_refused() -> None:
    html: list[Any] = ["b", {}]
    for _ in range(100):
        html = ["div", {}, html]
    with pytest.raises(PageUnreadable, match="too deep"):
        parse_page_reading({**make_message()["page"], "html": html})


def test_a_full_buffer_drops_and_counts(down: Client) -> None:
    sender = Sender(down, SessionChoice("capture_test"))
    for number in range(MAX_EVENTS + 7):
        sender.add_event({"t_ms": number, "type": "click"})
    assert sender.stats.dropped_events == 7


def test_a_buffer_of_frames_counts_their_snapshots_and_their_number(down: Client) -> None:
    sender = Sender(down, SessionChoice("capture_test"))
    dom = {"v": 1, "format": "nodes", "html": ["p", {}, "x" * 1_000_000]}
    for number in range(70):
        sender.add_frame(CapturedFrame.of(b"RIFF", t_ms=number, dom=dom))
    assert sender.stats.dropped_frames == 70 - MAX_FRAME_BYTES // 1_000_300
    sender = Sender(down, SessionChoice("capture_test"))
    for number in range(MAX_FRAMES + 7):
        sender.add_frame(CapturedFrame.of(b"RIFF", t_ms=number))
    sender.add_frame(CapturedFrame.of(b"RIFF", t_ms=1, dom={"amount": Decimal("12.50")}))
    assert (sender.stats.dropped_frames, sender.stats.errors) == (8, 1)


def test_an_event_that_is_refused_costs_no_other(client: Client) -> None:
    sender = Sender(client, SessionChoice("capture_test"))
    sender.start()
    for event in ({"t_ms": 1, "type": "click"}, {"t_ms": -1, "type": "click"}, {"t_ms": 3, "type": "click"}):
        sender.add_event(event)
    sender.close(20)
    assert (sender.stats.events, sender.stats.dropped_events) == (2, 1)
    assert [event["t_ms"] for event in client.list_events(sender.session_id)] == [1, 3]


def test_what_has_no_form_in_json_costs_nothing_else(client: Client) -> None:
    sender = Sender(client, SessionChoice("capture_test"))
    sender.start()
    sender.add_tag("paid", 2, {"amount": Decimal("12.50")})
    data: dict[str, Any] = {"amount": 12.5, "share": 0.5}
    sender.add_tag("checked", 3, data)
    data["share"] = float("nan")
    sender.add_tag("\ud800", 4, {})
    sender.add_event({"t_ms": 1, "type": "click", "data": {"amount": Decimal("12.50")}})
    sender.add_event({"t_ms": 2, "type": "click"})
    sender.close(20)
    stats = sender.stats
    assert (stats.events, stats.dropped_events, stats.errors) == (1, 1, 4)
    tags = [(tag["name"], tag["data"]) for tag in client.list_tags(sender.session_id)]
    assert tags == [("paid", None), ("checked", {"amount": 12.5, "share": 0.5})]
    assert client.get_session(sender.session_id)["status"] != "recording"


def test_a_session_that_is_recording_already_is_continued(page: Any, client: Client) -> None:
    session_id = client.create_session("capture_test", start=True)["id"]
    page.set_content("<button>One</button>")
    with record(page, workflow="capture_test", client=client, session_id=session_id) as recording:
        page.click("button")
    assert recording.id == session_id
    assert client.get_session(session_id)["status"] == "recording"
    assert [event["type"] for event in client.list_events(session_id)] == ["click"]
    client.stop(session_id)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://ada:pw@a.example/x?q=1&Password=pw#t", "https://a.example/x?q=1&Password=•••#t"),
        ("https://a.example/cb?access_token=abc&state=1", "https://a.example/cb?access_token=•••&state=1"),
        ("https://a.example/?password=ab;cd&x=1", "https://a.example/?password=•••&x=1"),
        ("https://a.example/#id_token=abc&x=1", "https://a.example/#id_token=•••&x=1"),
        ("data:text/html,secret", "data:"),
        ("http://[", ""),
    ],
)
def test_addresses_lose_their_secrets(url: str, shown: str) -> None:
    assert redact_journal_url(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://a.example/?user=1&my+badge=A9?b&x=2", "https://a.example/?user=1&my+badge=•••&x=2"),
        ("https://a.example/#user=1&my%20badge=A9", "https://a.example/#user=1&my%20badge=•••"),
        ("https://a.example/#/open?my+badge=A9&x=2", "https://a.example/#/open?my+badge=•••&x=2"),
        ("https://a.example/#/my+badge=A9;x=2&y=3", "https://a.example/#/my+badge=•••&y=3"),
        ("https://a.example/?q=1;my+badge=ab;cd", "https://a.example/?q=1;my+badge=•••"),
        ("https://a.example/?a%2Fb=A9", "https://a.example/?a%2Fb=•••"),
        ("https://a.example/?a/b=A9", "https://a.example/?a/b=•••"),
        ("https://a.example/?&a=b?c=d;e#&f", "https://a.example/?&a=b?c=d;e#&f"),
    ],
)
def test_addresses_lose_the_values_of_secret_fields(url: str, shown: str) -> None:
    journal = CaptureJournal(lambda _: None)
    journal.add_secret_name("my badge")
    journal.add_secret_name("a/b")
    assert journal.redact(url) == shown


def test_times_of_another_clock_are_those_of_this_machine() -> None:
    journal = CaptureJournal(lambda _: None)
    assert journal.convert_time(0) == journal.now_ms
    assert journal.convert_time(10**15) <= journal.now_ms
    assert 0 <= journal.convert_time(int(time.time() * 1000)) <= journal.now_ms


def test_no_step_is_before_the_one_that_it_follows() -> None:
    stored: list[dict[str, Any]] = []
    journal = CaptureJournal(stored.append)
    for t_ms in (5, 3, 8):
        journal.add_step({"t_ms": t_ms, "type": "click"})
    journal.send_held_step()
    assert [event["t_ms"] for event in stored] == [5, 5, 8]
