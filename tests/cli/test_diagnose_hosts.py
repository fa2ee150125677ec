"""`clusterctl diagnose` without a cluster: this machine, and the test sshd as a host."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from clusterctl.cli.host_options import HostOptions, host_source
from clusterctl.domain.errors import HostUnreachable
from clusterctl.transport.connections import Connections
from tests.cli.programs import call
from tests.lab.running import wait_until

# A launcher by its name, with two ranks. Rank 1 opens a pipe that nobody writes to.
MPIRUN = """\
#!/bin/sh
export PMI_SIZE=2 PMI_JOBID=$$
PMI_RANK=0 sleep 600 &
PMI_RANK=1 {python} \\
  -c 'import sys; open(sys.argv[1] + ".up", "w"); open(sys.argv[1]).read()' {pipe} &
wait
"""


@pytest.fixture
def stuck(tmp_path):
    """Start the job; return the process ID of its launcher, and end all at the end."""
    pipe, program = tmp_path / "feed", tmp_path / "mpirun"
    os.mkfifo(pipe)
    program.write_text(MPIRUN.format(python=sys.executable, pipe=pipe))
    program.chmod(0o755)
    job = subprocess.Popen([program], start_new_session=True)
    try:
        wait_until((tmp_path / "feed.up").exists, "the job")
        yield job.pid
    finally:
        os.killpg(job.pid, 9)
        job.wait()


def diagnosed(*options):
    """Return the diagnosis, and the finding on the rank that opens a pipe: it is first unless
    something is wrong with this machine. A far too busy one may give no evidence at once."""

    def look():
        done = call("clusterctl", "diagnose", *options, "--json")
        assert done.stdout, done.stderr
        found = json.loads(done.stdout)
        if "check" in found:
            assert found["exit_status"] == done.returncode
        return found, *(one for one in found.get("findings", ()) if one["check"] == "rank.io")

    return wait_until(lambda: found if len(found := look()) == 2 else None, "the finding")


def test_this_machine(stuck, home):
    found, on_pipe = diagnosed("--local", "--launcher", str(stuck))
    assert (on_pipe["ranks"], found["job_id"]) == ([1], str(stuck))
    # A warning while the job is young.
    assert found["exit_status"] in (1, 2)
    assert (found["hosts"], found["cluster"]) == ("--local", None)
    hints = [one["hint"] for one in found["findings"]]
    assert not any("clusterctl run" in hint for hint in hints)


def test_a_hosts_file(stuck, home, tmp_path):
    hosts = tmp_path / "own"
    hosts.write_text("127.0.0.1\n")
    _, on_pipe = diagnosed("--hosts", str(hosts), "--launcher", str(stuck))
    assert (on_pipe["ranks"], on_pipe["host"]) == ([1], "127.0.0.1")
    assert "ssh 127.0.0.1 'ls -l " in on_pipe["hint"]


def test_a_host_that_knows_no_key_is_reached_with_the_option_of_the_hint(home, ssh_server):
    config = home / ".ssh/config"
    config.write_text(config.read_text().replace(f"IdentityFile {ssh_server.key}", ""))
    done = call("clusterctl", "kill", "-w", "127.0.0.1", "--dry-run")
    assert (done.returncode, done.stderr.count("--key FILE")) == (255, 1), done.stderr
    done = call("clusterctl", "kill", "-w", "127.0.0.1", "--dry-run", "--key", str(ssh_server.key))
    assert (done.returncode, "unreachable" in done.stderr) == (0, False), done.stderr
    # The options are not for a jump host.
    config.write_text(f"Host 127.0.0.2\n ProxyJump 127.0.0.1\n{config.read_text()}")
    done = call("clusterctl", "kill", "-w", "127.0.0.2", "--dry-run", "--key", str(ssh_server.key))
    assert done.returncode == 255
    assert "ssh-add FILE" in done.stderr and "--key FILE" not in done.stderr


def test_a_machine_with_two_names_counts_once(stuck, home):
    done = call("clusterctl", "kill", "-w", "127.0.0.[1-2]", "--launcher", str(stuck), "--dry-run")
    assert "127.0.0.2 is the same machine as 127.0.0.1: it counts once\n" in done.stderr
    assert (done.returncode, "would end 3 processes" in done.stdout) == (0, True), done


def test_explain_reads_the_log_of_a_running_job(home, tmp_path):
    program, log, errors = (tmp_path / name for name in ("mpirun", "train.log", "train.err"))
    line = "echo starts; echo 'MemoryError: batch 7' >&2; while :; do sleep 600; done"
    program.write_text(f"#!/bin/sh\n{line}\n")
    program.chmod(0o755)
    with log.open("w") as file, errors.open("w") as stderr:
        job = subprocess.Popen([program], start_new_session=True, stdout=file, stderr=stderr)
    try:
        wait_until(errors.read_text, "its output")
        done = call("clusterctl", "explain", "--local", "--launcher", str(job.pid))
        assert (done.returncode, "MemoryError: batch 7" in done.stdout) == (2, True), done.stderr
    finally:
        os.killpg(job.pid, 9)
        job.wait()
    done = call("clusterctl", "explain", "--local", "--launcher", str(job.pid))
    assert done.returncode == 3 and f"no job {job.pid} " in done.stderr


def test_kill_of_one_job_leaves_the_others(stuck, home, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "mpirun").write_text("#!/bin/sh\nPMI_RANK=0 PMI_SIZE=1 PMI_JOBID=x sleep 600 & wait\n")
    (other / "mpirun").chmod(0o755)
    kept = subprocess.Popen([other / "mpirun"], start_new_session=True)
    try:
        kill = ("clusterctl", "kill", "--local", "--launcher")
        done = call(*kill, "999999999")
        assert done.returncode in (1, 2) and "no job 999999999 " in done.stderr
        assert f"{stuck} on " in done.stderr and f"{kept.pid} on " in done.stderr
        done = call(*kill, str(stuck), "--json")
        assert done.returncode == 0, done.stderr
        ended = json.loads(done.stdout)["processes"]
        assert {one["role"] for one in ended} == {"launcher", "rank"}
        assert stuck in [one["pid"] for one in ended] and len(ended) == 3
        assert kept.poll() is None
    finally:
        os.killpg(kept.pid, 9)
        kept.wait()


@pytest.mark.all
def test_hosts_by_name(stuck, home):
    found, _ = diagnosed("-w", "127.0.0.[1]", "--launcher", str(stuck))
    assert found["hosts"] == "-w '127.0.0.[1]'"


@pytest.mark.all
def test_a_job_that_does_not_run(home):
    done = call("clusterctl", "diagnose", "--local", "--launcher", "999999999")
    assert done.returncode == 3
    assert "no job 999999999 runs on these hosts" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--local", "-w", "n1"), "hosts are named twice: -w n1, --local"),
        (("--local", "demo"), "two are named: cluster demo and --local"),
        (("--local", "-u", "x"), "there is no login with --local"),
        (("demo", "-i", "id"), "--sudo, --user and --key are for hosts without a cluster"),
        (("demo", "--launcher", "7"), "--launcher is for hosts without a cluster"),
        (("-w", "n[1-"), "cannot read the hosts n[1-"),
        (("-w", ""), "'' is empty"),
    ],
)
def test_options_that_make_no_sense(home, options, message):
    done = call("clusterctl", "diagnose", *options)
    assert (done.returncode, message in done.stderr) == (3, True), done.stderr


def test_the_state_of_a_job_of_slurm_that_has_ended_is_told(monkeypatch, home, tmp_path, capsys):
    squeue = tmp_path / "squeue"
    squeue.write_text("#!/bin/sh\necho FAILED 127.0.0.1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    source = host_source(HostOptions(None, None, "17", *[None] * 4))
    source.connections.close()
    assert capsys.readouterr().err == "job 17 of Slurm is failed, as squeue reports it\n"
    assert [one.host for one in source.targets] == ["127.0.0.1"]


@pytest.mark.parametrize(("ask_again", "logins"), [(False, 2), (True, 4)])
def test_a_host_that_does_not_answer_is_waited_for_once(monkeypatch, home, ask_again, logins):
    """By its answer it would be known to be another machine; `watch` shows when it is back."""
    tried = []

    def open_another(self, target, *_):
        tried.append(target.host)
        raise HostUnreachable(target.host, "did not answer in time")

    monkeypatch.setattr(Connections, "open_another", open_another)
    source = host_source(HostOptions(None, "127.0.0.1,127.0.0.2", *[None] * 5), ask_again)
    found = source.connections.each(source.targets, source.connections.session)
    source.connections.close()
    assert len(found.failures) == 2
    assert len(tried) == logins
