"""`/v1/webhooks`: endpoints, secrets, deliveries. Spec §2.4, §4.4; contract §6."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.dependencies import CallerDep, Db, OriginDep, PagerDep, RuntimeDep
from api.errors import problem_responses
from api.gate.route_limits import WebhookLimit
from api.strict_routes import StrictRoute
from recorder.models.webhook import (
    Delivery,
    RotatedSecret,
    Webhook,
    WebhookCreate,
    WebhookCreated,
    WebhookUpdate,
)
from recorder.models.wire import Page
from recorder.net.outbound_guard import AddressGuard
from recorder.webhooks import deliveries, subscriptions
from recorder.webhooks.subscriptions import WebhookSecretBox

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)


async def get_checked_webhook(body: WebhookCreate, request: Request) -> WebhookCreate:
    """Return the webhook of a body, its URL and events checked.

    The host name is resolved here, before the transaction begins, which must not wait for it.

    Raises:
        ValidationFailed, InvalidUrl, UrlNotAllowed: as the body is wrong.
    """
    subscriptions.check_event_types(body.events)
    guard: AddressGuard = request.app.state.guard
    await guard.check(body.url)
    return body


async def get_checked_update(body: WebhookUpdate, request: Request) -> WebhookUpdate:
    """Return the change of a body, its URL and events checked as at registration.

    Raises:
        ValidationFailed, InvalidUrl, UrlNotAllowed: as the body is wrong.
    """
    if body.events is not None:
        subscriptions.check_event_types(body.events)
    if body.url is not None:
        guard: AddressGuard = request.app.state.guard
        await guard.check(body.url)
    return body


async def get_secret_box(runtime: RuntimeDep) -> WebhookSecretBox:
    """Return the box that encrypts secrets."""
    return WebhookSecretBox(runtime.settings.secret)


CheckedWebhook = Annotated[WebhookCreate, Depends(get_checked_webhook)]
CheckedUpdate = Annotated[WebhookUpdate, Depends(get_checked_update)]
SecretBox = Annotated[WebhookSecretBox, Depends(get_secret_box)]


@router.post("", status_code=201)
def create_webhook(
    spec: CheckedWebhook, db: Db, box: SecretBox, caller: CallerDep, origin: OriginDep
) -> WebhookCreated:
    """Register a URL that events are sent to; only this answer shows the signing secret."""
    return subscriptions.create_webhook(db, box, caller.tenant, origin, spec)


@router.get("", response_model=Page[Webhook])
def list_webhooks(pager: PagerDep, db: Db, caller: CallerDep) -> Response:
    """List the webhooks, newest first."""
    before_id = pager.read_cursor(str)
    return pager.make_answer(
        subscriptions.list_webhooks(db, caller.tenant, before_id=before_id, limit=pager.limit)
    )


@router.get("/{webhook_id}", responses=problem_responses(404))
def get_webhook(webhook_id: str, db: Db, caller: CallerDep) -> Webhook:
    """Return a webhook without its secret."""
    return subscriptions.webhook_to_wire(subscriptions.find_webhook(db, caller.tenant, webhook_id))


@router.patch("/{webhook_id}", responses=problem_responses(404))
def update_webhook(
    webhook_id: str, change: CheckedUpdate, db: Db, caller: CallerDep, origin: OriginDep
) -> Webhook:
    """Change URL, events or description; members that are not sent, secrets and deliveries stay."""
    return subscriptions.update_webhook(db, caller.tenant, origin, webhook_id, change)


@router.delete("/{webhook_id}", status_code=204, responses=problem_responses(404))
def delete_webhook(webhook_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Response:
    """Delete a webhook and the deliveries that were not sent yet."""
    subscriptions.delete_webhook(db, caller.tenant, origin, webhook_id)
    return Response(status_code=204)


@router.post("/{webhook_id}/secret", responses=problem_responses(404))
def rotate_secret(
    webhook_id: str, db: Db, box: SecretBox, caller: CallerDep, origin: OriginDep
) -> RotatedSecret:
    """Create a new signing secret; for 24 hours the previous secret signs too."""
    return subscriptions.rotate_webhook_secret(db, box, caller.tenant, origin, webhook_id)


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    dependencies=[WebhookLimit],
    responses=problem_responses(404),
)
def send_test(webhook_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Delivery:
    """Send a `webhook.test` event to this webhook only."""
    return deliveries.send_test_delivery(db, caller.tenant, origin, webhook_id)


@router.get("/{webhook_id}/deliveries", response_model=Page[Delivery], responses=problem_responses(404))
def list_deliveries(webhook_id: str, pager: PagerDep, db: Db, caller: CallerDep) -> Response:
    """List the attempts to send events to this webhook, newest first, kept for thirty days."""
    return pager.make_answer(
        deliveries.list_deliveries(
            db, caller.tenant, webhook_id, before_id=pager.read_cursor(str), limit=pager.limit
        )
    )


@router.get("/{webhook_id}/deliveries/{delivery_id}", responses=problem_responses(404))
def get_delivery(webhook_id: str, delivery_id: str, db: Db, caller: CallerDep) -> Delivery:
    """Return an attempt: the request that was sent and its answer."""
    return deliveries.find_delivery(db, caller.tenant, webhook_id, delivery_id)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    dependencies=[WebhookLimit],
    responses=problem_responses(404),
)
def redeliver(webhook_id: str, delivery_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Delivery:
    """Send the same payload again, with a new delivery id."""
    return deliveries.redeliver(db, caller.tenant, origin, webhook_id, delivery_id)
