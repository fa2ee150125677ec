"""Runs the script of the training environment on nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.bootstrap.training import (
    EnvRequest,
    NodeEnv,
    failed,
    parse_environment,
    training_script,
)
from clusterctl.domain.results import CommandResult, FanoutResult
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

INSPECT_TIMEOUT_S = 120.0
# On a slow machine: a download of 3 GB, and the build of Horovod.
STEP_TIMEOUT_S = 3600.0

Report = Callable[[str], None]


def inspect(
    connections: Connections, targets: Sequence[Target], request: EnvRequest
) -> FanoutResult[NodeEnv]:
    """Return the environment that each node has."""

    def one(target: Target) -> NodeEnv:
        return parse_environment(
            connections.run(
                target,
                request.command("inspect"),
                stdin=training_script(),
                timeout_s=INSPECT_TIMEOUT_S,
            )
        )

    return fan_out(one, targets)


def run_step(
    connections: Connections,
    targets: Sequence[Target],
    command: Callable[[Target], str],
    report: Report,
) -> FanoutResult[CommandResult]:
    """Run a step of the script on nodes, and pass on its progress through `report`, line by line.

    On KeyboardInterrupt the step is stopped on the nodes.
    """

    def one(target: Target) -> CommandResult:
        output = _Output(target.host, report)
        result = connections.run(
            target,
            command(target),
            stdin=training_script(),
            timeout_s=STEP_TIMEOUT_S,
            sink=output.take,
        )
        if not result.ok:
            raise failed(result, output.stderr.decode(errors="replace"))
        return result

    try:
        return fan_out(one, targets)
    except KeyboardInterrupt:
        connections.interrupt()
        raise


class _Output:
    """The script's output on one host: stdout goes to `report` line by line, stderr is kept."""

    def __init__(self, host: str, report: Report) -> None:
        self._host, self._report = host, report
        self._rest = b""
        self.stderr = b""

    def take(self, stream: str, chunk: bytes) -> None:
        """Take a piece of the output."""
        if stream == "stderr":
            self.stderr += chunk
            return
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._report(f"{self._host}: {line.decode(errors='replace')}")
