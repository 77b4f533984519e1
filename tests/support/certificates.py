"""An authority that lives as long as the tests, and servers that it vouches for."""

import ipaddress
import ssl
import tempfile
from datetime import timedelta
from functools import cache
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from recorder import clock

_Key = ec.EllipticCurvePrivateKey


def server_context(name: str) -> ssl.SSLContext:
    """Return a server's side, with a certificate of the tests' authority for this name."""
    authority, authority_key = _authority()
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _certificate(name, key, issuer=authority.subject, issuer_key=authority_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile(suffix=".pem") as file:
        Path(file.name).write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + certificate.public_bytes(serialization.Encoding.PEM)
        )
        context.load_cert_chain(file.name)
    return context


def trusting_context() -> ssl.SSLContext:
    """Return a client's side that trusts the tests' authority alone."""
    authority, _ = _authority()
    return ssl.create_default_context(cadata=authority.public_bytes(serialization.Encoding.PEM).decode())


def write_authority(file: Path) -> None:
    """Write the authority's certificate and its key, for programs that are shown to each other by it."""
    authority, key = _authority()
    text = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(*text) + authority.public_bytes(serialization.Encoding.PEM))


@cache
def _authority() -> tuple[x509.Certificate, _Key]:
    key = ec.generate_private_key(ec.SECP256R1())
    return _certificate("tests", key, issuer=None, issuer_key=key), key


def _certificate(name: str, key: _Key, *, issuer: x509.Name | None, issuer_key: _Key) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = clock.now()
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName(name), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            ),
            critical=False,
        )
    )
    return builder.sign(issuer_key, hashes.SHA256())
