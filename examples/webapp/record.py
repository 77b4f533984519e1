"""Record the approval of an invoice with Chromium.

`python -m examples.webapp.record --url http://127.0.0.1:8700 --key nsk_… --variant base --runs 3`
"""

import argparse

from playwright.sync_api import sync_playwright

from examples.webapp.approval import WORKFLOW, approve_invoice
from examples.webapp.pages import VARIANTS, Variant
from examples.webapp.server import run_webapp
from recorder import Client
from recorder.capture import record

CHROMIUM = "/usr/bin/chromium"


def record_runs(client: Client, variant: Variant, runs: int, *, browser_path: str = CHROMIUM) -> list[str]:
    """Record runs of a variant, and return the ids of their sessions."""
    sessions = []
    with run_webapp(variant) as app, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path)
        for _ in range(runs):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            with record(
                page,
                client=client,
                workflow=WORKFLOW,
                actor={"id": "webapp", "kind": "script"},
                metadata={"variant": variant},
            ) as recording:
                approve_invoice(page, app.url, recording)
            page.close()
            sessions.append(recording.id)
        browser.close()
    return sessions


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m examples.webapp.record")
    parser.add_argument("--url", required=True, help="address of the service")
    parser.add_argument("--key", required=True, help="an API key with the scope write")
    parser.add_argument("--variant", choices=VARIANTS, default="base")
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("--browser", default=CHROMIUM, help=f"path of Chromium; by default {CHROMIUM}")
    chosen = parser.parse_args()
    with Client(chosen.url, chosen.key) as client:
        for session in record_runs(client, chosen.variant, chosen.runs, browser_path=chosen.browser):
            print(session)
