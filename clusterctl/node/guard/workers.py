"""How the head node's guard reaches the workers: SSH with mpirun's key."""

from __future__ import annotations

import json
import pwd
import shlex
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from clusterctl.node.guard.activity import NodeActivity, parse_activity
from clusterctl.node.guard.clock import GuardFiles, object_in, parsed
from clusterctl.node.guard.commands import StartedProgram
from clusterctl.node.guard.settings import GuardSettings, Worker

_one_question = threading.Lock()
# The guard on every node.
PROGRAM = "/usr/local/lib/clusterctl/guard"
# SSH connections in parallel, and the timeout of each.
AT_ONCE = 16
TIMEOUT_S = 45.0
MARK = "clusterctl-answers"
# EC2 gives two minutes' notice.
NOTICE_TIMEOUT_S = 15.0
OPTIONS = (
    *("IdentitiesOnly=yes", "BatchMode=yes", "StrictHostKeyChecking=yes", "LogLevel=ERROR"),
    *("GlobalKnownHostsFile=/dev/null", "ConnectTimeout=10"),
    *("ServerAliveInterval=5", "ServerAliveCountMax=3"),
)


def ssh_argv(home: str, user: str, worker: Worker, far: str) -> list[str]:
    """Return the command line that runs a command on a worker. The guard is root and uses the key
    and the known hosts of the login user."""
    known = f'UserKnownHostsFile="{home}/.ssh/clusterctl_known_hosts"'
    options = [word for option in (known, *OPTIONS) for word in ("-o", option)]
    key = f"{home}/.ssh/clusterctl_mpi"
    return ["ssh", "-F", "/dev/null", "-i", key, *options, f"{user}@{worker.address}", far]


def ask(
    settings: GuardSettings, workers: Sequence[Worker]
) -> Iterator[tuple[Worker, NodeActivity | str]]:
    """Yield for each worker its activity, or the reason why there is none."""
    for worker, status, output in _on_each(settings, workers, _guard("poll")):
        try:
            if status:
                raise ValueError((output.strip().splitlines() or [f"exit status {status}"])[-1])
            yield worker, parse_activity(object_in(output.strip().splitlines()[-1]))
        except (ValueError, IndexError) as wrong:
            yield worker, f"does not answer: {str(wrong)[:200]}"


def power_off(settings: GuardSettings, workers: Sequence[Worker], why: str) -> list[Worker]:
    """Switch the workers off. Return those that were not reached. The exit status of ssh does not
    count: a worker may be off before ssh has ended."""
    answers = _on_each(settings, workers, _guard("off", why))
    return [worker for worker, _, output in answers if not output.startswith("off\n")]


def notices(settings: GuardSettings, workers: Sequence[Worker]) -> Iterator[dict[str, Any]]:
    """Yield each worker's notice that EC2 takes it back. Workers that do not answer have none."""
    # Without Python there, because that would take much of a worker's time every few seconds.
    read = f"cat {GuardFiles().spot} 2>/dev/null || :"
    for worker, _, output in _on_each(settings, workers, read, NOTICE_TIMEOUT_S):
        for found in map(parsed, output.split("\n")):
            is_taken = isinstance(found, dict) and found.get("action") != "rebalance"
            if is_taken and found.get("node") == worker.name:
                yield {key: found.get(key) for key in ("action", "time", "node")}


def pass_on(settings: GuardSettings, workers: Sequence[Worker], notice: dict[str, Any]) -> None:
    """Inform the workers that EC2 takes a node of the cluster back."""
    for _ in _on_each(settings, workers, _guard("taken", json.dumps(notice)), NOTICE_TIMEOUT_S):
        pass


def _guard(*command: str) -> str:
    """Return the shell command that runs the guard's program."""
    return shlex.join(["sudo", "-n", "python3", "-IS", PROGRAM, *command])


def _on_each(
    settings: GuardSettings, workers: Sequence[Worker], far: str, timeout_s: float = TIMEOUT_S
) -> Iterator[tuple[Worker, int, str]]:
    home = _home(settings.user)
    # The login shell may print something before.
    far = f"echo; echo {MARK}; {far}"
    for start in range(0, len(workers), AT_ONCE):
        answers = []
        # The login of one question would be a user's login to the other, and so no idleness.
        with _one_question:
            wave = [
                (worker, StartedProgram(ssh_argv(home, settings.user, worker, far), timeout_s))
                for worker in workers[start : start + AT_ONCE]
            ]
            for worker, running in wave:
                try:
                    status, output = running.end()
                    before, marker, own = output.partition(f"\n{MARK}\n")
                    ran = (status, own) if marker else (status or 1, before)
                    answers.append((worker, *ran))
                except TimeoutError as silent:
                    answers.append((worker, 255, str(silent)))
        yield from answers


def _home(user: str) -> str:
    try:
        return pwd.getpwnam(user).pw_dir
    except KeyError:
        raise OSError(f"there is no user {user!r} on this node") from None
