"""Encryption of small values under keys of the deployment, one for each purpose: AES-GCM."""

import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from recorder.hashing import compute_keyed_digest

_NONCE_BYTES = 12


class DecryptionFailed(ValueError):
    """A value was encrypted under another secret of the deployment, or for another owner."""


def encrypt(secret: bytes, purpose: str, value: bytes, *, owner_id: str) -> bytes:
    """Return nonce and ciphertext of a value; it can be decrypted for the same purpose and owner alone.

    Args:
        secret: the deployment's.
        purpose: name of the key.
        value: what is encrypted.
        owner_id: id of the row that keeps it.
    """
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _make_cipher(secret, purpose).encrypt(nonce, value, owner_id.encode())


def decrypt(secret: bytes, purpose: str, encrypted: bytes, *, owner_id: str) -> bytes:
    """Return the value that `encrypt` encrypted.

    Raises:
        DecryptionFailed: if it was encrypted under another secret, or for another owner.
    """
    nonce, ciphertext = encrypted[:_NONCE_BYTES], encrypted[_NONCE_BYTES:]
    try:
        return _make_cipher(secret, purpose).decrypt(nonce, ciphertext, owner_id.encode())
    except InvalidTag as error:
        raise DecryptionFailed(
            "The value cannot be decrypted: the deployment's secret is another one."
        ) from error


def _make_cipher(secret: bytes, purpose: str) -> AESGCM:
    """Return the AES-GCM cipher whose key is derived from the deployment's secret for one purpose."""
    return AESGCM(compute_keyed_digest(secret, purpose, b""))
