"""Instances and their hosts go through EC2's states together."""

from __future__ import annotations

import socket

import pytest

from tests.lab.refusals import refused
from tests.lab.running import ssh

pytestmark = pytest.mark.lab

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
HOST_KEY = "cat /etc/ssh/ssh_host_ed25519_key.pub"


STORE = "/opt/dlami/nvme"


def test_from_pending_to_terminated(instances):
    """What remains after a reboot, after a stop, and after the termination."""
    script = "#!/bin/sh\necho ran >>/home/ubuntu/user-data\n"
    one = instances.request(InstanceType="p3dn.24xlarge", UserData=script)[0]
    id, ec2 = one["InstanceId"], instances.ec2
    assert one["State"]["Name"] == "pending"
    ec2.get_console_output(InstanceId=id)  # raises no error
    instances.in_state(id, "running")
    assert instances.status(id) in ("initializing", "ok")
    instances.console(id)
    shown = instances.run(one, f"stat -f -c %T {STORE}; stat -c %U {STORE}")
    assert shown == "tmpfs\nubuntu"
    files = f"echo >/tmp/x; echo >/data/x; echo kept >{STORE}/file"
    boot, key = instances.run(one, f"{BOOT_ID}; {HOST_KEY}; {files}").splitlines()

    ec2.reboot_instances(InstanceIds=[id])
    instances.reachable(id)
    again, same = instances.run(one, f"{BOOT_ID}; {HOST_KEY}").splitlines()
    assert (again != boot, same) == (True, key)
    left = instances.run(one, f"cat user-data; ls /data/x; ls /tmp; cat {STORE}/file")
    assert left == "ran\n/data/x\nkept"
    assert instances.run(one, "cloud-init status") == "status: done"

    ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    assert instances.see(id)["StateReason"]["Code"] == "Client.UserInitiatedShutdown"
    ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)
    assert instances.see(id)["PrivateIpAddress"] == one["PrivateIpAddress"]
    left = instances.run(one, f"cat user-data; {HOST_KEY}; ls {STORE}; stat -c %U {STORE}")
    assert left == f"ran\n{key}\nubuntu"

    ended = ec2.terminate_instances(InstanceIds=[id])["TerminatingInstances"][0]
    names = [ended[which]["Name"] for which in ("PreviousState", "CurrentState")]
    assert names == ["running", "shutting-down"]
    instances.in_state(id, "terminated")
    assert "PrivateIpAddress" not in instances.see(id)
    assert not ec2.get_console_output(InstanceId=id).get("Output")
    assert refused(ec2.start_instances, InstanceIds=[id])[0] == "IncorrectInstanceState"


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
    if lab.mode != "single":  # in this mode, all users are root
        said = ssh(lab, key, one["PrivateIpAddress"], "shutdown -h now")
        assert (said.returncode, "must be root" in said.stderr) == (1, True)
    ssh(lab, key, one["PrivateIpAddress"], "sudo poweroff")
    instances.in_state(one["InstanceId"], state)
    reason = instances.see(one["InstanceId"])["StateReason"]["Code"]
    assert reason == "Client.InstanceInitiatedShutdown"


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
    assert refused(ec2.delete_security_group, GroupId=group)[0] == "DependencyViolation"
    ec2.terminate_instances(InstanceIds=[one["InstanceId"]])
    instances.in_state(one["InstanceId"], "terminated")
    ec2.delete_security_group(GroupId=group)
