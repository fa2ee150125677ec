"""Processes of jobs: which they are, and the real ones of this machine.

Those are always asked for by their job: else every MPI process of the user would end.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from clusterctl.cli import output
from clusterctl.cli.kill import hint_after_interrupt, show_left
from clusterctl.cli.main import cli, run_command
from clusterctl.domain.errors import HostUnreachable
from clusterctl.jobs.deploy import LAUNCHER_PATH
from clusterctl.jobs.processes import end_processes, list_processes
from clusterctl.node.diagnosis.sampler import mark_ranks
from clusterctl.node.facts.disks import mount
from clusterctl.node.facts.processes import job_processes as job_processes_of
from clusterctl.node.jobs import processes
from clusterctl.node.jobs.folder import START_DAEMON_PATH
from clusterctl.node.jobs.processes import (
    JobSession,
    NodeProcess,
    Process,
    ProcessQuery,
    job_processes,
)
from clusterctl.node.procfs import boot_id, read_stat
from clusterctl.transport.call import read_reports
from tests.local_node import HEAD, LocalNode
from tests.pythons import python_or_skip


@pytest.mark.parametrize(
    ("argv", "shown"),
    [
        (("python3", "train.py"), "python3 train.py"),
        (("a b", "it's"), "'a b' 'it'\"'\"'s'"),
        (("x\ny", "\x1b[31mred", "\u202eleft"), r"'x\ny' '\x1b[31mred' '\u202eleft'"),
        (("é", "日本"), "'é' '日本'"),
    ],
)
def test_a_command_is_shown_on_one_line(argv, shown):
    process = NodeProcess("demo-0", 1, None, "rank", None, 1.0, argv)
    assert process.command == shown


def test_each_node_of_a_large_job_gets_its_own_sessions():
    """A torchrun with 8 ranks on each of 128 nodes."""
    hosts = [f"demo-{index}" for index in range(128)]
    found = [
        NodeProcess(host, rank, rank, "rank", "j", 1.0, (), session=f"boot-{host}:{rank}:7")
        for host in hosts
        for rank in range(9)
    ]
    query = ProcessQuery("j").after(found)
    for host in hosts:
        sessions = {(host, f"boot-{host}:{rank}:7") for rank in range(9)}
        assert query.on(host) == ProcessQuery("j", sessions=frozenset(sessions))


JOB, RANK = {b"CLUSTERCTL_JOB": b"j"}, {b"OMPI_COMM_WORLD_RANK": b"0"}
TRAIN_SH = f"/home/ubuntu/{LAUNCHER_PATH}"


@pytest.mark.parametrize(
    ("role", "name", "argv", "environ"),
    [
        ("rank", "python3", ["python3", "train.py"], RANK),
        ("rank", "a.out", ["./a.out"], {**RANK, **JOB}),
        ("launcher", "prterun", ["mpirun", "-np", "2"], {}),
        ("launcher", "mpirun", ["mpirun", "-np", "2"], JOB),
        ("launcher", "mpirun", ["mpirun", "--tag-output", "train.py", "--help"], {}),
        ("launcher", "mpirun", ["mpirun", "./test_mpirun", "--help"], {}),
        ("launcher", "python3", ["python3", TRAIN_SH, "synthetic", "2"], {}),
        ("daemon", "prted", ["prted", "--daemonize"], {}),
        ("daemon", "orted", ["orted"], {}),
        ("job", "sh", ["python3", "-ISu", "runner.py", "j", "4"], JOB),
        ("job", "ssh", ["ssh", "-x", "10.0.0.5", "prted"], JOB),
        # What clusterctl asks each mpirun, and users do:
        ("", "prterun", ["/opt/mine/bin/prterun", "--version"], {}),
        ("", "mpirun", ["/bin/sh", "/opt/mine/bin/mpirun", "--version"], {}),
        ("", "mpirun", ["mpirun", "--allow-run-as-root", "--help", "bind-to"], {}),
        # Processes of the user, but not of a job:
        ("", "python3", ["python3", "train.py"], {}),
        ("", "python3", ["python3", "-m", "http.server"], {b"MPI_RANK": b"0"}),
        ("", "jupyter-lab", ["python3", "/usr/bin/jupyter-lab"], {}),
        ("", "vim", ["vim", "train_imagenet_resnet_hvd.py"], {}),
        ("", "vim", ["vim", TRAIN_SH], {}),
        ("", "nano", ["nano", "mpirun"], {}),
        ("", "python3", ["python3", "edit.py", TRAIN_SH], {}),
        ("", "less", ["less", "/home/ubuntu/.clusterctl/jobs/j/log"], {}),
        ("", "tail", ["tail", "-f", "/home/ubuntu/.clusterctl/jobs/j/runner.py"], {}),
        ("", "man", ["man", "mpirun"], {}),
        ("", "ssh", ["ssh", "other-0", "mpirun -np 8 python3 train.py"], {}),
        # A job of another cluster, started and followed from here:
        ("", "clusterctl", ["python3", "/usr/bin/clusterctl", "train", "other", "8"], {}),
        ("", "bash", ["-bash"], {b"CLUSTERCTL_HOME": b"/x"}),
    ],
)
def test_which_processes_belong_to_a_job(role, name, argv, environ):
    listed = [
        Process(1, 0, "systemd", ["/sbin/init"], {}),
        Process(2, 1, name, argv, environ),
        Process(3, 2, "child", ["child"], {}),
        Process(4, 1, "bash", ["-bash"], {}),
        Process(5, 4, "python3", ["python3", "-c", "the one that asks"], JOB),
    ]
    found = job_processes({process.pid: process for process in listed}, own=5)
    wanted = [(2, role), (3, "child")] if role else []
    assert [(process.pid, process.role) for process in found] == wanted


def test_which_are_of_one_job():
    """The job's daemon on another node has no mark: it is the parent of processes with the mark."""
    listed = [
        Process(1, 0, "prted", [], {}),
        Process(2, 1, "python3", [], {**RANK, **JOB}),
        Process(3, 2, "sh", [], {}),
        Process(4, 0, "prted", [], {}),
        Process(5, 4, "python3", [], {**RANK, b"CLUSTERCTL_JOB": b"other"}),
    ]
    by_pid = {process.pid: process for process in listed}
    assert [process.pid for process in job_processes(by_pid, 9, "j")] == [1, 2, 3]
    assert [process.pid for process in job_processes(by_pid, 9, "j", all_python=True)] == [
        1,
        2,
        3,
        5,
    ]


def test_python_of_other_users_is_not_among_the_logins_own():
    """sudo shows programs of all users: of those only jobs are wanted."""
    listed = [
        Process(1, 0, "python3", ["python3"], {}),
        Process(2, 0, "python3", ["python3", "/usr/bin/salt"], {}, is_of_login=False),
        Process(3, 0, "python3", ["python3"], {**RANK, **JOB}, is_of_login=False),
    ]
    by_pid = {process.pid: process for process in listed}
    assert [one.pid for one in job_processes(by_pid, 9, all_python=True)] == [1, 3]


@pytest.mark.parametrize(
    ("user", "caller", "owner", "is_own"),
    [
        *((0, "1000", 1000, True), (0, "1000", 1001, False), (0, "", 0, True)),
        *((0, "me", 1000, False), (0, "9" * 5000, 1000, False), (0, "\udcff", 1000, False)),
        (1000, "0", 1000, True),  # root has started this user's shell with sudo
    ],
)
def test_by_sudo_the_login_is_who_called_it(monkeypatch, user, caller, owner, is_own):
    monkeypatch.setenv("SUDO_UID", caller)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(processes, "_owner", lambda folder: owner)
    assert processes.read_process(os.getpid(), everyone=True).is_of_login is is_own


@pytest.mark.parametrize("is_root", [True, False])
def test_root_reads_a_process_of_another_user(monkeypatch, is_root):
    """Else one that `kill --sudo` ends would count as ended at once."""
    one = processes.read_process(os.getpid())
    monkeypatch.setattr(processes, "_owner", lambda folder: 54321)
    monkeypatch.setattr(os, "geteuid", lambda: 0 if is_root else 1000)
    assert one.has_ended() is not is_root
    if not is_root:
        with pytest.raises(PermissionError, match="is another user's"):
            processes.read_process(one.pid)


@pytest.mark.parametrize("job", [None, "j"])
def test_the_supervisors_of_a_daemon_are_found_and_its_session_is_the_jobs(job):
    """sshd has started the outer one. Neither has the job's variable."""
    start = ["python3", "-IS", f"/home/ubuntu/{START_DAEMON_PATH}", "/opt/bin/prted", "--daemonize"]
    listed = {
        pid: Process(pid, pid - 1, argv[0], argv, environ, session=5)
        for pid, argv, environ in [
            *((5, start, {}), (6, start, {}), (7, ["prted", *start], {})),
            (8, ["python3", "train.py"], {**RANK, **JOB}),
        ]
    }
    listed[9] = Process(9, 1, "python3", ["python3", "mine.py", *start], {}, session=9)
    found = job_processes(listed, 99, job)
    assert [(one.pid, one.is_session_of_job) for one in found] == [(n, True) for n in (5, 6, 7, 8)]
    # A rank tells whose they are.
    assert [listed[pid].environ.pop(b"CLUSTERCTL_JOB") for pid in (5, 6)] == [b"j", b"j"]
    del listed[7], listed[8]  # stopped, they do not notice that the daemon has ended
    assert [one.pid for one in job_processes(listed, 99, job, sessions={5})] == [5, 6]
    assert [one.pid for one in job_processes(listed, 99)] == [5, 6], "`kill` finds them alone, too"


TITLE = {b"ray::train_epoch()": b"", b"": b""}  # what setproctitle leaves of an environment
USERS = {b"HOME": b"/home/ubuntu"}
OTHER = {**USERS, b"CLUSTERCTL_JOB": b"other"}


@pytest.mark.parametrize("address", ["127.0.0.1", "localhost", "::1", "[::1]", "0.0.0.0"])
def test_jobs_at_an_address_that_each_host_has_are_told_apart(monkeypatch, address):
    def groups(boot, address):
        torch = {b"TORCHELASTIC_RUN_ID": b"none", b"RANK": b"0", b"MASTER_PORT": b"29500"}
        rank = Process(8, 7, "python3", ["python3"], {**torch, b"MASTER_ADDR": address.encode()})
        above = Process(7, 1, "python3", ["torchrun"], {})
        rank.role, above.role = "rank", "launcher"
        monkeypatch.setattr(processes, "boot_id", lambda: boot)
        return processes.groups_of([above, rank])

    here, there = groups("a", address), groups("b", address)
    assert here[7] == here[8] != there[7] == there[8]
    assert groups("a", "n1") == groups("b", "n1") == {7: "none:n1:29500", 8: "none:n1:29500"}


def test_a_launcher_without_ranks_on_its_host_is_of_the_job_that_it_is_known_to_have_started():
    ssh, above, rank = (
        Process(pid, ppid, "x", ["x"], {}) for pid, ppid in ((8, 7), (7, 1), (9, 1))
    )
    above.role, ssh.role, rank.role = "launcher", "child", "rank"
    found = [above, ssh, rank]
    assert processes.groups_of(found) == {}
    assert processes.groups_of(found, {7: "a", 9: "b"}) == {7: "a", 8: "a"}


@pytest.mark.parametrize("titled", [(8, 9), (9,)])
def test_ranks_with_titles_are_those_of_the_torchrun_that_has_started_them(titled):
    """Nothing but their parent shows whose they are."""
    torch = {b"TORCHELASTIC_RUN_ID": b"none", b"RANK": b"0"}
    torch |= {b"MASTER_ADDR": b"n1", b"MASTER_PORT": b"29500"}
    listed = {
        pid: Process(pid, ppid, "python3", argv, environ)
        for pid, ppid, argv, environ in (
            (2, 1, ["worker of a web server"], TITLE),
            (7, 1, ["python3", "/usr/bin/torchrun", "train.py"], {}),
            (8, 7, ["train"], TITLE if 8 in titled else torch),
            (9, 7, ["train"], TITLE),
        )
    }
    found = processes.job_processes(listed, 99, any_launcher=True)
    mark_ranks(found)
    roles = {one.pid: one.role for one in found}
    assert roles == {7: "launcher", 8: "rank", 9: "rank"}
    # Whose job they are is not known: who ends one job by its id must not end these.
    assert processes.job_processes(listed, 99, job="j1", any_launcher=True) == []


def test_a_torchrun_is_a_launcher_on_hosts_of_no_cluster():
    torch = {b"TORCHELASTIC_RUN_ID": b"none", b"RANK": b"0"}
    torch |= {b"MASTER_ADDR": b"n1", b"MASTER_PORT": b"29500"}
    words = ["python3", "/usr/bin/torchrun", "train.py"]
    listed = {
        pid: Process(pid, ppid, "python3", argv, environ)
        for pid, ppid, argv, environ in (
            (6, 1, words, {}),  # it has no rank yet
            (5, 1, ["python3", "train.py", "torchrun"], {}),
            (4, 1, ["python3", "-m", "accelerate", "config"], {}),
            (7, 1, words, {}),
            (8, 7, ["python3", "train.py"], torch),
        )
    }
    found = job_processes(listed, 99, any_launcher=True)
    roles = [(one.pid, one.role) for one in found]
    assert roles == [(6, "launcher"), (7, "launcher"), (8, "rank")]
    assert sorted(processes.groups_of(found)) == [7, 8]
    assert job_processes(listed, 99) == []


def one(pid, session, environ, name="python3", ppid=1):
    return Process(pid, ppid, name, [name], environ, session=session)


ORPHAN = one(9, 5, TITLE)


@pytest.mark.parametrize(
    ("others", "found"),
    [
        # The runner of the job leads the session: what is in it is the job's.
        ([one(5, 5, {**USERS, **JOB}, "sh")], {5, 9}),
        ([one(5, 5, {**USERS, **JOB}, "sh"), one(7, 5, USERS, "nohup")], {5, 7, 9}),
        ([one(5, 5, {**USERS, **JOB}, "sh"), one(7, 5, OTHER)], {5, 9}),
        ([one(5, 5, {}, "prted"), one(7, 5, {**USERS, **JOB}, ppid=5)], {5, 7, 9}),
        # Its leader has ended: that may have been the user's shell, and the other a server of the
        # user's which has overwritten its environment.
        ([one(7, 5, {**USERS, **JOB})], {7}),
        ([one(7, 5, {**USERS, **JOB}), one(8, 5, {}, ppid=7)], {7, 8}),
        # Sessions of the user, in which the variable was set by hand.
        ([one(5, 5, USERS, "bash"), one(7, 5, {**USERS, **JOB})], {7}),
        ([one(6, 5, USERS, "vim"), one(7, 5, {**USERS, **JOB})], {7}),
        # The number of the session, but of another job or of nobody's.
        ([one(5, 5, OTHER, "sh")], set()),
        ([one(5, 5, USERS, "bash")], set()),
        ([], set()),
        # A process that has left the job's session, and one in a session of another user's.
        ([one(4, 4, {**USERS, **JOB}, "sh")], {4}),
    ],
)
def test_what_has_written_over_its_environment_is_found_by_its_session(others, found):
    listed = {process.pid: process for process in [*others, ORPHAN]}
    assert {process.pid for process in job_processes(listed, 99, "j")} == found


def test_a_session_that_was_seen_before_is_the_jobs():
    left = {7: one(7, 5, USERS), 9: ORPHAN, 10: one(10, 10, TITLE), 11: one(11, 5, OTHER)}
    assert job_processes(left, 99, "j") == []
    assert [process.pid for process in job_processes(left, 99, "j", sessions={5})] == [7, 9]


def test_the_number_of_a_session_that_a_shell_of_the_user_has_got():
    """Process IDs come again. A leader that started at another time leads another session."""
    seen = JobSession("boot", 5, 1234)
    assert JobSession.of_text(str(seen)) == seen
    assert seen.is_still(0)
    assert seen.is_still(1234)
    assert not seen.is_still(5678)
    # Where its leader was gone already, a leader of that number is a new one.
    assert not JobSession("boot", 5, 0).is_still(1234)


@pytest.mark.parametrize(
    ("recorded", "boot", "found"),
    [(5, boot_id(), {7, 9}), (5, "another boot", {7}), (6, boot_id(), {7}), ("", boot_id(), {7})],
)
def test_the_session_of_a_runner_that_has_ended(tmp_path, monkeypatch, recorded, boot, found):
    """The job's record on the head node tells that the session was made for the job."""
    monkeypatch.setattr(processes, "JOBS", tmp_path)
    monkeypatch.setattr(processes, "lives", lambda pid: pid != 5)
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "lock").write_text(f"{recorded} {boot}\n   ")
    left = {7: one(7, 5, {**USERS, **JOB}), 9: ORPHAN, 3: one(3, 5, {b"CLUSTERCTL_JOB": b"../j"})}
    sessions = processes.recorded_sessions(left, None, boot_id())
    assert {process.pid for process in job_processes(left, 99, "j", sessions=sessions)} == found
    alive = {5: one(5, 5, USERS, "bash"), **left}
    monkeypatch.setattr(processes, "lives", lambda pid: True)
    assert processes.recorded_sessions(alive, "j", boot_id()) == set()


REAL_PYTHON_FIRST = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def node(tmp_path):
    return LocalNode(tmp_path)


@pytest.fixture
def job():
    return f"test-{secrets.token_hex(4)}"


@pytest.fixture
def spawn(job):
    """Return a function that starts a process of the job. The end of the test kills them all."""
    started = []

    def start(script, argv0="python3", **environ):
        process = subprocess.Popen(
            [argv0, "-c", script],
            executable=sys.executable,
            # Its sys.executable is what PATH has for argv0: no shim, which would start others.
            env={**os.environ, "PATH": REAL_PYTHON_FIRST, "CLUSTERCTL_JOB": job, **environ},
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


READY = "import sys, time; print('ready', flush=True); "
WAIT = READY + "time.sleep(100)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + WAIT
# Starts a child with an empty environment, which is found by its parent.
PARENT = (
    "import subprocess, sys; child = [sys.executable, '-c', 'import time; time.sleep(100)'];"
    "subprocess.Popen(child, env={}); " + WAIT
)


def only(outcomes):
    [outcome] = outcomes.outcomes
    assert outcome.error is None, outcome.error
    return outcome.value


def test_found_by_the_jobs_mark_and_described(node, spawn, job):
    name = "we ird\n\"'\x1b é"
    rank = spawn(WAIT, argv0=name, OMPI_COMM_WORLD_RANK="3")
    [found] = only(list_processes(node, [HEAD], ProcessQuery(job)))
    assert (found.host, found.pid, found.rank, found.role) == ("demo-0", rank.pid, 3, "rank")
    assert found.job_id == job
    assert found.argv == (name, "-c", WAIT)
    assert 0 <= found.age_s < 600


def test_children_without_the_mark_are_found(node, spawn, job):
    parent = spawn(PARENT)
    found = only(list_processes(node, [HEAD], ProcessQuery(job)))
    # By pid, not in order: pids start again from the beginning at some time.
    roles = {process.pid: process.role for process in found}
    assert (roles.pop(parent.pid), list(roles.values())) == ("job", ["child"]), found
    ended = only(end_processes(node, [HEAD], ProcessQuery(job)))
    assert {process.ended for process in ended} == {"terminated"}


# Leads a session, as a job's runner does. Its child starts a program that writes over its whole
# environment, as setproctitle does, then a bystander, and then ends itself.
TITLED = """
import ctypes, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
open("titled", "w").write("1")
time.sleep(100)
"""
RUNNER = """
import os, subprocess, sys, time
os.setsid()
if not os.fork():
    subprocess.Popen([sys.executable, "-c", open("titled.py").read()])
    os._exit(0)
os.wait()
while not os.path.exists("titled"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("runner_is", ["running", "gone", "a zombie"])
def test_an_orphan_without_its_environment_ends_with_its_job(
    node, spawn, job, tmp_path, monkeypatch, runner_is
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "titled.py").write_text(TITLED)
    runner = spawn(RUNNER + WAIT)
    found = only(list_processes(node, [HEAD], ProcessQuery(job)))
    [orphan] = [process.pid for process in found if process.pid != runner.pid]
    assert not any(Path(f"/proc/{orphan}/environ").read_bytes())
    query = ProcessQuery(job)
    if runner_is != "running":  # as after `cancel` has told the runner to end
        query = query.after(found)
        runner.kill()
        if runner_is == "gone":
            runner.wait()
        else:
            os.waitid(os.P_PID, runner.pid, os.WEXITED | os.WNOWAIT)
    ended = only(end_processes(node, [HEAD], query))
    runners = [runner.pid] if runner_is == "running" else []
    assert {process.pid for process in ended} == {orphan, *runners}
    assert {process.ended for process in ended} == {"terminated"}
    assert only(list_processes(node, [HEAD], query)) == ()


def test_the_users_own_program_in_the_session_of_a_process_with_the_variable(node, spawn, job):
    """Neither this test, nor what else is in the session of the user's shell, is the job's."""
    bystander = subprocess.Popen(["sleep", "100"])
    try:
        rank = spawn(WAIT)
        ended = only(end_processes(node, [HEAD], ProcessQuery(job)))
        assert [process.pid for process in ended] == [rank.pid]
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


# A login shell from which the user starts a server that overwrites its environment, and a run.
LOGIN = """
env -i sleep 100 >/dev/null & echo $!
CLUSTERCTL_JOB=$1 sleep 100 >/dev/null & echo $!
"""


def test_the_users_server_lives_after_the_shell_of_a_run_has_ended(node, job):
    login = subprocess.Popen(
        ["sh", "-c", LOGIN, "sh", job], stdout=subprocess.PIPE, start_new_session=True
    )
    pids = [int(line) for line in login.communicate()[0].split()]
    try:
        # The run has its variable as soon as its shell has become `sleep`.
        await_name(pids, "sleep")
        ended = only(end_processes(node, [HEAD], ProcessQuery(job)))
        assert [process.pid for process in ended] == pids[1:]
    finally:
        still = [pid for pid in pids if processes.lives(pid)]
        for pid in still:
            os.kill(pid, signal.SIGKILL)
    assert still == pids[:1]


def await_name(pids, name):
    deadline = time.monotonic() + 60
    while any(read_stat(f"/proc/{pid}")[0] != name for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_ended_by_term_or_by_force(node, spawn, job):
    polite, deaf = spawn(WAIT), spawn(DEAF)
    ended = only(end_processes(node, [HEAD], ProcessQuery(job)))
    assert {process.pid: process.ended for process in ended} == {
        polite.pid: "terminated",
        deaf.pid: "killed",
    }
    assert only(list_processes(node, [HEAD], ProcessQuery(job))) == ()
    assert only(end_processes(node, [HEAD], ProcessQuery(job))) == ()


def test_another_jobs_processes_stay(node, spawn, job):
    spawn(WAIT, CLUSTERCTL_JOB=f"{job}-other")
    assert only(list_processes(node, [HEAD], ProcessQuery(job))) == ()


def test_processes_that_read_other_facts_are_none_of_a_job(tmp_path, job):
    """Even if the login sets the variables of a job, as a user's ~/.bashrc may."""
    marked = LocalNode(tmp_path, {"CLUSTERCTL_JOB": job, "OMPI_COMM_WORLD_RANK": "0"})
    facts = [partial(job_processes_of, query=ProcessQuery(job)), mount]
    [report] = read_reports(marked, [HEAD], facts, "reading").values
    assert report.get(job_processes_of) == ()


def test_on_the_oldest_python(tmp_path, spawn, job):
    (tmp_path / "python3").symlink_to(python_or_skip("3.8"))
    spawn(WAIT)
    old = LocalNode(tmp_path, {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert len(only(list_processes(old, [HEAD], ProcessQuery(job)))) == 1
    assert len(only(end_processes(old, [HEAD], ProcessQuery(job)))) == 1


def test_a_node_that_does_not_answer_is_its_own_outcome(node):
    node.trouble = [HostUnreachable("demo-0", "did not answer in time")]
    [outcome] = list_processes(node, [HEAD], ProcessQuery("x")).outcomes
    assert isinstance(outcome.error, HostUnreachable)


@pytest.mark.parametrize("command", ["kill", "cancel"])
def test_an_interrupt_before_the_first_listing_says_how_to_go_on(capsys, monkeypatch, command):
    def interrupted(app, name):
        raise KeyboardInterrupt

    monkeypatch.setattr("clusterctl.cli.app_context.AppContext.open", interrupted)
    assert run_command(cli, [command, "d-e"]) == 130
    assert "see what is left: clusterctl kill d-e --dry-run" in capsys.readouterr().err


@pytest.mark.parametrize(("role", "ending"), [("rank", ""), ("launcher", " --force")])
def test_what_is_left_is_said_with_what_helps(capsys, role, ending):
    two = [NodeProcess(f"d-e-{index}", 7, None, role, None, 1.0, ("x",)) for index in (3, 0)]
    output.begin("", (), False)  # or else suggestions would repeat options of an earlier test
    show_left(two, "d-e")
    with pytest.raises(KeyboardInterrupt), hint_after_interrupt("d-e"):
        raise KeyboardInterrupt
    *_, hint, after = capsys.readouterr().err.splitlines()
    assert hint.endswith(f": clusterctl reboot d-e 3 0{ending}")
    assert after.endswith(": clusterctl kill d-e --dry-run")
    show_left(two, None)
    assert capsys.readouterr().err.endswith(": reboot d-e-[0,3]\n")
