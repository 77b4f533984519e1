"""Certificate with which the proxy of a live replay answers in place of hosts whose methods are limited.

The browser trusts its key, and no other certificate that an authority does not vouch for.
docs/decisions/0045-live-sandbox.md.
"""

import base64
import hashlib
import os
import ssl
from datetime import timedelta

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from recorder import clock

_VALID_FOR = timedelta(days=2)


class TunnelCertificate:
    """Certificate of one replay; its key is never written to a disk."""

    def __init__(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "live replay")])
        now = clock.now()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _VALID_FOR / 2)
            .not_valid_after(now + _VALID_FOR / 2)
            .sign(key, SHA256())
        )
        #: For the side of the server.
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        descriptor = os.memfd_create("certificate")
        try:
            os.write(
                descriptor,
                key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
                + certificate.public_bytes(Encoding.PEM),
            )
            self.context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        finally:
            os.close(descriptor)
        public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        #: Hash of the public key, as Chromium takes it.
        self.key_hash = base64.b64encode(hashlib.sha256(public).digest()).decode()
