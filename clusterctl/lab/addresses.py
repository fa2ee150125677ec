"""Which addresses a lab takes, private and public, and which part of them each region has."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Collection
from ipaddress import IPv4Network
from typing import Any

from clusterctl.domain.errors import LabError
from clusterctl.lab.record import ACCOUNTS

CANDIDATES = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(77, 100))
ALL_CANDIDATES = IPv4Network("10.0.0.0/8")
# Space for benchmarks (RFC 2544), then carriers' own (RFC 6598): nobody's public addresses. Each
# network 10.N.0.0/16 has a piece of its own, counted from this N on.
PUBLIC_SPACES = {IPv4Network("198.18.0.0/15"): 77, IPv4Network("100.64.0.0/10"): 0}
PUBLIC_PREFIX = 20
REGIONS = ("us-east-1", "us-west-2", "us-east-2", "eu-west-1")
SUBNET_PREFIX = 22


def free_networks(
    taken: Collection[IPv4Network], wanted: IPv4Network | None = None
) -> list[IPv4Network]:
    """The candidates, or the wanted network, if nobody else has them. Raises LabError for none.

    A wider network of `taken`, as VPNs route them, does not count: the lab's own route goes before
    it. Networks in which there is no such one come first.
    """
    candidates = [wanted] if wanted else CANDIDATES
    free = [one for one in candidates if not _in_use(one, taken, one.prefixlen)]
    if not free:
        which = str(wanted or f"every network from {CANDIDATES[0]} to {CANDIDATES[-1]}")
        users = _in_use(wanted, taken, wanted.prefixlen) if wanted else []
        by = f", by {', '.join(map(str, users))}" if users else ""
        raise LabError(
            f"{which} is in use on this machine{by}",
            "choose another one with --network, or stop a lab that is no longer needed: "
            "clusterctl lab stop",
        )
    return sorted(free, key=lambda one: len(_in_use(one, taken, 0)))


def public_network(network: IPv4Network, taken: Collection[IPv4Network]) -> IPv4Network:
    """The lab's public addresses: the network's piece. Raises LabError if something uses it."""
    second = network.network_address.packed[1]
    for space, first in PUBLIC_SPACES.items():
        pieces = list(space.subnets(new_prefix=PUBLIC_PREFIX))
        if not 0 <= second - first < len(pieces):
            continue
        piece = pieces[second - first]
        # Whoever routes the space alone uses it; who routes more than that does not mean it.
        if not _in_use(piece, taken, space.prefixlen):
            return piece
    spaces = " and ".join(str(space) for space in PUBLIC_SPACES)
    raise LabError(
        f"this machine uses {spaces} itself, the lab's public addresses",
        "choose another --network, or stop the VPN or proxy that does",
    )


def _in_use(network: IPv4Network, taken: Collection[IPv4Network], widest: int) -> list[IPv4Network]:
    """What of `taken` overlaps it, as far as its prefix is `widest` bits or longer."""
    return [one for one in taken if one.prefixlen >= widest and one.overlaps(network)]


def default_network(network: IPv4Network, region: str, account: str) -> IPv4Network:
    """The eighth of the lab's network that is the account's default VPC in the region.

    On AWS every account has the same one. The lab has each address once.
    """
    quarter = list(network.subnets(new_prefix=18))[REGIONS.index(region)]
    return list(quarter.subnets(new_prefix=19))[ACCOUNTS.index(account)]


def link_name(network: IPv4Network) -> str:
    """The caller's end of the link into the lab: `clab77` for 10.77.0.0/16."""
    return f"clab{network.network_address.packed[1]}"


def host_name(address: str) -> str:
    """`ip-10-77-0-5`, as EC2 names its hosts."""
    return "ip-" + address.replace(".", "-")


def domain_name(region: str) -> str:
    return "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"


def networks_in_use() -> list[IPv4Network]:
    """The networks of this machine's routes (all tables) and addresses."""
    routes = _ip_json("route", "show", "table", "all")
    links = _ip_json("address", "show")
    found = [route["dst"] for route in routes]
    found += [f"{own['local']}/{own['prefixlen']}" for link in links for own in link["addr_info"]]
    return [ipaddress.IPv4Network(text, strict=False) for text in found if text != "default"]


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    shown = subprocess.run(["ip", "-4", "-json", *arguments], check=True, stdout=subprocess.PIPE)
    found: list[dict[str, Any]] = json.loads(shown.stdout or b"[]")
    return found
