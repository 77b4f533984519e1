"""The approval of an invoice as a recorded session, and variants of it, for tests of replays."""

from typing import Any

from recorder.memory.steps.screens import describe_screen
from recorder.replays.recorded_session import RecordedFrame, RecordedSession, RecordedTag
from recorder.replays.selectors import make_selectors
from tests.support.dom_snapshots import read, snapshot


def page(title: str, *body: Any) -> list[Any]:
    """Return the nodes of a page."""
    return ["html", {}, ["head", {}, ["title", {}, title]], ["body", {}, ["h1", {}, title], *body]]


def button(name: str, **attrs: Any) -> list[Any]:
    """Return a button whose id is its name."""
    return ["button", {"id": name.lower().replace(" ", "-"), **attrs}, name]


def sign_in() -> list[Any]:
    """Return the page to sign in."""
    fields = [
        ["label", {"for": "password"}, "Password"],
        ["input", {"id": "password", "type": "password", "__v": "•••"}],
    ]
    return page("Sign in", *fields, button("Sign in"))


def invoice(number: int = 1042, *, approve: str = "Approve", **attrs: Any) -> list[Any]:
    """Return the page of an invoice."""
    buttons = [
        "div",
        {},
        ["button", {"id": "approve", **attrs}, approve],
        button("Reject"),
        button("Add note"),
    ]
    return page(f"Invoice INV-{number}", ["p", {}, "To be checked"], buttons)


def confirmation(name: str = "Confirm") -> list[Any]:
    """Return the page that asks once more."""
    return page("Confirm approval", ["div", {}, ["button", {"id": "confirm"}, name], button("Cancel")])


def approved() -> list[Any]:
    """Return the page at the end."""
    return page("Approved", ["p", {"role": "status"}, "Invoice approved"])


#: Type, id of the element acted on, and the page.
Act = tuple[str, str | None, list[Any]]


def record(
    *acts: Act, end: list[Any] | None = None, session_id: str = "ses_1", dom: bool = True
) -> RecordedSession:
    """Return a session of these acts: a frame 1 ms before each event, and one at the end."""
    events: list[dict[str, Any]] = []
    frames: list[RecordedFrame] = []
    for number, (kind, identity, nodes) in enumerate(acts):
        t_ms = 1_000 * number + 1_000
        frames.append(make_frame(number, t_ms - 1, nodes, dom=dom))
        event: dict[str, Any] = {"id": f"evt_{number + 1}", "t_ms": t_ms, "type": kind}
        if identity is not None:
            document = read(nodes)
            element = document.by_id[identity][0]
            event["target"] = {
                "role": "button" if element.tag == "button" else "textbox",
                "name": document.find_name(element),
                "tag": element.tag,
                "text": element.own_text,
                "attrs": {"id": identity},
                "selectors": make_selectors(document, element),
            }
        if kind == "fill":
            event["input"] = {"value": None, "masked": True, "secret_ref": "password"}
        events.append(event)
    if end is not None:
        frames.append(make_frame(len(acts), 1_000 * len(acts) + 500, end, dom=dom))
    tags = [RecordedTag("tag_1", "ready_to_approve", 2_500)]
    return RecordedSession(session_id, events, frames, tags)


def make_frame(number: int, t_ms: int, nodes: list[Any], *, dom: bool = True) -> RecordedFrame:
    """Return a frame with the digest that sealing computes."""
    given = snapshot(nodes)
    screen = describe_screen(dom=given, url=None, title=None, cells=None)
    return RecordedFrame(f"frm_{number}", t_ms, screen.state_tokens, lambda: given if dom else None)


def approval(
    *,
    shown: list[Any] | None = None,
    question: list[Any] | None = None,
    end: list[Any] | None = None,
    dom: bool = True,
) -> RecordedSession:
    """Return the acts sign in, approve, confirm."""
    acts: list[Act] = [
        ("fill", "password", sign_in()),
        ("click", "sign-in", sign_in()),
        ("click", "approve", shown or invoice()),
        ("click", "confirm", question or confirmation()),
    ]
    return record(*acts, end=end or approved(), dom=dom)
