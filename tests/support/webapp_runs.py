"""Runs of the example web application, recorded once and sent again with other data, for tests of recoveries.

The browser makes one recording of each kind of run. `send_run` reads it through the public API and sends it
as a new session: with another invoice, supplier, amount and person, other times and ids, and without some of
the acts that the application does not insist on.
"""

import json
import random
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from examples.approve_invoice import Invoice
from examples.webapp.approval import approve_invoice
from examples.webapp.pages import Site, Variant
from examples.webapp.server import WebApp, run_webapp
from recorder import Client
from recorder.capture import record
from tests.support.captured_pages import running_browser
from tests.support.factories import Caller, frame

#: Names of the acts without which the application approves an invoice too.
OPTIONAL = ("Cost centre", "Note", "Three-way match done")
_SUPPLIERS = ("Tideway AG", "Maple Sons", "Corvid Labs", "Hafen KG", "Nordlicht SE", "Brightwater Inc")
_WORKFLOW = "webapp_templates"
_DROPPED = frozenset(("id", "session_id", "frame_id", "created_at"))


@dataclass(frozen=True)
class Template:
    """A recording of the application, as the API returned it, with its snapshots by frame."""

    origin: str
    #: Tag that marks the failure beside `error`.
    failure_tag: str
    #: The invoice that the run is about.
    invoice: Invoice
    events: list[dict[str, Any]]
    frames: list[dict[str, Any]]
    snapshots: dict[str, Any]
    tags: list[dict[str, Any]]


Drive = Callable[[Any, WebApp, Any], None]


def _fail(variant: Variant) -> tuple[Variant, Drive]:
    """Return a run that ends where the variant lets it not go on."""

    def drive(page: Any, app: WebApp, run: Any) -> None:
        approve_invoice(page, app.url, run)
        if variant == "extra":
            run.tag("error", reason="a second approver is needed")

    return variant, drive


def _fail_and_recover(variant: Variant) -> tuple[Variant, Drive]:
    """Return a run that fails, waits until the application works again, and begins from the list."""

    def drive(page: Any, app: WebApp, run: Any) -> None:
        approve_invoice(page, app.url, run)
        app.site = Site("base")
        page.goto(f"{app.url}/invoices")
        page.get_by_role("link", name="Open next invoice").click()
        page.get_by_role("button", name="Approve").click()
        page.get_by_role("dialog").get_by_role("button").first.click()
        page.get_by_role("heading", name="Approved").wait_for()
        run.tag("success")

    return variant, drive


def _refuse_sign_in(page: Any, app: WebApp, run: Any) -> None:
    page.goto(f"{app.url}/login")
    page.get_by_label("E-mail").fill("ada@ledgerly.example")
    page.get_by_label("Password").fill("not the password")
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("alert").wait_for()
    run.tag("error", reason="refused")


#: The ways in which a run fails.
FAILURES = ("server_error", "button_missing", "second_approver", "sign_in_refused")
#: Runs by name: those that approve, the four kinds that fail, and two of these that recover later.
_RUNS: Mapping[str, tuple[Variant, Drive]] = {
    "approved": _fail("base"),
    "approved_other": _fail("data"),
    "server_error": _fail("error"),
    "button_missing": _fail("missing"),
    "second_approver": _fail("extra"),
    "sign_in_refused": ("base", _refuse_sign_in),
    "server_error_recovered": _fail_and_recover("error"),
    "button_missing_recovered": _fail_and_recover("missing"),
}


def record_templates(caller: Caller, port: int) -> dict[str, Template]:
    """Record each run once with the browser; return the recordings by name."""
    made: dict[str, Template] = {}
    with running_browser() as browser, Client(f"http://127.0.0.1:{port}", caller.key.key) as client:
        for name, (variant, drive) in _RUNS.items():
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            with (
                run_webapp(variant) as app,
                record(page, client=client, workflow=_WORKFLOW) as recording,
            ):
                drive(page, app, recording)
            page.close()
            assert recording.stats.dropped_events == recording.stats.dropped_frames == 0
            made[name] = _read_template(caller, recording.id, name.removesuffix("_recovered"), app)
    return made


def _read_template(caller: Caller, session_id: str, failure_tag: str, app: WebApp) -> Template:
    address = f"/v1/sessions/{session_id}"
    events, frames, tags = (
        caller.get(f"{address}/{kind}?limit=100").json()["data"] for kind in ("events", "frames", "tags")
    )
    snapshots = {
        shown["id"]: caller.get(f"{address}/frames/{shown['id']}/dom").json()
        for shown in frames
        if shown["has_dom"]
    }
    return Template(app.url, failure_tag, app.site.invoices[0], events, frames, snapshots, tags)


def send_run(
    caller: Caller,
    template: Template,
    seed: int,
    *,
    workflow: str,
    started_at: str,
    without: Collection[str] = (),
    tags: Mapping[str, str] = {},
) -> str:
    """Send a recording as a stopped session with data of its own; return the id of the session.

    Args:
        caller: who sends it.
        template: the recording.
        seed: decides on the data; equal seeds give equal runs.
        workflow: workflow of the session.
        started_at: its start.
        without: names of elements whose events and frames are left out.
        tags: names of further tags, each at the event on the element of this name.
    """
    draw = random.Random(seed)
    stretch, write = draw.uniform(0.7, 3.0), _make_writer(draw, template)
    session_id = caller.make_session(
        workflow=workflow, started_at=started_at, actor={"id": f"person{seed % 5}", "kind": "script"}
    )
    events = [event for event in template.events if (event.get("target") or {}).get("name") not in without]
    kept = {event.get("frame_id") for event in events}
    named = {event.get("frame_id") for event in template.events}
    frames = [shown for shown in template.frames if shown["id"] in kept or shown["id"] not in named]
    ids = {shown["id"]: f"frm_{seed}n{number}" for number, shown in enumerate(frames)}
    sent = [
        frame(
            int(shown["t_ms"] * stretch),
            number,
            id=ids[shown["id"]],
            url=write(shown["url"]),
            **({"dom": write(template.snapshots[shown["id"]])} if shown["has_dom"] else {}),
        )
        for number, shown in enumerate(frames)
    ]
    answer = caller.add_frames(session_id, *sent)
    assert answer.status_code == 202, answer.text
    items = []
    for event in events:
        item = {name: value for name, value in event.items() if name not in _DROPPED}
        item |= {"frame_id": ids[event["frame_id"]]} if event.get("frame_id") else {}
        items.append(write(item) | {"t_ms": int(event["t_ms"] * stretch)})
    answer = caller.add_events(session_id, *items)
    assert answer.status_code == 202, answer.text
    at = {item["target"]["name"]: item["t_ms"] for item in items if item.get("target")}
    marks = [(tag["name"], int(tag["t_ms"] * stretch)) for tag in template.tags]
    marks += [(template.failure_tag, t_ms) for name, t_ms in marks if name == "error"]
    for name, t_ms in [*marks, *((name, at[element]) for name, element in tags.items())]:
        answer = caller.post(f"/v1/sessions/{session_id}/tags", {"name": name, "t_ms": t_ms})
        assert answer.status_code == 201, answer.text
    assert caller.post(f"/v1/sessions/{session_id}/stop").status_code == 200
    return session_id


def _make_writer(draw: random.Random, template: Template) -> Callable[[Any], Any]:
    """Return a function that puts other data into a value of JSON."""
    recorded = template.invoice
    number = draw.randrange(2_000, 9_999)
    others = {
        template.origin: "https://ledgerly.example",
        str(recorded.number): str(number),
        recorded.supplier: draw.choice(_SUPPLIERS),
        recorded.amount: f"{draw.randrange(1, 99)},{draw.randrange(100, 999)}.{draw.randrange(10, 99)} EUR",
        f"{recorded.due_days} days": f"{draw.randrange(1, 60)} days",
        "ada@ledgerly": f"{draw.choice(('ada', 'grace', 'edsger', 'barbara'))}{number}@ledgerly",
        "PO matched": f"PO {draw.randrange(10_000, 99_999)} matched",
    }
    pattern = re.compile("|".join(map(re.escape, others)))

    def write(value: Any) -> Any:
        return json.loads(pattern.sub(lambda match: others[match.group()], json.dumps(value)))

    return write
