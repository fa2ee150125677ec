"""`collect` on real jobs on two hosts of the lab, and `diagnose` on a training.

tests/diagnosis/test_faults.py has the other faults, on every run of `./scripts/test --all`."""

from __future__ import annotations

import json
import re

import pytest

from clusterctl.diagnosis.evidence import Evidence
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import from_json, to_json
from clusterctl.operations import diagnose
from clusterctl.operations.diagnose import collect
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

TINY = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "1000000")


# Rank 0 has 300 threads, one of which reads a pipe without a writer. Rank 1 reads such a pipe
# itself, and has special characters in its name. Both have a child with the ranks' variables.
STUCK = """\
import ctypes, os, subprocess, sys, threading, time
rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
subprocess.Popen(["sleep", "600"])
data = open("/data/part", "rb")
data.seek(1234)
def feed():
    open("/data/feed").read()
if rank:
    ctypes.CDLL(None).prctl(15, b"a\\n) R (b", 0, 0, 0)
    print("up", file=open("/data/up", "w"), flush=True)
    feed()
for _ in range(299):
    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
threading.Thread(target=feed, name="feeder").start()
print("up", file=open("/data/up", "w"), flush=True)
threading.Event().wait()
"""
BY_HAND = (
    "cd ~/examples/horovod/tensorflow; setsid /opt/clusterctl/training/bin/mpirun -np 2"
    " --hostfile hosts -x NCCL_DEBUG=INFO -x A_SECRET=hush python3 /home/ubuntu/stuck.py"
    " </dev/null >/data/stuck.log 2>&1 &"
)


def seen(pair, job_id=None):
    with pair.access() as access:
        return collect(access, job_id)


@pytest.fixture
def trained(pair):
    """Start a training of two ranks. Return the id of its job, once it makes steps."""
    started = pair.ctl("train", "2", "--synthetic", "--detach", "--json", "--", *TINY)
    job_id = json.loads(started[1])["job_id"]
    # The model is built once there is a row below the table's header.
    made = re.compile(r"Step Epoch.*\n.*\d+\.\d", re.MULTILINE)
    eventually(lambda: made.search(pair.ctl("logs")[1]), "the first steps")
    yield job_id
    pair.ctl("cancel")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


@pytest.mark.all
def test_a_training_and_its_end(pair, trained):
    evidence = seen(pair)
    assert [(host.host, host.error, host.problems) for host in evidence.hosts] == [
        ("pair-0", "", ()),
        ("pair-1", "", ()),
    ]
    job = evidence.job
    assert (job.job_id, job.state, job.size) == (trained, JobState.RUNNING, 2)
    assert job.hosts == {host.address: host.slots for host in evidence.hosts}
    assert any("Step Epoch" in line for line in job.log)
    for number, host in enumerate(evidence.hosts):
        assert abs(host.clock_offset_s) <= host.clock_error_s + 0.1
        assert host.facts["memory"]["MemTotal"] > 0
        [rank] = host.ranks
        assert (rank.rank, rank.local_rank, rank.size, rank.gpus) == (number, 0, 2, (0,))
        assert rank.job_id == trained
        assert len(rank.samples) == 3
        first, _, last = rank.samples
        assert last.cpu_s > first.cpu_s
        assert last.read_bytes >= first.read_bytes
        assert last.threads > 5
        for sample in rank.samples:
            assert (sample.stack_source, sample.stack_error) == ("py-spy", "")
        # On a busy node, a stack that is read while it changes may be cut, but not all three.
        outermost = {
            (one.frames[0].function, one.frames[0].file.rpartition("/")[2])
            for sample in rank.samples
            for one in sample.stacks
            if one.thread == "MainThread"
        }
        assert ("<module>", "train_imagenet_resnet_hvd.py") in outermost
    addresses = [host.address for host in evidence.hosts]
    [between] = [
        one
        for one in evidence.hosts[0].ranks[0].samples[0].sockets
        if one.peer.startswith(addresses[1])
    ]
    assert (between.state, between.local.rpartition(":")[0]) == ("ESTAB", addresses[0])
    roles = [{one.role for one in host.processes} for host in evidence.hosts]
    assert "launcher" in roles[0]
    assert "daemon" in roles[1]
    assert {one.job_id for host in evidence.hosts for one in host.processes} == {trained}
    assert from_json(Evidence, to_json(evidence)) == evidence

    # If a busy machine finishes no step between two samples, a new job counts as starting.
    eventually(
        lambda: json.loads(pair.ctl("diagnose", "--json")[1])["check"] == "healthy", "health"
    )
    with pair.fault(1, "freeze"):
        status, out, _ = pair.ctl("diagnose", "--json")
    said = json.loads(out)
    # A warning if a step was made since the first sample.
    assert (status > 0, said["check"]) == (True, "host.silent"), said["verdict"]
    [silent] = [one for one in said["findings"] if one["check"] == "host.silent"]
    assert (silent["host"], silent["ranks"]) == ("pair-1", [1])

    pair.ctl("cancel")
    ended = seen(pair, trained)
    assert ended.job.state is JobState.CANCELLED
    assert [host.processes for host in ended.hosts] == [(), ()]


@pytest.fixture
def by_hand(pair):
    """Start an mpirun by hand, whose ranks hang."""
    pair.put("stuck.py", STUCK)
    for node in (0, 1):
        pair.on(node, "rm -rf /data/*; mkfifo /data/feed; truncate -s 5000 /data/part")
    pair.on(0, BY_HAND)
    for node in (0, 1):
        eventually(lambda n=node: "up" in pair.on(n, "ls /data"), f"the rank of node {node}")
    yield pair
    pair.ctl("kill")
    for node in (0, 1):
        pair.on(node, "rm -rf /data/* stuck.py ~/.local/share/clusterctl/py-spy*")


def rank_of(evidence, number):
    [found] = [rank for host in evidence.hosts for rank in host.ranks if rank.rank == number]
    return found


def test_stuck_ranks_of_an_mpirun_by_hand(by_hand):
    by_hand.on(1, "pkill -STOP -o prted")
    evidence = seen(by_hand)
    job = evidence.job
    assert (job.job_id, job.state, job.size) == ("", JobState.RUNNING, 2)
    # Open MPI may warn of a harmless race for a process group.
    assert all("plm:ssh: Warning: setpgid" in line for line in job.log)
    assert job.line.startswith("/opt/clusterctl/training/bin/prterun -np 2 --hostfile hosts ")
    assert job.hosts == {host.address: host.slots for host in evidence.hosts}
    first, second = rank_of(evidence, 0), rank_of(evidence, 1)
    for rank in (first, second):
        assert rank.variables["NCCL_DEBUG"] == "INFO"
        assert "A_SECRET" not in rank.variables
        for sample in rank.samples:
            assert sample.syscall == "openat /data/feed"
            assert sample.wait_channel == "wait_for_partner"
            files = {one.path: one.position for one in sample.files}
            assert files["/data/part"] == 1234
            assert (sample.stack_source, sample.stack_error) == ("py-spy", "")
    sample = first.samples[0]
    assert (sample.state, sample.threads, len(sample.stacks)) == ("S", 301, 64)
    stacks = [one for one in second.samples[0].stacks if one.thread == "MainThread"]
    assert [frame.function for frame in stacks[0].frames] == ["<module>", "feed"]
    children = [one.argv for one in evidence.hosts[1].processes if one.role == "child"]
    assert children == [("sleep", "600")]
    daemons = [one.samples[0].state for one in evidence.hosts[1].processes if one.role == "daemon"]
    assert "T" in daemons


# Replaces py-spy, as on a kernel that forbids ptrace.
REFUSES = "#!/bin/sh\necho Error: Permission denied >&2\nexit 1\n"


@pytest.mark.all
def test_what_is_missing_is_said_and_the_rest_is_there(by_hand):
    """On node 0, processes cannot be read; on node 1, nothing can be stored."""
    name = diagnose.PySpies(by_hand.lab.home).of("x86_64")[0].name
    place = "~/.local/share/clusterctl"
    by_hand.on(
        0, f"mkdir -p {place}; cat >{place}/{name}; chmod +x {place}/{name}", REFUSES.encode()
    )
    by_hand.on(1, f"mkdir -p {place}; rm -r {place}; touch {place}")
    try:
        evidence = seen(by_hand)
    finally:
        by_hand.on(1, f"rm {place}")
    refused = rank_of(evidence, 0).samples[0]
    assert "Permission denied; nor by sudo: Error: Permission" in refused.stack_error
    assert "kernel.yama.ptrace_scope=0" in refused.stack_error
    assert refused.syscall == "openat /data/feed"
    assert rank_of(evidence, 1).samples[0].stack_source == "py-spy"
    assert [host.problems for host in evidence.hosts] == [(), ()]


@pytest.mark.all
def test_hosts_that_are_silent_are_evidence(by_hand):
    no_python = "sudo -n mount --bind /dev/null $(readlink -f /usr/bin/python3)"
    by_hand.on(0, no_python)
    try:
        with by_hand.access() as access:
            access.connections.run(access.targets[1], "true")
            with by_hand.fault(1, "freeze"):
                evidence = collect(access)
    finally:
        by_hand.on(0, "sudo -n umount $(readlink -f /usr/bin/python3)")
    first, second = evidence.hosts
    assert "looking at it failed: " in first.error
    assert "python3: Permission denied" in first.error
    assert (second.processes, second.ec2.startswith("EC2 has i-")) == ((), True)
    assert "takes connections and answers none in time" in second.error, "it is not waited for"
    assert evidence.job is None
    assert evidence.cluster == "pair"
