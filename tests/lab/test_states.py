"""Instances and their hosts go through EC2's states together."""

from __future__ import annotations

import socket

import pytest
from botocore.exceptions import ClientError

from tests.lab.running import ssh, wait_until

pytestmark = pytest.mark.lab

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
HOST_KEY = "cat /etc/ssh/ssh_host_ed25519_key.pub"


def test_from_pending_to_ok(instances):
    launched = instances.request()[0]
    assert launched["State"]["Name"] == "pending"
    instances.in_state(launched["InstanceId"], "running")
    assert instances.status(launched["InstanceId"]) in ("initializing", "ok")
    instances.reachable(launched["InstanceId"])


def test_reboot_keeps_everything_but_the_boot(instances):
    one = instances.up(UserData="#!/bin/sh\necho ran >>/home/ubuntu/user-data\n")[0]
    instances.console(one["InstanceId"])
    before = instances.run(one, f"{BOOT_ID}; {HOST_KEY}; echo >/tmp/x; echo >/data/x").splitlines()
    instances.ec2.reboot_instances(InstanceIds=[one["InstanceId"]])
    instances.reachable(one["InstanceId"])
    after = instances.run(one, f"{BOOT_ID}; {HOST_KEY}").splitlines()
    assert after[0] != before[0]
    assert after[1] == before[1]
    assert instances.run(one, "cat user-data; ls /data/x; ls /tmp") == "ran\n/data/x"
    assert instances.run(one, "cloud-init status") == "status: done"
    assert instances.see(one["InstanceId"])["State"]["Name"] == "running"


def test_stop_and_start_keep_the_address_and_the_keys(instances):
    one = instances.up()[0]
    id, key = one["InstanceId"], instances.run(one, f"echo here >mine; {HOST_KEY}")
    instances.ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    assert instances.see(id)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    assert instances.see(id)["PrivateIpAddress"] == one["PrivateIpAddress"]
    instances.ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)
    assert instances.see(id)["PrivateIpAddress"] == one["PrivateIpAddress"]
    assert instances.run(one, f"cat mine; {HOST_KEY}") == f"here\n{key}"


def test_the_instance_store_lives_through_a_reboot_and_not_a_stop(instances):
    one = instances.up(InstanceType="p3dn.24xlarge")[0]
    id, store = one["InstanceId"], "/opt/dlami/nvme"
    shown = instances.run(one, f"stat -f -c %T {store}; stat -c %U {store}")
    assert shown == "tmpfs\nubuntu"
    instances.run(one, f"echo kept >{store}/file")
    instances.ec2.reboot_instances(InstanceIds=[id])
    instances.reachable(id)
    assert instances.run(one, f"cat {store}/file") == "kept"
    instances.ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    instances.ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)
    assert instances.run(one, f"ls {store}; stat -c %U {store}") == "ubuntu"


def test_a_console_before_and_after_the_host(instances):
    one = instances.request()[0]
    instances.ec2.get_console_output(InstanceId=one["InstanceId"])  # empty or not: no error
    instances.console(one["InstanceId"])
    instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    assert not instances.ec2.get_console_output(InstanceId=one["InstanceId"]).get("Output")


def test_terminate(instances):
    one = instances.up()[0]
    id = one["InstanceId"]
    ended = instances.ec2.terminate_instances(InstanceIds=[id])["TerminatingInstances"][0]
    assert (ended["PreviousState"]["Name"], ended["CurrentState"]["Name"]) == (
        "running",
        "shutting-down",
    )
    instances.in_state(id, "terminated")
    assert "PrivateIpAddress" not in instances.see(id)
    with pytest.raises(ClientError) as refused:
        instances.ec2.start_instances(InstanceIds=[id])
    assert refused.value.response["Error"]["Code"] == "IncorrectInstanceState"


def test_reboot_from_inside(instances, lab, key):
    one = instances.up()[0]
    before = instances.run(one, BOOT_ID)
    ssh(lab, key, one["PrivateIpAddress"], "sudo reboot")

    def rebooted():
        seen = ssh(lab, key, one["PrivateIpAddress"], BOOT_ID)
        return seen.returncode == 0 and seen.stdout.strip() != before

    wait_until(rebooted, "another boot id")
    assert instances.state(one["InstanceId"]) == "running"


SPOT = {"InstanceMarketOptions": {"MarketType": "spot"}}


@pytest.mark.parametrize(
    ("launched", "changed", "state"),
    [
        ({"InstanceInitiatedShutdownBehavior": "stop"}, None, "stopped"),
        ({"InstanceInitiatedShutdownBehavior": "terminate"}, "stop", "stopped"),
        ({}, "terminate", "terminated"),
        (SPOT, None, "terminated"),
    ],
)
def test_poweroff_from_inside(instances, lab, key, launched, changed, state):
    one = instances.up(**launched)[0]
    groups = instances.see(one["InstanceId"])["SecurityGroups"]
    if changed:
        instances.ec2.modify_instance_attribute(
            InstanceId=one["InstanceId"], InstanceInitiatedShutdownBehavior={"Value": changed}
        )
        assert instances.see(one["InstanceId"])["SecurityGroups"] == groups
    ssh(lab, key, one["PrivateIpAddress"], "sudo poweroff")
    instances.in_state(one["InstanceId"], state)
    reason = instances.see(one["InstanceId"])["StateReason"]["Code"]
    assert reason == "Client.InstanceInitiatedShutdown"


def test_poweroff_needs_root(instances, lab, key):
    if lab.mode == "single":
        pytest.skip("a single uid: everybody is root")
    one = instances.up()[0]
    refused = ssh(lab, key, one["PrivateIpAddress"], "shutdown -h now")
    assert (refused.returncode, "must be root" in refused.stderr) == (1, True)


def test_peers_see_silence_when_a_host_is_taken_away(instances, lab):
    if lab.proxy_command:
        pytest.skip("addresses do not answer from here")
    one = instances.up()[0]
    with socket.create_connection((one["PrivateIpAddress"], 22), 5) as peer:
        assert peer.recv(4) == b"SSH-"
        peer.recv(4096)
        instances.ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
        instances.in_state(one["InstanceId"], "terminated")
        peer.settimeout(0.3)
        with pytest.raises(TimeoutError):
            peer.recv(1)


def test_a_security_group_in_use_stays(instances):
    ec2 = instances.ec2
    group = ec2.create_security_group(GroupName="in-use", Description="test")["GroupId"]
    one = instances.request(SecurityGroupIds=[group])[0]
    with pytest.raises(ClientError) as refused:
        ec2.delete_security_group(GroupId=group)
    assert refused.value.response["Error"]["Code"] == "DependencyViolation"
    ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    ec2.delete_security_group(GroupId=group)
