"""Pages that the gate of Dagster's pages answers itself: login, logout, refusals. Plain HTML, no scripts."""

from html import escape
from http import HTTPStatus
from typing import Final

from starlette.responses import HTMLResponse, PlainTextResponse, Response

#: Page of Dagster that a login opens: the graph of all assets. Its first page is an empty timeline.
ASSET_GRAPH: Final = "/asset-groups"

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'"
    ),
}
_FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{head}<title>{title}</title>
<style>
  :root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }}
  main {{ max-width: 34rem; margin: 18vh auto 0; padding: 0 1.5rem; }}
  h1 {{ font-size: 1.5rem; margin: 0 0 1rem; }}
  pre {{ padding: .75rem 1rem; border: 1px solid #8886; border-radius: .4rem; overflow-x: auto; }}
  button {{ font: inherit; padding: .4rem 1rem; }}
</style>
</head>
<body><main>
<h1>{title}</h1>
{body}
</main></body>
</html>
"""
_NEXT_STEP = "`recorder status` prints a link that logs in, once."
_LOG_IN = """<p>{sentence}</p>
<p>On the machine that runs the service, as the user who runs it:</p>
<pre>recorder status --data &lt;data folder&gt;</pre>
<p>Open the link it prints: it works once, within 15 minutes, and logs this browser in for 12 hours.</p>
<p>You came from another page and are logged in already? <a href="{again}">Open this page again</a>.</p>
"""
_LOG_OUT = """<p>This ends the login of this browser.</p>
<form method="post" action="/logout"><button>Log out</button></form>
<p><a href="/">Back to Dagster</a></p>
"""


class GateRefusal(Exception):
    """A request that the gate refuses, with the status and the sentence of its answer."""

    def __init__(self, status: int, sentence: str, *, allow: str | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.allow = allow


def refusal_page(refusal: GateRefusal, path: str, *, wants_html: bool) -> Response:
    """Return the answer to a refused request; plain text for programs.

    Args:
        refusal: status and sentence.
        path: path of the request.
        wants_html: whether a browser asks for a page.
    """
    headers = _HEADERS | ({"Allow": refusal.allow} if refusal.allow else {})
    if not wants_html:
        sentence = f"{refusal} {_NEXT_STEP}" if refusal.status == 401 else str(refusal)
        return PlainTextResponse(f"{sentence}\n", refusal.status, headers)
    title = "Log in" if refusal.status == 401 else HTTPStatus(refusal.status).phrase
    template = _LOG_IN if refusal.status == 401 else "<p>{sentence}</p>"
    # A login link works once: a browser that is logged in opens Dagster instead.
    again = "/" if path.startswith("/login/") else ""
    body = template.format(sentence=escape(str(refusal)), again=again)
    return _make_html_page(title, body, refusal.status, headers)


def logged_in_page() -> Response:
    """Return the page of a login link, which forwards to Dagster.

    A redirect would belong to the visit that opened the link; where another site's page began that visit, the
    browser would not send the new cookie (SameSite=Strict). This page's own visit carries it.
    """
    head = f'<meta http-equiv="refresh" content="0;url={ASSET_GRAPH}">\n'
    return _make_html_page(
        "Logged in", f'<p><a href="{ASSET_GRAPH}">Go on to Dagster</a></p>', 200, _HEADERS, head=head
    )


def logout_page() -> Response:
    """Return the page with the button that logs out."""
    return _make_html_page("Log out", _LOG_OUT, 200, _HEADERS)


def logged_out_page() -> Response:
    """Return the page that follows a logout."""
    return _make_html_page("Logged out", "<p>This browser is logged out.</p>", 200, _HEADERS)


def _make_html_page(
    title: str, body: str, status: int, headers: dict[str, str], *, head: str = ""
) -> Response:
    return HTMLResponse(_FRAME.format(title=title, body=body, head=head), status, headers)
