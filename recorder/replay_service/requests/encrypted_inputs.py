"""Inputs of replays and recoveries, encrypted under a key of the deployment until they end. Contract §8."""

import orjson

from recorder.encryption import decrypt, encrypt

_PURPOSE = "replay-inputs"


def encrypt_inputs(secret: bytes, owner_id: str, inputs: dict[str, str]) -> bytes | None:
    """Return the encrypted inputs of a replay or recovery; None without any."""
    return encrypt(secret, _PURPOSE, orjson.dumps(inputs), owner_id=owner_id) if inputs else None


def decrypt_inputs(secret: bytes, owner_id: str, stored: bytes | None) -> dict[str, str]:
    """Return the inputs of a replay or recovery; for the run that holds its lease.

    Raises:
        DecryptionFailed: if they were encrypted with another secret.
    """
    if stored is None:
        return {}
    inputs: dict[str, str] = orjson.loads(decrypt(secret, _PURPOSE, stored, owner_id=owner_id))
    return inputs
