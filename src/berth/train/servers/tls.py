"""TLS with keys from the run's secret.

Every process derives the same Ed25519 key and self-signed certificate from the secret. Both sides of a connection
present it, and trust nothing else, so a peer that does not know the secret fails the TLS handshake. Session keys come
from an ephemeral key exchange (TLS 1.3): who learns the secret later can't decrypt what was recorded.
"""

from __future__ import annotations

import os
import ssl
from datetime import UTC, datetime
from functools import lru_cache

from berth.errors import InputError
from berth.train.servers.secret import Secret

_NAME = "berth training run"
_FINAL = (
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
)  # a broken connection, not a refused one


def tls_context(secret: Secret, *, server: bool) -> ssl.SSLContext:
    """Return the TLS context of one side; both sides are authenticated by the secret."""
    certificate, key = _certificate(secret.derive("tls"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate belongs to the run, not to a host
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=certificate.decode())
    if server:
        context.num_tickets = 0  # sessions are not resumed
    handle = os.memfd_create("berth-tls", os.MFD_CLOEXEC)  # the ssl module reads keys from files only
    try:
        os.write(handle, certificate + key)
        context.load_cert_chain(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)
    return context


def is_refusal(error: OSError) -> bool:
    """Return whether an error of a TLS handshake means that the peer has another secret, or no TLS."""
    return isinstance(error, ssl.SSLError) and not isinstance(error, _FINAL)


@lru_cache(maxsize=4)
def _certificate(seed: bytes) -> tuple[bytes, bytes]:
    """Return certificate and key as PEM; equal seeds give equal bytes."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError:
        raise InputError(
            "encryption between hosts needs the package cryptography",
            hint="pip install cryptography, or --plain on a network that you trust",
        ) from None
    key = Ed25519PrivateKey.from_private_bytes(seed)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, _NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))  # clocks of hosts may differ
        .not_valid_after(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC))
        .sign(key, None)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return certificate.public_bytes(serialization.Encoding.PEM), private
