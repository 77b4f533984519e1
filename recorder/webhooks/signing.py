"""Signatures of deliveries, made and verified, with the standard library alone. Spec §6.4, contract §6."""

import base64
import hashlib
import hmac
import time
from collections.abc import Sequence

SECRET_PREFIX = "whsec_"  # noqa: S105  (what secrets begin with, not one of them)
TOLERANCE_S = 300


def verify_signature(
    payload: bytes, header: str, secret: str, tolerance_s: int = TOLERANCE_S, *, now: float | None = None
) -> bool:
    """Return whether a delivery was signed with this secret, within the tolerance; for receivers.

    Args:
        payload: the body exactly as received, before any parsing.
        header: the value of `Service-Signature`.
        secret: the webhook's secret, `whsec_…`.
        tolerance_s: most seconds between the signature and `now`: an attacker can replay older deliveries.
        now: seconds since 1970; the present by default.
    """
    moments, signatures = _read_signature_header(header)
    if len(moments) != 1 or not signatures:
        return False
    moment = int(moments[0])
    if abs((time.time() if now is None else now) - moment) > tolerance_s:
        return False
    expected = service_signature(payload, secret, moment).encode()
    # All of them are compared, so that the time taken says nothing about which one fits.
    return sum(hmac.compare_digest(expected, signature.encode()) for signature in signatures) > 0


def signature_headers(event_id: str, body: bytes, secrets: Sequence[str], signed_s: int) -> dict[str, str]:
    """Return the headers that sign a delivery with every valid secret, the newest first.

    `Service-Signature` is the service's own; the others are those of Standard Webhooks.
    """
    service = ",".join(f"v1={service_signature(body, secret, signed_s)}" for secret in secrets)
    standard = " ".join(f"v1,{standard_signature(event_id, body, secret, signed_s)}" for secret in secrets)
    return {
        "Service-Signature": f"t={signed_s},{service}",
        "webhook-id": event_id,
        "webhook-timestamp": str(signed_s),
        "webhook-signature": standard,
    }


def service_signature(body: bytes, secret: str, signed_s: int) -> str:
    """Return the hex HMAC-SHA256 over `<t>.<raw_body>`, keyed by the whole secret as it is written."""
    return hmac.new(secret.encode(), b"%d." % signed_s + body, hashlib.sha256).hexdigest()


def standard_signature(event_id: str, body: bytes, secret: str, signed_s: int) -> str:
    """Return the base64 HMAC-SHA256 over `<id>.<t>.<raw_body>`, keyed by the secret's decoded part."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = f"{event_id}.{signed_s}.".encode() + body
    return base64.b64encode(hmac.digest(key, signed, "sha256")).decode()


def _read_signature_header(header: str) -> tuple[list[str], list[str]]:
    """Return the `t` and `v1` values of a header; malformed ones are left out."""
    pairs = [part.strip().partition("=") for part in header.split(",")]
    moments = [value for name, _, value in pairs if name == "t" and _is_signature_number(value)]
    signatures = [value for name, _, value in pairs if name == "v1" and value.isascii()]
    return moments, signatures


def _is_signature_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 12
