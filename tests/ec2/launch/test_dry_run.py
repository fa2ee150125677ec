"""Before anything is made, EC2 is asked whether it permits the launch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.ec2.launch.execution import dry_request, dry_run_findings
from clusterctl.lab.faults.kinds import ApiError
from tests.ec2.launching import Trouble, faults, refused

__all__ = ["faults"]

# With a placement group, several interfaces and an elastic address.
SPEC = ClusterSpec("demo", 2, "g6e.24xlarge")


def asked(plan):
    [step] = [one for one in plan.steps if one.operation == "run_instances"]
    return step.arguments, dry_request(step.arguments, plan)


def test_what_does_not_exist_yet_is_left_out(launches):
    request, dry = asked(launches.plan(SPEC))
    assert dry["DryRun"] is True
    assert request.keys() - dry.keys() == {"ClientToken", "KeyName", "Placement"}
    assert all("Groups" in one for one in request["NetworkInterfaces"])
    assert not any("Groups" in one for one in dry["NetworkInterfaces"])
    same = request.keys() & dry.keys() - {"NetworkInterfaces"}
    assert all(request[name] == dry[name] for name in same)


def test_what_exists_is_asked_for(launches):
    launches.up(SPEC)
    request, dry = asked(launches.plan(replace(SPEC, nodes=3), "second"))
    assert request.keys() - dry.keys() == {"ClientToken"}
    assert dry["NetworkInterfaces"] == request["NetworkInterfaces"]


def test_a_permitted_launch_says_what_was_not_asked(launches):
    plan = launches.plan(SPEC)
    [found] = dry_run_findings(launches.client, plan)
    assert (found.check, found.severity.value) == ("launch.permitted", "info")
    assert "checked without key and groups" in found.message
    assert launches.alive() == []
    launches.up(SPEC)
    assert dry_run_findings(launches.client, launches.plan(SPEC)) == (), "nothing to launch"


@pytest.mark.parametrize(
    ("code", "status", "severity"),
    [
        ("UnauthorizedOperation", 403, "error"),
        ("InvalidParameterCombination", 400, "warning"),
        # Another try may succeed.
        ("RequestLimitExceeded", 503, None),
        ("InternalError", 500, None),
        ("InvalidGroup.NotFound", 400, None),
        ("InsufficientInstanceCapacity", 500, None),
    ],
)
def test_a_refusal_is_an_error_that_names_the_action(launches, code, status, severity):
    plan = launches.plan(SPEC)
    client = Trouble(launches.client, "run_instances", refused(code, status))
    found = dry_run_findings(client, plan)
    assert [one.severity.value for one in found] == ([severity] if severity else [])
    assert all("RunInstances is refused: " in one.message for one in found)


def test_with_a_key_and_a_group_a_refusal_is_final(launches):
    launches.up(SPEC)
    plan = launches.plan(replace(SPEC, nodes=3), "second")
    client = Trouble(launches.client, "run_instances", refused("InvalidParameterCombination"))
    [found] = dry_run_findings(client, plan)
    assert found.severity.value == "error"


def test_a_new_instance_profile_is_waited_for_by_the_launch(launches):
    error = refused("InvalidParameterValue")
    error.response["Error"]["Message"] = "Value (x): Invalid IAM Instance Profile name"
    client = Trouble(launches.client, "run_instances", error)
    assert dry_run_findings(client, launches.plan(SPEC)) == ()


def test_the_labs_refusal_strikes_a_dry_run_without_being_used_up(launches, faults):
    faults(ApiError("RunInstances", "InsufficientInstanceCapacity"))
    [found] = dry_run_findings(launches.client, launches.plan(SPEC))
    assert found.severity.value == "info"
    faults(ApiError("RunInstances", "UnauthorizedOperation"))
    for _ in range(2):
        [found] = dry_run_findings(launches.client, launches.plan(SPEC))
        assert found.severity.value == "error"
