"""Signed URLs of hosted manifests and files: read access without a key until a time. Contract §5."""

import hmac
from datetime import datetime
from urllib.parse import quote

from recorder import clock
from recorder.errors import InvalidSignature, UrlExpired
from recorder.hashing import canonical_json, compute_keyed_digest

_KEY_ID_CHARACTERS = 8


def make_signed_url(
    base_url: str, path: str, *, workspace_id: str, expires_at: datetime, secret: bytes
) -> str:
    """Return an address of a path below `base_url`, valid for GET until `expires_at` (whole seconds)."""
    expires_s = clock.to_ms(expires_at) // 1000
    key_id = _compute_signed_url_key_id(secret)
    signature = _sign_url_path(
        path, expires_s=expires_s, key_id=key_id, workspace_id=workspace_id, secret=secret
    )
    return f"{base_url}{quote(path, safe='/=')}?exp={expires_s}&kid={key_id}&sig={signature}"


def check_url_signature(
    path: str,
    *,
    expires_s: int,
    key_id: str,
    signature: str,
    workspace_id: str,
    secret: bytes,
    now: datetime,
) -> None:
    """Check that an address was signed by this service and has not expired.

    Raises:
        InvalidSignature: if path, time, key or workspace differ from the signed ones.
        UrlExpired: if the address has expired.
    """
    expected = _sign_url_path(
        path,
        expires_s=expires_s,
        key_id=_compute_signed_url_key_id(secret),
        workspace_id=workspace_id,
        secret=secret,
    )
    same_key = hmac.compare_digest(key_id.encode(), _compute_signed_url_key_id(secret).encode())
    if not hmac.compare_digest(signature.encode(), expected.encode()) or not same_key:
        raise InvalidSignature
    if clock.to_ms(now) // 1000 >= expires_s:
        raise UrlExpired


def _compute_signed_url_key_id(secret: bytes) -> str:
    """Return an id of the secret that does not disclose it; another secret has another id."""
    return compute_keyed_digest(secret, "url-key-id", b"").hex()[:_KEY_ID_CHARACTERS]


def _sign_url_path(path: str, *, expires_s: int, key_id: str, workspace_id: str, secret: bytes) -> str:
    signed = canonical_json(["GET", path, expires_s, key_id, workspace_id])
    return compute_keyed_digest(secret, "export-url", signed).hex()
