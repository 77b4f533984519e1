"""`/v1/webhooks`: endpoints, their secrets, what was sent to them. Spec §2.4, §4.4; contract §6."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from api.cursors import Pager
from api.dependencies import CallerDep, CursorText, Db, Limit, OriginDep, RuntimeDep
from api.errors import problem_responses
from api.gate.rate_limits import WebhookLimit
from api.strict_routes import StrictRoute
from recorder import limits
from recorder.models.webhook import (
    Delivery,
    RotatedSecret,
    Webhook,
    WebhookCreate,
    WebhookCreated,
    WebhookUpdate,
)
from recorder.models.wire import Page
from recorder.net.guard import Guard
from recorder.webhooks import deliveries, endpoints
from recorder.webhooks.endpoints import SecretBox

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"], route_class=StrictRoute)


async def get_checked_webhook(body: WebhookCreate, request: Request) -> WebhookCreate:
    """The webhook that a body asks for, its URL and events checked.

    The name in the URL is looked up here, before the transaction begins, which must not wait for it.

    Raises:
        ValidationFailed, InvalidUrl, UrlNotAllowed: as the body is wrong.
    """
    endpoints.check_events(body.events)
    guard: Guard = request.app.state.guard
    await guard.check(body.url)
    return body


async def get_checked_update(body: WebhookUpdate, request: Request) -> WebhookUpdate:
    """Return the change that a body asks for, its URL and events checked as at registration.

    Raises:
        ValidationFailed, InvalidUrl, UrlNotAllowed: as the body is wrong.
    """
    if body.events is not None:
        endpoints.check_events(body.events)
    if body.url is not None:
        guard: Guard = request.app.state.guard
        await guard.check(body.url)
    return body


async def get_secret_box(runtime: RuntimeDep) -> SecretBox:
    """What secrets are encrypted with."""
    return SecretBox(runtime.settings.secret)


CheckedWebhook = Annotated[WebhookCreate, Depends(get_checked_webhook)]
CheckedUpdate = Annotated[WebhookUpdate, Depends(get_checked_update)]
Box = Annotated[SecretBox, Depends(get_secret_box)]


@router.post("", status_code=201, responses=problem_responses(401, 403, 422))
def create_webhook(
    spec: CheckedWebhook, db: Db, box: Box, caller: CallerDep, origin: OriginDep
) -> WebhookCreated:
    """Have events sent to a URL; the answer shows the signing secret this once."""
    return endpoints.create_webhook(db, box, caller.tenant, origin, spec)


@router.get("", responses=problem_responses(400, 401, 422))
def list_webhooks(
    request: Request,
    db: Db,
    caller: CallerDep,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Webhook]:
    """Webhooks, newest first."""
    pager = Pager(request, caller)
    before = pager.read(cursor)
    found = endpoints.list_webhooks(
        db, caller.tenant, before_id=before[0] if before else None, limit=limit + 1
    )
    return pager.page(found[:limit], [found[limit - 1].id] if len(found) > limit else None)


@router.get("/{webhook_id}", responses=problem_responses(401, 404))
def get_webhook(webhook_id: str, db: Db, caller: CallerDep) -> Webhook:
    """One webhook, without its secret."""
    return endpoints.to_wire(endpoints.find_webhook(db, caller.tenant, webhook_id))


@router.patch("/{webhook_id}", responses=problem_responses(401, 403, 404, 422))
def update_webhook(
    webhook_id: str, change: CheckedUpdate, db: Db, caller: CallerDep, origin: OriginDep
) -> Webhook:
    """Change URL, events or description; members that are not sent stay, and so do secrets and deliveries."""
    return endpoints.update_webhook(db, caller.tenant, origin, webhook_id, change)


@router.delete("/{webhook_id}", status_code=204, responses=problem_responses(401, 404))
def delete_webhook(webhook_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Response:
    """Remove a webhook; what still waited to be sent is dropped."""
    endpoints.delete_webhook(db, caller.tenant, origin, webhook_id)
    return Response(status_code=204)


@router.post("/{webhook_id}/secret", responses=problem_responses(401, 404, 422))
def rotate_secret(webhook_id: str, db: Db, box: Box, caller: CallerDep, origin: OriginDep) -> RotatedSecret:
    """A new signing secret; the old one signs beside it for 24 hours."""
    return endpoints.rotate_secret(db, box, caller.tenant, origin, webhook_id)


@router.post(
    "/{webhook_id}/test",
    status_code=202,
    dependencies=[WebhookLimit],
    responses=problem_responses(401, 404, 429),
)
def send_test(webhook_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Delivery:
    """Send a `webhook.test` event to this webhook alone."""
    return deliveries.send_test(db, caller.tenant, origin, webhook_id)


@router.get("/{webhook_id}/deliveries", responses=problem_responses(400, 401, 404, 422))
def list_deliveries(
    webhook_id: str,
    request: Request,
    db: Db,
    caller: CallerDep,
    cursor: CursorText = None,
    limit: Limit = limits.LIST_DEFAULT,
) -> Page[Delivery]:
    """Attempts to send events to this webhook, newest first, kept for thirty days."""
    pager = Pager(request, caller)
    before = pager.read(cursor)
    found = deliveries.list_deliveries(
        db,
        caller.tenant,
        webhook_id,
        before_id=before[0] if before else None,
        limit=limit + 1,
    )
    return pager.page(found[:limit], [found[limit - 1].id] if len(found) > limit else None)


@router.get("/{webhook_id}/deliveries/{delivery_id}", responses=problem_responses(401, 404))
def get_delivery(webhook_id: str, delivery_id: str, db: Db, caller: CallerDep) -> Delivery:
    """One attempt: what was sent, what came back."""
    return deliveries.find_delivery(db, caller.tenant, webhook_id, delivery_id)


@router.post(
    "/{webhook_id}/deliveries/{delivery_id}/redeliver",
    status_code=202,
    dependencies=[WebhookLimit],
    responses=problem_responses(401, 404, 429),
)
def redeliver(webhook_id: str, delivery_id: str, db: Db, caller: CallerDep, origin: OriginDep) -> Delivery:
    """Send the same payload again, under a fresh delivery id."""
    return deliveries.redeliver(db, caller.tenant, origin, webhook_id, delivery_id)
