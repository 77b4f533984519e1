"""The approval of an invoice, carried out in a browser with Playwright."""

import re
from typing import Protocol

from playwright.sync_api import Page

from examples.webapp.server import PASSWORD

WORKFLOW = "approve_invoice"


class Tags(Protocol):
    """Takes the tags of a run."""

    def tag(self, name: str, **data: str) -> None:
        """Tag this moment."""


def approve_invoice(page: Page, url: str, run: Tags) -> None:
    """Sign in, open the next invoice, check it and approve it, as far as the variant lets it."""
    page.goto(f"{url}/login")
    page.get_by_label("E-mail").fill("ada@ledgerly.example")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    page.get_by_role("link", name="Open next invoice").click()
    page.get_by_role("heading", name="Invoice").wait_for()
    run.tag("invoice_opened")
    page.get_by_label("Cost centre").select_option("Operations")
    page.get_by_label("Note").fill("PO matched")
    page.get_by_label("Three-way match done").check()
    run.tag("ready_to_approve")
    approve = page.get_by_role("button", name=re.compile("^Approve"))
    if approve.count() == 0:
        run.tag("error", reason="no button to approve")
        return
    approve.click()
    page.get_by_role("dialog").get_by_role("button").first.click()
    heading = page.get_by_role("heading", level=1)
    heading.filter(has_text=re.compile("^(Approved|Sent|Something)")).wait_for()
    if heading.inner_text() == "Approved":
        run.tag("success")
    elif heading.inner_text() != "Sent":
        run.tag("error", reason="server error")
