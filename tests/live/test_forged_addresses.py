"""Pages that give another address than theirs: the browser's word decides where inputs go. Contract §8."""

from tests.live.conftest import Recorded
from tests.support.factories import event
from tests.support.small_sites import make_button, make_field, replay_on_ports, serving_pages, store_events

RECORDED = "http://shop.example"


def test_an_input_is_not_typed_on_another_site_that_gives_the_recorded_address(recorded: Recorded) -> None:
    caller = recorded.caller
    session_id = store_events(
        caller,
        event(0, "navigate", url=f"{RECORDED}/"),
        event(
            100,
            "click",
            target=make_button("Next"),
            url=f"{RECORDED}/",
            signals=[{"type": "navigation", "url": f"{RECORDED}/pin"}],
        ),
        event(
            200,
            "fill",
            target=make_field("Pin"),
            url=f"{RECORDED}/pin",
            input={"value": None, "masked": True, "secret_ref": "pin"},
        ),
    )
    ask = """<title>Pin</title><h1>Enter</h1>
<input id=Pin aria-label=Pin oninput="fetch('/leak?v=' + this.value)">"""
    shop, other = {"/pin": ask}, {}
    with serving_pages(shop) as (port, paths), serving_pages(other) as (other_port, leaked):
        forged = f"""<script>
const well = String.prototype.toWellFormed;
String.prototype.toWellFormed = function () {{
  const text = well.call(this);
  return text.startsWith("http://localhost") ? "http://localhost:{port}/pin" : text;
}};
</script>"""
        other["/"] = forged + ask
        ends = []
        for address in ("/pin", f"http://localhost:{other_port}/"):
            link = f"<title>Shop</title><button id=Next onclick=\"location.href = '{address}'\">Next</button>"
            shop["/"] = link
            ends.append(
                replay_on_ports(caller, session_id, RECORDED, port, other_port, inputs={"pin": "sesame-1234"})
            )
    allowed, refused = ends
    assert allowed["status"] == "completed", allowed
    assert "/leak?v=sesame-1234" in paths
    assert refused["status"] == "diverged", refused
    assert refused["divergence"]["kind"] == "unexpected_navigation"
    assert refused["divergence"]["observed"]["url"] == f"http://localhost:{other_port}/"
    assert leaked == ["/"]
