"""Commands whose standard output is data.

sshd runs a command through the user's login shell, and bash reads ~/.bashrc for it. What that file
prints comes before the command's own output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from clusterctl.domain.results import CommandResult
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

# The line printed right before a command's own output.
MARK = "clusterctl-data-begins-here"


def read_data(
    connections: Connections,
    target: Target,
    command: str,
    take: Callable[[bytes], object],
    *,
    stdin: bytes = b"",
    timeout_s: float | None = None,
) -> CommandResult:
    """Run one command on one host, and pass its stdout, without a greeting before it, to `take`.

    The result has the command's status and stderr; its stdout is empty. Raise HostError, and the
    OSError of `take`.
    """
    begin, head, errors = f"{MARK}\n".encode(), bytearray(), bytearray()
    began = False

    def sink(stream: str, chunk: bytes) -> None:
        nonlocal began
        if stream == "stderr":
            errors.extend(chunk)
        elif began:
            take(chunk)
        else:
            head.extend(chunk)
            _, mark, data = bytes(head).partition(begin)
            if mark:
                began = True
                if data:
                    take(data)

    result = connections.run(
        target, f"echo {MARK}; {command}", stdin=stdin, timeout_s=timeout_s, sink=sink
    )
    return replace(result, stdout="", stderr=errors.decode(errors="replace"))
