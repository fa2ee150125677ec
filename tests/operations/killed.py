"""Runs a command in a child for each line of its input, and kills it at one call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.session import without_retries
from clusterctl.operations.launcher import Launcher
from tests.operations.commands import COMMANDS, SHORT, shorten_timeouts
from tests.operations.wire import ApiCall, Mode, wired


class Killer:
    """The program, as seen by tests."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(self, command: str, folder: Path, call: ApiCall, mode: Mode) -> int:
        """Return the signal that ended the command, or 0 if it finished."""
        asked = json.dumps([command, str(folder), call, mode.name])
        assert self._process.stdin
        assert self._process.stdout
        print(asked, file=self._process.stdin, flush=True)
        return os.WTERMSIG(int(self._process.stdout.readline()))


@contextmanager
def killer(endpoint_url: str) -> Iterator[Killer]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.operations.killed", endpoint_url],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Killer(process)


def main() -> None:
    shorten_timeouts()
    clients = wired(sys.argv[1])
    # Clients are made here, but used in children only, which have their own connections.
    without_retries(clients.ec2)
    for _ in (clients.ssm, clients.quotas, clients.sts, clients.iam, clients.pricing("us-east-1")):
        pass
    for line in sys.stdin:
        command, folder, call, mode = json.loads(line)
        child = os.fork()
        if not child:
            try:
                clients.wire.break_at(ApiCall(*call), Mode[mode])
                COMMANDS[command].act(
                    Launcher(clients, ClusterFolder(Path(folder)), timeouts=SHORT)
                )
            finally:
                os._exit(0)
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
