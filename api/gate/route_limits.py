"""Limits that single routes apply beside those of the gate. Contract §1 (rate limits), §9."""

import re
from typing import Any

from fastapi import Depends, Request

from api.gate.bucket_decisions import BucketDecision
from api.gate.rate_limiter import RateLimiter

_WEBHOOK_ID = re.compile(r"whk_[0-9a-z]{26}")


async def limit_webhook_calls(request: Request, webhook_id: str) -> None:
    """Draw on a webhook's bucket, for routes that make the service call the webhook.

    Raises:
        RateLimited: if the webhook was called too often.
    """
    if not _WEBHOOK_ID.fullmatch(webhook_id):
        return  # no webhook has such an id; the route answers 404
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    _apply_route_limit(request, await rate_limiter.admit_webhook(request.state.caller, webhook_id))


async def limit_live_replay(request: Request, sandbox: str) -> None:
    """Draw on the buckets of live replays, for a request whose body asks for one.

    Args:
        request: the request.
        sandbox: that of its body; a dry replay draws on none.

    Raises:
        RateLimited: if the key or its workspace asked for too many.
    """
    if sandbox != "live":
        return
    rate_limiter: RateLimiter = request.app.state.rate_limiter
    _apply_route_limit(request, await rate_limiter.admit_surface(request.state.caller, "live_replays"))


def _apply_route_limit(request: Request, rate_decision: BucketDecision) -> None:
    """Show the bucket with the smaller share in the answer's headers, and raise the error of a refusal."""
    if rate_decision.error is not None or rate_decision.share < request.state.rate_decision.share:
        request.state.rate_decision = rate_decision
    if rate_decision.error is not None:
        raise rate_decision.error


#: For `dependencies=[…]` of a route with `webhook_id` in its path.
WebhookLimit: Any = Depends(limit_webhook_calls)
