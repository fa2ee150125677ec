"""Links with a limited rate."""

from __future__ import annotations

import shlex
import time

import pytest

from tests.lab.running import wait_until
from tests.variants import usual

pytestmark = pytest.mark.lab

MBIT = 10**6
SIZE = 600_000  # bytes: half a second at 10 Mbit/s


def queue(instances, host):
    """Return the queue at the host's end of its link."""
    return instances.run(host, "/sbin/tc qdisc show dev eth0")


def seconds(instances, host, command):
    start = time.monotonic()
    instances.run(host, command)
    return time.monotonic() - start


def between(receiver):
    """Return a command that sends SIZE bytes to the receiver over a plain socket."""
    address = (receiver["PrivateIpAddress"], 9000)
    program = (
        f"import socket; c = socket.create_connection({address}); c.sendall(bytes({SIZE})); "
        "c.shutdown(1); c.recv(1)"
    )
    return f"python3 -c {shlex.quote(program)}"


LISTEN = (
    "python3 -c 'import socket\n"
    'l = socket.create_server(("", 9000))\n'
    "while True:\n"
    "  c, _ = l.accept()\n"
    "  while c.recv(65536): pass\n"
    "  c.close()' >/dev/null 2>&1 </dev/null & "
)


@pytest.mark.parametrize("way", usual(1, ["down", "up"]))
def test_a_link_carries_no_more_than_its_rate(instances, faults, way):
    one, other = instances.up(MinCount=2, MaxCount=2)
    instances.run(one, LISTEN)
    instances.run(other, LISTEN)
    listens = "ss -Hltn sport = :9000"
    wait_until(lambda: instances.run(one, listens) and instances.run(other, listens), "listeners")
    made = faults("shape", instance_id=one["InstanceId"], **{way: 10 * MBIT})
    sender, receiver = (other, one) if way == "down" else (one, other)
    # It is never faster than its link, whatever the load of this machine is.
    slow = SIZE * 8 / (10.5 * MBIT)
    assert seconds(instances, sender, between(receiver)) > slow
    faults.clear(made["id"])
    assert "tbf" not in queue(instances, one)


def test_every_host_is_shaped_from_its_boot_on(instances, faults):
    faults("shape", instance_id="all", down=200 * MBIT, up=100 * MBIT)
    script = "#!/bin/sh\n/sbin/tc qdisc show dev eth0 >/home/ubuntu/at-boot\n"
    one = instances.up(UserData=script)[0]
    at_boot = "cloud-init status --wait >/dev/null; cat /home/ubuntu/at-boot"
    assert "tbf" in instances.run(one, at_boot)
    assert "rate 100Mbit" in queue(instances, one)
    own = faults("shape", instance_id=one["InstanceId"], up=50 * MBIT)
    assert "rate 50Mbit" in queue(instances, one)
    boot = instances.run(one, "cat /proc/sys/kernel/random/boot_id")
    instances.ec2.reboot_instances(InstanceIds=[one["InstanceId"]])
    read_boot = lambda: _try(instances, one, "cat /proc/sys/kernel/random/boot_id")  # noqa: E731
    wait_until(lambda: read_boot() not in ("", boot), "another boot")
    assert "rate 50Mbit" in queue(instances, one)
    faults.clear(own["id"])
    assert "rate 100Mbit" in queue(instances, one)


def _try(instances, host, command):
    try:
        return instances.run(host, command)
    except AssertionError:
        return ""
