"""Do the nodes have the same? What they say of themselves, compared. Pure.

Each node first gives one digest of everything. Only where these differ are details asked for, of
one node for each digest, page by page: 1.2 million files on 32 nodes are never held in memory.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import groupby
from typing import Any, Protocol

from clusterctl.domain.units import count
from clusterctl.node.relay.listing import (
    FRAME,
    KIND,
    LINK,
    MODE,
    MTIME,
    NAME,
    NOT_RECORDS,
    RECORDS,
    SHA256,
    SIZE,
    TROUBLE,
)
from clusterctl.node.relay.manifest import bytes_of

# Findings that are kept, each with its path and its hosts; further ones are counted.
MOST_FINDINGS = 10_000
# What a node says of a file itself. Without the corrupt ones: what was not read can't be compared.
SAID = frozenset(("unreadable", "changed", "corrupt"))
NOT_READ = SAID - {"corrupt"}
Row = Sequence[Any]
_KINDS = {"f": "a file", "d": "a folder", "l": "a symbolic link"}


class Kind(Enum):
    """What is the matter with a path."""

    MISSING = "missing"
    EXTRA = "extra"
    DIFFERS = "differs"
    CORRUPT = "corrupt"
    UNREADABLE = "unreadable"
    CHANGED = "changed"
    VANISHED = "vanished"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Discrepancy:
    """One path, and the hosts for which the message holds. The path is below the one asked for."""

    kind: Kind
    path: str
    message: str
    hosts: tuple[str, ...]


@dataclass(frozen=True)
class NodeTotal:
    """What one node has, in all. `problems` are (path, kind, text), the first thousand."""

    host: str
    digest: str
    counts: Mapping[str, int]
    problems: tuple[tuple[str, str, str], ...] = ()
    problem_count: int = 0
    read_bytes: int = 0
    duration_s: float = 0.0
    crc_with: str = ""


def without_corrupt(total: NodeTotal) -> NodeTotal:
    """A copy may be corrupt where its source is, and has to be compared with it then."""
    kept = tuple(problem for problem in total.problems if problem[1] != Kind.CORRUPT.value)
    left_out = len(total.problems) - len(kept)
    return replace(total, problems=kept, problem_count=total.problem_count - left_out)


@dataclass(frozen=True)
class Group:
    """Hosts that have the same; `total` is the first one's."""

    hosts: tuple[str, ...]
    total: NodeTotal


class Details(Protocol):
    """A node's answers to further questions, sorted by the bytes of paths and names.

    `lost` once it answers no more: its iterators end early then.
    """

    lost: bool

    def folders(self) -> Iterator[tuple[str, str]]: ...

    def rows(self, folder: str) -> Iterator[Row]: ...


def grouped(totals: Sequence[NodeTotal], reference: str | None = None) -> tuple[Group, ...]:
    """Hosts with the same digest together. The first group is what the others are compared with:
    the reference host's, else the largest; of two as large the one with the first host.
    """
    groups: dict[str, list[NodeTotal]] = {}
    for total in totals:
        groups.setdefault(total.digest, []).append(total)
    ordered = sorted(
        groups.values(),
        key=lambda group: (all(total.host != reference for total in group), -len(group)),
    )
    return tuple(Group(tuple(total.host for total in group), group[0]) for group in ordered)


def merged(streams: Sequence[Iterable[tuple[str, Any]]]) -> Iterator[tuple[str, list[Any]]]:
    """Of sorted (key, value) streams: each key with every stream's value, or None."""
    tagged = [_tagged(number, stream) for number, stream in enumerate(streams)]
    entries = heapq.merge(*tagged, key=lambda entry: entry[:2])
    for key, same in groupby(entries, key=lambda entry: entry[0]):
        values: list[Any] = [None] * len(streams)
        for _, number, value in same:
            values[number] = value
        yield key.decode("utf-8", "surrogateescape"), values


def _tagged(number: int, stream: Iterable[tuple[str, Any]]) -> Iterator[tuple[bytes, int, Any]]:
    # A generator of its own: an expression in a loop would see the loop's last number.
    for key, value in stream:
        yield bytes_of(key), number, value


def compare(
    nodes: Sequence[Details], said: Collection[str] = SAID
) -> Iterator[tuple[int, Kind, str, str]]:
    """(position, kind, path, message) for whatever a node has otherwise than the first.

    `said`: the troubles of files about which nothing more needs to be said than that.
    """
    for folder, digests in merged([node.folders() for node in nodes]):
        # A folder that not both have is a row of the folder it is in.
        if digests[0] is None:
            continue
        other = [n for n, digest in enumerate(digests) if digest not in (None, digests[0])]
        if not other:
            continue
        compared = [0, *other]
        streams = [_by_name(nodes[n].rows(folder)) for n in compared]
        unreadable: set[int] = set()
        for name, rows in merged(streams):
            if not name:  # the one row of a folder that cannot be read
                unreadable.update(n for n, row in zip(compared, rows) if row is not None)
            if nodes[0].lost or 0 in unreadable:
                break
            path = _path(folder, name)
            for n, row in zip(other, rows[1:]):
                if not nodes[n].lost and n not in unreadable:
                    for kind, message in compare_rows(rows[0], row, said):
                        yield n, kind, path, message


def _path(folder: str, name: str) -> str:
    """Below what was asked for; empty for that itself."""
    if folder in ("", "."):
        return "" if name == "." else name
    return f"{folder}/{name}"


def _by_name(rows: Iterable[Row]) -> Iterator[tuple[str, Row]]:
    return ((row[NAME], row) for row in rows)


def compare_rows(
    wanted: Row | None, row: Row | None, said: Collection[str] = SAID
) -> Iterator[tuple[Kind, str]]:
    """What is otherwise about one path."""
    if row is None and wanted is None:
        return
    if row is None:
        assert wanted is not None
        yield Kind.MISSING, _KINDS.get(wanted[KIND], "a special file")
        return
    if wanted is None:
        yield Kind.EXTRA, _KINDS.get(row[KIND], "a special file")
        return
    if row[KIND] != wanted[KIND]:
        here, there = (_KINDS.get(one[KIND], "a special file") for one in (row, wanted))
        yield Kind.DIFFERS, f"is {here} instead of {there}"
        return
    parts = list(_differences(wanted, row, said))
    if parts:
        yield Kind.DIFFERS, ", ".join(parts)


def _differences(wanted: Row, row: Row, said: Collection[str]) -> Iterator[str]:
    if row[LINK] != wanted[LINK]:
        yield f"leads to {row[LINK]!r} instead of {wanted[LINK]!r}"
    if row[TROUBLE] not in said and wanted[TROUBLE] not in said:
        if row[SIZE] != wanted[SIZE]:
            yield f"has {count(row[SIZE], 'byte')} instead of {wanted[SIZE]}"
        elif row[SHA256] != wanted[SHA256] or row[FRAME] != wanted[FRAME]:
            yield "has other content"
        if row[RECORDS] != wanted[RECORDS]:
            other = wanted[RECORDS] if NOT_RECORDS not in (row[RECORDS], wanted[RECORDS]) else ""
            yield f"has {_records(row)} instead of {other or _records(wanted)}"
    if row[MODE] != wanted[MODE]:
        yield f"has mode {row[MODE]:04o} instead of {wanted[MODE]:04o}"
    if row[MTIME] != wanted[MTIME]:
        seconds = abs(row[MTIME] - wanted[MTIME]) / 1e9
        yield f"is {seconds:.9g} s {'newer' if row[MTIME] > wanted[MTIME] else 'older'}"


def _records(row: Row) -> str:
    return "no records" if row[RECORDS] == NOT_RECORDS else count(row[RECORDS], "record")


@dataclass
class Findings:
    """What has been found so far, each path and message once with all its hosts."""

    most: int = MOST_FINDINGS
    more: int = 0
    _hosts: dict[tuple[Kind, str, str], list[str]] = field(default_factory=dict)

    def add(self, kind: Kind, path: str, message: str, hosts: Sequence[str]) -> None:
        key = (kind, path, message)
        if key in self._hosts:
            self._hosts[key] += [host for host in hosts if host not in self._hosts[key]]
        elif len(self._hosts) < self.most:
            self._hosts[key] = list(hosts)
        else:
            self.more += 1

    def add_problems(self, total: NodeTotal) -> None:
        """What a node has said about its own files."""
        for path, kind, text in total.problems:
            self.add(Kind(kind), path, text, (total.host,))
        self.more += max(0, total.problem_count - len(total.problems))

    def in_order(self, hosts: Sequence[str]) -> tuple[Discrepancy, ...]:
        """By path; the hosts of each in the order given."""
        position = {host: n for n, host in enumerate(hosts)}
        found = [
            Discrepancy(kind, path, text, tuple(sorted(names, key=lambda h: position.get(h, -1))))
            for (kind, path, text), names in self._hosts.items()
        ]
        return tuple(sorted(found, key=lambda one: (bytes_of(one.path), one.kind.value)))
