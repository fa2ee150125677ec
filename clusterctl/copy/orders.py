"""Orders for relays, as data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clusterctl.copy.member import text
from clusterctl.copy.relinks import Net


def begin_order(net: Net, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """How the data is cut into blocks; for the source and all targets."""
    return {
        "order": "begin",
        "block_bytes": net.block_bytes,
        "streams": net.streams,
        "digest": text(manifest, "digest"),
        "single": manifest.get("single") is True,
        # What --delete must not do: see `Target.prepare`.
        **{key: manifest.get(key) for key in ("left_out", "host", "roots")},
    }


def address_of(net: Net, name: str) -> dict[str, Any]:
    """Where a relay is found, as it says itself; "" is nobody."""
    upstream = net.members.get(name)
    if upstream is None:
        return {"name": ""}
    return {"name": name, "address": upstream.address, "port": upstream.port}
