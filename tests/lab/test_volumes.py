"""A volume /data of a given size, full, or read-only."""

from __future__ import annotations

import pytest

from clusterctl.lab.record import read_record
from tests.lab.conftest import LabFaults, with_key
from tests.lab.running import wait_until

pytestmark = pytest.mark.lab

MIB, GIB = 2**20, 2**30


def fails_with(instances, host, command):
    """Return the error message of a command. It has to fail."""
    return instances.run(host, f"({command}) 2>&1 && echo it did not fail; true")


def free(instances, host):
    return int(instances.run(host, "df --output=avail -B1 /data | tail -1"))


def used(instances, host):
    """Return size and use of a volume, as printed by df."""
    size, percent = instances.run(host, "df --output=size,pcent -B1 /data | tail -1").split()
    return int(size), percent


def test_a_full_volume(instances, faults):
    one, other = instances.up(MinCount=2, MaxCount=2)
    instances.run(one, "head -c 20M /dev/zero >/data/old")
    made = faults("fill", instance_id=one["InstanceId"], left=10 * MIB)
    assert free(instances, one) == 10 * MIB
    assert used(instances, one) == (GIB, "100%")
    assert used(instances, other) == (GIB, "0%")
    instances.run(one, "head -c 9M /dev/zero >/data/new")
    full = fails_with(instances, one, "head -c 2M /dev/zero >/data/more")
    assert "No space left on device" in full
    # Deleting files frees space. A host can only delete its own files.
    instances.run(one, "rm /data/more /data/new")
    assert instances.run(one, "ls -A /data") == "old"
    assert free(instances, one) == 10 * MIB
    # A stop keeps the volume full; the host's own files survive the stop and the drain.
    ids = [one["InstanceId"]]
    instances.ec2.stop_instances(InstanceIds=ids)
    instances.in_state(ids[0], "stopped")
    instances.ec2.start_instances(InstanceIds=ids)
    instances.reachable(ids[0])
    assert used(instances, one) == (GIB, "100%")
    faults.clear(made["id"])
    assert free(instances, one) == GIB - 20 * MIB
    instances.run(one, "head -c 100M /dev/zero >/data/more")
    assert instances.run(one, "stat -c %s /data/old") == str(20 * MIB)


@pytest.mark.all
def test_a_volume_without_a_byte_left_and_more_left_than_there_is(instances, faults):
    one = instances.up()[0]
    faults("fill", instance_id=one["InstanceId"], left=500 * GIB)
    assert free(instances, one) == GIB
    faults.clear()
    instances.run(one, "head -c 1M /dev/zero >/data/old")
    for left in (0, 1):
        faults("fill", instance_id=one["InstanceId"], left=left)
        assert "No space left" in fails_with(instances, one, "head -c 8K /dev/zero >/data/new")
        faults.clear()


def test_a_volume_that_is_read_only(instances, faults):
    one = instances.up()[0]
    writes = "exec 3>/data/open; while echo more >&3; do sleep 0.05; done"
    instances.run(one, f"echo kept >/data/old; ({writes}) >/dev/null 2>&1 </dev/null &")
    wait_until(lambda: instances.run(one, "ls /data/open; true"), "an open file")
    faults("readonly", instance_id=one["InstanceId"])
    for command in ("touch /data/new", "rm /data/old", "mv /data/old /data/new"):
        assert "Read-only file system" in fails_with(instances, one, command)
    assert instances.run(one, "cat /data/old") == "kept"
    instances.ec2.reboot_instances(InstanceIds=[one["InstanceId"]])
    wait_until(lambda: boots(faults, one) == 2, "another boot")
    instances.reachable(one["InstanceId"])
    assert "Read-only" in fails_with(instances, one, "touch /data/new")
    faults.clear()
    instances.run(one, "mv /data/old /data/new")


def boots(faults, host):
    from clusterctl.lab import lifecycle

    found = lifecycle.request_page(faults.lab, "/_lab/status")
    return next(one["boots"] for one in found if one["instance_id"] == host["InstanceId"])


@pytest.mark.all
def test_the_size_of_volumes(lab_home, key):
    """A volume may be larger than this machine's memory, if it is not full."""
    assert lab_home.run("start", "--data-size", "1TiB") == 0
    record = read_record(lab_home.path)
    assert record.volume_bytes == 1024 * GIB
    made = with_key(record, key)
    one = made.up(InstanceType="p4d.24xlarge")[0]
    sizes = made.run(one, "df --output=size -B1 /data /opt/dlami/nvme | tail -2").split()
    assert sizes == [str(1024 * GIB)] * 2
    full = LabFaults(record)("fill", instance_id=one["InstanceId"])
    assert "a full /data would take 1024.0 GiB of this machine's memory" in full["problem"]
    assert free(made, one) == 1024 * GIB
    nearly = LabFaults(record)("fill", instance_id=one["InstanceId"], left=1024 * GIB - 20 * MIB)
    assert nearly["problem"] == ""
    assert free(made, one) == 1024 * GIB - 20 * MIB


@pytest.mark.parametrize("size", ["", "0", "lots", "-1", "100TiB"])
def test_sizes_that_make_no_sense(lab_home, capsys, size):
    assert lab_home.run("start", "--data-size", size) == 2
    assert "--data-size" in capsys.readouterr().err
    assert read_record(lab_home.path) is None
