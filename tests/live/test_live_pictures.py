"""Pictures of a live replay's run: masked elements are painted over wherever the page is scrolled to."""

import io

from PIL import Image

from tests.live.conftest import Recorded
from tests.live.test_live_clicks import button, click, replay_clicks
from tests.live.test_live_recording import read_all
from tests.support.captured_pages import count_pixels

ROWS = "".join(f"<tr><td data-mask>Person {number:03}</td></tr>" for number in range(150))
PAGE = f"""<!doctype html><title>People</title><style>[data-mask] {{ background: #f00; color: #f00 }}
button {{ background: #00f }}</style>
<h1>People</h1><table style="font-size: 26px">{ROWS}</table><button id=two>Two</button>
<script>two.onclick = () => {{ document.title = "Later"; fetch("/1/click") }}</script>"""


def test_pictures_of_a_scrolled_page_show_no_masked_element(recorded: Recorded) -> None:
    shown, paths = replay_clicks(recorded, click(100, button("two")), click(200, button("two")), page=PAGE)
    assert (shown["status"], len(paths)) == ("completed", 2), shown
    images = read_all(recorded.caller, shown["result_session_id"])["images"]
    counts = [count_pixels(Image.open(io.BytesIO(image)).convert("RGB")) for image in images]
    assert [red for red, _ in counts] == [0] * len(images)
    assert counts[-1][1] > 0
