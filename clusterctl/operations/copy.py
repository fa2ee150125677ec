"""Copy data to many hosts in about the time of one copy (docs/copy.md)."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.copy.fetch import Fetching, Send, UrlAccess
from clusterctl.copy.plan import (
    EC2_FLOW,
    CopyFacts,
    CopyPlan,
    NodeFacts,
    SourceSummary,
    plan_copy,
    predict,
    slowest_link,
)
from clusterctl.copy.report import CopyProgress, NodeReport, NodeStage, TransferReport
from clusterctl.copy.request import CopyRequest, is_s3
from clusterctl.copy.transfer import Transfer
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandTimeout,
    ConnectionLost,
    UsageError,
)
from clusterctl.domain.units import count
from clusterctl.operations.hosts_access import HostsAccess
from clusterctl.operations.verify import Depth, errors_of, verify
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.reverse_tunnels import HERE

# Only for type checking: at run time `access` needs clusterctl.ec2, which is not installed on head
# nodes, where copyclust imports this module.
if TYPE_CHECKING:
    from clusterctl.operations.access import Access

# The most logins at the same time through a jump host: from 10 on, its sshd drops some
# (MaxStartups).
JUMP_LOGINS = 8

Watch = Callable[[CopyProgress], None]


@dataclass(frozen=True)
class CopyTerms:
    """The terms of a copy, whatever is copied.

    `urls` is how sources that are URLs are read. `max_logins` is the number of simultaneous logins,
    limited to JUMP_LOGINS behind a jump host. After `timeout_s` seconds, unfinished nodes fail.
    """

    urls: UrlAccess | None = None
    max_logins: int = 64
    timeout_s: float | None = None


def copy_to_cluster(
    access: Access,
    targets: Sequence[Target],
    request: CopyRequest,
    *,
    watch: Watch,
    terms: CopyTerms = CopyTerms(),
    link_rates: Callable[[], Mapping[str, float]] = dict,
) -> TransferReport:
    """Copy SRC to DST on these nodes of a cluster. Raise UsageError if nothing can be copied.

    `link_rates` returns the known link rates in bytes per second by instance type. It runs in a
    thread during the logins and must not raise; the plan waits `link_rates_s` for it.
    """
    by_index = {node.index: access.target(node) for node in access.cluster.nodes}
    zones = {node.name: node.zone for node in access.cluster.nodes}
    types = {node.name: node.instance_type for node in access.cluster.nodes}
    source = _chosen(by_index, request.from_node)
    rates: dict[str, float] = {}
    asking = threading.Thread(target=lambda: rates.update(link_rates()), daemon=True)

    def facts() -> tuple[NodeFacts, ...]:
        if not asking.ident:  # not started yet, for sources that are URLs
            asking.start()
        asking.join(access.timeouts.link_rates_s)
        return tuple(
            NodeFacts(
                target.host,
                zones.get(target.host, ""),
                link_rate=rates.get(types.get(target.host, "")),
                flow_rate=EC2_FLOW,
            )
            for target in targets
        )

    source_zone = zones.get(source.host, "") if source else ""
    copy = _Copy(access.connections, tuple(targets), request, facts, source, source_zone, terms)
    # From S3 each node downloads by itself, and no plan needs the rates. A file of a web server
    # needs them only when the first node passes it on.
    if not request.has_urls:
        asking.start()
    report = copy.run(watch)
    return replace(
        report, nodes=tuple(with_reason(access, node, by_index) for node in report.nodes)
    )


def with_reason(access: Access, node: NodeReport, targets: Mapping[int, Target]) -> NodeReport:
    """Return the node's report, with the words of EC2 if its instance does not run any more."""
    error, target = (
        node.error,
        next((one for one in targets.values() if one.host == node.host), None),
    )
    if target and isinstance(error, (CommandTimeout, ConnectionLost)):
        explained = access.connections.explain(target, error)
        return replace(node, error=explained if explained.is_off else error)
    return node


def copy_to_hosts(
    hosts: HostsAccess, request: CopyRequest, *, watch: Watch, terms: CopyTerms = CopyTerms()
) -> TransferReport:
    """Copy to the hosts of a hosts file, as `copy_to_cluster` does to nodes. `from_node` of the
    request is a position in the file."""
    source = _chosen(dict(enumerate(hosts.targets)), request.from_node)
    facts = tuple(NodeFacts(target.host) for target in hosts.targets)
    copy = _Copy(hosts.connections, hosts.targets, request, lambda: facts, source, terms=terms)
    return copy.run(watch)


def copy_here(
    access: Access, source: Target, request: CopyRequest, *, watch: Watch
) -> TransferReport:
    """Copy SRC on a node to DST, an absolute path of this machine, through the SSH connection.

    Raise UsageError if nothing can be copied.
    """
    here = Target("this machine", HERE, "")
    facts = (NodeFacts(here.host),)
    copy = _Copy(access.connections, (here,), request, lambda: facts, source, to_here=True)
    return copy.run(watch)


def _chosen(by_index: dict[int, Target], index: int | None) -> Target | None:
    if index is None:
        return None
    if index not in by_index:
        raise UsageError(f"there is no node {index} to copy from")
    return by_index[index]


def sender(connections: Connections, max_logins: int = 64) -> Send:
    """Return a function that copies a file of this machine to some nodes, and returns the errors of
    those that failed."""

    def send(
        path: Path, destination: str, targets: Sequence[Target]
    ) -> Mapping[str, ClusterctlError]:
        facts = tuple(NodeFacts(target.host) for target in targets)
        request = CopyRequest((str(path),), destination)
        terms = CopyTerms(max_logins=max_logins)
        copy = _Copy(connections, tuple(targets), request, lambda: facts, terms=terms)
        report = copy.run(lambda progress: None)
        errors = {node.host: node.error or report.left_out for node in report.nodes}
        return {host: error for host, error in errors.items() if error}

    return send


class _Progress:
    """Passes progress on to `watch` and remembers the last one.

    While --verify reads the files again, the last progress of the copy stays on the screen, with a
    note at the nodes that still read.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._last: CopyProgress | None = None

    def __call__(self, progress: CopyProgress) -> None:
        self._last = progress
        self._watch(progress)

    def checking(self, progress: CopyProgress) -> None:
        """Show which nodes are still verifying, given the progress of the verification."""
        if self._last is None:
            return
        reading = {one.host for one in progress.nodes if one.stage is NodeStage.COMPARING}
        nodes = [replace(n, note="verifying" * (n.host in reading)) for n in self._last.nodes]
        self._watch(replace(self._last, nodes=tuple(nodes)))


@dataclass
class _Copy:
    """One copy: its inputs, and its steps in `run`.

    `source` is the node that has the source files, None for this machine.
    """

    connections: Connections
    targets: tuple[Target, ...]
    request: CopyRequest
    facts: Callable[[], tuple[NodeFacts, ...]]
    source: Target | None = None
    source_zone: str = ""
    terms: CopyTerms = CopyTerms()
    to_here: bool = False

    def __post_init__(self) -> None:
        if not self.targets:
            raise UsageError("there is no node to copy to")
        if any(target.jump for target in self.targets):
            at_once = min(self.terms.max_logins, JUMP_LOGINS)
            self.terms = replace(self.terms, max_logins=at_once)
        # Cached, so that all plans of one copy use the same rates.
        self.facts = functools.lru_cache(maxsize=None)(self.facts)
        self._there: tuple[str, ...] = ()  # the hosts that take part, known when it is planned

    def run(self, watch: Watch) -> TransferReport:
        progress = _Progress(watch)
        if self.request.has_urls:
            return self._from_urls(progress)
        report = Transfer(
            connections=self.connections,
            targets=self.targets,
            request=self.request,
            plan=self._plan,
            predict=lambda plan, files, size: predict(
                plan, self.request, self._facts_of(files, size)
            ),
            source=self.source,
            to_here=self.to_here,
            slowest_link=lambda: slowest_link(self.request, self._facts_of(0, 0)),
            max_logins=self.terms.max_logins,
            timeout_s=self.terms.timeout_s,
            watch=progress,
        ).run()
        return self._verified(report, progress)

    def _from_urls(self, progress: _Progress) -> TransferReport:
        """Copy from URLs. From S3, each node downloads. From a web server, only the first node
        downloads, and its copy is then copied to the others."""
        urls, timeout_s = self.terms.urls, self.terms.timeout_s
        if urls is None:
            raise UsageError("sources that are URLs are read with the UrlAccess of CopyTerms")
        pulling, rest = self.targets, self.targets[:0]
        if not all(map(is_s3, self.request.sources)):
            pulling, rest = self.targets[:1], self.targets[1:]
        began = time.monotonic()
        send = sender(self.connections, self.terms.max_logins)
        with Fetching(self.connections, pulling, self.request, urls, send) as fetching:
            report = fetching.run(progress, timeout_s)
        [first] = report.nodes[:1]
        if not rest:
            return self._verified(report, progress)
        if self.request.dry_run or first.error:
            others = tuple(replace(first, host=target.host) for target in rest)
            return replace(report, nodes=(first, *others))
        # Use the file's full path on the first node as source and DST. The given DST may be a
        # folder on the first node and not on another, which would give the file another name.
        path = first.path
        left = None if timeout_s is None else max(1.0, timeout_s - (time.monotonic() - began))
        passed = replace(
            self,
            targets=rest,
            request=replace(self.request, sources=(path,), destination=path),
            facts=lambda: tuple(facts for facts in self.facts() if facts.host != first.host),
            source=self.targets[0],
            terms=replace(self.terms, timeout_s=left),
        )
        onward = passed.run(progress)
        # The others were compared with the first node: it is the same as those that passed.
        same = (first.host, *onward.verified) if onward.verified else ()
        return replace(
            onward,
            nodes=(first, *onward.nodes),
            verified=same,
            reread=False,
            duration_s=time.monotonic() - began,
            one_copy_s=None,  # the rate from the web server does not show the nodes' links
        )

    def _plan(self, summary: SourceSummary, there: Sequence[str]) -> CopyPlan:
        self._there = tuple(there)
        return plan_copy(self.request, self._facts_of(summary.files, summary.bytes))

    def _facts_of(self, files: int, size: int) -> CopyFacts:
        return CopyFacts(
            nodes=tuple(node for node in self.facts() if node.host in self._there),
            bytes=size,
            files=files,
            source_zone=self.source_zone,
        )

    def _verified(self, report: TransferReport, progress: _Progress) -> TransferReport:
        """Verify the finished nodes if the request has `verify`, and return the report with the
        result.

        The same copy is repeated as a dry run that compares contents: a node to which it would
        copy anything differs from the source.
        """
        request, timeout_s = self.request, self.terms.timeout_s
        done = {node.host for node in report.nodes if node.error is None}
        targets = [target for target in self.targets if target.host in done]
        if not request.verify or not targets or request.dry_run:
            return report
        if request.has_urls:
            # The URLs are not downloaded again. The nodes are compared with each other.
            found = verify(
                self.connections,
                targets,
                request.destination,
                Depth(content=True),
                timeout_s=timeout_s,
            )
            errors: dict[str, ClusterctlError | None] = {**errors_of(found)}
        else:
            again = Transfer(
                connections=self.connections,
                targets=targets,
                request=replace(request, verify=False, checksum=True, dry_run=True),
                plan=self._plan,
                source=self.source,
                to_here=self.to_here,
                timeout_s=timeout_s,
                watch=progress.checking,
            ).run()
            if again.error:
                raise again.error
            # What could be copied, and not be read again, was not compared.
            known = report.source.left_out if report.source else 0
            unread = again.left_out if again.source and again.source.left_out > known else None
            errors = {n.host: n.error or difference(n) or unread for n in again.nodes}
        nodes = tuple(replace(n, error=n.error or errors.get(n.host)) for n in report.nodes)
        same = tuple(node.host for node in nodes if node.error is None)
        return replace(report, nodes=nodes, verified=same, reread=not request.has_urls)


def difference(node: NodeReport) -> ClusterctlError | None:
    """Return an error for what the dry run would change on a node, or None if that is nothing."""
    gap = node.gap
    if not gap or not (gap.missing or gap.delete):
        return None
    what, differ = "differs from the source", gap.missing + gap.delete - gap.unread
    hint = gap.warnings[0] if gap.blocked and gap.warnings else "copy again with --checksum"
    # Those that cannot be read come last among the missing ones.
    names = [*gap.missing_names[: gap.missing - gap.unread], *gap.delete_names] or ["DST"]
    if not differ:
        what, names = "not compared, since it cannot be read", [*gap.missing_names]
        hint = "see why there (ls -l); at the source give its owner read permission, and copy again"
    more = (differ or gap.unread) - 1
    text = f"{what}: {names[0]}" + (f" and {more} more" if more else "")
    if differ and gap.unread:
        text += f"; {count(gap.unread, 'file')} not compared, since not readable"
    return CommandFailed(node.host, text, hint)
