"""Runs the script of the training environment on nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.bootstrap.training import (
    EnvRequest,
    NodeEnv,
    failed,
    parse_look,
    training_script,
)
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

LOOK_TIMEOUT_S = 120.0
# On a slow machine: a download of 3 GB, and the build of Horovod.
STEP_TIMEOUT_S = 3600.0

Tell = Callable[[str], None]


def look(
    connections: Connections, targets: Sequence[Target], request: EnvRequest
) -> FanoutResult[NodeEnv]:
    """Return the environment that each node has."""

    def one(target: Target) -> NodeEnv:
        return parse_look(
            connections.run(
                target,
                request.command("look"),
                stdin=training_script(),
                timeout_s=LOOK_TIMEOUT_S,
            )
        )

    return fan_out(one, targets)


def run_step(
    connections: Connections,
    targets: Sequence[Target],
    command: Callable[[Target], str],
    tell: Tell,
) -> FanoutResult[CommandResult]:
    """Run a step of the script on nodes, and pass on its progress through `tell`, line by line.

    On KeyboardInterrupt the step is stopped on the nodes.
    """

    def one(target: Target) -> CommandResult:
        said = _Said(target.host, tell)
        result = connections.run(
            target,
            command(target),
            stdin=training_script(),
            timeout_s=STEP_TIMEOUT_S,
            sink=said.take,
        )
        if not result.ok:
            raise failed(result, said.stderr.decode(errors="replace"))
        return result

    try:
        return fan_out(one, targets)
    except KeyboardInterrupt:
        connections.interrupt()
        raise


class _Said:
    """The script's output on one host: stdout goes to `tell` line by line, stderr is kept."""

    def __init__(self, host: str, tell: Tell) -> None:
        self._host, self._tell = host, tell
        self._rest = b""
        self.stderr = b""

    def take(self, stream: str, chunk: bytes) -> None:
        """Take a piece of the output."""
        if stream == "stderr":
            self.stderr += chunk
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._tell(f"{self._host}: {line.decode(errors='replace')}")
