"""Jobs on hosts of no cluster: what they are called, and which of them is looked at."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from clusterctl.cli.main import cli
from clusterctl.diagnosis.bundle import load, save
from clusterctl.diagnosis.case import WARNING
from clusterctl.diagnosis.evidence import Evidence, HostEvidence, JobEvidence, ProcessEvidence
from clusterctl.diagnosis.hints import Hints
from clusterctl.diagnosis.verdict import diagnose
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandTimeout,
    HostUnreachable,
    NotFound,
    UsageError,
)
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome, program_failure
from clusterctl.jobs import processes
from clusterctl.jobs.processes import no_such_job
from clusterctl.node.diagnosis.job import LauncherLog
from clusterctl.node.diagnosis.sampler import SamplerRequest, SamplerResponse
from clusterctl.node.jobs.processes import NodeProcess
from clusterctl.node.jobs.spec import JobState
from clusterctl.operations import diagnose as of_nodes
from clusterctl.operations import diagnose_hosts, kill
from clusterctl.operations.diagnose import PySpies, ask, silent
from clusterctl.operations.diagnose_hosts import logs_of, named, of_slurm_job
from clusterctl.operations.hosts_access import (
    AsRoot,
    HostSource,
    hosts_in,
    hosts_of_slurm,
    this_machine,
)
from clusterctl.operations.kill import KillReport
from clusterctl.transport import local
from clusterctl.transport.local import LocalConnections
from tests.diagnosis.made_up import (
    ALLREDUCE,
    IMPORTS,
    NEXT,
    SHUTDOWN,
    facts,
    file_system,
    job_of,
    own,
    samples,
    used,
    with_host,
    with_rank,
)
from tests.lab.running import wait_until


def rank(pid, number, group="", parent=1, **more):
    return ProcessEvidence(pid, parent, "rank", rank=number, size=2, group=group, **more)


def launcher(pid, group="", parent=1):
    return ProcessEvidence(pid, parent, "launcher", group=group, argv=("mpirun",))


def jobs(*hosts):
    found = named([HostEvidence(host=f"n{at}", processes=them) for at, them in enumerate(hosts)])
    return [[one.job_id for one in host.processes] for host in found]


def test_a_job_is_named_by_its_launcher():
    assert jobs((launcher(7, "a"), rank(8, 0, "a")), (rank(8, 1, "a"),)) == [["7", "7"], ["7"]]


def test_a_launcher_that_has_no_rank_on_its_host():
    assert jobs((launcher(7),), (rank(8, 0, "a"),)) == [["7"], ["7"]]
    # With two of them it is not known which has started the ranks.
    assert jobs((launcher(7), launcher(6)), (rank(8, 0, "a"),)) == [["7", "6"], ["a"]]
    # A rank that is older than the launcher is left over from another job.
    old = rank(8, 0, "a", age_s=90.0)
    assert jobs((launcher(7),), (old,)) == [["7"], ["a"]]
    assert jobs((launcher(7),), (old, rank(9, 1, "a"))) == [["7"], ["a", "a"]]
    assert jobs((launcher(7),), (old,), (rank(8, 0, "b"),)) == [["7"], ["a"], ["7"]]


def test_launchers_of_one_process_id_on_two_hosts_are_two_jobs():
    them = (launcher(7, "a"), rank(8, 0, "a")), (launcher(7, "b"), rank(8, 0, "b"))
    assert jobs(*them) == [["a", "a"], ["b", "b"]]


def test_a_launcher_in_a_launcher():
    """`mpirun` of a script that execs a wrapper: the outer one names the job."""
    them = (launcher(5, "a"), launcher(7, "a", parent=5), rank(8, 0, "a", parent=7))
    assert jobs(them) == [["5", "5", "5"]]


def test_jobs_of_clusterctl_keep_their_names():
    assert jobs((rank(8, 0, "a", job_id="train-1"),)) == [["train-1"]]


def test_only_the_processes_of_a_job_of_slurm():
    host = HostEvidence(processes=(rank(8, 0, slurm_job="17"), rank(9, 0, slurm_job="18")))
    [kept] = of_slurm_job([host], "17")
    assert [one.pid for one in kept.processes] == [8]
    assert of_slurm_job([host], "") == [host]


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Return what makes a squeue that prints this text."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def make(text, status=0):
        program = tmp_path / "squeue"
        program.write_text(f"#!/bin/sh\ncat <<'X'\n{text}\nX\nexit {status}\n")
        program.chmod(0o755)

    return make


def test_the_hosts_of_a_job_of_slurm(squeue):
    squeue("RUNNING node[1-2,7]")
    assert hosts_of_slurm("17") == ("node[1-2,7]", "")
    squeue("RUNNING n1\nSUSPENDED n2\nNODE_FAIL n3\nPENDING\nRUNNING n5")
    assert hosts_of_slurm("17") == ("n1,n2,n3,n5", "suspended, node_fail, pending")
    for none in ("", "(null)"):
        squeue(f"PENDING {none}")
        with pytest.raises(UsageError, match="job 17 of Slurm has no hosts: it is pending"):
            hosts_of_slurm("17")
    squeue("", 1)
    with pytest.raises(ClusterctlError, match="squeue failed"):
        hosts_of_slurm("17")
    with pytest.raises(UsageError, match="not the ID of a job"):
        hosts_of_slurm("17; reboot")


def test_no_slurm_here(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterctlError, match="squeue is not on this machine"):
        hosts_of_slurm("17")


def test_names_that_are_no_hosts():
    assert hosts_in("n[08-10]") == ["n08", "n09", "n10"]
    for too_many in ("n[1-999999999999]", "n[1,3-30000]", "n[1-999]x[1-999]"):
        with pytest.raises(UsageError, match="names more than 10000 hosts"):
            hosts_in(too_many)
    with pytest.raises(UsageError, match="cannot read the hosts"):
        hosts_in("n[1-")


@pytest.mark.parametrize(
    "nodes", ["n-x;touch pwn;echo", "n-$(touch${IFS}pwn)", "root@n1", "n1:22", "n1 n2", "n`reboot`"]
)
def test_what_is_no_name_of_a_host_is_refused_before_a_shell_gets_it(nodes, squeue):
    with pytest.raises(UsageError, match="^the hosts .*name"):
        hosts_in(nodes)
    squeue(f"RUNNING n1,{nodes.replace(' ', '_;')}")
    with pytest.raises(UsageError, match="^the hosts .*name"):
        hosts_in(hosts_of_slurm("17")[0])


def test_addresses_are_hosts():
    assert hosts_in("10.0.0.[4-5]") == ["10.0.0.4", "10.0.0.5"]
    assert hosts_in("2001:db8::5,an_alias") == ["2001:db8::5", "an_alias"]


def test_hints_need_no_cluster():
    silent = with_host(job_of(), 1, error="did not answer in time", processes=())
    [lead, *_] = diagnose(silent).findings
    assert "clusterctl replace demo 1" in lead.hint
    assert "clusterctl run demo --nodes 0 'ping" in lead.hint
    source = "--hosts hosts --sudo -u eve"
    of_hosts = replace(silent, cluster="", source=source, user="eve", as_root=True)
    [lead, *_] = diagnose(of_hosts).findings
    assert lead.hint == (
        f"diagnose again: clusterctl diagnose {source}; see it from another node: "
        f"ssh eve@demo-0 'sudo ping -c 3 {silent.hosts[1].address}'"
    )
    assert Hints(of_hosts).steps("see it", f"then {Hints(of_hosts).cancel}", "") == (
        "see it; then end the job"
    )


def test_no_hint_for_hosts_names_a_command_that_needs_a_cluster():
    """Each rule of the faults below has hints of a cluster."""
    found = set()
    whole = replace(job_of(), cluster="", source="--local")
    for evidence in (
        with_rank(whole, 3, samples=samples(own("load"), syscall="openat /data/x")),
        with_rank(whole, 3, samples=samples(own("load"), state="T")),
        with_rank(whole, 3, samples=samples(own("load"), state="D", syscall="read /data/x")),
        with_rank(whole, 3, samples=samples(NEXT)),
        with_rank(whole, 3, samples=samples(SHUTDOWN)),
        with_host(whole, 2, facts=facts("demo-2", filesystems=[file_system("/data", 0)])),
        with_host(whole, 2, facts=facts("demo-1")),
        with_host(whole, 2, clock_offset_s=90.0),
        replace(whole, hosts=(whole.hosts[0], *with_rank(whole, 2, job_id="other").hosts[1:])),
    ):
        found |= {one.hint for one in diagnose(evidence).findings}
    commands = {word for hint in found for word in re.findall(r"clusterctl ([\w-]+)", hint)}
    assert len(found) > 8
    assert commands == {"diagnose"}


def test_a_bundle_of_hosts(tmp_path):
    evidence = replace(job_of(), cluster="", source="-w n1 -u eve", user="eve")
    save(evidence, tmp_path / "b.gz")
    assert load(tmp_path / "b.gz") == evidence


def test_this_machine():
    here, local = this_machine(), LocalConnections()
    done = local.run(here, "cat; echo err >&2; exit 3", stdin=b"in")
    assert (done.stdout, done.stderr, done.exit_status) == ("in", "err\n", 3)
    for timeout_s in (0.3, 3.0, 30.0):
        with pytest.raises(CommandTimeout) as late:
            local.run(here, "echo begun; sleep 600", timeout_s=timeout_s)
        if late.value.stdout:  # a busy machine may not even begin in the shorter times
            break
    assert late.value.stdout == "begun\n"


def test_a_command_by_sudo_that_takes_too_long(monkeypatch, tmp_path):
    """Another user's processes may not be ended but by sudo."""
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\n[ "$1" = -n ] && shift\nexec "$@"\n')
    sudo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    def refuse(group, number):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(local.os, "killpg", refuse)
    command = f"echo $$ >{tmp_path}/pid; echo begun; sleep 600"
    for timeout_s in (1.0, 8.0, 64.0):
        with pytest.raises(CommandTimeout) as late:
            AsRoot(LocalConnections()).run(this_machine(), command, timeout_s=timeout_s, stdin=b"")
        if late.value.stdout:  # a busy machine may not even begin in the shorter times
            break
    assert late.value.stdout == "begun\n"
    of_command = Path("/proc", (tmp_path / "pid").read_text().strip(), "cmdline")

    def has_ended() -> bool:
        try:
            # An ended process that nobody has waited for has no command line.
            return not of_command.read_bytes()
        except OSError:
            return True

    wait_until(has_ended, "its end")


def test_as_root():
    ran = []

    class Recorder:
        def run(self, target, command, **options):
            ran.append(command)
            return CommandResult(target.host, command, 0, "", "", 0.0)

    AsRoot(Recorder()).run(this_machine(), "python3 -c 'x'", timeout_s=1.0, stdin=b"")
    assert ran == ["""sudo -n /bin/sh -c 'python3 -c '"'"'x'"'"''"""]


def test_the_job_with_most_ranks():
    hosts = named(
        [
            HostEvidence(host="n0", processes=(launcher(7, "a"), rank(8, 0, "a"), rank(9, 1, "a"))),
            HostEvidence(host="n1", processes=(launcher(3, "b"), rank(4, 0, "b"))),
        ]
    )
    job = diagnose_hosts._job(hosts, {}, None)
    assert (job.job_id, job.state, job.size, job.others) == ("7", JobState.RUNNING, 2, ("3",))
    assert diagnose_hosts._job(hosts, {}, "3").job_id == "3"
    with pytest.raises(NotFound, match="no job 99 runs on these hosts"):
        diagnose_hosts._job(hosts, {}, "99")
    assert diagnose_hosts._job([], {}, None) is None
    silent = HostEvidence(host="n2", error="did not answer in time")
    with pytest.raises(ClusterctlError, match="job 99 was not found, .*: n2: did not"):
        diagnose_hosts._job([*hosts, silent], {}, "99")


def hidden_on(host, **more):
    return replace(host, hidden=("alice",), **more)


def test_processes_that_the_login_may_not_read():
    """Neither is a job healthy, nor are there no jobs: it is not known."""
    healthy = job_of(2, 1, (), log=())
    source = replace(healthy, cluster="", source="-w n1")
    hosts = tuple(hidden_on(one) for one in source.hosts)
    for job in (source.job, None):
        found = diagnose(replace(source, hosts=hosts, job=job))
        assert (found.exit_status, found.check) == (3, "unknown")
        [said] = [one for one in found.findings if one.check == "processes.hidden"]
        assert "could not be read: processes of user alice on " in said.message
        assert said.hint == "show all users' jobs: clusterctl diagnose -w n1 --sudo"


def test_no_job_here():
    host = HostEvidence(host="n1")
    found = diagnose(Evidence(source="--local", hosts=(host,)))
    assert found.exit_status == 3
    assert found.verdict.startswith("no job was found on these hosts (--local)")
    assert found.next_step.endswith("only its log, read it: clusterctl explain FILE")


def test_ranks_on_hosts_that_were_not_named():
    whole = job_of(2, 1, (), log=())
    part = replace(whole, cluster="", source="-w n1", hosts=whole.hosts[:1])
    part = replace(part, job=replace(part.job, hosts={}))
    found = diagnose(part)
    [said] = [one for one in found.findings if one.check == "rank.missing"]
    assert (said.severity, said.ranks, said.blocks) == (WARNING, (1,), False)
    assert found.exit_status in (1, 3)


def test_a_job_that_is_named_is_not_called_absent_if_not_all_processes_were_read():
    idle = HostEvidence(host="n0")
    busy = HostEvidence(host="n1", problems=("processes: no answer",))
    with pytest.raises(NotFound, match="no job 7 runs"):
        diagnose_hosts._job([idle], {}, "7")
    for unread in (busy, HostEvidence(host="n1", error="did not answer in time")):
        with pytest.raises(ClusterctlError, match="job 7 was not found.*n1: "):
            diagnose_hosts._job([idle, unread], {}, "7")


BUSY = "did not end within 7.5 s: python3 -c x"


def test_a_host_that_is_too_busy_to_look_at_is_not_known():
    """Unless a job waits for its ranks."""
    alone = Evidence(source="--local", hosts=(HostEvidence(host="n1", error=BUSY),))
    found = diagnose(alone)
    assert (found.exit_status, found.check) == (3, "unknown")
    assert found.verdict == f"whether a job runs is not known: n1 gave no evidence: {BUSY}"
    waiting = with_host(job_of(), 1, error=BUSY, processes=())
    assert diagnose(waiting).check == "host.silent"


def of_hosts(evidence):
    return replace(evidence, cluster="", source="--local")


def test_a_host_that_is_too_busy_gets_twice_the_time(tmp_path, monkeypatch):
    def sampled(connections, target, node_call):
        if node_call.request.within_s < 12.0:
            return SamplerResponse({"problems": ["processes: no answer within 6 s"]})
        return SamplerResponse({"processes": [{"pid": 7}]})

    monkeypatch.setattr(of_nodes, "call", sampled)
    request, spies = SamplerRequest(), PySpies(tmp_path)
    found, _ = ask(LocalConnections(), this_machine(), request, spies)
    assert [one.pid for one in found.processes] == [7]


def test_each_verdict_that_is_not_known_has_a_next_step():
    """Only what was read can be damaged: processes that nobody had the time for are missing."""
    busy = replace(job_of(), hosts=(HostEvidence(host="n1", problems=("processes: no answer",)),))
    found = diagnose(of_hosts(busy))
    assert "a part of the evidence is missing: n1: processes: no answer" in found.verdict
    assert found.next_step.startswith("diagnose again: clusterctl diagnose --local; on a busy host")
    torn = diagnose(replace(busy, problems=("hosts[0]: expected an object",)))
    assert "a part of the evidence is damaged: " in torn.verdict
    assert torn.next_step.endswith("clusterctl diagnose demo --save FILE")
    alone = Evidence(source="--local", hosts=(HostEvidence(host="n1", error=BUSY),))
    assert diagnose(alone).next_step.startswith("diagnose again: clusterctl diagnose --local")


def test_the_same_calls_are_no_proof_that_a_job_is_stuck():
    """A slow job that is healthy makes them, too: nobody may end it for that."""
    silent = of_hosts(job_of(2, 1, own("load"), log=(), quiet_s=None))
    found = diagnose(silent)
    assert found.check == "unknown"
    assert "equal calls by themselves prove nothing" in found.next_step
    assert "a log is found if the job writes to a file" in found.next_step


@pytest.mark.parametrize(
    ("job", "stack", "check"),
    [
        ({"log": ()}, ALLREDUCE, "healthy"),  # it may have made steps: its log was not seen
        ({"log": ()}, IMPORTS, "starting"),
        ({"log": ("reads data",), "quiet_s": 9.0}, ALLREDUCE, "starting"),
        ({"log": ("reads data",), "quiet_s": 9.0}, (), "unknown"),  # or it tries something again
    ],
)
def test_a_job_is_called_starting_only_if_its_start_was_seen(job, stack, check):
    young = job_of(2, 1, own("work"), **{"quiet_s": None, "age_s": 30.0, **job})
    first, *_ = samples(stack or own("work", 31))
    looks = used((first, *samples(own("work"), own("work", 32), own("work", 33), state="R")[1:]))
    found = diagnose(of_hosts(with_rank(young, 0, 1, samples=looks)))
    assert (found.check, found.exit_status) == (check, 3 if check == "unknown" else 0)
    assert check == "unknown" or f"is {check}: ranks 0-1 worked" in found.verdict


def left_over(parent=1, **more):
    ranks = [rank(8 + at, at, "77", parent, launcher="torchrun", **more) for at in (0, 1)]
    looks = samples((), state="S", syscall="clock_nanosleep")
    ranks = [replace(one, samples=looks, job_id="77", argv=("./train",)) for one in ranks]
    host = HostEvidence(host="n0", processes=tuple(ranks), facts=facts("n0"))
    job = JobEvidence(job_id="77", state=JobState.RUNNING, size=2)
    return Evidence(source="--local", job=job, hosts=(host,))


def test_ranks_whose_launcher_is_gone_are_left_over():
    found = diagnose(left_over())
    assert found.verdict == "torchrun of this job is gone, and ranks 0-1 on n0 are left over"
    [lead] = [one for one in found.findings if one.check == "launcher.gone"]
    assert lead.hint.startswith("clusterctl kill --local --launcher 77 --dry-run shows them")
    assert found.exit_status == 2
    assert not [one for one in found.clean if "torchrun" in one or "mpirun" in one]
    # Its launcher may be one that is not known, or one of another user.
    for other in (left_over(7), with_rank(left_over(), 1, launcher="torch")):
        assert "launcher.gone" not in [one.check for one in diagnose(other).findings]


def test_the_launcher_of_another_job_is_not_called_well():
    with_other = left_over(7)
    [host] = with_other.hosts
    for its, is_clean in (("3", False), ("77", True)):
        mpirun = replace(launcher(7), job_id=its, samples=samples((), syscall="poll"))
        hosts = (replace(host, processes=(mpirun, *host.processes)),)
        clean = diagnose(replace(with_other, hosts=hosts)).clean
        assert ("mpirun and its daemons" in clean) is is_clean


def test_a_rank_of_a_job_by_hand_is_named_with_its_job():
    """Diagnose gives such a job an ID, and clusterctl has not started it all the same."""
    read = HostEvidence(host="n1", processes=(launcher(5, "a"), rank(7, 0, "a", 5)))
    with pytest.raises(NotFound, match="process 7 on n1 names no job: it is rank 0 of job 5"):
        diagnose_hosts._job([read], {}, "7")
    with pytest.raises(NotFound) as refused:
        diagnose_hosts._job([read], {}, "9")
    assert refused.value.hint == "these do: 5 on n1"


def test_a_name_that_is_no_job_is_explained():
    hosts = {"n1": (launcher(5, "a"), rank(7, 0, "a", 5)), "n2": (rank(8, 0, "b"),)}
    of_rank = no_such_job("7", hosts, {}, "--local")
    assert of_rank.message == "process 7 on n1 names no job: it is rank 0 of job 5"
    assert of_rank.hint == "name the job: --launcher 5"
    assert no_such_job("9", hosts, {}, "").hint == "these do: 5 on n1, b on n2"
    within = {"n1": (launcher(5, "a"), launcher(6, "a", 5), rank(7, 0, "a", 6))}
    assert no_such_job("6", within, {}, "").message.endswith("a launcher within that of job 5")
    own = {"n1": (replace(launcher(5, "a"), job_id="20261127-000000-abcd"),)}
    for name in ("5", "20261127-000000-abcd"):
        assert no_such_job(name, own, {}, "").hint == (
            "with its cluster's name: clusterctl logs NAME 20261127-000000-abcd has its output, "
            "clusterctl cancel NAME 20261127-000000-abcd ends it"
        )
    assert no_such_job("9", own, {}, "").hint == "these do: 20261127-000000-abcd on n1"
    unseen = no_such_job("9", hosts, {"n1": ("eve",)}, "--local")
    assert (unseen.message, unseen.exit_status) == (
        "no job 9 of this login runs on these hosts (these do: 5 on n1, b on n2); "
        "could not be read: processes of user eve on n1, who may have a job there",
        1,
    )
    assert unseen.hint == "show all users' jobs: clusterctl diagnose --local --sudo"


def test_nothing_to_end_is_no_all_clear_if_others_may_have_jobs(monkeypatch, capsys):
    nothing = KillReport((), (), (), ("n1",), ())
    monkeypatch.setattr(kill, "kill", lambda *_: nothing)
    monkeypatch.setattr(processes, "hidden_on", lambda *_: {"n1": ("eve",)})
    assert cli.main(["kill", "--local"], standalone_mode=False) == 0
    shown = capsys.readouterr()
    assert shown.out == "nothing to end\n"
    assert "could not be read: processes of user eve on n1, who may have a job there" in shown.err
    assert "kill --local --sudo --dry-run" in shown.err


def test_the_hint_for_a_host_that_was_not_seen_fits_it():
    for host, hint in (
        (HostEvidence(host="n1", error="refused every key"), "see whether you can log in there"),
        (HostEvidence(host="n1", problems=("processes: no answer",)), "run it again"),
        (HostEvidence(host="n1", error=BUSY), "run it again"),
    ):
        with pytest.raises(ClusterctlError) as found:
            diagnose_hosts._job([host], {}, "7")
        assert found.value.hint.startswith(hint)


def test_hints_for_nodes_as_those_for_hosts():
    by_key = Hints(Evidence(source="-w n1 -u eve -i 'a key'", user="eve"))
    assert by_key.on(HostEvidence(host="n1"), "dmesg") == "ssh -i 'a key' eve@n1 dmesg"
    hints = Hints(Evidence(source="-w n1 -u eve", user="eve"))
    of_node = "set it: clusterctl run NAME --nodes 1 'sudo chronyc makestep'"
    assert hints.without_cluster("n1", f"{of_node}; see `dmesg` there") == (
        "set it: ssh eve@n1 'sudo chronyc makestep'; see `dmesg` there"
    )
    assert hints.without_cluster("n1", "see `dmesg` there; clusterctl reboot NAME 1") == (
        "see `dmesg` there"
    )


def test_a_host_that_cannot_run_the_program_says_what_to_look_at():
    result = CommandResult("n1", "python3", 1, "", "MemoryError\n", 0.1)
    host = silent(program_failure(result, "looking at it"))
    assert host.error.startswith("looking at it failed: MemoryError (a limit of the login")
    assert "~/.bashrc" in host.error


@pytest.mark.parametrize(
    ("status", "stderr", "why"),
    [
        (127, "@77b01f78: 1: eval: python3: not found\n", "not installed there (install it: "),
        (1, "python3 is 3.6.9, 3.8 is needed\n", "3.8 is needed (install Python 3.8 or newer"),
    ],
)
def test_a_host_without_python_says_so(status, stderr, why):
    error = program_failure(CommandResult("n1", "python3", status, "", stderr, 0.1), "looking")
    assert why in silent(error).error
    assert "@" not in error.message


def logs_in(monkeypatch, *outcomes):
    """Return the logs on hosts whose outcomes are these, and what `explain` ends with."""
    hosts = HostSource("--hosts x", (), LocalConnections())
    monkeypatch.setattr(diagnose_hosts, "call_all", lambda *_, **__: FanoutResult(outcomes))
    return logs_of(hosts, "")


SILENT = HostOutcome("b", error=HostUnreachable("b", "did not answer in time"))


def test_what_was_not_read_is_told_beside_the_logs_that_were(monkeypatch):
    many = (LauncherLog("5", "/out", 7, "ok"), LauncherLog("5", "/err", 7, "bad"), LauncherLog("6"))
    cut = (
        LauncherLog("7", "/long", 5 << 20, "x", "y", 1 << 20),
        LauncherLog("7", "/no", error="No access"),
    )
    found = logs_in(monkeypatch, HostOutcome("a", many), SILENT, HostOutcome("c", cut))
    assert found.texts == {
        "a:/out": "ok",
        "a:/err": "bad",
        "c:/long": "x",
        "c:/long (its end)": "y",
    }
    assert found.unread == {
        "b": "gave no log (did not answer in time)",
        "job 6 on a": "writes its output to no file",
        "c:/long": "is long: 1.0 MiB of 5.0 MiB, in its middle, were not read",
        "c:/no": "cannot be read (No access)",
    }


def test_without_any_log_the_reason_is_told(monkeypatch):
    with pytest.raises(ClusterctlError, match="did not answer"):
        logs_in(monkeypatch, HostOutcome("a", ()), SILENT)
    no_file, no_access = (LauncherLog("6"),), (LauncherLog("7", "/no", error="No access"),)
    with pytest.raises(ClusterctlError) as told:
        logs_in(monkeypatch, HostOutcome("a", no_file), HostOutcome("c", no_access))
    assert told.value.message == (
        "job 6 on a writes its output to no file; c:/no cannot be read (No access)"
    )
    with pytest.raises(ClusterctlError, match="no job that was started by hand runs"):
        logs_in(monkeypatch, HostOutcome("a", ()))


@pytest.mark.parametrize(("text", "status"), [("step 1\n", 3), ("MemoryError: batch 7\n", 2)])
def test_explain_of_hosts_is_no_all_clear_if_one_did_not_answer(monkeypatch, capsys, text, status):
    outcomes = (HostOutcome("a", (LauncherLog("5", "/out", 7, text),)), SILENT)
    monkeypatch.setattr(diagnose_hosts, "call_all", lambda *_, **__: FanoutResult(outcomes))
    assert cli.main(["explain", "--local"], standalone_mode=False) == status
    shown = capsys.readouterr().err
    assert "read: a:/out" in shown and "warning: b gave no log (did not answer in time)" in shown


@pytest.mark.parametrize(
    ("hosts", "pid"),
    [
        ({"login": [launcher(5)], "n1": [rank(7, 0, "a")]}, 5),
        ({"n1": [launcher(5, "a"), launcher(6, "a", parent=5), rank(7, 0, "a", parent=6)]}, 5),
        # It is not known which has started the ranks, or which ranks it has started.
        ({"login": [launcher(5), launcher(6)], "n1": [rank(7, 0, "a")]}, None),
        ({"login": [launcher(5)], "n1": [rank(7, 0, "a"), rank(8, 0, "b")]}, None),
        ({"login": [launcher(5)], "n1": [rank(7, 0)]}, None),
        ({"n1": [launcher(5)]}, None),
        # Two hosts have a launcher of that number.
        ({"n1": [launcher(5)], "n2": [launcher(5, "a"), rank(7, 0, "a")]}, None),
        (
            {"n1": [launcher(5, "a"), rank(7, 0, "a")], "n2": [launcher(5, "b"), rank(7, 0, "b")]},
            None,
        ),
    ],
)
def test_kill_ends_the_job_that_a_hint_names_and_no_hint_names_another(monkeypatch, hosts, pid):
    found = named([HostEvidence(host=name, processes=tuple(them)) for name, them in hosts.items()])
    [job, *_] = [
        one.job_id for host in found for one in host.processes if one.role == "rank"
    ] or "5"
    evidence = Evidence(source="--hosts x", job=JobEvidence(job_id=job), hosts=tuple(found))
    command = f"clusterctl kill --hosts x --launcher {pid}"
    assert Hints(evidence).cancel == (command if pid else "end the job")
    listed = [
        HostOutcome(name, [node_process(name, one) for one in them]) for name, them in hosts.items()
    ]
    monkeypatch.setattr(kill, "list_processes", lambda *_: FanoutResult(tuple(listed)))
    if pid:
        query = kill.query_for(HostSource("--hosts x", (), None), str(pid))
        assert (query.group, query.launcher) == ("a", pid)
    else:
        with pytest.raises(ClusterctlError, match="not known apart"):
            kill.query_for(HostSource("--hosts x", (), None), job if job.isdecimal() else "5")


def node_process(host, one):
    more = {"group": one.group, "parent": one.parent}
    return NodeProcess(host, one.pid, one.rank, one.role, one.job_id, 1.0, one.argv, **more)
