"""The logs of a sync on many nodes, as they grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from clusterctl.copy.s3sync import TIMEOUT_S, LogPart, SyncRecord, parse_log, program
from clusterctl.diagnostics.program import read_each
from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

BETWEEN_LOOKS_S = 1.0
MOST_FAILURES = 20


def follow_sync(
    connections: Connections,
    targets: Sequence[Target],
    sync_id: str,
    sink: Callable[[str, bytes], None],
) -> FanoutResult[SyncRecord]:
    """Pass on what comes to the logs, until it has ended on all nodes.

    A node that does not answer is asked again; after MOST_FAILURES in a row that is its outcome.
    """
    follower = _Follower(connections, targets, sync_id, sink)
    while follower.look():
        time.sleep(BETWEEN_LOOKS_S)
    return follower.result


class _Follower:
    """How far each node's log has been shown."""

    def __init__(
        self,
        connections: Connections,
        targets: Sequence[Target],
        sync_id: str,
        sink: Callable[[str, bytes], None],
    ) -> None:
        self._connections, self._targets = connections, list(targets)
        self._sync_id, self._sink = sync_id, sink
        self._at = {target.host: 0 for target in targets}
        self._failures = {target.host: 0 for target in targets}
        self._known: dict[str, SyncRecord] = {}
        self._over: dict[str, ClusterctlError | None] = {}

    @property
    def result(self) -> FanoutResult[SyncRecord]:
        return FanoutResult(
            tuple(
                HostOutcome(host, None if error else self._known.get(host), error)
                for host, error in ((t.host, self._over.get(t.host)) for t in self._targets)
            )
        )

    def look(self) -> bool:
        """Show what is new; whether it goes on anywhere."""
        left = [target for target in self._targets if target.host not in self._over]
        if not left:
            return False
        result = self._connections.run_all(
            left,
            lambda target: program().command("log", self._sync_id, str(self._at[target.host])),
            stdin=program().stdin(),
            timeout_s=TIMEOUT_S,
        )
        for target, outcome in zip(left, read_each(result, _part).outcomes):
            if outcome.value is not None:
                self._take(outcome.value)
            elif outcome.error is not None:
                self._fail(target, outcome.error)
        return True

    def _take(self, part: LogPart) -> None:
        host = part.record.host
        self._known[host], self._at[host], self._failures[host] = part.record, part.at, 0
        if part.text:
            self._sink(host, part.text)
        if not part.record.running and not part.more:
            self._over[host] = None

    def _fail(self, target: Target, error: ClusterctlError) -> None:
        self._failures[target.host] += 1
        if isinstance(error, CommandFailed) or self._failures[target.host] >= MOST_FAILURES:
            self._over[target.host] = error
        else:
            self._connections.forget(target)


def _part(result: CommandResult) -> LogPart:
    part = parse_log(result)
    if part is None:
        raise CommandFailed(result.host, "there is no such sync on it", "see --status")
    return part
