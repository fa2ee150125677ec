"""Which commands a served model refuses, and the hints for leftovers beside one."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from dataclasses import replace
from types import SimpleNamespace

import pytest

from clusterctl import operations
from clusterctl.cli.main import cli, run_command
from clusterctl.cli.serve import _status
from clusterctl.domain.errors import ClusterctlError, HostError, HostUnreachable, NotFound
from clusterctl.domain.results import FanoutResult, HostOutcome
from clusterctl.domain.timeouts import Timeouts
from clusterctl.jobs.detached import JobRunning
from clusterctl.node.facts.processes import active_jobs, job_processes
from clusterctl.node.facts.report import FactReading, FactReport
from clusterctl.node.jobs import clean
from clusterctl.node.jobs.processes import NodeProcess
from clusterctl.node.jobs.spec import JobRecord, JobSpec, JobState, JobStatus, JobStep
from clusterctl.node.record import name_of
from clusterctl.operations import disk, logs
from clusterctl.operations.doctor import _end_leftovers, _of_unknown_jobs
from clusterctl.operations.logs import refuse_while_training, running_work
from clusterctl.operations.serving import (
    NEVER_SERVED,
    Served,
    ServerAnswer,
    forward_argv,
    gone_models,
    served,
    server_argv,
    serving_spec,
)
from clusterctl.operations.train import leftovers
from tests.clock import FakeClock

NODES = tuple(SimpleNamespace(host=f"d-{index}") for index in range(4))
SERVE = ("/opt/python", "/home/u/.clusterctl/jobs/20261120-154501-3f2a/serve.py", "--port")
TRAINED = "20261119-101010-0002"
STOP = "serve d --stop --model m"
BECAUSE = "a reboot ends it"


def serving(node):
    return NodeProcess(f"d-{node}", 7, None, "job", "20261120-154501-3f2a", 9, SERVE)


def left(node, job=None):
    return NodeProcess(f"d-{node}", 8 + node, 0, "rank", job, 9, ("python", "train.py"))


def job(preset="serve", node=0, model="m"):
    """A job of the head node: a model that is served on a node, or another."""
    claims = {"serve": f"serve:model {model}", "copy": "copy:/data"}.get(preset, "gpus")
    job_id = serving(0).job_id if preset == "serve" else "20261120-154502-0001"
    spec = JobSpec(
        *(job_id, preset),
        steps=(JobStep((*SERVE, f"/home/u/.clusterctl/jobs/{TRAINED}/model")),),
        claims=(claims,),
        destination=f"model {model}",
        hosts=(f"d-{node}",),
    )
    return JobRecord(spec, JobStatus())


@pytest.fixture
def cluster(monkeypatch):
    """Return a function that makes the access to a cluster on which these run, and `then`, a
    further pair of jobs and processes, when it is asked again. Node 3 is in quarantine, and is not
    asked unless it is named."""

    def make(jobs=(), processes=(), head_error=None, then=None):
        clock = FakeClock()

        def read_reports(connections, targets, *_):
            hosts = [target.host for target in targets]
            assert len(set(hosts)) == len(hosts)
            now = then if then and clock.waits else (jobs, processes)
            return FanoutResult(tuple(outcome_of(host, *now) for host in hosts))

        def outcome_of(host, jobs, processes):
            is_head = host == NODES[0].host
            if is_head and head_error:
                return HostOutcome(host, error=head_error)
            facts = {job_processes: tuple(one for one in processes if one.host == host)}
            if is_head:
                facts[active_jobs] = tuple(jobs)
            readings = (FactReading(name_of(fact), fact.__name__, v) for fact, v in facts.items())
            return HostOutcome(host, FactReport(0, 0, tuple(readings), host))

        monkeypatch.setattr(logs, "read_reports", read_reports)
        return SimpleNamespace(
            cluster=SimpleNamespace(name="d"),
            connections=SimpleNamespace(),
            head=NODES[0],
            head_name=NODES[0].host,
            targets=NODES[:3],
            timeouts=Timeouts(clock=clock),
        )

    return make


@pytest.mark.parametrize(
    ("jobs", "processes", "nodes", "said", "command"),
    [
        ([job(node=1)], [serving(1)], None, "model m is served on d-1, and a", STOP),
        ([job(node=1)], [serving(1)], [1, 2], "model m is served on d-1, and", STOP),
        ([job(node=3)], [serving(3)], [3], "model m is served on d-3, and", STOP),
        ([job()], [], None, "model m is served on d-0, and", STOP),
        ([job()], [serving(0)], [0], "model m is served on d-0, and", STOP),
        ([job(node=1)], [serving(1)], [0, 2], "is served on d-1 by d-0, and", STOP),
        ([job(node=3)], [serving(3)], None, "is served on d-3 by d-0, and", STOP),
        ([job(), job(node=1, model="other")], [], None,
         "model m is served on d-0, model other is served on d-1, and a reboot",
         f"{STOP}; clusterctl serve d --stop --model other"),
        ([job("mpi")], [], [2], "job 20261120-154502-0001 is running", "cancel d"),
        ([job(), job("mpi")], [], [], "job 20261120-154502-0001 is running", "cancel d"),
        ([job("copy")], [], [], "job 20261120-154502-0001 is running", "cancel d"),
        ([job(node=1)], [serving(1)], [2], "", ""),
        ([job(node=1)], [serving(1)], [], "", ""),  # doctor --fix
        ([job()], [serving(0)], [2], "", ""),
        ([], [left(1)], None, "", ""),
    ],
)  # fmt: skip
def test_what_disturbs_a_served_model_is_refused(cluster, jobs, processes, nodes, said, command):
    access = cluster(jobs, processes)
    targets = None if nodes is None else [NODES[index] for index in nodes]
    if not said:
        refuse_while_training(access, BECAUSE, targets)
        return
    with pytest.raises(JobRunning, match=said) as refused:
        refuse_while_training(access, BECAUSE, targets)
    assert f"end it first (clusterctl {command})" in refused.value.hint


def test_the_folder_of_a_model_that_is_served_stays(cluster, monkeypatch, tmp_path):
    ids = (TRAINED, "20261119-101010-0003")
    ended = [JobRecord(JobSpec(job_id), JobStatus()) for job_id in ids]
    for one in ended:
        (tmp_path / one.job_id).mkdir()
    monkeypatch.setattr(clean, "JOBS", tmp_path)
    monkeypatch.setattr(clean, "CODE", tmp_path / "code")
    monkeypatch.setattr(disk, "jobs_of", lambda access: [*ended, job()])
    monkeypatch.setattr(disk, "_on", lambda access, targets, request: None)
    access = cluster([job()], [serving(0)])
    cleaning, _ = disk.find_logs(access, jobs=True, force=True)
    found = clean.clean(replace(cleaning, folders=(), dumps=str(tmp_path)))
    assert [one.path for one in found.folders] == [str(tmp_path / ended[1].job_id)]
    assert (tmp_path / TRAINED).is_dir()


def test_a_head_node_that_does_not_answer_refuses_all(cluster):
    access = cluster(head_error=HostUnreachable("d-0", "did not answer in time"))
    with pytest.raises(HostError, match="cannot ask whether a job runs"):
        refuse_while_training(access, BECAUSE, ())


@pytest.mark.parametrize(
    ("node", "hints"),
    [
        (None, ["end it: clusterctl kill d --nodes 1-2"] * 2),
        (0, ["end it: clusterctl kill d --nodes 1-2"] * 2),
        (
            1,
            [
                f"end the model there first: clusterctl {STOP}; then see what it ends: "
                "clusterctl kill d --nodes 1 --dry-run; end it: clusterctl kill d --nodes 1",
                "clusterctl kill d --nodes 2",
            ],
        ),
    ],
)
def test_no_hint_for_leftovers_ends_a_model_unasked(cluster, node, hints):
    jobs, servers = ([], []) if node is None else ([job(node=node)], [serving(node)])
    running = running_work(cluster(jobs, [left(1), left(2), *servers])).trainings
    found = leftovers("d", running)
    assert [one.host for one in found] == ["d-1", "d-2"]
    for finding, hint in zip(found, hints):
        assert finding.hint.endswith(hint)


def test_of_leftovers_on_the_head_node_the_model_is_ended_first(cluster):
    """The job of a model on another node is there, too."""
    access = cluster([job(node=1)], [left(0), serving(1)])
    [finding] = leftovers("d", running_work(access).trainings)
    assert f"end the model there first: clusterctl {STOP}; then" in finding.hint


def test_leftovers_of_named_jobs_are_ended_alone(cluster):
    """A job that runs by then, or a served model, does not end with them."""
    ids = ("20261120-154501-0002", "20261120-154501-0003")
    access = cluster([job(node=1)], [left(1, ids[1]), left(1, ids[0]), serving(1)])
    [finding] = leftovers("d", running_work(access).trainings)
    assert finding.hint == (
        f"see what it ends: clusterctl kill d {ids[0]} --dry-run; "
        f"end it: clusterctl kill d {ids[0]}; clusterctl kill d {ids[1]}"
    )


def test_leftovers_with_an_empty_name_of_a_job_have_none(cluster):
    [finding] = leftovers("d", running_work(cluster([], [left(1, "")])).trainings)
    assert finding.hint.endswith("end it: clusterctl kill d --nodes 1")


MPIRUN = replace(left(0, "20261120-154502-0001"), role="launcher", argv=("mpirun", "python"))
BY_HAND = replace(MPIRUN, job_id=None)


@pytest.mark.parametrize("begun", [left(1, "20261120-154502-0001"), MPIRUN])
@pytest.mark.parametrize("model", [[], [job()]])
@pytest.mark.parametrize(
    "then", [([job("mpi")], None), ([], ()), ([], (left(1, "20261120-154502-0009"),))]
)
def test_a_job_that_just_begins_or_ends_has_left_nothing(cluster, begun, model, then):
    """The head node was asked before it began, or after it had ended, and the node then."""
    jobs, processes = then
    then = ([*model, *jobs], (begun,) if processes is None else processes)
    running = running_work(cluster(model, [begun], then=then)).trainings
    assert not leftovers("d", running)
    assert running.jobs or not running.launchers


@pytest.mark.parametrize("process", [left(1), left(1, "20261120-154502-0009")])
def test_what_two_readings_show_without_a_job_is_left(cluster, process):
    other = left(2, "20261120-154502-0008")
    running = running_work(cluster([], [process], then=([], [other, process])))
    assert running.leftovers == (process,)


def test_an_mpirun_that_somebody_has_just_started_is_seen(cluster):
    running = running_work(cluster([], [left(1)], then=([], [BY_HAND, left(1)])))
    assert running.launchers == (BY_HAND,)


def test_a_server_whose_job_is_gone_is_a_leftover(cluster):
    [finding] = leftovers("d", running_work(cluster([], [serving(1)])).trainings)
    assert finding.host == "d-1"
    assert finding.hint.endswith(f"end it: clusterctl kill d {serving(1).job_id}")


def test_ranks_of_a_job_that_the_silent_head_has_are_no_leftovers(cluster):
    """The job whose runner is on the frozen head node may run."""
    access = cluster([], [left(1), left(1), left(2)], HostUnreachable("d-0", "cut off"))
    running = running_work(access).trainings
    assert not running.leftovers and not leftovers("d", running)
    found = _of_unknown_jobs(access, running.of_unknown_jobs)
    assert [(one.check, one.host) for one in found] == [
        ("fact.unknown", "d-1"),
        ("fact.unknown", "d-2"),
    ]
    for one in found:
        assert "is not known" in one.message and "kill" not in one.message + one.hint
    assert not running_work(cluster([], [left(1)])).of_unknown_jobs


@pytest.mark.parametrize(
    ("head_error", "hint"),
    [
        (HostUnreachable("d-0", "cut off"), "run it without --fix"),
        (None, "end it: clusterctl cancel d; or run it without --fix"),
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

    def kill(connections, targets, query):
        asked.append(query.job_id)
        return SimpleNamespace(ended=[SimpleNamespace(ended="killed")])

    monkeypatch.setattr("clusterctl.operations.doctor.kill", kill)
    own, by_hand = left(1, "20261120-154501-0002"), left(1)
    assert _end_leftovers(cluster([job()], [own, by_hand, serving(0)])) == (1, (by_hand,))
    assert _end_leftovers(cluster([], [own, by_hand])) == (1, ())
    assert asked == ["20261120-154501-0002", None]


def test_a_node_that_does_not_answer_does_not_hide_its_model(monkeypatch, capsys):
    def ask(access, model):
        if model.target.host == "d-3":
            raise HostUnreachable("d-3", "cut off")
        state = {"model_version_status": [{"state": "AVAILABLE", "version": "2"}]}
        return ServerAnswer(200, json.dumps(state).encode())

    monkeypatch.setattr("clusterctl.operations.serving.ask", ask)
    access = SimpleNamespace(all_targets=NODES)
    monkeypatch.setattr("clusterctl.operations.serving.served", lambda *_: found)
    found = [Served(f"m{node}", NODES[node], job(node=node), 8501, False, "m") for node in (1, 3)]
    assert _status(access, [], None, as_json=True) == 255
    shown = capsys.readouterr()
    states = [(one["model"], one["state"], one["version"]) for one in json.loads(shown.out)]
    assert states == [("m1", "AVAILABLE", "2"), ("m3", "SILENT", "-")]
    assert shown.err == "d-3: cut off\n"
    assert _status(access, [], "m1", as_json=True) == 0


def test_a_model_whose_job_failed_is_no_success_and_one_that_no_job_served_is_named(
    monkeypatch, capsys
):
    monkeypatch.setattr(
        "clusterctl.operations.serving.ask",
        lambda *_: ServerAnswer(
            200, b'{"model_version_status": [{"state": "AVAILABLE", "version": "1"}]}'
        ),
    )
    cluster = SimpleNamespace(name="d")
    access = SimpleNamespace(all_targets=NODES, cluster=cluster)
    jobs = []
    for model, state in (("m", JobState.RUNNING), ("killed", JobState.FAILED)):
        line = server_argv("/home/u", "/opt/python", model, "/home/u/m", 8501, False)
        spec = replace(job(model=model).spec, steps=(JobStep(line),))
        jobs.append(JobRecord(spec, JobStatus(state, ended_at=9.0), now=12.0))
    assert _status(access, jobs, None, as_json=True) == 1
    states = {one["model"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert states == {"m": "AVAILABLE", "killed": "FAILED"}
    mistyped = replace(jobs[1].status, exit_status=NEVER_SERVED)
    again = replace(jobs[1], status=mistyped)  # a slip neither counts nor hides the lost one
    assert gone_models([*jobs, again])[0].job == jobs[1]
    assert _status(access, [jobs[0], again], None, as_json=False) == 0
    assert capsys.readouterr().err == ""
    assert _status(access, jobs, "m", as_json=False) == 0
    assert "killed" not in capsys.readouterr().err
    assert _status(access, jobs, "killed", as_json=False) == 1
    first, second, _ = capsys.readouterr().err.splitlines()
    assert first == "no model killed is served"
    assert re.fullmatch("model killed ended on d-0 .* ago: its job failed", second)
    with pytest.raises(NotFound, match="no model other is served on d"):
        _status(access, jobs, "other", as_json=True)


def test_a_port_of_this_machine_that_is_taken_is_no_address_to_ask(tmp_path):
    model = Served("m", NODES[1], job(), 8501, False, "m")
    access = SimpleNamespace(folder=SimpleNamespace(ssh_config=tmp_path / "ssh_config"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ClusterctlError, match=f"port {port} of this machine cannot be used: "):
            forward_argv(access, model, port)
    assert f"127.0.0.1:{port}:127.0.0.1:8501" in forward_argv(access, model, port)


@pytest.mark.parametrize("version", ["ü", "1 2", "1?x=y", "-1"])
def test_a_version_is_a_number(version, tmp_path, capsys):
    (tmp_path / "x.json").write_text("[1]")
    words = ["predict", "d", str(tmp_path / "x.json"), "--version", version]
    assert run_command(cli, words) == 2
    assert "--version" in capsys.readouterr().err


def test_a_server_on_another_node_runs_through_the_head_nodes_ssh(monkeypatch):
    nodes = [SimpleNamespace(name=f"d-{index}", private_ip=f"10.0.0.{index}") for index in (0, 1)]
    cluster = SimpleNamespace(nodes=nodes)
    access = SimpleNamespace(cluster=cluster, head_name="d-0", connections=None, head=None)
    access.all_targets = NODES
    line = server_argv("/home/u", "/opt/python", "m", "/home/u/my models/m", 8502, True)
    specs = [serving_spec(access, target, "ID", "/home/u", line, "m") for target in NODES[:2]]
    assert specs[0].argv == line
    *ssh, address, command = specs[1].argv
    assert (ssh[0], address) == ("ssh", "10.0.0.1")
    start = "exec env CLUSTERCTL_JOB=ID python3 -IS /home/u/.clusterctl/start_daemon.py /opt/python"
    assert command.startswith(start) and "'/home/u/my models/m'" in command
    jobs = [JobRecord(spec, JobStatus(JobState.RUNNING)) for spec in specs]
    monkeypatch.setattr(operations.serving, "list_jobs", lambda *_: jobs)
    for found, target in zip(served(access), NODES):
        assert (found.model, found.target, found.port, found.public) == ("m", target, 8502, True)
        assert found.folder == "/home/u/my models/m"
