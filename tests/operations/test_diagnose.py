"""What `collect` sees of real jobs on two hosts of the lab."""

from __future__ import annotations

import json

import pytest

from clusterctl.diagnosis.evidence import Evidence, decode
from clusterctl.operations.diagnose import collect
from tests.pair import eventually

pytestmark = [pytest.mark.lab, pytest.mark.train]

TINY = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "1000000")


def seen(pair, job_id=None):
    with pair.access() as access:
        return collect(access, job_id)


@pytest.fixture
def trained(pair):
    """A training of two ranks that makes steps: the id of its job."""
    started = pair.ctl("train", "2", "--synthetic", "--detach", "--json", "--", *TINY)
    job_id = json.loads(started[1])["id"]
    eventually(lambda: "Step Epoch" in pair.ctl("logs")[1], "the first steps")
    yield job_id
    pair.ctl("cancel")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


def test_a_training_and_its_end(pair, trained):
    evidence = seen(pair)
    assert [(host.host, host.error, host.problems) for host in evidence.hosts] == [
        ("pair-0", "", ()),
        ("pair-1", "", ()),
    ]
    job = evidence.job
    assert (job.job_id, job.state, job.size) == (trained, "running", 2)
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
            main = next(one for one in sample.stacks if one.thread == "MainThread")
            assert main.frames[0].function == "<module>", "outermost first"
            assert main.frames[0].file.endswith("/train_imagenet_resnet_hvd.py")
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
    assert decode(Evidence, json.loads(json.dumps(evidence.as_data()))) == evidence

    pair.ctl("cancel")
    ended = seen(pair, trained)
    assert ended.job.state == "cancelled"
    assert [host.processes for host in ended.hosts] == [(), ()]
