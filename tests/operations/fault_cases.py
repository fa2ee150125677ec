"""Every API call of every command, and the ways in which each is broken."""

from __future__ import annotations

import pytest

from tests.operations.commands import COMMANDS
from tests.operations.wire import READS, Mode

LOOKS = (
    "DescribeSubnets DescribeVpcs DescribeKeyPairs DescribeSecurityGroups DescribePlacementGroups "
    "DescribeAddresses"
)
# For a launch.
CATALOGUE = (
    "DescribeInstanceTypes DescribeImages DescribeInstanceTypeOfferings DescribeInstances "
    "GetServiceQuota DescribeRouteTables DescribeVpcEndpoints DescribeInstanceAttribute"
)
SETTLED = "DescribeInstanceStatus DescribeInstances"
FORGOTTEN = "DescribeInstances DeleteTags"
DISMISSAL = "DescribeInstances DescribeInstances TerminateInstances DescribeInstances"
CALLS = {
    "up": f"DescribeInstances {LOOKS} DescribeInstanceTypes GetParameter DescribeImages "
    "DescribeImages DescribeInstanceTypeOfferings GetProducts DescribeInstances GetServiceQuota "
    "DescribeRouteTables DescribeVpcEndpoints DescribeAddresses GetServiceQuota "
    "CreatePlacementGroup ImportKeyPair CreateSecurityGroup AuthorizeSecurityGroupIngress "
    "AuthorizeSecurityGroupEgress AllocateAddress DescribePlacementGroups RunInstances "
    f"{SETTLED} AssociateAddress DescribeInstances",
    "down": "DescribeInstances TerminateInstances DescribeInstances DescribeAddresses "
    "ReleaseAddress DescribeSecurityGroups DeleteSecurityGroup DescribePlacementGroups "
    "DeletePlacementGroup DescribeKeyPairs DeleteKeyPair",
    "add": f"DescribeInstances {LOOKS} {CATALOGUE} CreateTags DescribePlacementGroups "
    f"RunInstances {SETTLED} {FORGOTTEN}",
    "remove": f"DescribeInstances CreateTags {DISMISSAL} DescribeInstances {FORGOTTEN}",
    "replace": f"DescribeInstances CreateTags CreateTags DescribeInstances {LOOKS} {CATALOGUE} "
    f"DescribePlacementGroups RunInstances {SETTLED} {DISMISSAL} {FORGOTTEN}",
    "replace-head": f"DescribeInstances CreateTags CreateTags DescribeInstances {LOOKS} "
    f"{CATALOGUE} DescribePlacementGroups RunInstances {SETTLED} AssociateAddress "
    f"DescribeInstances {DISMISSAL} {FORGOTTEN}",
    "stop": "DescribeInstances CreateTags StopInstances DescribeInstances",
    "start": f"DescribeInstances {LOOKS} DescribeInstances CreateTags StartInstances "
    "DescribeInstances DescribeInstances",
}
FOR_CHANGES = (Mode.REFUSED, Mode.BROKEN, Mode.LOST, Mode.LOST_ONCE, Mode.INTERRUPTED, Mode.KILLED)
# A call that fails before and after its effect, and a command that is killed there. The other
# modes are variants of these, which `--all` adds.
ON_EVERY_RUN = (Mode.REFUSED, Mode.LOST, Mode.KILLED)


# Before these nothing is done that a second run would not do alike: it makes the same calls.
LASTING = {"up": "CreatePlacementGroup", "stop": "StopInstances", "start": "StartInstances"}
LASTING |= {"down": "TerminateInstances", "add": "CreateTags", "remove": "CreateTags"}
FOR_LOOKS = (Mode.REFUSED, Mode.STOPPED)


def first_looks(name: str) -> list[int]:
    calls = CALLS[name].split()
    end = calls.index(LASTING.get(name, "RunInstances"))
    return [number for number in range(end) if calls[number].startswith(READS)]


def cases(
    changes: tuple[Mode, ...],
    looks: tuple[Mode, ...] = (),
    only: str = "",
    plain_modes: tuple[Mode, ...] = ON_EVERY_RUN,
):
    """(command, call, mode): every change in each of these ways, later looks in one of theirs."""
    for name in COMMANDS:
        first = first_looks(name)
        for number, call in enumerate(CALLS[name].split()):
            if call.startswith(READS):
                modes = (looks[number % len(looks)],) if looks and number not in first else ()
            else:
                modes = changes if only in call else ()
            for mode in modes:
                # Of a launch nothing is left out: what goes wrong there costs the most.
                plain = mode in plain_modes or call == "RunInstances" or mode in looks
                marks = () if plain else pytest.mark.all
                id = f"{name}-{number}-{call}-{mode.name}"
                yield pytest.param(name, number, mode, id=id, marks=marks)
