"""Why an instance is gone: EC2's reasons and a guard's notice, in words."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from clusterctl.domain.cluster import Market
from clusterctl.ec2.errors import codes
from clusterctl.ec2.health import BLOCK, SPOT, gone_nodes, why_gone
from clusterctl.ec2.instances import read_instance
from clusterctl.ec2.tags import Unfinished
from tests.ec2.money.test_spending import NOW, machine

AT, LATER = "(2026-11-26 14:02:05 GMT)", "2026-11-26T14:03:00Z"
NOTICE = {"action": "terminate", "time": LATER, "node": "demo-1"}
BY_API = "a request to EC2's API"


def ended(code, transition="", message="", market=Market.SPOT):
    """Return a terminated instance as EC2 shows it."""
    described = {
        "InstanceId": "i-1",
        "InstanceType": "p3.2xlarge",
        "State": {"Name": "terminated"},
        "LaunchTime": NOW,
        "StateTransitionReason": transition,
        **({"StateReason": {"Code": code, "Message": message}} if code else {}),
    }
    return replace(read_instance(described), market=market)


@pytest.mark.parametrize(
    ("instance", "notice", "words"),
    [
        # As EC2 showed an interrupted instance in 2026: the message begins with the code.
        (
            ended(
                "Server.SpotInstanceTermination",
                f"Service initiated {AT}",
                "Server.SpotInstanceTermination: Spot instance termination",
            ),
            {},
            f"{SPOT} at 2026-11-26 14:02 UTC (Server.SpotInstanceTermination)",
        ),
        (ended("Server.SpotInstanceTermination"), NOTICE,
         f"{SPOT} at 2026-11-26 14:03 UTC (Server.SpotInstanceTermination)"),
        (ended("Server.SpotInstanceShutdown"), {}, f"{SPOT} (Server.SpotInstanceShutdown)"),
        (ended("Client.SpotInstanceShutdown"), {}, f"{SPOT} (Client.SpotInstanceShutdown)"),
        # The code stands in the other field alone, or nowhere.
        (ended("", "Server.SpotInstanceTermination: Spot instance termination"), {},
         f"{SPOT} (Server.SpotInstanceTermination)"),
        (ended("", f"Service initiated {AT}"), NOTICE, f"{SPOT} at 2026-11-26 14:02 UTC"),
        (ended("", f"Service initiated {AT}"), {},
         "EC2 itself, without a reason at 2026-11-26 14:02 UTC"),
        (ended("", f"Service initiated {AT}", market=Market.CAPACITY_BLOCK), NOTICE,
         f"{BLOCK} at 2026-11-26 14:02 UTC"),
        (ended("", f"Service initiated {AT}", market=Market.CAPACITY_BLOCK), {},
         "EC2 itself, perhaps because its Capacity Block ended at 2026-11-26 14:02 UTC"),
        # A user was quicker than the interruption of which there was a notice.
        (ended("Client.UserInitiatedShutdown", f"User initiated {AT}"), NOTICE,
         f"{BY_API} at 2026-11-26 14:02 UTC (Client.UserInitiatedShutdown)"),
        (ended("Client.UserInitiatedShutdown", market=Market.CAPACITY_BLOCK), {},
         f"{BY_API} (Client.UserInitiatedShutdown)"),
        (ended("", f"User initiated {AT}"), {}, f"{BY_API} at 2026-11-26 14:02 UTC"),
        (ended("Client.InstanceInitiatedShutdown", "User initiated"), {},
         "a shutdown on the node itself, by a command or a limit "
         "(Client.InstanceInitiatedShutdown)"),
        (ended("Server.ScheduledStop", f"Service initiated {AT}"), {},
         "a retirement that EC2 had scheduled at 2026-11-26 14:02 UTC (Server.ScheduledStop)"),
        (ended("Server.InternalError", "Server.InternalError"), {},
         "an internal error of EC2, such as a failed host (Server.InternalError)"),
        # Not known: what EC2 says is passed on, and no notice of a mere recommendation counts.
        (ended("Server.Novel", AT, "something new"), {"action": "rebalance", "time": LATER},
         "the reason is not known at 2026-11-26 14:02 UTC (Server.Novel: something new)"),
        (ended("", "Moon phase"), {}, "the reason is not known (Moon phase)"),
        (ended(""), {}, "the reason is not known"),
        (ended(""), {"action": ["terminate"], "time": 5}, "the reason is not known"),
        (ended(""), {"action": "terminate", "time": "soon"}, SPOT),
        # EC2 has forgotten the instance.
        (None, {}, "the reason is not known"),
        (None, NOTICE, "EC2, which had given notice at 2026-11-26 14:03 UTC"),
    ],
)  # fmt: skip
def test_the_reason_in_words(instance, notice, words):
    assert str(why_gone(instance, notice)) == words


@pytest.mark.parametrize("code", codes()["deaths"])
def test_each_reason_that_has_a_hint_at_a_launch_has_words_later(code):
    assert why_gone(ended(f"{code}: said by EC2")).by


def test_the_last_machine_of_each_missing_node():
    head = machine(3, "running", index=0)
    before = replace(machine(5, "terminated", index=1), transition_reason=at_h(4))
    lost = replace(machine(3, "terminated", index=1), transition_reason=at_h(1))
    assert gone_nodes([before, lost], [1, 2], [head]) == {1: lost, 2: None}
    # One that ended before this cluster began was of another with that name.
    assert gone_nodes([before], [1], [head]) == {1: None}
    # The head node was stopped since, and started again.
    restarted = machine(0.5, "running", index=0, made=3)
    assert gone_nodes([before, lost], [1], [restarted]) == {1: lost}
    # The head node was replaced after the other one was lost, while that one had run beside it.
    replaced = replace(machine(9, "terminated", index=0), transition_reason=at_h(0.4), retired=True)
    new = machine(0.5, "running", index=0)
    assert gone_nodes([before, lost], [1], [new]) == {1: None}
    assert gone_nodes([before, lost, replaced], [1], [new]) == {1: lost}
    # One of an earlier cluster that died in its launch: EC2 gives no time of its end.
    died = replace(machine(5, "terminated", index=1), state_reason="Client.VolumeLimitExceeded: x")
    assert gone_nodes([died], [1], [head]) == {1: None}
    died = replace(died, node=replace(died.node, launched_at=NOW - timedelta(hours=2)))
    assert gone_nodes([died], [1], [head]) == {1: died}
    # One that clusterctl terminated, and whose successor could not be launched.
    removed = replace(lost, retired=True)
    assert gone_nodes([before, removed], [1], [head]) == {1: removed}
    assert str(why_gone(removed)).startswith("clusterctl, which replaced or removed it at 20")
    adding = replace(head, wanted=(0, 1), unfinished=Unfinished(add=(1,)))
    assert gone_nodes([removed], [1], [adding]) == {}
    # A machine that is being replaced still runs.
    old = replace(machine(3, "running", index=1), retired=True)
    assert gone_nodes([lost], [1], [head, old]) == {}


def at_h(hours):
    return f"User initiated ({NOW - timedelta(hours=hours):%Y-%m-%d %H:%M:%S} GMT)"
