"""The workflow onboard_customer: details, documents, plan; with detours, failures and abandoned runs."""

from collections.abc import Callable
from dataclasses import dataclass

from examples.app_screens import Screen, Widget
from examples.simulated_run import Run, Way

WORKFLOW = "onboard_customer"


@dataclass(frozen=True)
class Customer:
    """A company that becomes a customer."""

    name: str
    country: str
    plan: str


CUSTOMERS = (
    Customer("Tern & Co", "Norway", "Team"),
    Customer("Alder Works", "Ireland", "Business"),
    Customer("Pico Labs", "Spain", "Team"),
    Customer("Velo Ost", "Germany", "Starter"),
)

START = Screen(
    "customers",
    "Customers",
    "/customers",
    (Widget("heading", "Customers"), Widget("text", "4 wait for you"), Widget("button", "New customer")),
)
DETAILS = Screen(
    "details",
    "New customer",
    "/customers/new",
    (
        Widget("heading", "Details"),
        Widget("field", "Company"),
        Widget("select", "Country"),
        Widget("button", "Continue"),
    ),
)
DOCUMENTS = Screen(
    "documents",
    "Documents",
    "/customers/new/documents",
    (Widget("heading", "Documents"), Widget("file", "Trade register extract"), Widget("button", "Verify")),
)
UNREADABLE = Screen(
    "documents-unreadable",
    "Documents",
    "/customers/new/documents",
    (
        Widget("heading", "Documents"),
        Widget("alert", "The extract cannot be read", key="unreadable"),
        Widget("file", "Trade register extract"),
        Widget("button", "Verify"),
    ),
)
PLAN = Screen(
    "plan",
    "Plan",
    "/customers/new/plan",
    (
        Widget("heading", "Plan"),
        Widget("select", "Plan"),
        Widget("checkbox", "Send a welcome letter"),
        Widget("button", "Create customer"),
    ),
)
REVIEW = Screen(
    "review",
    "Manual review",
    "/customers/new/review",
    (
        Widget("heading", "Manual review"),
        Widget("text", "The register names other owners.", key="review-text"),
        Widget("button", "Accept"),
        Widget("button", "Turn down"),
    ),
)
WELCOME = Screen(
    "welcome",
    "Customer created",
    "/customers/done",
    (Widget("heading", "Customer created"), Widget("text", "The account is open.", key="welcome-text")),
)
TURNED_DOWN = Screen(
    "turned-down",
    "Turned down",
    "/customers/turned-down",
    (Widget("heading", "Turned down"), Widget("alert", "No account was opened", key="turned-down-text")),
)


def _details(run: Run, customer: Customer) -> None:
    run.open(START)
    run.click("New customer", DETAILS)
    run.fill("Company", customer.name)
    run.select("Country", customer.country)
    run.click("Continue", DOCUMENTS)
    run.tag("details_done")


def _upload(run: Run, then: Screen) -> None:
    run.upload("Trade register extract", "extract.pdf")
    run.click("Verify", then)


def _finish(run: Run, customer: Customer, *, letter: bool = True) -> None:
    run.select("Plan", customer.plan)
    if letter:
        run.check("Send a welcome letter")
    run.click("Create customer", WELCOME)
    run.report("success", "Customer created")
    run.tag("success", plan=customer.plan)


def _common(run: Run, customer: Customer) -> None:
    _details(run, customer)
    _upload(run, PLAN)
    _finish(run, customer)


def _without_letter(run: Run, customer: Customer) -> None:
    _details(run, customer)
    _upload(run, PLAN)
    _finish(run, customer, letter=False)


def _uploaded_twice(run: Run, customer: Customer) -> None:
    _details(run, customer)
    _upload(run, UNREADABLE)
    run.tag("document_unreadable")
    _upload(run, PLAN)
    _finish(run, customer)


def _unreadable(run: Run, customer: Customer) -> None:
    _details(run, customer)
    _upload(run, UNREADABLE)
    run.tag("document_unreadable")
    run.linger(4000, 9000)
    run.tag("error", reason="unreadable")


def _reviewed(run: Run, customer: Customer) -> None:
    _details(run, customer)
    _upload(run, REVIEW)
    run.linger(2000, 8000)
    run.click("Accept", PLAN)
    _finish(run, customer)


def _turned_down(run: Run, customer: Customer) -> None:
    _details(run, customer)
    _upload(run, REVIEW)
    run.linger(2000, 8000)
    run.click("Turn down", TURNED_DOWN)
    run.report("error", "Turned down")
    run.tag("error", reason="owners")


def _left_at_documents(run: Run, customer: Customer) -> None:
    _details(run, customer)
    run.linger(5000, 30000)


def _way(script: Callable[[Run, Customer], None]) -> Callable[[Run], dict[str, object]]:
    """Return a function that plays a script with a random customer and returns the run's metadata."""

    def simulate(run: Run) -> dict[str, object]:
        customer = run.rng.choice(CUSTOMERS)
        script(run, customer)
        return {"customer": customer.name, "country": customer.country, "app": "Ledgerly"}

    return simulate


WAYS = (
    Way(0.50, _way(_common)),
    Way(0.16, _way(_without_letter)),
    Way(0.12, _way(_uploaded_twice)),
    Way(0.04, _way(_unreadable)),
    Way(0.08, _way(_reviewed)),
    Way(0.04, _way(_turned_down)),
    Way(0.06, _way(_left_at_documents)),
)
