"""Addresses that open a hosted file for a time, without a key. Contract §5 (`signed_url`)."""

import hmac
from datetime import datetime
from urllib.parse import quote

from recorder import clock
from recorder.digest import canonical_json, keyed_digest
from recorder.errors import InvalidSignature, UrlExpired

_KEY_ID_CHARACTERS = 8


def signed_url(base_url: str, path: str, *, workspace_id: str, expires_at: datetime, secret: bytes) -> str:
    """The address of a path below `base_url`, good for GET until `expires_at` (whole seconds)."""
    expires_s = clock.to_ms(expires_at) // 1000
    key_id = _key_id(secret)
    signature = _signature(path, expires_s=expires_s, key_id=key_id, workspace_id=workspace_id, secret=secret)
    return f"{base_url}{quote(path, safe='/=')}?exp={expires_s}&kid={key_id}&sig={signature}"


def check_signature(
    path: str,
    *,
    expires_s: int,
    key_id: str,
    signature: str,
    workspace_id: str,
    secret: bytes,
    now: datetime,
) -> None:
    """Refuse an address that we did not sign, or whose time is over.

    Raises:
        InvalidSignature: if path, time, key or workspace are not those that were signed.
        UrlExpired: if they are, but the time is over.
    """
    expected = _signature(
        path, expires_s=expires_s, key_id=_key_id(secret), workspace_id=workspace_id, secret=secret
    )
    same_key = hmac.compare_digest(key_id.encode(), _key_id(secret).encode())
    if not hmac.compare_digest(signature.encode(), expected.encode()) or not same_key:
        raise InvalidSignature
    if clock.to_ms(now) // 1000 >= expires_s:
        raise UrlExpired


def _key_id(secret: bytes) -> str:
    """Names the secret without telling it, so that a changed one is seen as such."""
    return keyed_digest(secret, "url-key-id", b"").hex()[:_KEY_ID_CHARACTERS]


def _signature(path: str, *, expires_s: int, key_id: str, workspace_id: str, secret: bytes) -> str:
    signed = canonical_json(["GET", path, expires_s, key_id, workspace_id])
    return keyed_digest(secret, "export-url", signed).hex()
