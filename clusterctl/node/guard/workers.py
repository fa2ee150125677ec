"""How the head node's guard reaches the workers: SSH with mpirun's key."""

from __future__ import annotations

import json
import pwd
import shlex
from collections.abc import Iterator, Sequence

from clusterctl.node.guard.commands import StartedProgram
from clusterctl.node.guard.look import NodeActivity, parse_activity
from clusterctl.node.guard.settings import GuardSettings, Worker

# The guard on every node.
PROGRAM = "/usr/local/lib/clusterctl/guard"
# SSH connections in parallel, and the timeout of each.
AT_ONCE = 16
TIMEOUT_S = 45.0
OPTIONS = (
    *("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=yes", "LogLevel=ERROR"),
    *("GlobalKnownHostsFile=/dev/null", "ConnectTimeout=10"),
    *("ServerAliveInterval=5", "ServerAliveCountMax=3"),
)


def ssh_argv(home: str, user: str, worker: Worker, *command: str) -> list[str]:
    """Return the command line that runs the guard's program on a worker. The guard is root and uses
    the key and the known hosts of the login user."""
    known = f'UserKnownHostsFile="{home}/.ssh/clusterctl_known_hosts"'
    options = [word for option in (known, *OPTIONS) for word in ("-o", option)]
    far = shlex.join(["sudo", "-n", "python3", "-IS", PROGRAM, *command])
    key = f"{home}/.ssh/clusterctl_mpi"
    return ["ssh", "-F", "/dev/null", "-i", key, *options, f"{user}@{worker.address}", far]


def ask(
    settings: GuardSettings, workers: Sequence[Worker]
) -> Iterator[tuple[Worker, NodeActivity | str]]:
    """Yield for each worker its activity, or the reason why there is none."""
    for worker, status, said in _on_each(settings, workers, "look"):
        try:
            if status:
                raise ValueError((said.strip().splitlines() or [f"exit status {status}"])[-1])
            yield worker, parse_activity(json.loads(said.strip().splitlines()[-1]))
        except (ValueError, IndexError) as wrong:
            yield worker, f"does not answer: {str(wrong)[:200]}"


def power_off(settings: GuardSettings, workers: Sequence[Worker], why: str) -> list[Worker]:
    """Switch the workers off. Return those that were not reached. The exit status of ssh does not
    count: a worker may be off before ssh has ended."""
    answers = _on_each(settings, workers, "off", why)
    return [worker for worker, _, said in answers if not said.startswith("off\n")]


def _on_each(
    settings: GuardSettings, workers: Sequence[Worker], *command: str
) -> Iterator[tuple[Worker, int, str]]:
    home = _home(settings.user)
    for start in range(0, len(workers), AT_ONCE):
        wave = [
            (worker, StartedProgram(ssh_argv(home, settings.user, worker, *command), TIMEOUT_S))
            for worker in workers[start : start + AT_ONCE]
        ]
        for worker, running in wave:
            try:
                status, said = running.end()
            except TimeoutError as silent:
                status, said = 255, str(silent)
            yield worker, status, said


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        raise OSError(f"there is no user {user!r} on this node") from None
