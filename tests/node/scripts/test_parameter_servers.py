"""TF_CONFIG of every node, and how the processes of one node end."""

from __future__ import annotations

import contextlib
import fcntl
import resource
import socket
import subprocess

import pytest

from clusterctl.node.scripts.parameter_servers import (
    CHIEF,
    SERVER,
    WORKER,
    are_in,
    listener,
    tf_config,
    watch,
)

PORT = 28_514


def test_tf_config_of_two_hosts():
    cluster = {
        "chief": ["10.0.0.4:28514"],
        "worker": ["10.0.0.5:28514"],
        "ps": ["10.0.0.4:28515", "10.0.0.5:28515"],
    }

    def told(kind, index):
        return {"cluster": cluster, "environment": "cloud", "task": {"type": kind, "index": index}}

    hosts = ["10.0.0.4", "10.0.0.5"]
    assert tf_config(hosts, PORT, "10.0.0.4") == told("chief", 0)
    assert tf_config(hosts, PORT, "10.0.0.5") == told("worker", 0)
    assert tf_config(hosts, PORT, "10.0.0.4", ps=True) == told("ps", 0)
    assert tf_config(hosts, PORT, "10.0.0.5", ps=True) == told("ps", 1)


def test_tf_config_of_many_hosts():
    hosts = [f"10.0.{number // 256}.{number % 256}" for number in range(300)]
    config = tf_config(hosts, PORT, "10.0.1.2")
    assert config["task"] == {"type": "worker", "index": 257}
    assert config["cluster"]["worker"][257] == "10.0.1.2:28514"
    assert [len(config["cluster"][kind]) for kind in ("chief", "worker", "ps")] == [1, 299, 300]
    assert tf_config(hosts, PORT, "10.0.1.2", ps=True)["task"] == {"type": "ps", "index": 258}


def test_one_host_has_none():
    hosts = [{"address": "10.0.0.4"}, {"address": "10.0.0.5"}]
    assert are_in("parameter_server", hosts)
    assert not are_in("parameter_server", hosts[:1])
    assert not are_in("mpi", hosts)


def test_a_port_that_is_taken_is_named():
    with listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=rf"port {port}: Address already in use; a job that is "):
            listener("", port)


@contextlib.contextmanager
def node(**lines):
    """Return a node with processes by role. `_` in a role stands for a blank."""
    roles = {role.replace("_", " "): line for role, line in lines.items()}
    processes = {role: subprocess.Popen(["sh", "-c", line]) for role, line in roles.items()}
    try:
        yield processes
    finally:
        for process in processes.values():
            process.kill()
            process.wait()


STAYS = "exec sleep 600"


def test_a_node_is_done_when_its_chief_is():
    with node(chief="exit 0", parameter_server=STAYS) as processes:
        assert watch(processes, []) == 0


def test_a_worker_waits_for_the_chief_done_or_not(capfd):
    for line in ("exit 0", STAYS):
        ours, chiefs = socket.socketpair()
        with ours, chiefs, node(worker=line, parameter_server=STAYS) as processes:
            waiting = processes[SERVER]
            if line != STAYS:
                processes[WORKER].wait()
            # The chief's end of the connection ends the worker. Another process closes it.
            closer = subprocess.Popen(["sleep", "0.5"], pass_fds=[chiefs.fileno()])
            chiefs.close()
            assert watch(processes, [ours]) == 0
            assert closer.wait() == 0
            assert waiting.poll() is None
    assert capfd.readouterr().err == ""


def test_a_connection_with_a_high_number_is_watched():
    """select() does not support descriptors above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(2048, hard), hard))
    ours, chiefs = socket.socketpair()
    try:
        with ours, node(worker=STAYS) as processes:
            high = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD_CLOEXEC, 1030))
            chiefs.close()
            with high:
                assert watch(processes, [high]) == 0
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("role", "line", "status", "said"),
    [
        (CHIEF, "exit 3", 3, "the chief ended with exit status 3"),
        (WORKER, "kill -9 $$", 137, "the worker was killed by signal 9 (Killed)"),
        (SERVER, "kill -TERM $$", 143, "the parameter server was killed by signal 15 (Terminated)"),
        (SERVER, "exit 0", 1, "the parameter server ended with exit status 0"),
    ],
)
def test_one_that_fails_is_named(capfd, role, line, status, said):
    ours, chiefs = socket.socketpair()
    lines = {"worker": STAYS, "parameter_server": STAYS, role.replace(" ", "_"): line}
    with ours, chiefs, node(**lines) as processes:
        assert watch(processes, [ours]) == status
    assert capfd.readouterr().err == f"clusterctl: {socket.gethostname()}: {said}\n"


def test_a_worker_that_fails_once_the_chief_is_done_is_no_failure(capfd):
    ours, chiefs = socket.socketpair()
    with ours, node(worker="exit 1", parameter_server=STAYS) as processes:
        processes[WORKER].wait()
        chiefs.close()
        assert watch(processes, [ours]) == 0
    assert capfd.readouterr().err == ""
