"""Inputs of replays and recoveries, encrypted under a key of the deployment until they end. Contract §8."""

import secrets

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from recorder.hashing import compute_keyed_digest

_NONCE_BYTES = 12


def encrypt_inputs(secret: bytes, owner_id: str, inputs: dict[str, str]) -> bytes | None:
    """Return nonce and ciphertext of the inputs of a replay or recovery; None without any."""
    if not inputs:
        return None
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _make_cipher(secret).encrypt(nonce, orjson.dumps(inputs), owner_id.encode())


def decrypt_inputs(secret: bytes, owner_id: str, stored: bytes | None) -> dict[str, str]:
    """Return the inputs of a replay or recovery; for the run that holds its lease.

    Raises:
        ValueError: if they were encrypted with another secret.
    """
    if stored is None:
        return {}
    try:
        text = _make_cipher(secret).decrypt(stored[:_NONCE_BYTES], stored[_NONCE_BYTES:], owner_id.encode())
    except InvalidTag as error:
        raise ValueError("The inputs cannot be decrypted: the deployment's secret is another one.") from error
    inputs: dict[str, str] = orjson.loads(text)
    return inputs


def _make_cipher(secret: bytes) -> AESGCM:
    return AESGCM(compute_keyed_digest(secret, "replay-inputs", b""))
