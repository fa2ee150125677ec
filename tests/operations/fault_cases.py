"""Every API call of every command, and the ways to break it."""

from __future__ import annotations

import itertools

import pytest

from tests.operations.commands import COMMANDS
from tests.operations.wire import READS, Mode

LOOKS = (
    "DescribeSubnets DescribeVpcs DescribeKeyPairs DescribeSecurityGroups DescribePlacementGroups "
    "DescribeAddresses"
)
# Calls for a launch.
CATALOGUE = (
    "DescribeInstanceTypes DescribeImages DescribeInstanceTypeOfferings DescribeInstances "
    "GetServiceQuota DescribeRouteTables DescribeVpcEndpoints DescribeInstanceAttribute"
)
SETTLED = "DescribeInstanceStatus DescribeInstances"
FORGOTTEN = "DescribeInstances DeleteTags"
DISMISSAL = "DescribeInstances TerminateInstances DescribeInstances"
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
    "remove": f"DescribeInstances CreateTags DescribeInstances {DISMISSAL} DescribeInstances "
    f"{FORGOTTEN}",
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
FOR_LOOKS = (Mode.REFUSED, Mode.STOPPED)
LAUNCH = "RunInstances"
# Commands have no lasting effect before these calls: a second run makes the same calls.
LASTING = {"up": "CreatePlacementGroup", "stop": "StopInstances", "start": "StartInstances"}
LASTING |= {"down": "TerminateInstances", "add": "CreateTags", "remove": "CreateTags"}
LASTING |= {"replace": "CreateTags", "replace-head": "CreateTags"}
# Commands that include what the others do.
LARGEST = ("up", "down", "replace-head", "start")


def first_looks(name: str) -> list[int]:
    calls = CALLS[name].split()
    end = calls.index(LASTING[name])
    return [number for number in range(end) if calls[number].startswith(READS)]


def _case(name: str, number: int, *how: Mode | str, plain: bool):
    """Return a case for pytest. Only plain ones run without `--all`."""
    words = [one if isinstance(one, str) else one.name for one in how]
    id = "-".join([name, str(number), CALLS[name].split()[number], *words])
    return pytest.param(name, number, *how, id=id, marks=() if plain else pytest.mark.all)


def changes(ways: list[tuple[Mode | str, ...]], by_turns: list[tuple[Mode | str, ...]]):
    """Yield (command, call, *way) for every change in every way.

    Without `--all`, each change is broken in one of `by_turns`. A failed launch costs the most, so
    all ways always run for that of `up`.
    """
    turns = itertools.cycle(by_turns)
    for name in COMMANDS:
        for number, call in enumerate(CALLS[name].split()):
            if call.startswith(READS):
                continue
            turn = next(turns)
            for way in ways:
                plain = way == turn or (name == "up" and way == (Mode.LOST,))
                plain |= call == LAUNCH and (name == "up" or way in by_turns)
                yield _case(name, number, *way, plain=plain)


def later_looks():
    """Yield (command, call, mode) for every read after the first lasting change, modes in turn.

    The reads for a launch are those of `up`.
    """
    for name in COMMANDS:
        first, calls = first_looks(name), CALLS[name].split()
        launched = calls.index(LAUNCH) if name == "replace-head" else 0
        for number, call in enumerate(calls):
            if call.startswith(READS) and number not in first:
                mode = FOR_LOOKS[number % len(FOR_LOOKS)]
                plain = name in LARGEST and number >= launched
                yield _case(name, number, mode, plain=plain)
