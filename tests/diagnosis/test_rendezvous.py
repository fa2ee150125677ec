"""A job that hangs at its start: whether its hosts can reach where the ranks meet."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from clusterctl.diagnosis.evidence import Evidence, Frame
from clusterctl.diagnosis.selection import to_connect
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.node.facts.network import REFUSED, ConnectAttempt, connect_attempts
from clusterctl.operations.hosts_access import this_machine
from clusterctl.operations.native_frames import with_rendezvous
from clusterctl.transport.local import LocalConnections
from tests.diagnosis.made_up import ENV, IMPORTS, MAIN, job_of, own, samples, with_rank

RENDEZVOUS = f"{ENV}/site-packages/torch/distributed/rendezvous.py"
MEETS = (*MAIN, Frame("_env_rendezvous_handler", RENDEZVOUS, 258))


def starting(address: str, port: int = 29500) -> Evidence:
    """Return a job of torch whose ranks wait at its start."""
    variables = {"MASTER_ADDR": address, "MASTER_PORT": str(port)}
    evidence = job_of(3, 1, MEETS, log=())
    return with_rank(evidence, 0, 1, 2, variables=variables)


def tried(evidence: Evidence, rank: int, error: str) -> Evidence:
    endpoint = f"{evidence.hosts[0].address}:29500"
    attempt = ConnectAttempt(endpoint, (evidence.hosts[0].address,), error)
    return with_rank(evidence, rank, rendezvous=attempt)


def test_ports_that_answer_and_that_do_not():
    with socket.socket() as listening, socket.socket() as bound:
        for one in (listening, bound):
            one.bind(("127.0.0.1", 0))
        listening.listen()
        open_port, closed = (one.getsockname()[1] for one in (listening, bound))
        ends = (f"127.0.0.1:{open_port}", f"127.0.0.1:{closed}", "no-such-host.invalid:1", "x:y")
        answers, refuses, unknown, wrong = connect_attempts(ends)
    assert answers == ConnectAttempt(ends[0], ("127.0.0.1",))
    assert (refuses.error, refuses.addresses) == (REFUSED, ("127.0.0.1",))
    assert unknown.error.startswith("the name is not known here")
    assert wrong.error


def test_it_is_tried_once_from_each_host_with_a_rank_that_waits():
    evidence = starting("10.0.0.5")
    assert {host: one[1] for host, one in to_connect(evidence).items()} == {
        f"demo-{index}": "10.0.0.5:29500" for index in range(3)
    }
    assert [*to_connect(with_rank(evidence, 0, 1, samples=samples(own("load"))))] == ["demo-2"]
    assert to_connect(replace(evidence, job=replace(evidence.job, log=("step 1 loss 2",)))) == {}


def test_this_machine_tries():
    here = this_machine()
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        evidence = starting("127.0.0.1", port)
        hosts = (replace(evidence.hosts[0], host=here.host), *evidence.hosts[1:])
        asked = with_rendezvous(LocalConnections(), [here], replace(evidence, hosts=hosts))
    said = [one.rendezvous for host in asked.hosts for one in host.ranks]
    assert said == [ConnectAttempt(f"127.0.0.1:{port}", ("127.0.0.1",), REFUSED), None, None]


def test_the_host_that_is_not_reached_is_named_with_its_address_and_port():
    found = diagnose(tried(starting("10.0.0.5"), 2, "no answer within 2 s"))
    lead = found.findings[0]
    assert (lead.check, lead.ranks, lead.host, found.exit_status) == (
        *("rendezvous.unreached", (2,), "demo-0"),
        2,
    )
    assert lead.message.startswith(
        "rank 2 on demo-2 (10.0.0.7) cannot connect to 10.0.0.5:29500 on demo-0 (10.0.0.5), where "
        "the job's ranks meet at its start: no answer within 2 s"
    )
    assert "clusterctl run demo --nodes 2 'ping -c 3 10.0.0.5'" in lead.hint


@pytest.mark.parametrize(
    "evidence",
    [
        tried(starting("10.0.0.5"), 2, ""),
        tried(with_rank(starting("10.0.0.5"), 0, samples=samples(IMPORTS)), 2, REFUSED),
        tried(with_rank(starting("10.0.0.5"), 2, age_s=5.0), 2, REFUSED),
    ],
    ids=["it was reached", "rank 0 has not come so far", "the job has just begun"],
)
def test_what_is_no_finding(evidence):
    assert "rendezvous.unreached" not in {one.check for one in diagnose(evidence).findings}


@pytest.mark.parametrize(
    ("meets_at", "age_s", "is_one_job"),
    [
        ("10.0.0.5:29501", 60.0, True),
        ("10.0.0.5:29500", 60.0, False),
        ("10.0.0.5:29501", 9.0, False),  # the others may still come
        ("10.9.9.9:29501", 60.0, False),  # its rank 0 may be there
    ],
)
def test_a_rank_with_another_port_is_no_other_job(meets_at, age_s, is_one_job):
    variables = dict(zip(("MASTER_ADDR", "MASTER_PORT"), meets_at.split(":")))
    changed = {"job_id": meets_at, "variables": variables, "age_s": age_s}
    evidence = with_rank(starting("10.0.0.5"), 2, **changed)
    job = replace(evidence.job, hosts={}, line="", others=(meets_at,))
    evidence = replace(evidence, source="--hosts h", job=job)
    found = [one for one in diagnose(evidence).findings if one.check == "rendezvous.unreached"]
    words = "rank 2 on demo-2 (10.0.0.7) and rank 0 on demo-0"
    assert [one.message[: len(words)] for one in found] == [words] * is_one_job
