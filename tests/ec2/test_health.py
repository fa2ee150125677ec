"""What EC2 says of running nodes: failing checks, scheduled events, the end of their block."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from clusterctl.domain.cluster import Market
from clusterctl.domain.errors import AwsError
from clusterctl.ec2 import health
from clusterctl.ec2.health import SOON, health_findings, impaired_checks
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.capacity import Reservation
from clusterctl.lab.faults.kinds import Event, ImpairedVolumes
from tests.ec2.test_instances import launch


@pytest.fixture
def nodes(client):
    ids = launch(client, "demo", 2)
    client.get_waiter("instance_running").wait(
        InstanceIds=ids, WaiterConfig={"Delay": 0.05, "MaxAttempts": 200}
    )
    return find_instances(client, "demo")


def test_healthy_nodes(client, nodes):
    assert health_findings(client, nodes) == ()


def test_an_event_is_told_days_before_with_what_helps(client, nodes, faults):
    faults(Event(nodes[1].node.instance_id, "instance-retirement", 3 * 86400.0))
    [found] = health_findings(client, nodes)
    at = datetime.now(timezone.utc) + timedelta(days=3)
    assert (found.check, found.severity.value, found.host) == ("node.event", "warning", "demo-1")
    assert f"scheduled at {at:%Y-%m-%d}" in found.message
    assert "instance-retirement (EC2 stops or terminates it" in found.message
    assert "clusterctl replace demo 1" in found.hint


def test_impaired_volumes(client, nodes, faults):
    id = nodes[0].node.instance_id
    faults(ImpairedVolumes(id))
    [found] = health_findings(client, nodes)
    assert (found.check, found.host) == ("node.impaired", "demo-0")
    assert found.message.startswith("its attached EBS status check fails since 20")
    assert impaired_checks(client, [id]) == {id: found.message}


@pytest.mark.parametrize("past", ["[Completed] x", "[Canceled] x"])
def test_events_of_the_past_are_none(monkeypatch, nodes, past):
    said = {
        "InstanceId": nodes[0].node.instance_id,
        "Events": [{"Code": "instance-reboot", "Description": past}],
    }
    monkeypatch.setattr(health, "_statuses", lambda client, ids: [said])
    assert health_findings(None, nodes) == ()


def test_what_ec2_does_not_tell_is_a_finding(monkeypatch, nodes):
    def refuse(client, ids):
        raise AwsError("UnauthorizedOperation", "you may not", "ask for it")

    monkeypatch.setattr(health, "_statuses", refuse)
    [found] = health_findings(None, nodes)
    assert (found.check, found.severity.value) == ("node.health", "info")
    assert found.hint == "ask for it"
    assert found.message == "not known: scheduled events and status checks: you may not"


def test_a_block_whose_end_is_not_told_hides_no_event(client, nodes, faults, monkeypatch):
    def refuse(*_):
        raise AwsError("UnauthorizedOperation", "you may not")

    monkeypatch.setattr(health, "block_end", refuse)
    faults(ImpairedVolumes(nodes[0].node.instance_id))
    found = {one.check: one.message for one in health_findings(client, nodes)}
    assert found.keys() == {"node.impaired", "node.health"}
    assert found["node.health"] == "not known: when the Capacity Block ends: you may not"


def test_the_end_of_a_block(client, nodes, monkeypatch):
    ends = datetime(2026, 12, 1, 11, 30, tzinfo=timezone.utc)
    block = Reservation("cr-1", "p5.48xlarge", "us-east-1a", "active", 0, True, ends_at=ends)
    monkeypatch.setattr("clusterctl.ec2.launch.capacity.find_reservation", lambda *_: block)
    in_block = [replace(one, market=Market.CAPACITY_BLOCK, reservation_id="cr-1") for one in nodes]
    [found] = health_findings(client, in_block)
    assert found.severity.value == (
        "warning" if ends < datetime.now(timezone.utc) + SOON else "info"
    )
    assert "EC2 begins to terminate the nodes at 2026-12-01 11:00 UTC" in found.message
    # An On-Demand Capacity Reservation may have an end, too, and its instances go on.
    assert health_findings(client, [replace(one, reservation_id="cr-1") for one in nodes]) == ()
