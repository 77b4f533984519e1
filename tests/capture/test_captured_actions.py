"""Captured actions: types, targets in shadow roots and frames, effects, pages, masking at the source."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from recorder import Client
from recorder.capture import PageRecording, record
from recorder.capture.captured_targets import make_target_path
from recorder.capture.page_reader import PageReader
from recorder.replays.budget import Budget
from recorder.replays.dom import read_dom_document
from recorder.replays.recorded_session import list_recorded_steps
from tests.support.captured_pages import find_browser, read_dom, read_recorded

SECRET = "opensesame-77"


@contextmanager
def recording_of(page: Any, client: Client, html: str) -> Iterator[PageRecording]:
    """Yield a recording of a page with this body."""
    with record(page, workflow="capture_test", client=client) as recording:
        page.context.route(
            "https://app.example/**",
            lambda route: route.fulfill(body="<p>gone</p>", content_type="text/html"),
        )
        page.context.route(
            "https://app.example/start", lambda route: route.fulfill(body=html, content_type="text/html")
        )
        page.goto("https://app.example/start")
        yield recording


def events_of(client: Client, recording: PageRecording) -> list[dict[str, Any]]:
    """Return the stored events but the first, which opens the page."""
    assert recording.stats.errors == 0
    return list(client.list_events(recording.id))[1:]


def test_pointer_and_keyboard_actions_are_told_apart(page: Any, client: Client) -> None:
    html = """<title>All</title><button id=one>One</button><button id=two>Two</button>
        <input aria-label=City><textarea aria-label=Text></textarea>
        <div contenteditable aria-label=Area role=textbox>x</div>
        <label><input type=checkbox checked> News</label><input type=file aria-label=File>
        <select multiple aria-label=Many><option value=a>A<option value=b>B<option value=c>C</select>
        <input type=date aria-label=Day>"""
    with recording_of(page, client, html) as recording:
        page.click("#one")
        page.dblclick("#two")
        page.click("#one", button="right", modifiers=["Shift"])
        # A frame is taken in the middle, which does not divide what is typed.
        page.get_by_label("City").press_sequentially("Lisbon", delay=80)
        page.get_by_label("City").press("Enter")
        page.get_by_label("Text").fill("two\nlines")
        page.get_by_label("Area").fill("typed")
        page.get_by_text("News").click()
        page.get_by_label("File").set_input_files({"name": "a.txt", "mimeType": "text/plain", "buffer": b"x"})
        page.get_by_label("Many").select_option(["a", "c"])
        page.get_by_label("Day").fill("2026-02-03")
        page.keyboard.press("Control+k")
    events = events_of(client, recording)
    seen = [(event["type"], event["target"].get("name"), event.get("input")) for event in events]
    assert [(kind, name) for kind, name, _ in seen] == [
        ("click", "One"),
        ("dblclick", "Two"),
        ("click", "One"),
        ("fill", "City"),
        ("press", "City"),
        ("fill", "Text"),
        ("fill", "Area"),
        ("uncheck", "News"),
        ("upload", "File"),
        ("select", "Many"),
        ("fill", "Day"),
        ("press", "Day"),
    ]
    given = [entry or {} for _, _, entry in seen]
    assert (given[2]["button"], given[2]["modifiers"]) == (2, 8)
    assert [given[index].get("value") for index in (3, 5, 6, 9, 10)] == [
        "Lisbon",
        "two\nlines",
        "typed",
        ["a", "c"],
        "2026-02-03",
    ]
    assert (given[4]["key"], given[8]["files"]) == ("Enter", ["a.txt"])
    assert (given[11]["key"], given[11]["modifiers"]) == ("k", 2)


def test_elements_in_shadow_roots_and_frames_are_targets(page: Any, client: Client) -> None:
    html = """<div id=host></div><iframe srcdoc="<button>Inner</button>"></iframe>
        <script>
        host.attachShadow({mode: "open"}).innerHTML = "<button data-testid=deep>Shade</button>"
        </script>"""
    with recording_of(page, client, html) as recording:
        page.locator("#host button").click()
        page.frame_locator("iframe").locator("button").click()
    shade, inner = (event["target"] for event in events_of(client, recording))
    assert shade["selectors"][0] == ["html > body > div", '[data-testid="deep"]']
    assert (inner["name"], inner["frame_path"]) == ("Inner", [0])
    assert inner["selectors"][0] == 'aria/Inner[role="button"]'
    assert not any(str(selector).startswith("xpath/") for selector in inner["selectors"])


def test_areas_of_an_image_are_targets(page: Any, client: Client) -> None:
    html = """<img usemap=#rooms width=100 height=100 alt=Plan src="data:image/svg+xml,<svg xmlns='%s'/>">
        <map name=rooms><area shape=rect coords="0,0,50,50" href="#hall" alt=Hall></map>"""
    html %= "http://www.w3.org/2000/svg"
    with recording_of(page, client, html) as recording:
        page.locator("img").click(position={"x": 20, "y": 20}, force=True)
    (event,) = (event for event in events_of(client, recording) if event["type"] == "click")
    assert (event["target"]["tag"], event["target"]["name"]) == ("area", "Hall")
    assert 'aria/Hall[role="link"]' in event["target"]["selectors"]


def test_frames_show_what_was_typed_in_shadow_roots_and_frames(page: Any, client: Client) -> None:
    html = """<div id=host></div><iframe srcdoc="<input aria-label=Inner>"></iframe><button>Next</button>
        <script>host.attachShadow({mode: "open"}).innerHTML = "<input aria-label=Shade>"</script>"""
    with recording_of(page, client, html) as recording:
        page.get_by_label("Shade").fill("Lisbon")
        page.get_by_role("button", name="Next").click()
        page.frame_locator("iframe").get_by_label("Inner").fill("Porto")
        page.get_by_role("button", name="Next").click()
    events = events_of(client, recording)
    assert [event["type"] for event in events] == ["fill", "click", "fill", "click"]
    texts = [str(read_dom(client, recording.id, event["frame_id"])) for event in events]
    assert [("Lisbon" in text, "Porto" in text) for text in texts] == [
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]


def test_what_an_action_causes_is_its_signal(page: Any, client: Client) -> None:
    html = """<button id=ask onclick="answer = confirm('Pay now?')">Ask</button>
        <button id=send onclick="fetch('/pay', {method: 'POST'})">Send</button>
        <a id=file href="data:text/plain,x" download=report.txt>File</a>
        <button id=route onclick="history.pushState({}, '', '/later')">Route</button>
        <a id=tab href=/other target=_blank>Tab</a>"""
    with recording_of(page, client, html) as recording:
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("#ask")
        assert page.evaluate("answer") is True
        page.click("#send")
        page.wait_for_timeout(50)
        with page.expect_download():
            page.click("#file")
        page.click("#route")
        with page.expect_popup() as opened:
            page.click("#tab")
        opened.value.get_by_text("gone").click()
        opened.value.close()
        page.wait_for_timeout(50)
    events = events_of(client, recording)
    clicks = {
        event["target"]["attrs"]["id"]: event for event in events if event.get("target", {}).get("attrs")
    }
    assert clicks["ask"]["signals"] == [
        {"type": "dialog", "kind": "confirm", "message": "Pay now?", "accepted": True}
    ]
    assert clicks["send"]["signals"] == [
        {"type": "request", "method": "POST", "url": "https://app.example/pay"}
    ]
    assert clicks["file"]["signals"][-1] == {"type": "download", "filename": "report.txt"}
    assert clicks["route"]["signals"] == [{"type": "navigation", "url": "https://app.example/later"}]
    assert clicks["tab"]["signals"][0]["type"] == "popup"
    assert [event["type"] for event in events][-2:] == ["click", "tab_close"]
    assert events[-2]["app"]["page"] == "p2"
    steps = [step.event["type"] for step in list_recorded_steps(read_recorded(client, recording.id))]
    assert steps == ["navigate", "click", "click", "click", "click", "click", "click", "tab_close"]


def test_events_that_a_page_makes_up_are_no_actions(page: Any, client: Client) -> None:
    html = """<button id=real>Real</button><button id=made>Made up</button>
        <input id=field><select id=list><option>x</select>
        <script>real.onclick = () => {
          made.click(); made.dispatchEvent(new MouseEvent("click", {bubbles: true}));
          field.value = "made up"; field.dispatchEvent(new Event("input", {bubbles: true}));
          field.dispatchEvent(new Event("change", {bubbles: true}));
          list.dispatchEvent(new Event("change", {bubbles: true}));
        }</script>"""
    with recording_of(page, client, html) as recording:
        page.click("#real")
    assert [event["target"]["attrs"]["id"] for event in events_of(client, recording)] == ["real"]


def test_secrets_stay_in_the_page(page: Any, client: Client) -> None:
    html = """<form action=/next><label for=pw>Password</label><input id=pw type=password name=password>
        <input name=pin autocomplete=one-time-code><button type=button id=show>Show</button>
        <button id=go>Go</button></form>
        <p id=echo></p><div data-mask><h2>Ada Lovelace</h2><input name=iban><a href="/ada">Ada</a></div>
        <input type=hidden name=csrf value=nonce-123456>
        <script>show.onclick = () => { pw.type = "text"; echo.textContent = "You typed " + pw.value;
          document.title = pw.value }</script>"""
    with recording_of(page, client, html) as recording:
        page.fill("#pw", SECRET)
        page.fill("[name=pin]", "918273")
        page.fill("[name=iban]", "DE00 1234")
        page.click("#show")
        page.click("#go")
        page.get_by_text("gone").wait_for()
    events = events_of(client, recording)
    fills = [event["input"] for event in events if event["type"] == "fill"]
    assert fills == [
        {"value": None, "masked": True, "secret_ref": "password"},
        {"value": None, "masked": True, "secret_ref": "pin"},
        {"value": None, "masked": True, "secret_ref": "iban"},
    ]
    frames = list(client.list_frames(recording.id))
    stored = (
        str(events)
        + str(frames)
        + "".join(str(read_dom(client, recording.id, frame["id"])) for frame in frames)
    )
    assert "You typed •••" in stored
    for secret in (SECRET, "918273", "DE00", "Lovelace", "nonce-123456", "/ada"):
        assert secret not in stored
    assert events[-1]["url"] == "https://app.example/next?password=•••&pin=•••"


def test_no_answer_of_the_page_script_holds_a_secret(page: Any) -> None:
    """Read by another client of the page script, as the live sandbox is one."""
    session = page.context.new_cdp_session(page)
    received: list[str] = []

    async def send(method: str, params: dict[str, Any]) -> Any:
        answer = session.send(method, params)
        received.append(str(answer))
        return answer

    reader = PageReader(send)
    for method in ("Runtime.executionContextCreated", "Runtime.executionContextsCleared"):
        session.on(method, lambda params, method=method: reader.handle_event(method, params))
    session.on("Runtime.bindingCalled", lambda params: received.append(str(params)))
    run_now(reader.open(listen=True))
    page.set_content("<input id=pw type=password><p id=copy></p><button>Next</button>")
    page.locator("#pw").press_sequentially(SECRET)
    page.evaluate(f"copy.textContent = '{SECRET}'")
    page.click("button")
    reading = run_now(reader.read())
    document = read_dom_document(reading.dom, lambda _: None, Budget(10_000))
    assert document is not None
    button = document.by_tag["button"][0]
    assert page.locator(make_target_path(button).css).inner_text() == "Next"
    assert any("fill" in text for text in received)
    assert SECRET not in "".join(received)


def run_now(work: Any) -> Any:
    """Return the result of a coroutine that never waits."""
    with pytest.raises(StopIteration) as done:
        work.send(None)
    return done.value.value


def test_a_snapshot_is_bounded(page: Any, client: Client) -> None:
    html = """<div id=top></div><p id=wide></p><script>
        let node = top_ = document.getElementById("top");
        for (let level = 0; level < 300; level += 1) {
          const next = document.createElement("div"); node.append(next); node = next
        }
        node.innerHTML = "<button id=deep>Deep</button>";
        for (let at = 0; at < 30000; at += 1) wide.append(document.createElement("i"));
        wide.setAttribute("data-long", "x".repeat(1e6));
        </script>"""
    with recording_of(page, client, html) as recording:
        page.click("#deep")
    (click,) = events_of(client, recording)
    assert click["target"]["name"] == "Deep"
    dom = read_dom(client, recording.id, click["frame_id"])
    size = len(orjson.dumps(dom))
    assert 100_000 < size < 1_500_000


def run_async(work: Callable[[], Coroutine[Any, Any, PageRecording]]) -> PageRecording:
    """Run work of async Playwright in a thread: sync Playwright runs a loop in this one."""
    with ThreadPoolExecutor(1) as threads:
        recording = threads.submit(lambda: asyncio.run(work())).result()
    assert recording.stats.errors == 0
    return recording


def test_async_pages_are_recorded_alike(client: Client) -> None:
    path = find_browser()

    async def run() -> PageRecording:
        from playwright.async_api import async_playwright

        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path)
            page = await browser.new_page()
            await page.set_content("<button>One</button><input aria-label=Name>")
            async with record(page, workflow="capture_test", client=client) as recording:
                await page.get_by_label("Name").fill("Ada")
                await page.get_by_role("button").click()
                recording.tag("done")
            with pytest.raises(TypeError, match="async with"):
                record(page, workflow="capture_test", client=client).__enter__()
            await browser.close()
            return recording

    recording = run_async(run)
    session = read_recorded(client, recording.id)
    assert [event["type"] for event in session.events] == ["fill", "click"]
    assert all(event["frame_id"] for event in session.events)
    assert len(session.frames) >= 2
    assert [tag.name for tag in session.tags] == ["done"]


def test_the_last_frame_shows_the_page_after_it_has_loaded(client: Client) -> None:
    path = find_browser()
    html = """<p id=state>loading</p><img src=/slow.png>
        <script>addEventListener("load", () => { state.textContent = "all of it" })</script>"""

    async def answer(route: Any) -> None:
        if route.request.url.endswith("/slow.png"):
            await asyncio.sleep(0.7)
            await route.fulfill(status=404)
        else:
            await route.fulfill(body=html, content_type="text/html")

    async def run() -> PageRecording:
        from playwright.async_api import async_playwright

        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(executable_path=path)
            page = await browser.new_page()
            await page.route("https://app.example/**", answer)
            async with record(page, workflow="capture_test", client=client) as recording:
                await page.goto("https://app.example/start", wait_until="commit")
                await page.locator("#state").wait_for()
            await browser.close()
            return recording

    recording = run_async(run)
    *_, last = client.list_frames(recording.id)
    assert "all of it" in str(read_dom(client, recording.id, last["id"]))


def test_drags_are_recorded_with_the_element_on_which_they_end(page: Any, client: Client) -> None:
    html = """<title>Board</title><style>div { width: 90px; height: 40px; user-select: none }</style>
        <div id=card draggable=true>Invoice 7</div><div id=done>Done</div>
        <div id=knob>Knob</div><div id=bin>Bin</div><p id=text>some text to select</p>
        <script>
        done_ = document.getElementById("done");
        done_.addEventListener("dragover", (event) => event.preventDefault());
        done_.addEventListener("drop", () => { done_.textContent = "Done: 7"; });
        knob = document.getElementById("knob");
        knob.onpointerdown = (event) => {
            knob.setPointerCapture(event.pointerId);
            knob.onpointermove = (move) => {
                knob.style.transform = `translateY(${move.clientY - event.clientY}px)`;
            };
            knob.onpointerup = () => { knob.onpointermove = null; knob.style.transform = ""; };
        };
        </script>"""
    with recording_of(page, client, html) as recording:
        page.drag_and_drop("#card", "#done")
        page.drag_and_drop("#card", "#bin")  # takes no drop
        page.drag_and_drop("#knob", "#bin")
        page.drag_and_drop("#text", "#knob", source_position={"x": 1, "y": 5})
        page.click("#bin")
    events = events_of(client, recording)
    drags = [event for event in events if event["type"] == "drag"]
    assert [drag["target"]["text"] for drag in drags] == ["Invoice 7", "Knob"]
    assert events[-1]["type"] == "click" and events[-1]["target"]["text"] == "Bin"
    drops = [drag["data"]["drop"] for drag in drags]
    assert [(drop["text"], drop["attrs"]["id"]) for drop in drops] == [("Done", "done"), ("Bin", "bin")]
    for drag, drop in zip(drags, drops, strict=True):
        left, top, width, height = drop["rect"]
        x, y = drag["input"]["to"]
        assert left <= x <= left + width and top <= y <= top + height
