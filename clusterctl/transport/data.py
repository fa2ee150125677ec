"""Commands whose standard output is data, of any length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterctl.domain.results import CommandResult
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target


def read_data(
    connections: Connections,
    target: Target,
    command: str,
    take: Callable[[bytes], object],
    *,
    stdin: bytes = b"",
    timeout_s: float | None = None,
) -> CommandResult:
    """Run one command on one host, and pass its stdout to `take`.

    The result has the command's status and stderr; its stdout is empty. Raise HostError, and the
    OSError of `take`.
    """
    errors = bytearray()

    def sink(stream: str, chunk: bytes) -> None:
        (errors.extend if stream == "stderr" else take)(chunk)

    result = connections.run(target, command, stdin=stdin, timeout_s=timeout_s, sink=sink)
    return replace(result, stdout="", stderr=errors.decode(errors="replace"))
