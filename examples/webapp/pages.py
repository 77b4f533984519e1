"""Pages of the example web application, and how its variants differ."""

import html
import random
from dataclasses import dataclass
from typing import Literal, get_args

from examples.approve_invoice import INVOICES, Invoice

Variant = Literal["base", "data", "cosmetic", "label", "extra", "missing", "error", "slow"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)
COST_CENTRES = ("Operations", "Marketing", "Office", "Logistics", "Workshop")
_OTHER_INVOICES = (
    Invoice(2207, "Tideway AG", "640.00 EUR", 8, "Office"),
    Invoice(2215, "Maple & Sons", "12,310.20 EUR", 26, "Logistics"),
    Invoice(2216, "Corvid Labs", "77.00 EUR", 2, "Marketing"),
    Invoice(2230, "Hafen KG", "3,004.50 EUR", 14, "Operations"),
)
_STYLE = """
body { font: 15px/1.5 sans-serif; margin: 0; color: #1c1e26; background: #f6f7fa }
header { background: #1f2944; color: #fff; padding: 10px 24px }
main { max-width: 640px; margin: 24px; background: #fff; padding: 8px 24px 24px; border: 1px solid #d5d9e2 }
label { display: block; margin-top: 12px } input, select { font: inherit; padding: 4px }
button, .button { font: inherit; margin: 12px 8px 0 0; padding: 6px 16px; background: #2447c9; color: #fff;
  border: 0; border-radius: 4px; text-decoration: none; display: inline-block }
table { border-collapse: collapse; margin-top: 16px } td, th { padding: 4px 16px 4px 0; text-align: left }
[role=alert] { background: #fde9e9; color: #b02424; padding: 8px }
dt { float: left; clear: left; width: 110px }
"""
_SCRIPT = """
for (const button of document.querySelectorAll("[data-opens]")) {
  button.addEventListener("click", () => document.getElementById(button.dataset.opens).showModal());
}
for (const button of document.querySelectorAll("[data-closes]")) {
  button.addEventListener("click", () => button.closest("dialog").close());
}
"""


@dataclass(frozen=True)
class Site:
    """The pages of one variant."""

    variant: Variant

    @property
    def invoices(self) -> tuple[Invoice, ...]:
        """Return the open invoices."""
        return _OTHER_INVOICES if self.variant == "data" else INVOICES[:4]

    def find_invoice(self, number: str) -> Invoice | None:
        """Return the invoice of a number in an address."""
        return next((invoice for invoice in self.invoices if str(invoice.number) == number), None)

    def make_sign_in(self, *, is_refused: bool = False) -> str:
        """Return the page to sign in."""
        alert = '<div role="alert">E-mail or password is wrong</div>' if is_refused else ""
        return self._make_page(
            "Sign in",
            f"""{alert}<form method="post" action="/login">
            {self._make_field("email", "E-mail", "email")}
            {self._make_field("password", "Password", "password")}
            <div><button id="{self._id("sign-in")}">Sign in</button></div></form>""",
        )

    def make_list(self) -> str:
        """Return the page of open invoices."""
        rows = "".join(
            f"""<tr id="row-{self._make_row_id(invoice)}">
            <td><a href="/invoices/{invoice.number}">{invoice.name}</a>
            <td>{html.escape(invoice.supplier)}<td>{invoice.amount}<td>{invoice.due_days} days</tr>"""
            for invoice in self.invoices
        )
        first = self.invoices[0].number
        return self._make_page(
            "Open invoices",
            f"""<a class="button" id="{self._id("open-next")}" href="/invoices/{first}">Open next invoice</a>
            <table><tr><th>Number<th>Supplier<th>Amount<th>Due in</tr>{rows}</table>""",
        )

    def make_invoice(self, invoice: Invoice) -> str:
        """Return the page of an invoice, with the question whether to approve it."""
        label = "Approve invoice" if self.variant == "label" else "Approve"
        question_id = self._id("question")
        approve = (
            f'<button type="button" id="{self._id("approve")}" data-opens="{question_id}">{label}</button>'
        )
        if self.variant == "missing":
            approve = ""
        options = "".join(f'<option value="{name}">{name}</option>' for name in COST_CENTRES)
        question, answer, action = "Confirm approval", "Confirm", "approve"
        if self.variant == "extra":
            question, answer, action = "Second approver", "Send to second approver", "forward"
        return self._make_page(
            f"Invoice {invoice.name}",
            f"""<dl><dt>Supplier<dd>{html.escape(invoice.supplier)}<dt>Amount<dd>{invoice.amount}
            <dt>Due in<dd>{invoice.due_days} days</dl>
            <label for="{self._id("cost-centre")}">Cost centre</label>
            <select id="{self._id("cost-centre")}" name="cost_centre">
            <option value="">Choose</option>{options}</select>
            {self._make_field("note", "Note", "text")}
            <label><input type="checkbox" id="{self._id("matched")}"> Three-way match done</label>
            <div>{approve}<button type="button" id="{self._id("reject")}">Reject</button></div>
            <dialog id="{question_id}"><h2>{question}</h2>
            <form method="post" action="/invoices/{invoice.number}/{action}">
            <button id="{self._id("confirm")}">{answer}</button>
            <button type="button" id="{self._id("cancel")}" data-closes>Cancel</button></form></dialog>""",
        )

    def make_message(self, title: str, text: str, *, is_alert: bool = False) -> str:
        """Return a page that shows the result of an approval."""
        role = "alert" if is_alert else "status"
        return self._make_page(
            title, f'<div role="{role}">{text}</div><a href="/invoices">Back to the list</a>'
        )

    def _make_page(self, title: str, body: str) -> str:
        content = f"<h1>{title}</h1>{body}"
        if self.variant == "cosmetic":
            content = f"<div><section>{content}</section></div>"
        return f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>
        <style>{_STYLE}</style></head><body><header>Ledgerly</header><main>{content}</main>
        <script>{_SCRIPT}</script></body></html>"""

    def _make_field(self, name: str, label: str, kind: str) -> str:
        identity = self._id(name)
        return f"""<label for="{identity}">{label}</label>
        <input id="{identity}" name="{name}" type="{kind}" autocomplete="off">"""

    def _make_row_id(self, invoice: Invoice) -> str:
        if self.variant == "data":
            return f"{random.randrange(16**8):08x}"
        return str(invoice.number)

    def _id(self, name: str) -> str:
        return f"x-{name}-2" if self.variant == "cosmetic" else name
