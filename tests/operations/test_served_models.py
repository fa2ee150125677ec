"""Which commands a served model refuses, and the hints for leftovers beside one."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import pytest

from clusterctl.cli.main import cli, run_command
from clusterctl.cli.serve import _status
from clusterctl.domain.errors import HostError, HostUnreachable
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.jobs.detached import JobRunning
from clusterctl.node.agent import name_of
from clusterctl.node.facts.processes import job_processes, unended_jobs
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.jobs.processes import NodeProcess
from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobStatus
from clusterctl.operations import logs
from clusterctl.operations.doctor import _end_leftovers, _of_unknown_jobs
from clusterctl.operations.logs import refuse_while_training, running_work
from clusterctl.operations.serving import served
from clusterctl.operations.train import leftovers
from clusterctl.transport.fanout import fan_out

NODES = tuple(SimpleNamespace(host=f"d-{index}") for index in range(4))
SERVE = ("/opt/python", "/home/u/.clusterctl/jobs/20261120-154501-3f2a/serve.py", "--port")
BECAUSE = "a reboot ends it"


def serving(node):
    return NodeProcess(f"d-{node}", 7, None, "job", "20261120-154501-3f2a", 9, SERVE)


def left(node, job=None):
    return NodeProcess(f"d-{node}", 8 + node, 0, "rank", job, 9, ("python", "train.py"))


def job(preset="serve", destination=""):
    spec = JobSpec("20261120-154502-0001", preset=preset, destination=destination)
    return JobRecord(spec, JobStatus())


@pytest.fixture
def cluster(monkeypatch):
    """Return a function that makes the access to a cluster on which these run. Node 3 is in
    quarantine, and is not asked unless it is named."""

    def make(jobs=(), processes=(), head_error=None):
        def read_reports(connections, targets, *_):
            hosts = [target.host for target in targets]
            assert len(set(hosts)) == len(hosts)
            return FanoutResult(tuple(map(outcome_of, hosts)))

        def outcome_of(host):
            is_head = host == NODES[0].host
            if is_head and head_error:
                return HostOutcome(host, error=head_error)
            facts = {job_processes: tuple(one for one in processes if one.host == host)}
            if is_head:
                facts[unended_jobs] = tuple(jobs)
            readings = (FactReading(name_of(fact), fact.__name__, v) for fact, v in facts.items())
            return HostOutcome(host, FactReport(0, 0, tuple(readings), host))

        monkeypatch.setattr(logs, "read_reports", read_reports)
        return SimpleNamespace(
            cluster=SimpleNamespace(name="d"),
            connections=None,
            head=NODES[0],
            head_name=NODES[0].host,
            targets=NODES[:3],
        )

    return make


@pytest.mark.parametrize(
    ("jobs", "processes", "nodes", "said", "command"),
    [
        (
            [],
            [serving(1)],
            None,
            "served on d-1, and a reboot ends it",
            "serve d --stop",
        ),
        ([], [serving(1)], [1, 2], "a model is served on d-1", "serve d --stop"),
        ([], [serving(3)], [3], "a model is served on d-3", "serve d --stop"),
        ([job()], [], None, "a model is served on d-0", "serve d --stop"),
        ([job()], [serving(0)], [0], "a model is served on d-0", "serve d --stop"),
        ([job("mpi")], [serving(1)], [2], "job 20261120-154502-0001 is running", "cancel d"),
        ([job(), job("mpi")], [], [], "job 20261120-154502-0001 is running", "cancel d"),
        ([job("", "/data")], [], [], "job 20261120-154502-0001 is running", "cancel d"),
        ([], [serving(1)], [0, 2], "", ""),
        ([], [serving(1)], [], "", ""),  # doctor --fix
        ([job()], [serving(0)], [], "", ""),
        ([job()], [serving(0)], [2], "", ""),
        ([], [serving(3)], None, "", ""),
        ([], [left(1)], None, "", ""),
    ],
)
def test_what_disturbs_a_served_model_is_refused(cluster, jobs, processes, nodes, said, command):
    access = cluster(jobs, processes)
    targets = None if nodes is None else [NODES[index] for index in nodes]
    if not said:
        refuse_while_training(access, BECAUSE, targets)
        return
    with pytest.raises(JobRunning, match=said) as refused:
        refuse_while_training(access, BECAUSE, targets)
    assert f"end it first (clusterctl {command})" in refused.value.hint


def test_a_head_node_that_does_not_answer_refuses_all(cluster):
    access = cluster(head_error=HostUnreachable("d-0", "did not answer in time"))
    with pytest.raises(HostError, match="cannot ask whether a job runs"):
        refuse_while_training(access, BECAUSE, ())


@pytest.mark.parametrize(
    ("processes", "hints"),
    [
        ([left(1), left(2)], ["first: clusterctl kill d", "first: clusterctl kill d"]),
        (
            [left(1), left(2), serving(0)],
            ["first: clusterctl kill d --nodes 1-2", "first: clusterctl kill d --nodes 1-2"],
        ),
        (
            [left(1), left(2), serving(1)],
            ["clusterctl serve d --stop; then: clusterctl kill d --nodes 1", "kill d --nodes 2"],
        ),
        ([left(1), serving(1)], ["serve d --stop; then: clusterctl kill d --nodes 1"]),
    ],
)
def test_no_hint_for_leftovers_ends_a_model_unasked(cluster, processes, hints):
    found = leftovers("d", running_work(cluster([], processes)).trainings)
    assert [one.host for one in found] == [one.host for one in processes if one.role == "rank"]
    for finding, hint in zip(found, hints):
        assert finding.hint.endswith(hint)


def test_ranks_of_a_job_that_the_silent_head_has_are_no_leftovers(cluster):
    """The job whose runner is on the frozen head node may run."""
    access = cluster([], [left(1), left(1), left(2)], HostUnreachable("d-0", "cut off"))
    running = running_work(access).trainings
    assert not running.leftovers and not leftovers("d", running)
    found = _of_unknown_jobs(access, running.of_unknown_jobs)
    assert [(one.check_id, one.host) for one in found] == [
        ("fact.unknown", "d-1"),
        ("fact.unknown", "d-2"),
    ]
    for one in found:
        assert "is not known" in one.message and "kill" not in one.message + one.hint
    assert not running_work(cluster([], [left(1)])).of_unknown_jobs


@pytest.mark.parametrize(
    ("head_error", "hint"),
    [
        (HostUnreachable("d-0", "cut off"), "look without --fix"),
        (None, "end it: clusterctl cancel d; or look without --fix"),
    ],
)
def test_doctor_fix_advises_to_cancel_only_a_job_that_is_seen(
    cluster, monkeypatch, capsys, head_error, hint
):
    access = contextlib.nullcontext(cluster([job("mpi")], [], head_error))
    context = "clusterctl.cli.app_context.AppContext"
    monkeypatch.setattr(f"{context}.status", lambda app, name: SimpleNamespace(cluster=None))
    monkeypatch.setattr(f"{context}.access", lambda app, cluster: access)
    assert run_command(cli, ["doctor", "d", "--fix"]) == 3
    assert f"hint: {hint}\n" in capsys.readouterr().err


def test_doctor_leaves_what_it_cannot_end_without_the_model(cluster, monkeypatch):
    asked = []

    def kill(access, query):
        asked.append(query.job_id)
        return SimpleNamespace(ended=[SimpleNamespace(ended="killed")])

    monkeypatch.setattr("clusterctl.operations.doctor.kill", kill)
    own, by_hand = left(1, "20261120-154501-0002"), left(1)
    assert _end_leftovers(cluster([], [own, by_hand, serving(0)])) == (1, (by_hand,))
    assert _end_leftovers(cluster([], [own, by_hand])) == (1, ())
    assert asked == ["20261120-154501-0002", None]


@pytest.mark.parametrize(
    ("silent", "status", "said"),
    [
        ((), 0, "no model is served\n"),
        (("d-3",), 255, "no model is served on the nodes that answered\nd-3: cut off\n"),
        (("d-0", "d-1", "d-2", "d-3"), 255, "d-[0-3]: cut off\n"),
    ],
)
def test_a_silent_node_may_serve_a_model(capsys, silent, status, said):
    """Node 3 is in quarantine, which ends no model."""

    def run(target, *arguments, **options):
        if target.host in silent:
            raise HostUnreachable(target.host, "cut off")
        return CommandResult(target.host, "", 0, '{"jobs": []}\n', "", 0.1)

    connections = SimpleNamespace(run=run, each=lambda targets, one, **_: fan_out(one, targets))
    access = SimpleNamespace(connections=connections, targets=NODES[:3], all_targets=NODES)
    assert _status(access, served(access), None, as_json=False) == status
    assert capsys.readouterr().err == said
