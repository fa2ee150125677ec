"""The network interfaces of each instance type: whole layouts, checked by EC2's rules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.ec2.launch.request import efa_cards, efa_wanted, network_interfaces, several
from clusterctl.ec2.machines import MachineType, read_machine_type
from clusterctl.lab.ec2.interfaces import check_layout, read_interfaces
from tests.ec2.observed import MACHINE, PLAIN
from tests.hostless import complete_moto

complete_moto()
TYPES = {name: read_machine_type(entry) for name, entry in INSTANCE_TYPES.items()}
GPU_TYPES = {name: machine for name, machine in TYPES.items() if machine.gpus}


def primary(**more):
    return {"DeviceIndex": 0, "Groups": ["sg-1"], "DeleteOnTermination": True, **more}


def efa_only(card, **more):
    return {
        "DeviceIndex": 0 if card else 1,
        "NetworkCardIndex": card,
        "InterfaceType": "efa-only",
        "Groups": ["sg-1"],
        "DeleteOnTermination": True,
        **more,
    }


def laid_out(machine, efa=True, subnet_id=None, public=True):
    return network_interfaces(machine, efa, subnet_id, "sg-1", public)


@pytest.mark.parametrize(
    ("name", "cards"),
    [
        ("p4d.24xlarge", range(4)),
        ("p5.48xlarge", range(32)),
        ("p5en.48xlarge", range(16)),
        ("p6-b200.48xlarge", range(8)),
        ("p6-b300.48xlarge", range(1, 17)),
        ("g6e.24xlarge", range(2)),
    ],
)
def test_an_ordinary_primary_interface_and_an_efa_on_every_card_that_takes_one(name, cards):
    # Nitro v6 forgets idle connections after 350 s, unless it is told not to.
    tracked = {"ConnectionTrackingSpecification": {"TcpEstablishedTimeout": 432000}}
    more = tracked if name.startswith("p6-") else {}
    assert laid_out(TYPES[name]) == [primary(NetworkCardIndex=0, **more), *map(efa_only, cards)]
    assert several(TYPES[name], efa=True)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("g5.12xlarge", {"InterfaceType": "efa"}),
        ("p5.4xlarge", {"InterfaceType": "efa"}),
        ("p3.16xlarge", {}),
        ("g5.xlarge", {}),
        ("m5.large", {}),
    ],
)
@pytest.mark.parametrize("public", [True, False])
def test_a_lone_interface_says_whether_it_gets_a_public_address(name, kind, public):
    machine = TYPES[name]
    efa = efa_wanted(machine, 2, None)
    assert efa is bool(kind)
    assert laid_out(machine, efa, public=public) == [
        primary(**kind, AssociatePublicIpAddress=public)
    ]
    assert not several(machine, efa)


def test_every_interface_is_in_the_subnet():
    asked = laid_out(TYPES["p4d.24xlarge"], subnet_id="subnet-1")
    assert asked == [
        primary(SubnetId="subnet-1", NetworkCardIndex=0),
        *(efa_only(card, SubnetId="subnet-1") for card in range(4)),
    ]
    assert [one["SubnetId"] for one in laid_out(PLAIN, False, "subnet-1")] == ["subnet-1"]


def test_a_first_card_that_takes_one_interface_gets_its_efa_there():
    machine = replace(MACHINE, network_cards=2, card_interfaces=(1, 2), efa_interfaces=2)
    assert laid_out(machine) == [primary(InterfaceType="efa", NetworkCardIndex=0), efa_only(1)]


@pytest.mark.parametrize(
    ("machine", "cards"),
    [
        (replace(MACHINE, network_cards=17, efa_interfaces=16), range(1, 17)),
        (replace(MACHINE, network_cards=17, efa_interfaces=16, efa_cards=(0, 2, 4)), (0, 2, 4)),
        (replace(MACHINE, network_cards=2, efa_interfaces=1), (1,)),
        (replace(MACHINE, network_cards=4, efa_interfaces=2), (0, 1)),
        (replace(MACHINE, network_cards=4, efa_interfaces=2, efa_cards=(1, 2, 3)), (1, 2)),
        (MachineType("t3.micro", 0, 2, ("x86_64",)), ()),
    ],
)
def test_which_cards_get_an_efa(machine, cards):
    assert efa_cards(machine) == tuple(cards)


@pytest.mark.parametrize(
    ("efa_interfaces", "nodes", "asked", "expected"),
    [
        (4, 2, None, True),
        (4, 1, None, False),
        (4, 1, True, True),
        (4, 2, False, False),
        (0, 2, None, False),
        (0, 2, True, False),
    ],
)
def test_efa_where_it_helps_or_as_asked(efa_interfaces, nodes, asked, expected):
    assert efa_wanted(replace(MACHINE, efa_interfaces=efa_interfaces), nodes, asked) is expected


@pytest.mark.parametrize("name", sorted(GPU_TYPES))
@pytest.mark.parametrize("efa", [True, False])
def test_ec2_takes_the_layout_of_every_gpu_type(name, efa):
    machine, described = GPU_TYPES[name], INSTANCE_TYPES[name]
    efa = efa_wanted(machine, 2, efa)
    asked = laid_out(machine, efa)
    check_layout(read_interfaces(asked), name, described)
    fabric = [one for one in asked if one.get("InterfaceType", "").startswith("efa")]
    assert len(fabric) == (machine.efa_interfaces if efa else 0)
    assert efa or len(asked) == 1
    flagged = [one for one in asked if "AssociatePublicIpAddress" in one]
    assert flagged == (asked if len(asked) == 1 else [])
