"""Do the nodes have the same at a path? And is it what the source of a copy has?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from clusterctl.copy.asking import on_nodes, on_this_machine
from clusterctl.copy.conversation import Conversation, NothingThere, Watch
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.verify import (
    NOT_READ,
    SAID,
    Discrepancy,
    Findings,
    Group,
    Kind,
    NodeTotal,
    compare,
    grouped,
    without_corrupt,
)
from clusterctl.domain.errors import ClusterctlError, HostError, UsageError
from clusterctl.domain.results import HostOutcome
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

# What a copy is compared with, in place of a host's name. No host can be called so.
SOURCE = "the source"


@dataclass(frozen=True)
class Depth:
    """What is compared beside names, kinds, sizes, modes, links and how TFRecords are built.

    `content`: SHA-256 of every file. `crc`: the CRCs of all TFRecords' data. `mtime`: times.
    """

    content: bool = False
    crc: bool = False
    mtime: bool = False


@dataclass(frozen=True)
class VerifyReport:
    """Hosts that have the same are one group; the first is what the others are compared with.

    `more` findings were not kept; `failures` are the hosts that could not be asked.
    """

    path: str
    groups: tuple[Group, ...]
    findings: tuple[Discrepancy, ...]
    more: int = 0
    failures: tuple[HostOutcome[NodeTotal], ...] = ()

    @property
    def same(self) -> bool:
        return not self.findings and not self.more and not self.failures

    @property
    def exit_status(self) -> int:
        """255 if a host could not be asked, 1 for any finding, else 0."""
        failed = max((f.error.exit_status for f in self.failures if f.error), default=0)
        return max(failed, int(bool(self.findings or self.more)))


def verify(
    connections: Connections,
    targets: Sequence[Target],
    path: str,
    depth: Depth | None = None,
    *,
    watch: Watch | None = None,
    timeout_s: float | None = None,
) -> VerifyReport:
    """Compare what these nodes have at PATH. Raises UsageError if none has anything there."""
    config = {"path": _checked(path), **asdict(depth or Depth())}
    with on_nodes(connections, targets, config, watch=watch, timeout_s=timeout_s) as talks:
        return _Comparison(path, talks).report()


def verify_copy(
    connections: Connections,
    targets: Sequence[Target],
    request: CopyRequest,
    *,
    source: Target | None = None,
    depth: Depth | None = None,
    watch: Watch | None = None,
    timeout_s: float | None = None,
) -> VerifyReport:
    """Compare DST on these nodes with the source, by content, once a copy has ended.

    `source` is the node that the sources are on; None: this machine. What nodes have beside it is
    a finding with `delete` only. Of URLs the source is not read again: the nodes are compared with
    each other. Raises UsageError, and the source's own trouble.
    """
    look = asdict(depth or Depth(content=True))
    if request.has_urls:
        return verify(
            connections,
            targets,
            request.destination,
            Depth(**look),
            watch=watch,
            timeout_s=timeout_s,
        )
    names = None
    if request.names is not None:
        names = [name.decode("utf-8", "surrogateescape") for name in request.names]
    wanted = {"sources": list(request.sources), "names": names, **look}
    with _at_source(connections, source, wanted, watch) as talk:
        found = talk.answer("places")
        copied = {
            "path": _checked(request.destination),
            "copied": found["names"],
            "file_name": found["file_name"],
            **look,
        }
        with on_nodes(connections, targets, copied, watch=watch, timeout_s=timeout_s) as talks:
            comparison = _Comparison(request.destination, talks, talk, extras=request.delete)
            return comparison.report()


def _at_source(
    connections: Connections,
    source: Target | None,
    config: Mapping[str, Any],
    watch: Watch | None,
) -> AbstractContextManager[Conversation]:
    if source is None:
        return on_this_machine(SOURCE, config, watch=watch)
    return _only(on_nodes(connections, [source], config, watch=watch))


class _only(AbstractContextManager[Conversation]):
    """The one conversation of several that are one."""

    def __init__(self, several: AbstractContextManager[list[Conversation]]) -> None:
        self._several = several

    def __enter__(self) -> Conversation:
        (talk,) = self._several.__enter__()
        talk.host = SOURCE
        return talk

    def __exit__(self, *exception: Any) -> bool | None:
        return self._several.__exit__(*exception)


def _checked(path: str) -> str:
    if path.startswith("~") and path[1:2] not in ("", "/"):
        raise UsageError(
            f"only your own home folder can be meant by ~, not {path!r}", "give the whole path"
        )
    return path


class _Comparison:
    """What the nodes say, and what follows from it. With a source, of it alone."""

    def __init__(
        self,
        path: str,
        talks: Sequence[Conversation],
        source: Conversation | None = None,
        extras: bool = True,
    ) -> None:
        self._path = path
        self._talks = {talk.host: talk for talk in talks}
        self._hosts = list(self._talks)
        self._source = source
        self._extras = extras
        self._findings = Findings()
        self._failures: dict[str, ClusterctlError] = {}

    def report(self) -> VerifyReport:
        """Raises UsageError if nothing is at the path anywhere."""
        totals = list(self._totals())
        absent = [host for host, error in self._failures.items() if _is_absent(error)]
        if absent and len(absent) == len(self._hosts) and not self._source:
            raise UsageError(
                f"no host has anything at {self._path!r}", "name a file or folder of the hosts"
            )
        for host in absent:
            del self._failures[host]
            self._findings.add(Kind.MISSING, "", "there is nothing at the path", (host,))
        for total in totals:
            self._findings.add_problems(without_corrupt(total) if self._source else total)
        reference = self._source.total() if self._source else None
        if reference:
            totals.insert(0, reference)
        groups = grouped(totals, SOURCE)
        self._compare(groups)
        return VerifyReport(
            path=self._path,
            groups=groups,
            findings=self._findings.in_order(self._hosts),
            more=self._findings.more,
            failures=tuple(
                HostOutcome(host, error=self._failures[host])
                for host in self._hosts
                if host in self._failures
            ),
        )

    def _totals(self) -> Iterator[NodeTotal]:
        for host, talk in self._talks.items():
            try:
                yield talk.total()
            except ClusterctlError as error:
                self._failures[host] = error

    def _compare(self, groups: Sequence[Group]) -> None:
        if len(groups) < 2:
            return
        asked = [self._talk(group.hosts[0]) for group in groups]
        said = NOT_READ if self._source else SAID
        for number, kind, path, message in compare(asked, said):
            if kind is not Kind.EXTRA or self._extras:
                self._findings.add(kind, path, message, groups[number].hosts)
        for number, talk in enumerate(asked):
            if talk.lost:
                if talk is self._source:
                    raise talk.error or HostError(SOURCE, "it went away")
                self._failures[talk.host] = talk.error or HostError(talk.host, "it went away")
                others = groups[1:] if number == 0 else [groups[number]]
                hosts = tuple(host for group in others for host in group.hosts)
                self._findings.add(
                    Kind.UNKNOWN, "", f"has something else than {groups[0].hosts[0]}", hosts
                )

    def _talk(self, host: str) -> Conversation:
        if self._source and host == SOURCE:
            return self._source
        return self._talks[host]


def _is_absent(error: ClusterctlError) -> bool:
    return isinstance(error, NothingThere)
