"""The configuration that each relay receives first on its standard input.

It contains the secret of the copy and, with --encrypt, a certificate and its key. They are never
written to a file or a command line.
"""

from __future__ import annotations

import base64
import datetime
import secrets
from typing import Any

from clusterctl.copy.request import CopyRequest

# How long the certificate is valid before and after now: the clocks of nodes may be wrong.
VALID = datetime.timedelta(days=7)


def common_config(request: CopyRequest) -> dict[str, Any]:
    """Return the part that all relays of one copy share, with a new secret."""
    return {
        "secret": secrets.token_hex(32),
        "tls": {"pem": ephemeral_pem()} if request.encrypt else None,
        "port": request.port,
        "checksum": request.checksum,
    }


def source_config(request: CopyRequest) -> dict[str, Any]:
    """Return the part for the relay at the source."""
    names = request.names
    return {
        "role": "source",
        "sources": list(request.sources),
        "names_b64": None if names is None else [base64.b64encode(n).decode() for n in names],
        "delete_in": request.destination if request.delete else None,
    }


def target_config(request: CopyRequest) -> dict[str, Any]:
    """Return the part for the relay of a node that gets the data."""
    return {
        "role": "target",
        "destination": request.destination,
        "delete": request.delete,
        "dry_run": request.dry_run,
        "several": len(request.sources) > 1,
    }


def ephemeral_pem() -> str:
    """Return a new certificate and its key as PEM. All relays of one copy share them."""
    # Imported here, so that the command line starts without it.
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "clusterctl copy")])
    now = datetime.datetime.now(datetime.timezone.utc)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - VALID)
        .not_valid_after(now + VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return (certificate.public_bytes(serialization.Encoding.PEM) + private).decode()
