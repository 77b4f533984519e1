"""Inputs of replays, encrypted under a key of the deployment until the replay ends. Contract §8."""

import secrets

import orjson
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from recorder.digest import keyed_digest

_NONCE_BYTES = 12


def encrypt_inputs(secret: bytes, replay_id: str, inputs: dict[str, str]) -> bytes | None:
    """Return nonce and ciphertext of the inputs of a replay; None without any."""
    if not inputs:
        return None
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + _cipher(secret).encrypt(nonce, orjson.dumps(inputs), replay_id.encode())


def _cipher(secret: bytes) -> AESGCM:
    return AESGCM(keyed_digest(secret, "replay-inputs", b""))
