"""`clusterctl doctor` on real hosts: it names each fault that the test has made."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace

import pytest

from tests.serving import stand_in_server
from tests.skew import skewed

# Findings that depend on the machine on which the tests run.
OF_THE_MACHINE = {"mpi.two", "env.missing"}


def look(pair, *options, status=None):
    """Return the report, and (check, host) of its findings."""
    ended, out, err = pair.ctl("doctor", "--json", *options)
    report = json.loads(out)
    found = {(one["check"], one["host"]) for one in report["findings"]}
    assert status in (None, ended), (report["findings"], err)
    return report, {one for one in found if one[0] not in OF_THE_MACHINE}


def test_a_sound_cluster_is_sound_and_its_nodes_are_alike(pair):
    report, found = look(pair, "--all-to-all", status=0)
    assert found == set()
    assert [node["odd"] for node in report["nodes"]] == [[], []]
    values = report["nodes"][1]["values"]
    assert (values["TYPE"], values["GPUS"], values["MPI IF"]) == ("p3.2xlarge", "1", "eth0")
    assert len(report["nodes"][0]["values"]["SCRIPTS"]) == 8


def test_the_same_hosts_without_a_cluster(pair):
    hosts = replace(pair, by_hosts_file=True)
    report, found = look(hosts, "--all-to-all", status=0)
    assert found == set()
    first, other = report["nodes"]
    assert first["host"].startswith("10.")
    assert (first["values"]["TYPE"], other["values"]["MPI IF"]) == ("", "eth0")
    hosts.ends(3, "--fix is for nodes of a cluster", "doctor", "--fix")


def test_a_volume_that_has_become_read_only(pair):
    with pair.fault(1, "readonly"):
        assert ("disk.readonly", "pair-1") in look(pair, status=2)[1]
        status, out, err = pair.ctl("disk")
        assert (status, "/data is read-only" in out + err) == (1, True), out + err
        status, out, err = pair.ctl("diagnose")
        assert "/data on pair-1" in out and "is mounted read-only" in out, out + err
        assert status == 1, out


# Volumes are made small before they are filled, because they use this machine's memory.
BREAK = """
sudo hostname {twin}; sudo ip link set eth0 mtu 1400; sed -i '1i ulimit -n 256' ~/.bashrc
echo '# mine' >>~/examples/horovod/tensorflow/train.sh
cp -p ~/.ssh/authorized_keys keys.before; sed -i /clusterctl-mpi/d ~/.ssh/authorized_keys
for at in /dev/shm /data; do
    sudo mount -o remount,size=16m $at; dd if=/dev/zero of=$at/left bs=1M status=none
done
sudo mount -t tmpfs -o size=512k left /tmp
rank() {{ job=20261120-154501-$1; shift
    CLUSTERCTL_JOB=$job OMPI_COMM_WORLD_RANK=3 setsid "$@" </dev/null >/dev/null 2>&1 & }}
rank 1ef7 sleep 1000
sudo mkdir -p /run/clusterctl
for node in pair-0 pair-1; do
    echo '{{"action": "terminate", "time": "2026-11-28T20:04:00Z", "node": "'$node'"}}'
done | sudo tee /run/clusterctl/spot-interruption
"""
MEND = """
sudo hostname {own}; sudo ip link set eth0 mtu 1500; sed -i 1d ~/.bashrc
rm -f /dev/shm/left /data/left; sudo umount -l /tmp
sudo mount -o remount,size=2g /dev/shm; sudo mount -o remount,size=1g /data
sed -i '$d' ~/examples/horovod/tensorflow/train.sh; mv keys.before ~/.ssh/authorized_keys
sudo rm /run/clusterctl/spot-interruption; pkill -x sleep; :
"""


def test_everything_that_is_wrong_with_a_node_is_named_and_what_is_safe_is_mended(pair):
    twin, own = (pair.on(node, "hostname").strip() for node in (0, 1))
    with contextlib.ExitStack() as stack:
        stack.enter_context(stand_in_server(stack.enter_context(pair.access())))
        pair.on(1, BREAK.format(twin=twin))
        stack.callback(pair.on, 1, MEND.format(own=own))
        stack.enter_context(pair.fault(1, "gpu", "--lost", "--xid", "79"))
        stack.enter_context(skewed(pair, 1, 90))
        report, found = look(pair, status=2)
        assert found == {
            *((check, "pair-1") for check in (
                "gpu.count", "gpu.xid", "clock.skew", "disk.full", "shm.full", "limits.nofile",
                "drift.mtu", "drift.scripts", "job.leftovers", "node.notice",
                "tmp.full",
            )),
            ("hostname.duplicate", "pair-0"),
            ("hostname.duplicate", "pair-1"),
            ("ssh.mesh", "pair-0"),
        }  # fmt: skip
        assert round(report["nodes"][1]["clock_offset_s"], -1) == 90
        assert report["nodes"][1]["odd"] == ["GPUS", "SCRIPTS", "MTU", "NOFILE"]
        [scripts] = [one for one in report["findings"] if one["check"] == "drift.scripts"]
        assert "examples/horovod/tensorflow/train.sh" in scripts["message"]
        _, found = look(pair, "--fix", status=2)
        mended = {"job.leftovers", "hostname.duplicate"}
        assert not mended & {check for check, _ in found}
        assert pair.on(1, "hostname").strip() == own
        assert pair.on(1, "pgrep -f 'sleep 1000 --[p]ort'"), "a served model is no leftover"


@pytest.mark.all
def test_a_node_that_is_frozen_is_a_finding_in_ec2s_words(pair):
    with pair.fault(1, "freeze"):
        report, found = look(pair, status=2)
    assert found == {("node.unreachable", "pair-1")}
    assert [node["host"] for node in report["nodes"]] == ["pair-0"]
    [silent] = [one for one in report["findings"] if one["check"] == "node.unreachable"]
    assert "running since" in silent["message"]
    assert "clusterctl replace pair 1" in silent["hint"]
