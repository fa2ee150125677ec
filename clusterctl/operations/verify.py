"""Verify that all nodes have the same files at a path."""

from __future__ import annotations

import base64
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from clusterctl.copy.failures import died, failure_of
from clusterctl.copy.session import Ended, RelayGroup
from clusterctl.copy.verify import Discrepancy, Findings, HostGroup, Kind, compare, group_by_digest
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    HostError,
    NotFound,
    check_home,
)
from clusterctl.domain.results import HostOutcome, status_of
from clusterctl.node.record import from_json
from clusterctl.node.relay.manifest import BadManifest, Entry, read
from clusterctl.node.relay.messages import Event, Failed, GetPiece, Piece, Progress, VerifiedTree
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target

# Called with a host and its progress: the files and bytes it has read, and its seconds (`wall`).
Watch = Callable[[str, Progress], None]


@dataclass(frozen=True)
class Depth:
    """What is compared in addition to names, kinds, sizes, modes and links: the SHA-256 of each
    file (`content`), the modification time of each file (`mtime`)."""

    content: bool = False
    mtime: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """The result of a comparison. Hosts with identical files form a group; the other groups are
    compared with the first one.

    `findings_left_out` counts the findings beyond those that were kept. `failures` are the hosts
    that did not answer.
    """

    path: str
    groups: tuple[HostGroup, ...]
    findings: tuple[Discrepancy, ...]
    findings_left_out: int = 0
    failures: tuple[HostOutcome[VerifiedTree], ...] = ()
    compared: Depth = Depth()  # noqa: RUF009
    json_names = (
        *("path", "same", "compared", "groups", "findings", "findings_left_out", "failures"),
    )

    @property
    def same(self) -> bool:
        """Whether all hosts answered and have the same."""
        return not self.findings and not self.findings_left_out and not self.failures

    @property
    def exit_status(self) -> int:
        """255 if a host did not answer, 1 if there is any finding, else 0."""
        return status_of(self.failures, bool(self.findings or self.findings_left_out))


def verify(
    connections: Connections,
    targets: Sequence[Target],
    path: str,
    depth: Depth = Depth(),  # noqa: B008
    *,
    watch: Watch = lambda host, progress: None,
    timeout_s: float | None = None,
) -> VerifyReport:
    """Compare the files that these nodes have at `path`. Raise NotFound if none has anything
    there. After `timeout_s` seconds, hosts that have not answered fail."""
    check_home(path)
    hosts = [target.host for target in targets]
    findings = Findings()
    with _Relays(connections, targets, {"path": path, **asdict(depth)}, watch, timeout_s) as relays:
        totals = relays.totals()
        if relays.absent and len(relays.absent) == len(hosts):
            raise NotFound(
                f"no host has anything at {path!r}", "name a file or folder of the hosts"
            )
        for host in relays.absent:
            findings.add(Kind.MISSING, "", "there is nothing at the path", (host,))
        for host, total in totals.items():
            _add_problems(relays, host, total.problems, findings)
        groups = group_by_digest(totals)
        for group in groups[1:]:
            _add_differences(relays, groups[0], group, findings)
    failed = [host for host in hosts if host in relays.failures]
    failures = tuple(HostOutcome[VerifiedTree](h, error=relays.failures[h]) for h in failed)
    return VerifyReport(path, groups, findings.in_order(hosts), findings.more, failures, depth)


def errors_of(report: VerifyReport) -> dict[str, ClusterctlError]:
    """Return an error per host for a copy that was verified: the host's first finding, or why it
    did not answer."""
    errors: dict[str, ClusterctlError] = {
        one.host: one.error for one in report.failures if one.error
    }
    for finding in report.findings:
        for host in finding.hosts:
            text = f"differs from {report.groups[0].hosts[0]}: {finding.path}: {finding.message}"
            errors.setdefault(host, CommandFailed(host, text, "copy again with --checksum"))
    return errors


def _add_problems(relays: _Relays, host: str, problems: int, findings: Findings) -> None:
    """Add a finding for each of the `problems` files that the host could not read."""
    if not problems:
        return
    try:
        text = zlib.decompress(b"".join(relays.blob(host, "problems")))
        result = from_json(tuple[tuple[str, Kind, str], ...], text)
    except (ClusterctlError, ValueError, zlib.error) as error:
        relays.fail(host, error)
        return
    for path, kind, reason in result:
        findings.add(kind, path, reason, (host,))
    findings.more += problems - len(result)


def _add_differences(
    relays: _Relays, right: HostGroup, other: HostGroup, findings: Findings
) -> None:
    """Add the differences between two groups, from the manifests of their first hosts."""
    hosts = (right.hosts[0], other.hosts[0])
    try:
        for kind, path, message in compare(*map(relays.entries, hosts)):
            findings.add(kind, path, message, other.hosts)
    except ClusterctlError:  # relays.failures has it
        findings.add(Kind.UNKNOWN, "", f"has something else than {hosts[0]}", other.hosts)


class _Relays(RelayGroup[ClusterctlError]):
    """The relays that scan the path, one per node. `absent` are the hosts with nothing there."""

    def __init__(
        self,
        connections: Connections,
        targets: Sequence[Target],
        config: Mapping[str, Any],
        watch: Watch,
        timeout_s: float | None,
    ) -> None:
        super().__init__(
            connections, targets, {"role": "verify", "later": True, "secret": "", **config}
        )
        self.absent: list[str] = []
        self._ended: dict[str, ClusterctlError] = {}
        self._watch = watch
        self._began = time.monotonic()
        self._timeout_s = timeout_s
        self._waiting = set(self._relays)

    def totals(self) -> dict[str, VerifiedTree]:
        """Wait until all nodes have answered or failed; return the totals of those that answered,
        in the given order."""
        totals: dict[str, VerifiedTree] = {}
        while self._waiting:
            for host, result in self._turn():
                if isinstance(result, VerifiedTree):
                    self._waiting.discard(host)
                    totals[host] = result
        return {host: totals[host] for host in self._relays if host in totals}

    def entries(self, host: str) -> Iterator[Entry]:
        """Yield the host's manifest. Raise the host's error if it is incomplete, so that entries
        that did not arrive do not count as missing files."""
        try:
            yield from read(self.blob(host, "manifest"))
        except BadManifest as error:
            raise self.fail(host, error) from None

    def blob(self, host: str, name: str) -> Iterator[bytes]:
        """Yield the host's `manifest` or `problems`, piece by piece. Raise the host's error."""
        at = 0
        while piece := self._piece(host, GetPiece(name, at)):
            at += len(piece)
            yield piece

    def _piece(self, host: str, order: GetPiece) -> bytes:
        self._waiting.add(host)
        self._relays[host].give(order)
        while host not in self.failures:
            for _, result in self._turn():
                if isinstance(result, Piece):
                    self._waiting.discard(host)
                    return base64.b64decode(result.data)
        raise self.failures[host]

    def fail(self, host: str, error: Exception) -> ClusterctlError:
        """Stop the host's relay and return the host's error: the first one that was recorded."""
        if not isinstance(error, ClusterctlError):
            error = HostError(host, f"its answer cannot be read: {error}")
        self._waiting.discard(host)
        return super().fail(host, error)

    def _turn(self) -> list[tuple[str, Event]]:
        """Process the next events, and return the answers of hosts whose answer is awaited."""
        found: list[tuple[str, Event]] = []
        for host, updates in self.updates():
            if isinstance(updates, Ended):
                self._ended[host] = updates.error or died(host)
            elif host not in self._waiting:
                continue
            elif isinstance(updates, Progress):
                self._watch(host, updates)
            elif isinstance(updates, Failed) and updates.kind == "absent":
                self.absent.append(host)
                self._waiting.discard(host)
            elif isinstance(updates, Failed):
                self.fail(host, failure_of(host, updates))
            elif isinstance(updates, (VerifiedTree, Piece)):
                found.append((host, updates))
        # The end of a relay matters only if its answer is awaited.
        for host in self._waiting & self._ended.keys():
            self.fail(host, self._ended[host])
        if self._timeout_s is not None and time.monotonic() - self._began > self._timeout_s:
            for host in list(self._waiting):
                self.fail(
                    host, CommandTimeout(host, f"did not answer within {self._timeout_s:g} s")
                )
        return found
