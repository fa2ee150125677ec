"""The networks of a lab: which private and public ones it takes, and each region's part of them."""

from __future__ import annotations

import ipaddress
import json
import subprocess
from collections.abc import Collection
from ipaddress import IPv4Network
from typing import Any

from clusterctl.domain.errors import LabError
from clusterctl.lab.record import ACCOUNTS

# The networks that are tried when none is named.
CANDIDATES = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(77, 100))
# `--network` may name any /16 of this one.
ALL_CANDIDATES = IPv4Network("10.0.0.0/8")
# Blocks for public addresses that are not used on the Internet: the one for benchmarks (RFC 2544),
# then the one for carrier-grade NAT (RFC 6598). Each network 10.N.0.0/16 has a /20 of its own in
# them. The value is the N of the block's first /20.
PUBLIC_SPACES = {IPv4Network("198.18.0.0/15"): 77, IPv4Network("100.64.0.0/10"): 0}
PUBLIC_PREFIX = 20
REGIONS = ("us-east-1", "us-west-2", "us-east-2", "eu-west-1")
SUBNET_PREFIX = 22


def free_networks(
    taken: Collection[IPv4Network], wanted: IPv4Network | None = None
) -> list[IPv4Network]:
    """Return the candidates (`wanted`, or CANDIDATES) that are free. Raise LabError for none.

    A wider network in `taken`, such as a VPN's route to 10.0.0.0/8, does not count, because the
    lab's own route is more specific. Candidates outside of such wider networks come first.
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
    """Return the /20 of public addresses for a lab's network. Raise LabError if both are in use."""
    second = network.network_address.packed[1]
    for space, first in PUBLIC_SPACES.items():
        pieces = list(space.subnets(new_prefix=PUBLIC_PREFIX))
        if not 0 <= second - first < len(pieces):
            continue
        piece = pieces[second - first]
        # A route to the whole block means that the machine uses it. A wider route does not.
        if not _in_use(piece, taken, space.prefixlen):
            return piece
    spaces = " and ".join(str(space) for space in PUBLIC_SPACES)
    raise LabError(
        f"this machine uses {spaces} itself, the lab's public addresses",
        "choose another --network, or stop the VPN or proxy that does",
    )


def _in_use(network: IPv4Network, taken: Collection[IPv4Network], widest: int) -> list[IPv4Network]:
    """Return the networks of `taken` that overlap it and whose prefix has `widest` bits or more."""
    return [one for one in taken if one.prefixlen >= widest and one.overlaps(network)]


def default_network(network: IPv4Network, region: str, account: str) -> IPv4Network:
    """Return the /19 of the lab's network that is an account's default VPC in a region.

    On AWS every account has the same one (172.31.0.0/16). The lab has each address only once.
    """
    quarter = list(network.subnets(new_prefix=18))[REGIONS.index(region)]
    return list(quarter.subnets(new_prefix=19))[ACCOUNTS.index(account)]


def link_name(network: IPv4Network) -> str:
    """Return the name of this machine's end of the link into the lab: `clab77` for 10.77.0.0/16."""
    return f"clab{network.network_address.packed[1]}"


def domain_name(region: str) -> str:
    """Return the domain of a region's private hostnames, as on EC2."""
    return "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"


def networks_in_use() -> list[IPv4Network]:
    """Return the IPv4 networks of this machine's addresses and of its routes in all tables."""
    routes = _ip_json("route", "show", "table", "all")
    links = _ip_json("address", "show")
    found = [route["dst"] for route in routes]
    found += [f"{own['local']}/{own['prefixlen']}" for link in links for own in link["addr_info"]]
    return [ipaddress.IPv4Network(text, strict=False) for text in found if text != "default"]


def _ip_json(*arguments: str) -> list[dict[str, Any]]:
    shown = subprocess.run(["ip", "-4", "-json", *arguments], check=True, stdout=subprocess.PIPE)
    found: list[dict[str, Any]] = json.loads(shown.stdout or b"[]")
    return found
