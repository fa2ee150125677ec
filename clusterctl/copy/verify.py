"""Compares the manifests of nodes, to find out whether they have the same files. Pure.

Each node first sends the digest of its manifest. Only if these differ, one node for each digest
sends its manifest. They are compared entry by entry as they arrive, and are never in memory as a
whole, so that 1.2 million files on 32 nodes do not fill it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from clusterctl.domain.ranges import grouped
from clusterctl.domain.units import count
from clusterctl.node.relay.manifest import (
    FILE,
    FOLDER,
    LINK,
    Entry,
    bytes_of,
    position_key,
    text_of,
)
from clusterctl.node.relay.messages import VerifiedTree
from clusterctl.node.relay.verify import NOT_READ, UNKNOWN

# Findings that are kept, each with its path and hosts. Further ones are only counted.
MOST_FINDINGS = 10_000
_KINDS = {FILE: "a file", FOLDER: "a folder", LINK: "a symbolic link"}


class Kind(Enum):
    """What is wrong with a path."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERS = "differs"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    VANISHED = "vanished"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Discrepancy:
    """A finding about one path, which is relative to the verified path, on these hosts."""

    kind: Kind
    path: str
    message: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class HostGroup:
    """Hosts with equal manifests. `total` is the first host's."""

    hosts: tuple[str, ...]
    total: VerifiedTree


def group_by_digest(totals: Mapping[str, VerifiedTree]) -> tuple[HostGroup, ...]:
    """Return the hosts, with their totals, grouped by digest. The others are compared with the
    first group.

    That is the largest one; of two equally large groups, the one with the first host.
    """
    groups = grouped((total.digest, host) for host, total in totals.items())
    ordered = sorted(groups.values(), key=len, reverse=True)
    return tuple(HostGroup(tuple(hosts), totals[hosts[0]]) for hosts in ordered)


def compare(wanted: Iterable[Entry], there: Iterable[Entry]) -> Iterator[tuple[Kind, str, str]]:
    """Yield (kind, path, message) for each difference between two manifests.

    Nothing is reported below a folder that only one node has, or that one could not list.
    """
    leave: bytes | None = None  # the prefix of the positions below such a folder
    for entry, one, other in _paired(iter(wanted), iter(there)):
        at = position_key(entry.path)
        if leave is not None and at.startswith(leave):
            continue
        path = "" if entry.path == b"." else text_of(entry.path)
        for kind, message in compare_entries(one, other):
            yield kind, path, message
        both = one and other and one.kind == other.kind
        if not both or NOT_READ in (one.size, other.size):  # type: ignore[union-attr]
            leave = at + b"\0" if at else b""


def _paired(
    ones: Iterator[Entry], others: Iterator[Entry]
) -> Iterator[tuple[Entry, Entry | None, Entry | None]]:
    one, other = next(ones, None), next(others, None)
    while one or other:
        if one and (not other or position_key(one.path) < position_key(other.path)):
            yield one, one, None
            one = next(ones, None)
        elif other and (not one or position_key(other.path) < position_key(one.path)):
            yield other, None, other
            other = next(others, None)
        elif one:
            yield one, one, other
            one, other = next(ones, None), next(others, None)


def compare_entries(wanted: Entry | None, there: Entry | None) -> Iterator[tuple[Kind, str]]:
    """Yield (kind, message) for each difference between two entries of the same path."""
    if UNKNOWN in (wanted and wanted.kind, there and there.kind):
        return  # the node that could not read it has reported that as a problem
    if not (wanted and there):
        for kind, only in ((Kind.MISSING, wanted), (Kind.EXTRA, there)):
            if only:
                yield kind, _KINDS[only.kind]
    elif there.kind != wanted.kind:
        yield Kind.DIFFERS, f"is {_KINDS[there.kind]} instead of {_KINDS[wanted.kind]}"
    elif parts := list(_differences(wanted, there)):
        yield Kind.DIFFERS, ", ".join(parts)


def _differences(wanted: Entry, there: Entry) -> Iterator[str]:
    if there.link != wanted.link:
        yield f"leads to {text_of(there.link)!r} instead of {text_of(wanted.link)!r}"
    if NOT_READ not in (wanted.size, there.size):
        if there.size != wanted.size:
            yield f"has {count(there.size, 'byte')} instead of {wanted.size}"
        elif there.digest != wanted.digest:
            yield "has other content"
    if there.mode != wanted.mode:
        yield f"has mode {there.mode:04o} instead of {wanted.mode:04o}"
    if there.mtime_ns != wanted.mtime_ns:
        seconds = abs(there.mtime_ns - wanted.mtime_ns) / 1e9
        yield f"is {seconds:.9g} s {'newer' if there.mtime_ns > wanted.mtime_ns else 'older'}"


@dataclass
class Findings:
    """The findings so far, each path and message once with all its hosts.

    `more` counts those that came when `most` were kept already.
    """

    most: int = MOST_FINDINGS
    more: int = 0
    _hosts: dict[tuple[Kind, str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: Kind, path: str, message: str, hosts: Sequence[str]) -> None:
        """Add a finding, or only its hosts if there is one with this path and message."""
        key = (kind, path, message)
        if key in self._hosts:
            self._hosts[key] += [host for host in hosts if host not in self._hosts[key]]
        elif len(self._hosts) < self.most:
            self._hosts[key] = list(hosts)
        else:
            self.more += 1

    def in_order(self, hosts: Sequence[str]) -> tuple[Discrepancy, ...]:
        """Return the findings by path, with the hosts of each in the order of `hosts`."""
        position_of = {host: n for n, host in enumerate(hosts)}
        found = [
            Discrepancy(kind, path, text, tuple(sorted(names, key=position_of.__getitem__)))
            for (kind, path, text), names in self._hosts.items()
        ]
        return tuple(sorted(found, key=lambda one: (bytes_of(one.path), one.kind.value)))
