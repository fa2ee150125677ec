"""Runs on every node of a script-mode job with TensorFlow's parameter servers: starts the program,
as the chief on the first node and as a worker on the others, and a parameter server next to it.

Servers never end by themselves, nor do the workers of TensorFlow 2 (tf.distribute.Server.join). The
chief's node closes its connections to the other nodes when its program has ended, and they then
stop theirs. A failed process ends the job, too: mpirun then stops the other nodes, and no process
outlives the one that started it.

The contract (contract.py) has `port`, the first of three: for the program, for the server, and for
the connections to the chief's node.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from functools import partial

from clusterctl.node.death_signal import die_with

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence, Sized
    from typing import Any, Dict, NoReturn

    Processes = Dict[str, "subprocess.Popen[bytes]"]

CHIEF, WORKER, SERVER = "chief", "worker", "parameter server"
RANK = "OMPI_COMM_WORLD_RANK"
# The same program as in SageMaker's toolkit for TensorFlow. It runs without a GPU.
SERVE = """\
import tensorflow as tf
here = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.distribute.Server(here.cluster_spec(), "ps", here.task_id, protocol="grpc").join()
"""
# Timeout until all nodes have connected. They may first install their requirements.txt.
MEET_S = 600.0
TERM_GRACE_S = 5.0
POLL_S = 0.1


def are_in(distribution: str, hosts: Sized) -> bool:
    """Return whether a job has parameter servers. As in SageMaker, there are none on one host."""
    return distribution == "parameter_server" and len(hosts) > 1


def tf_config(
    addresses: Sequence[str], port: int, address: str, ps: bool = False
) -> dict[str, Any]:
    """Return TF_CONFIG of a node's program or, with `ps`, of its server.

    It is that of SageMaker's toolkit, but with `chief` for `master`, which TensorFlow 2 refuses.
    """
    index = addresses.index(address)
    kind = "ps" if ps else "worker" if index else "chief"
    return {
        "cluster": {
            "chief": [f"{addresses[0]}:{port}"],
            "worker": [f"{one}:{port}" for one in addresses[1:]],
            "ps": [f"{one}:{port + 1}" for one in addresses],
        },
        "environment": "cloud",
        "task": {"type": kind, "index": index - (kind == "worker")},
    }


def exec_watcher(python: str, argv: list[str]) -> NoReturn:
    """Replace this process by one that calls `run` for the program `argv`. It gets no rank
    variable: the rank is the program, not the process that watches it."""
    environ = {name: value for name, value in os.environ.items() if name != RANK}
    os.execve(sys.executable, [sys.executable, sys.argv[0], python, *argv], environ)


def run(contract: dict[str, Any], address: str, python: str, argv: list[str]) -> int:
    """Run a node's program and server until the job ends. Return the exit status of this node."""
    # sys.exit so that the processes are stopped below.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    if os.getpgrp() != os.getpid():  # `end` stops the whole process group
        os.setpgid(0, 0)
    addresses, port = [host["address"] for host in contract["hosts"]], contract["port"]
    rank = addresses.index(address)
    processes: Processes = {}
    connections: list[socket.socket] = []
    try:
        for one in (port, port + 1):
            listener("", one).close()  # is it free on all addresses, as TensorFlow needs it?
        connections = meet(addresses, port + 2, rank)
        for role, words, more in (
            (SERVER, [python, "-c", SERVE], {"CUDA_VISIBLE_DEVICES": "-1"}),
            (WORKER if rank else CHIEF, argv, {RANK: str(rank)}),
        ):
            config = tf_config(addresses, port, address, role == SERVER)
            environ = {**os.environ, **more, "TF_CONFIG": json.dumps(config)}
            die = partial(die_with, os.getpid())
            processes[role] = subprocess.Popen(words, env=environ, preexec_fn=die)  # noqa: PLW1509
        return watch(processes, connections if rank else [])
    except OSError as error:
        return say(str(error))
    finally:
        # Before the server is stopped: the other nodes see the job's end before their workers fail
        # for lack of this server.
        for connection in connections:
            connection.close()
        end(processes)


def say(what: str, status: int = 1) -> int:
    """Print one line with the host's name to stderr. Return `status`."""
    os.write(2, f"clusterctl: {socket.gethostname()}: {what}\n".encode(errors="replace"))
    return status


def listener(address: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError with a message if the port is taken."""
    listens = socket.socket()
    listens.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listens.bind((address, port))
    except OSError as error:
        listens.close()
        raise OSError(
            f"port {port}: {error.strerror}; a job that is started again has others"
        ) from None
    listens.listen()
    return listens


def meet(addresses: Sequence[str], port: int, rank: int) -> list[socket.socket]:
    """Wait for all nodes. Return the connections: on the chief's node to all others, on another
    node to the chief's. Raises OSError."""
    deadline = time.monotonic() + MEET_S
    if rank:
        while True:
            try:
                return [socket.create_connection((addresses[0], port), 10.0, (addresses[rank], 0))]
            except OSError as error:
                if time.monotonic() > deadline:
                    where = f"port {port} of {addresses[0]}, where the chief is"
                    raise OSError(f"cannot reach {where}: {error}") from None
            time.sleep(POLL_S)
    there: dict[str, socket.socket] = {}
    with listener(addresses[0], port) as listens:
        while set(addresses[1:]) - set(there):
            listens.settimeout(max(0.0, deadline - time.monotonic()))
            try:
                connection, (address, _) = listens.accept()
            except OSError:  # a timeout
                missing = ", ".join(sorted(set(addresses[1:]) - set(there)))
                raise OSError(f"{missing} did not reach port {port} of {addresses[0]}") from None
            there[address] = connection
    return list(there.values())


def watch(processes: Processes, chief: list[socket.socket]) -> int:
    """Wait until the job ends. Return the exit status of this node. `chief`: the connection to the
    chief's node; empty on that node itself."""
    # select() cannot take descriptors above 1023.
    poller = select.poll()
    for connection in chief:
        poller.register(connection, select.POLLIN)
    while True:
        ended = {role: one.poll() for role, one in processes.items()}
        # Nothing is ever sent, so any event means that the connection was closed.
        if poller.poll(0):
            return 0
        for role, status in ended.items():
            if status == 0 and role == CHIEF:
                return 0
            if status == 0 and role == WORKER:
                del processes[role]  # a worker may end before the chief
            elif status is not None:
                return say(f"the {role} {how_it_ended(status)}", exit_status(status))
        time.sleep(POLL_S)


def exit_status(status: int) -> int:
    """Return the status as a shell shows it. 0 becomes 1: a server must not end by itself."""
    return 128 - status if status < 0 else status or 1


def how_it_ended(status: int) -> str:
    """Return the end of a process in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was killed by signal {-status} ({signal.strsignal(-status)})"


def end(processes: Processes) -> None:
    """Stop the started processes and their descendants."""
    # This process is in the group, too.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    deadline = time.monotonic() + TERM_GRACE_S
    for process in processes.values():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        process.kill()
        process.wait()
