"""What relays are told first, on their standard input: it has the secret of the copy."""

from __future__ import annotations

import base64
import secrets
from typing import Any

from clusterctl.copy.certificate import ephemeral_pem
from clusterctl.copy.request import CopyRequest


def common_config(request: CopyRequest) -> dict[str, Any]:
    """For all relays of one copy, with a secret of its own."""
    return {
        "secret": secrets.token_hex(32),
        "tls": {"pem": ephemeral_pem()} if request.encrypt else None,
        "port": request.port,
        "checksum": request.checksum,
    }


def source_config(request: CopyRequest) -> dict[str, Any]:
    """For the relay at the source."""
    names = request.names
    return {
        "role": "source",
        "sources": list(request.sources),
        "names_b64": None if names is None else [base64.b64encode(n).decode() for n in names],
    }


def target_config(request: CopyRequest) -> dict[str, Any]:
    """For the relay of a node that gets the data."""
    return {
        "role": "target",
        "destination": request.destination,
        "delete": request.delete,
        "dry_run": request.dry_run,
        "several": len(request.sources) > 1,
    }
