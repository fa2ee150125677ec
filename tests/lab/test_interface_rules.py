"""The network interfaces that an instance type accepts, decided from its cards."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from moto.ec2.exceptions import EC2ClientError

from clusterctl.lab.ec2.interfaces import InterfaceRule, check_layout, read_interfaces
from clusterctl.lab.ec2.launch import PendingLaunch


def card(index, most, kinds=("interface", "efa", "efa-only")):
    return {
        "NetworkCardIndex": index,
        "MaximumNetworkInterfaces": most,
        "InterfaceTypes": list(kinds),
    }


def info(cards, efas):
    network = {"EfaSupported": efas > 0, "NetworkCards": cards}
    return {
        "NetworkInfo": {**network, **({"EfaInfo": {"MaximumEfaInterfaces": efas}} if efas else {})}
    }


SMALL = info([card(0, 3, ["interface"])], 0)
ONE_EFA = info([card(0, 8)], 1)
FOUR = info([card(index, 15) for index in range(4)], 4)
TWO_PER_CARD = info([card(index, 2) for index in range(32)], 32)
FIRST_IS_ENA = info([card(0, 4, ["interface"]), *(card(index, 4) for index in range(1, 17))], 16)


def nic(device, card=0, kind=None, **others):
    asked = {"DeviceIndex": device, "NetworkCardIndex": card, **others}
    return {**asked, **({"InterfaceType": kind} if kind else {})}


def every_card(count, kind="efa-only"):
    return [nic(0), nic(1, 0, "efa-only"), *(nic(0, index, kind) for index in range(1, count))]


@pytest.mark.parametrize(
    ("type_info", "nics"),
    [
        (SMALL, [nic(0), nic(1), nic(2)]),
        (ONE_EFA, [nic(0, kind="efa", AssociatePublicIpAddress=True)]),
        (ONE_EFA, [nic(0), nic(1, 0, "efa-only", AssociatePublicIpAddress=False)]),
        (FOUR, every_card(4)),
        (FOUR, [nic(0, kind="efa"), *(nic(1, index, "efa") for index in (1, 2, 3))]),
        (TWO_PER_CARD, every_card(32)),
        (FIRST_IS_ENA, [nic(0), *(nic(0, index, "efa-only") for index in range(1, 17))]),
        (None, [nic(0, kind="efa"), nic(0, 7, "efa")]),
    ],
)
def test_layouts_that_are_taken(type_info, nics):
    requested = read_interfaces(nics)
    check_layout(requested, "its.type", type_info or {})
    # An interface of this kind has no address.
    for wish, asked in zip(requested, nics):
        assert wish.takes_address == (asked.get("InterfaceType") != "efa-only")


@pytest.mark.parametrize(
    ("type_info", "nics", "code", "text"),
    [
        (SMALL, [nic(1)], "InvalidParameterCombination", "index 0"),
        (SMALL, [nic(0), nic(0)], "InvalidParameterValue", "unique device index"),
        (SMALL, [nic(0, kind="quick")], "InvalidParameterValue", "'quick'"),
        (FOUR, [nic(0, AssociatePublicIpAddress=True), nic(0, 1)], "InvalidParameterCombination",
         "The associatePublicIPAddress parameter cannot be specified when launching with "
         "multiple network interfaces"),
        (FOUR, [nic(0), nic(0, 4)], "InvalidParameterValue", "networkCardIndex"),
        (SMALL, [nic(index) for index in range(4)], "AttachmentLimitExceeded",
         "Interface count 4 exceeds the limit for its.type"),
        (TWO_PER_CARD, [nic(0), nic(1), nic(2)], "AttachmentLimitExceeded", "count 3"),
        (SMALL, [nic(0, kind="efa")], "InvalidParameterCombination", "do not support"),
        (ONE_EFA, [nic(0, kind="efa-only")], "InvalidParameterCombination", "primary"),
        (ONE_EFA, [nic(0, kind="efa"), nic(1, 0, "efa")], "InvalidParameterCombination", "one"),
        (FIRST_IS_ENA, [nic(0, kind="efa")], "InvalidParameterCombination", "card 0"),
        (FIRST_IS_ENA, [nic(0), nic(1, 0, "efa-only")], "InvalidParameterCombination", "card 0"),
        (info([card(0, 4), card(1, 4)], 1), [nic(0, kind="efa"), nic(0, 1, "efa")],
         "AttachmentLimitExceeded", "EFA interface count 2"),
    ],
)  # fmt: skip
def test_layouts_that_are_refused(type_info, nics, code, text):
    with pytest.raises(EC2ClientError, match=re.escape(text)) as refused:
        check_layout(read_interfaces(nics), "its.type", type_info)
    assert refused.value.code == code


@pytest.mark.parametrize(
    ("nics", "free", "fits"),
    [
        ([], 0, False),
        ([nic(0)], 1, True),
        ([nic(0), nic(1)], 1, False),
        ([nic(0, NetworkInterfaceId="eni-1")], 0, True),
        ([nic(0, NetworkInterfaceId="eni-1"), nic(1)], 0, False),
    ],
)
def test_the_addresses_that_an_instance_takes(nics, free, fits):
    subnet = SimpleNamespace(
        id="subnet-1", availability_zone="a", available_ip_address_count=free, vpc_id="vpc-1"
    )
    request = {"NetworkInterfaces": nics}
    launch = PendingLaunch(request, SimpleNamespace(), 1, subnet)
    if fits:
        InterfaceRule().check_launch(launch)
        return
    with pytest.raises(EC2ClientError) as refused:
        InterfaceRule().check_launch(launch)
    assert refused.value.code == "InsufficientFreeAddressesInSubnet"
