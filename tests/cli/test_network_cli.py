"""`clusterctl network` as a user sees it. moto's CloudFormation finishes at once."""

from __future__ import annotations

import pytest

from clusterctl.operations import network as operation

FROM = ("--ssh-from", "203.0.113.7/32")


@pytest.fixture
def network(clusterctl):
    return lambda command, *arguments: clusterctl(f"network {command}", *arguments)


def test_a_plan_makes_nothing(network):
    planned = network("up", "training", *FROM, "--dry-run", "--json").data
    assert (planned["action"], planned["parameters"]["SshFrom"]) == ("create", FROM[1])
    assert network("status", "training").status == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("up", "Training"), "not a network name"),
        (("up", "training", "--cidr", "10.0.0.0/8"), "a network cannot have 10.0.0.0/8"),
        (("up", "training", "--cidr", "banana"), "not an IPv4 network"),
        (("up", "training", "--zones", "a,a"), "2 different zones"),
        (("up", "training", "--zones", "a,z", *FROM), "there is no zone us-east-1z"),
        (("up", "training", "--ssh-from", "0.0.0.0/0"), "whole internet"),
        (("up", "training", "--for-type", "p99.metal", *FROM), "offers that instance type"),
        (("up", "training", "--timeout", "0"), "no time at all"),
        (("up",), "Missing argument"),
        (("s3", "--subnet", "subnet-none"), "subnet-none"),
        (("down", "../training"), "not a network name"),
        (("status", "training\n"), "not a network name"),
    ],
)
def test_requests_that_make_no_sense(network, arguments, says):
    ran = network(*arguments)
    assert (ran.status, ran.out) == (2, "")
    assert says in ran.err


def test_an_interrupt_says_how_to_go_on(network, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    for name in ("network_up", "network_down"):
        monkeypatch.setattr(operation, name, interrupted)
    for command in ("up", "down"):
        ran = network(command, "training")
        assert ran.status == 130
        assert f"to wait for it: clusterctl network {command} training" in ran.err
