"""The reaction to EC2's refusals, and the place to try next."""

from __future__ import annotations

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.launch.capacity import (
    Place,
    RefusalAction,
    next_place,
    out_of_capacity,
    refusal_action,
    zones_offered,
)

P4D, P5 = "p4d.24xlarge", "p5.48xlarge"
PLACES = tuple(
    Place(instance_type, f"us-east-1{letter}", f"subnet-{letter}")
    for instance_type in (P4D, P5)
    for letter in "abcd"
)
A, B, C, D, A5, B5, C5, D5 = PLACES
REFUSAL = (
    "We currently do not have sufficient p4d.24xlarge capacity in the Availability Zone you "
    "requested (us-east-1a). Our system will be working on provisioning additional capacity. "
    "You can currently get p4d.24xlarge capacity by not specifying an Availability Zone in your "
    "request or choosing {}."
)


@pytest.mark.parametrize(
    ("code", "move"),
    [
        ("InsufficientInstanceCapacity", RefusalAction.NEXT_PLACE),
        ("Server.InsufficientInstanceCapacity", RefusalAction.NEXT_PLACE),
        ("InsufficientVolumeCapacity", RefusalAction.NEXT_PLACE),
        ("Server.InsufficientVolumeCapacity", RefusalAction.NEXT_PLACE),
        ("UnfulfillableCapacity", RefusalAction.NEXT_PLACE),
        ("Unsupported", RefusalAction.NEXT_PLACE),
        ("InsufficientFreeAddressesInSubnet", RefusalAction.NEXT_PLACE),
        ("SpotMaxPriceTooLow", RefusalAction.NEXT_PLACE),
        ("Server.SpotInstanceTermination", RefusalAction.NEXT_PLACE),
        ("ReservationCapacityExceeded", RefusalAction.WAIT),
        ("PendingVerification", RefusalAction.WAIT),
        ("VcpuLimitExceeded", RefusalAction.QUOTA),
        ("MaxSpotInstanceCountExceeded", RefusalAction.QUOTA),
        ("Client.VolumeLimitExceeded", RefusalAction.QUOTA),
        ("InvalidParameterCombination", RefusalAction.FIX),
        ("Client.InternalError", RefusalAction.FIX),
        ("UnauthorizedOperation", RefusalAction.ABORT),
        ("AuthFailure.ServiceLinkedRoleCreationNotPermitted", RefusalAction.ABORT),
        ("IdempotentParameterMismatch", RefusalAction.ABORT),
        ("RequestLimitExceeded", RefusalAction.ABORT),
        ("insufficientinstancecapacity", RefusalAction.ABORT),
        ("", RefusalAction.ABORT),
    ],
)
def test_one_table_decides(code, move):
    assert refusal_action(code) is move


@pytest.mark.parametrize(
    ("message", "zones"),
    [
        (REFUSAL.format("us-east-1b"), ["us-east-1b"]),
        (REFUSAL.format("us-east-1c, us-east-1b"), ["us-east-1c", "us-east-1b"]),
        (REFUSAL.format("us-east-1c, us-east-1c"), ["us-east-1c"]),
        (REFUSAL.partition(" You can")[0], []),
        # Zones in a later sentence are no offer.
        (REFUSAL.format("us-east-1b") + " Nothing is left in us-east-1d.", ["us-east-1b"]),
        (
            "Your requested instance type (p3.2xlarge) is not supported in your requested "
            "Availability Zone (us-east-1e). Please retry your request by not specifying an "
            "Availability Zone or choosing us-east-1a, us-east-1f.",
            ["us-east-1a", "us-east-1f"],
        ),
        (
            "or choosing us-west-2-lax-1a, us-east-1-bos-1a",
            ["us-west-2-lax-1a", "us-east-1-bos-1a"],
        ),
        ("choosing us-gov-west-1a, eusc-de-east-1b.", ["us-gov-west-1a", "eusc-de-east-1b"]),
        ("choosing ap-southeast-5a", ["ap-southeast-5a"]),
        ("choosing us-east-1, us-east-1-wl1-bos-wlz-1, my-subnet-1ab, xus-east-1a-b", []),
        ("choosing ", []),
        ("choosing another region", []),
        ("", []),
    ],
)
def test_the_zones_that_ec2_names(message, zones):
    assert list(zones_offered(message)) == zones


def order(places, messages):
    """Return the places in the order of attempts. Each refuses with the next message."""
    tried = [places[0]]
    for message in messages:
        found = next_place(places, tried, message)
        if found is None:
            break
        tried.append(found)
    return tried


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([""] * 9, [A, B, C, D, A5, B5, C5, D5]),
        ([REFUSAL.format("us-east-1d, us-east-1c")] * 9, [A, D, C, B, A5, D5, C5, B5]),
        ([REFUSAL.format("us-east-1c"), ""], [A, C, B]),
        # EC2 names a zone without a subnet of ours, or one that was tried before.
        ([REFUSAL.format("us-east-1f"), REFUSAL.format("us-east-1a")], [A, B, C]),
        # EC2's offer is for the requested type.
        (["", "", "", REFUSAL.format("us-east-1c")], [A, B, C, D, A5]),
    ],
)
def test_named_zones_then_the_other_zones_then_other_types(messages, expected):
    assert order(PLACES, messages) == expected


@pytest.mark.parametrize("places", [(), (A,)])
def test_when_all_were_tried(places):
    assert next_place(places, [A], REFUSAL.format("us-east-1a")) is None


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "InsufficientInstanceCapacity",
            "nowhere are enough machines: tried p4d.24xlarge in us-east-1a, p4d.24xlarge in "
            "us-east-1b, p5.48xlarge in us-east-1a. EC2's message: No.",
        ),
        (
            "Unsupported",
            "no place takes this launch: tried p4d.24xlarge in us-east-1a, p4d.24xlarge in "
            "us-east-1b, p5.48xlarge in us-east-1a. EC2's message: No.",
        ),
    ],
)
def test_what_was_tried_is_said_once_each(code, message):
    error = out_of_capacity([A, B, A5, A], AwsError(code, "No."))
    assert (error.code, error.message) == (code, message)
    for option in ("--capacity-timeout", "--min-nodes", "--or-type", "--capacity-reservation"):
        assert option in error.hint
    assert "nothing was launched" in error.hint
    failed = out_of_capacity([A], AwsError("Server.InternalError", "No."))
    assert "--" not in failed.hint and "run it again" in failed.hint
