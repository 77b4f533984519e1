"""The workflow approve_invoice: sign in, open an invoice, check it, approve it; and what goes otherwise."""

from collections.abc import Callable
from dataclasses import dataclass

from examples.app_screens import Screen, Widget
from examples.simulated_run import Run, Way

WORKFLOW = "approve_invoice"


@dataclass(frozen=True)
class Invoice:
    """An invoice that waits for approval."""

    number: int
    supplier: str
    amount: str
    due_days: int
    cost_centre: str

    @property
    def name(self) -> str:
        """Return the number that the application shows."""
        return f"INV-{self.number}"


INVOICES = (
    Invoice(1042, "Kobalt Ltd", "1,204.00 EUR", 17, "Operations"),
    Invoice(1043, "Nordwind GmbH", "86.40 EUR", 4, "Marketing"),
    Invoice(1047, "Acme Paper", "312.75 EUR", 9, "Office"),
    Invoice(1051, "Blue Harbor", "9,870.00 EUR", 30, "Logistics"),
    Invoice(1058, "Selva SA", "455.10 EUR", 12, "Operations"),
    Invoice(1063, "Orion Tools", "2,048.99 EUR", 21, "Workshop"),
)

_LOGIN_FIELDS = (Widget("field", "E-mail"), Widget("password", "Password"), Widget("button", "Sign in"))
LOGIN = Screen("login", "Sign in", "/login", (Widget("heading", "Sign in"), *_LOGIN_FIELDS))
REFUSED = Screen(
    "login-refused",
    "Sign in",
    "/login",
    (
        Widget("heading", "Sign in"),
        Widget("alert", "E-mail or password is wrong", key="refused"),
        *_LOGIN_FIELDS,
    ),
)


def _row(invoice: Invoice) -> tuple[Widget, Widget]:
    text = f"{invoice.supplier} · {invoice.amount} · due in {invoice.due_days} days"
    return (
        Widget("link", invoice.name, key=f"invoice-{invoice.number}"),
        Widget("text", text, key=f"facts-{invoice.number}"),
    )


def _list(key: str, path: str, invoices: tuple[Invoice, ...]) -> Screen:
    rows = tuple(widget for invoice in invoices for widget in _row(invoice))
    search = (Widget("field", "Search supplier"), Widget("button", "Search"))
    return Screen(key, "Open invoices", path, (Widget("heading", "Open invoices"), *search, *rows[:10]))


def _list_for(invoice: Invoice) -> Screen:
    others = tuple(other for other in INVOICES if other != invoice)
    return _list("invoices", "/invoices", (invoice, *others))


def _found(invoice: Invoice) -> Screen:
    return _list("invoices-found", "/invoices?supplier=x", (invoice,))


def _invoice_screen(invoice: Invoice) -> Screen:
    widgets = (
        Widget("heading", f"Invoice {invoice.name}", key="invoice-heading"),
        Widget("text", f"{invoice.supplier}, {invoice.amount}", key="invoice-facts"),
        Widget("select", "Cost centre"),
        Widget("field", "Note"),
        Widget("checkbox", "Three-way match done"),
        Widget("button", "Approve"),
        Widget("button", "Reject"),
    )
    return Screen("invoice", f"Invoice {invoice.name}", f"/invoices/{invoice.number}", widgets)


def _over(run: Run, key: str, dialog: tuple[Widget, ...]) -> Screen:
    """Return the present screen with a dialog over it."""
    below = run.screen
    if below is None:
        raise ValueError("A dialog needs a screen below it.")
    return Screen(key, below.title, below.path, below.widgets, dialog)


def _message(key: str, invoice: Invoice, title: str, text: str, *more: Widget) -> Screen:
    widgets = (Widget("heading", title), Widget("text", text, key=f"{key}-text"), *more)
    return Screen(key, title, f"/invoices/{invoice.number}/{key}", widgets)


def _sign_in(run: Run, invoice: Invoice, *, mistakes: int = 0) -> None:
    run.open(LOGIN)
    run.fill("E-mail", f"{run.worker.id}@ledgerly.example")
    for _ in range(mistakes):
        run.fill("Password", "12345678", secret=True)
        run.click("Sign in", REFUSED)
        run.tag("bad_credentials")
    run.fill("Password", "************", secret=True)
    run.click("Sign in", _list_for(invoice))


def _open(run: Run, invoice: Invoice) -> None:
    run.click(invoice.name, _invoice_screen(invoice))
    run.tag("invoice_opened", number=invoice.number)


def _check(run: Run, invoice: Invoice, *, note: bool = True) -> None:
    run.linger(400, 2500)
    run.select("Cost centre", invoice.cost_centre)
    if note:
        run.fill("Note", "PO matched")
    run.check("Three-way match done")
    run.tag("ready_to_approve")


def _ask(run: Run, invoice: Invoice) -> None:
    dialog = (
        Widget("heading", "Confirm approval", key="confirm-heading"),
        Widget("text", f"Pay {invoice.amount} to {invoice.supplier}?", key="confirm-text"),
        Widget("button", "Confirm"),
        Widget("button", "Cancel"),
    )
    run.click("Approve", _over(run, "invoice-confirm", dialog))


def _confirm(run: Run, invoice: Invoice) -> None:
    run.click("Confirm", _message("approved", invoice, "Approved", f"{invoice.supplier} will be paid."))
    run.request("POST", f"/api/invoices/{invoice.number}/approve", 200)
    run.report("success", "Approved")
    run.tag("success", amount=invoice.amount)


def _fail(run: Run, invoice: Invoice) -> None:
    """Simulate a server error at the confirmation."""
    more = (
        Widget("alert", "Error 500: the payment service does not answer", key="server-error"),
        Widget("link", "Back to the invoice"),
        Widget("button", "Try again"),
    )
    _ask(run, invoice)
    run.click("Confirm", _message("failed", invoice, "Something went wrong", "Nothing was paid.", *more))
    run.request("POST", f"/api/invoices/{invoice.number}/approve", 500)
    run.report("error", "Server error")
    run.linger(1, 20)
    run.tag("server_error", status=500)
    run.linger(800, 4000)


def _common(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    _check(run, invoice)
    _ask(run, invoice)
    _confirm(run, invoice)


def _without_note(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    _check(run, invoice, note=False)
    _ask(run, invoice)
    _confirm(run, invoice)


def _search_first(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    run.fill("Search supplier", invoice.supplier)
    run.click("Search", _found(invoice))
    _open(run, invoice)
    _check(run, invoice)
    _ask(run, invoice)
    _confirm(run, invoice)


def _mistyped(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice, mistakes=1)
    _open(run, invoice)
    _check(run, invoice)
    _ask(run, invoice)
    _confirm(run, invoice)


def _locked_out(run: Run, invoice: Invoice) -> None:
    run.open(LOGIN)
    run.fill("E-mail", f"{run.worker.id}@ledgerly.example")
    for _ in range(2):
        run.fill("Password", "12345678", secret=True)
        run.click("Sign in", REFUSED)
        run.tag("bad_credentials")
    run.tag("error", reason="locked out")


def _reject(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    dialog = (
        Widget("heading", "Reject invoice", key="reject-heading"),
        Widget("text", f"Send it back to {invoice.supplier}?", key="reject-text"),
        Widget("button", "Send back"),
    )
    run.click("Reject", _over(run, "invoice-reject", dialog))
    run.click("Send back", _message("rejected", invoice, "Rejected", f"{invoice.supplier} was told."))
    run.report("success", "Rejected")
    run.tag("success", rejected=True)


def _second_approver(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    _check(run, invoice)
    _ask(run, invoice)
    text = "Amounts like this need a second approver."
    more = (Widget("button", "Send to second approver"),)
    run.click("Confirm", _message("second", invoice, "Second approver", text, *more))
    run.click("Send to second approver", _message("sent", invoice, "Sent", "Waiting for a colleague."))
    run.linger(8000, 20000)


def _server_error(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    _check(run, invoice)
    _fail(run, invoice)
    run.tag("error", status=500)


def _recovered_by_retry(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    _check(run, invoice)
    _fail(run, invoice)
    run.click("Try again", _invoice_screen(invoice).with_widget("Cost centre", value=invoice.cost_centre))
    run.check("Three-way match done")
    _ask(run, invoice)
    _confirm(run, invoice)


def _recovered_from_invoice(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    _open(run, invoice)
    _check(run, invoice)
    _fail(run, invoice)
    run.click("Back to the invoice", _invoice_screen(invoice))
    _check(run, invoice)
    _ask(run, invoice)
    _confirm(run, invoice)


def _left_at_list(run: Run, invoice: Invoice) -> None:
    _sign_in(run, invoice)
    run.linger(3000, 15000)


def _way(script: Callable[[Run, Invoice], None]) -> Callable[[Run], dict[str, object]]:
    """Return a function that plays a script with a random invoice and returns the run's metadata."""

    def simulate(run: Run) -> dict[str, object]:
        invoice = run.rng.choice(INVOICES)
        script(run, invoice)
        return {"invoice": invoice.name, "supplier": invoice.supplier, "app": "Ledgerly"}

    return simulate


WAYS = (
    Way(0.46, _way(_common)),
    Way(0.19, _way(_without_note)),
    Way(0.10, _way(_search_first)),
    Way(0.06, _way(_mistyped)),
    Way(0.05, _way(_reject)),
    Way(0.04, _way(_second_approver), is_new=True),
    Way(0.03, _way(_server_error)),
    Way(0.03, _way(_recovered_by_retry)),
    Way(0.015, _way(_recovered_from_invoice)),
    Way(0.015, _way(_locked_out)),
    Way(0.01, _way(_left_at_list)),
)
