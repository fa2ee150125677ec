"""Hosts that fail to boot, are frozen or are cut off."""

from __future__ import annotations

import socket
import subprocess
import time

import pytest

from tests.lab.running import ssh, wait_until

pytestmark = pytest.mark.lab


def reason(instance):
    told = instance.get("StateReason", {})  # a running instance has none
    return told.get("Code"), told.get("Message")


def first_of(index):
    tags = [{"Key": "clusterctl:first-index", "Value": str(index)}]
    return [{"ResourceType": "instance", "Tags": tags}]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Server.InternalError", "Server.InternalError: Internal error on launch"),
        ("Server.Odd", "Server.Odd: Server.Odd, set with clusterctl lab fault"),
    ],
)
def test_a_host_that_dies_at_boot(instances, faults, code, message):
    faults("boot", dies=code)
    dead, alive = [instances.request()[0]["InstanceId"] for _ in range(2)]
    instances.in_state(dead, "terminated")
    shown = instances.see(dead)
    assert reason(shown) == (code, message)
    assert shown["StateTransitionReason"] == code
    assert "PrivateIpAddress" not in shown
    instances.reachable(alive)


def test_nodes_are_counted_over_launches(instances, faults):
    faults("boot", dies="Server.InternalError", nodes=[1, 11], times=2)
    low = instances.request(MinCount=3, MaxCount=3)
    high = instances.request(MinCount=2, MaxCount=2, TagSpecifications=first_of(10))
    ids = [one["InstanceId"] for one in (*low, *high)]
    for id in (ids[1], ids[4]):
        instances.in_state(id, "terminated")
    for id in (ids[0], ids[2], ids[3]):
        instances.in_state(id, "running")


def test_a_tag_that_is_no_number_is_no_index(instances, faults):
    faults("boot", dies="Server.InternalError", nodes=[0])
    one = instances.request(TagSpecifications=first_of("ein² \U0001f600"))[0]
    instances.in_state(one["InstanceId"], "terminated")


def test_a_slow_host_is_pending_until_the_fault_is_over(instances, faults):
    faults("boot", slow_s=2)
    began = time.monotonic()
    slow, usual = [instances.request()[0]["InstanceId"] for _ in range(2)]
    assert instances.state(slow) == "pending"
    instances.reachable(usual)
    instances.in_state(slow, "running")
    assert time.monotonic() - began >= 2
    instances.reachable(slow)
    # A pending instance can be terminated.
    faults("boot", slow_s=3600)
    id = instances.request()[0]["InstanceId"]
    instances.ec2.terminate_instances(InstanceIds=[id])
    instances.in_state(id, "terminated")


def test_a_stopped_instance_that_dies_at_its_start_is_stopped_again(instances, faults):
    id = instances.up()[0]["InstanceId"]
    instances.ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    faults("boot", dies="Server.InternalError")
    instances.ec2.start_instances(InstanceIds=[id])
    wait_until(lambda: reason(instances.see(id))[0] == "Server.InternalError", "the reason")
    instances.in_state(id, "stopped")
    instances.ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)


def test_a_silent_host_passes_its_checks_and_nothing_else(instances, faults, lab, key):
    faults("boot", silent=True)
    one = instances.up()[0]
    console = instances.ec2.get_console_output(InstanceId=one["InstanceId"])["Output"]
    assert "booting" in console
    assert "SSH HOST KEY" not in console
    refused = ssh(lab, key, one["PrivateIpAddress"], "true")
    assert refused.returncode == 255
    assert "refused" in refused.stderr
    instances.ec2.reboot_instances(InstanceIds=[one["InstanceId"]])
    instances.reachable(one["InstanceId"])
    assert ssh(lab, key, one["PrivateIpAddress"], "true").returncode == 255


def test_a_frozen_host_goes_on_where_it_was(instances, faults, lab, key):
    one = instances.up()[0]
    made = faults("freeze", instance_id=one["InstanceId"])
    address = (one["PrivateIpAddress"], 22)
    wait_until(lambda: _times_out(lab, key, one), "silence")
    if not lab.proxy_command:
        # The kernel accepts the connection, but sshd sends nothing.
        with socket.create_connection(address, 5) as peer:
            peer.settimeout(0.5)
            with pytest.raises(TimeoutError):
                peer.recv(1)
    faults.clear(made["id"])
    wait_until(lambda: ssh(lab, key, one["PrivateIpAddress"], "true").returncode == 0, "a login")


@pytest.mark.parametrize("what", ["freeze", "cut"])
def test_off_and_on_again_helps_and_a_host_that_is_down_can_be_terminated(instances, faults, what):
    one = instances.up()[0]
    id = one["InstanceId"]
    faults(what, instance_id=id)
    faults("fill", instance_id=id, left=1 << 20)
    instances.ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    wait_until(lambda: len(faults.standing()) == 1, "forgotten, but for the full disk")
    instances.ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)
    faults(what, instance_id=id)
    instances.ec2.terminate_instances(InstanceIds=[id])
    instances.in_state(id, "terminated")
    wait_until(lambda: not faults.standing(), "forgotten with the instance")


def _times_out(lab, key, one):
    try:
        return ssh(lab, key, one["PrivateIpAddress"], "true", timeout_s=3).returncode == 255
    except subprocess.TimeoutExpired:
        return True
