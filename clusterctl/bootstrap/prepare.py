"""Make nodes part of their cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from clusterctl.bootstrap.script import node_script
from clusterctl.bootstrap.trust import Member
from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

TIMEOUT_S = 60.0


def prepare(
    connections: Connections,
    targets: Sequence[Target],
    members: Sequence[Member],
    mpi_public_key: str,
    on_outcome: Callable[[HostOutcome[CommandResult]], None] | None = None,
) -> FanoutResult[CommandResult]:
    """Run each node's script on it, in one round trip. `targets` and `members`: head first."""
    head = targets[0]
    scripts = {
        is_head: node_script(members, mpi_public_key, head.user, is_head).encode()
        for is_head in (True, False)
    }

    def one(target: Target) -> CommandResult:
        result = connections.run(
            target, "sh -s", timeout_s=TIMEOUT_S, stdin=scripts[target is head]
        )
        if not result.ok or not result.stdout.endswith("complete\n"):
            reason = result.stderr.strip() or f"exit status {result.exit_status}"
            raise CommandFailed(
                target.host,
                f"could not be prepared: {reason}",
                "is its disk full? run `up` again once it is mended",
            )
        return result

    return fan_out(one, targets, on_outcome=on_outcome)
