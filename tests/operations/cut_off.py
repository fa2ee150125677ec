"""Run `up` or `down` and end it at one event of one API call. As a program: by SIGKILL."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2 import launch as launch_module
from clusterctl.operations import up as up_module
from clusterctl.operations.down import down
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.launcher import Launcher
from tests.moto_ec2 import client_of, clients_with

NAME = "demo"
SPEC = ClusterSpec(NAME, 3, "p4d.24xlarge")


def launch(client, folder: ClusterFolder, spec: ClusterSpec = SPEC) -> None:
    """All of `up` that talks to EC2, but for waiting."""
    with up_module.locked(folder):
        up_module.launch(Launcher(clients_with(client), folder), spec)


def remove(client, folder: ClusterFolder) -> None:
    down(clients_with(client), NAME, folder)


class CutOff:
    """Counts the calls of a client; ends the program `when` (before, after) call `number`."""

    def __init__(self, number: int = -1, when: str = "", end: Callable[[], None] = int) -> None:
        self.calls: list[str] = []
        self._at = (number, when)
        self._end = end

    def watch(self, client):
        """The client, watched. Use it for RunInstances as well."""
        client.meta.events.register("before-call.ec2", self._before)
        client.meta.events.register("after-call.ec2", self._after)
        return client

    def leave(self, client) -> None:
        """Stop watching."""
        client.meta.events.unregister("before-call.ec2", self._before)
        client.meta.events.unregister("after-call.ec2", self._after)

    def _before(self, model, **_) -> None:
        self.calls.append(model.name)
        self._event("before")

    def _after(self, model, **_) -> None:
        self._event("after")

    def _event(self, when: str) -> None:
        if (len(self.calls) - 1, when) == self._at:
            self._end()


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    action, url, folder, number, when = sys.argv[1:]
    cut_off = CutOff(int(number), when, kill)
    client = cut_off.watch(client_of(url))
    launch_module.without_retries = lambda watched: watched
    {"up": launch, "down": remove}[action](client, ClusterFolder(Path(folder)))


if __name__ == "__main__":
    main()
