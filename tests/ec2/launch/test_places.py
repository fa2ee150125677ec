"""Places for a cluster: zones that offer a type, and subnets with free addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.ec2.launch.capacity import Place, find_offers, places
from clusterctl.ec2.network.vpcs import Subnet

P4D, P5 = "p4d.24xlarge", "p5.48xlarge"
A, B, C = "us-east-1a", "us-east-1b", "us-east-1c"


def subnet(name, zone, free=100):
    return Subnet(name, "vpc-1", zone, "10.0.0.0/24", free)


BIG_A, SMALL_A = subnet("subnet-1", A, 100), subnet("subnet-2", A, 3)
IN_B, IN_C = subnet("subnet-3", B, 50), subnet("subnet-4", C, 50)
EVERYWHERE = {P4D: frozenset((A, B, C)), P5: frozenset((B, C))}


def found(types=(P4D,), offers=EVERYWHERE, subnets=(SMALL_A, BIG_A, IN_B), zone=None, needed=4):
    return [
        (one.instance_type, one.subnet_id) for one in places(types, offers, subnets, zone, needed)
    ]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        # Of each zone, the subnet with the most free addresses is used, whatever the order.
        ({}, [(P4D, "subnet-1"), (P4D, "subnet-3")]),
        ({"subnets": (IN_C, BIG_A, SMALL_A)}, [(P4D, "subnet-1"), (P4D, "subnet-4")]),
        ({"zone": B}, [(P4D, "subnet-3")]),
        ({"zone": C}, []),
        ({"needed": 51}, [(P4D, "subnet-1")]),
        ({"needed": 100}, [(P4D, "subnet-1")]),
        ({"needed": 101}, []),
        # Sorted by type in the requested order. Zones without the type are left out.
        ({"types": (P5, P4D)}, [(P5, "subnet-3"), (P4D, "subnet-1"), (P4D, "subnet-3")]),
        ({"types": (P5,), "subnets": (BIG_A,)}, []),
        ({"offers": {}}, []),
        ({"subnets": ()}, []),
        ({"types": ()}, []),
    ],
)
def test_places_best_first(asked, expected):
    assert found(**asked) == expected


def test_a_place_names_its_zone():
    assert places((P4D,), EVERYWHERE, (IN_B,), None, 1) == (Place(P4D, B, "subnet-3"),)


def test_of_equal_subnets_always_the_same():
    twin = replace(BIG_A, subnet_id="subnet-9")
    assert found(subnets=(BIG_A, twin)) == found(subnets=(BIG_A, twin)) == [(P4D, "subnet-1")]


def test_what_a_region_offers(client):
    offers = find_offers(client, (P4D, "p4de.24xlarge", "p9.huge"))
    assert offers == {
        P4D: frozenset((A, B, C, "us-east-1d")),
        "p4de.24xlarge": frozenset((B, C)),
        "p9.huge": frozenset(),
    }
