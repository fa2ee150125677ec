from __future__ import annotations

from ipaddress import IPv4Network, ip_network

import pytest

from clusterctl.domain.errors import LabError
from clusterctl.lab import addresses
from clusterctl.lab.record import ACCOUNTS


@pytest.mark.parametrize(
    ("taken", "first"),
    [
        ([], "10.77.0.0/16"),
        (["10.77.0.0/16"], "10.78.0.0/16"),
        (["10.77.3.4/32", "10.78.128.0/17"], "10.79.0.0/16"),
        # Wide routes take no network: the default route, its halves, and those of VPNs.
        (["0.0.0.0/0"], "10.77.0.0/16"),
        (["10.0.0.0/8", "10.77.0.0/16"], "10.78.0.0/16"),
        # Networks outside of any route come first.
        (["10.64.0.0/12"], "10.80.0.0/16"),
        (["0.0.0.0/0", "10.0.0.0/8", "10.64.0.0/12"], "10.80.0.0/16"),
    ],
)
def test_the_first_free_network(taken, first):
    free = addresses.free_networks([IPv4Network(one) for one in taken])
    assert free[0] == IPv4Network(first)


def test_no_free_network():
    taken = [IPv4Network(f"10.{second}.4.0/24") for second in range(77, 100)]
    with pytest.raises(LabError) as refused:
        addresses.free_networks(taken)
    assert "--network" in refused.value.hint
    wanted = IPv4Network("10.200.0.0/16")
    assert addresses.free_networks(taken, wanted) == [wanted]
    with pytest.raises(LabError, match=r"10\.80\.0\.0/16 is in use.*10\.80\.4\.0/24"):
        addresses.free_networks(taken, IPv4Network("10.80.0.0/16"))


@pytest.mark.parametrize(
    ("network", "taken", "piece"),
    [
        ("10.77.0.0/16", [], "198.18.0.0/20"),
        ("10.78.0.0/16", ["0.0.0.0/0"], "198.18.16.0/20"),
        ("10.78.0.0/16", ["198.18.0.0/20"], "198.18.16.0/20"),
        # Some proxies use this whole space.
        ("10.78.0.0/16", ["198.18.0.0/15"], "100.68.224.0/20"),
        ("10.200.0.0/16", [], "100.76.128.0/20"),
    ],
)
def test_the_public_addresses_of_a_network(network, taken, piece):
    found = addresses.public_network(IPv4Network(network), [IPv4Network(one) for one in taken])
    assert found == IPv4Network(piece)
    everything = [IPv4Network("198.18.0.0/15"), IPv4Network("100.64.0.0/10")]
    with pytest.raises(LabError):
        addresses.public_network(IPv4Network(network), everything)


def test_accounts_and_regions_share_the_network_without_overlap():
    network = IPv4Network("10.77.0.0/16")
    parts = [
        addresses.default_network(network, region, account)
        for region in addresses.REGIONS
        for account in ACCOUNTS
    ]
    assert [str(part) for part in parts] == [f"10.77.{third}.0/19" for third in range(0, 256, 32)]
    # us-east-1 has six zones, each with a subnet.
    assert len(list(parts[0].subnets(new_prefix=addresses.SUBNET_PREFIX))) >= 6


def test_names_and_the_networks_of_this_machine():
    assert addresses.domain_name("us-east-1") == "ec2.internal"
    assert addresses.domain_name("us-west-2") == "us-west-2.compute.internal"
    assert ip_network("127.0.0.0/8") in addresses.networks_in_use()
