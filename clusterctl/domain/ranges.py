"""Index ranges (`0-3,5`) and folded host names (`demo-[0-3,5]`)."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import TypeVar

from clusterctl.domain.errors import UsageError

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

# Each splits a host into the text before its number, the number, and the text after it. In an IPv4
# address the number is the last byte, in a name the last number of the first label.
_NUMBER_IN_ADDRESS = re.compile(r"((?:\d+\.){3})(\d{1,18})()", re.ASCII)
_NUMBER_IN_NAME = re.compile(r"([^.:]*?)(\d{1,18})([^.:\d]*(?:\.[^:]*)?)", re.ASCII)

# A node or a range of nodes with the cluster's name: `demo-1`, `demo-[0-3,5]`.
_NODES = re.compile(r"\s*([a-z][a-z0-9-]*)-(?:(\d+)|\[([\d,-]+)\])\s*", re.ASCII)


def parse_indices(text: str) -> tuple[int, ...]:
    """Return the indices that `0-3,5` names, sorted and without repeats. Raise UsageError."""
    indices: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,9})(?:\s*-\s*(\d{1,9}))?\s*", part, re.ASCII)
        if not match:
            raise UsageError(f"not a list of nodes: {text!r}", "write it as 0-3,5 or NAME-1")
        first = int(match[1])
        last = int(match[2]) if match[2] else first
        if last < first:
            raise UsageError(f"the range {part.strip()} runs backwards", f"write {last}-{first}")
        if last - first > 100_000:
            raise UsageError(f"the range {part.strip()} is too large")
        indices.update(range(first, last + 1))
    return tuple(sorted(indices))


def parse_nodes(text: str) -> tuple[set[str], tuple[int, ...]]:
    """Return the cluster names and the indices in `0-3,5`, `demo-1` or `demo-[0-3,5]`.

    The set of names is empty where the text has indices only. Raises UsageError.
    """
    named = [_NODES.fullmatch(part) for part in re.split(r",(?![^\[]*\])", text)]
    if not all(named):
        return set(), parse_indices(text)
    clusters = {match[1] for match in named if match}
    return clusters, parse_indices(",".join(match[2] or match[3] for match in named if match))


def other_cluster(other: str, name: str) -> UsageError:
    """Return the error for nodes of cluster `other` where nodes of cluster `name` are needed."""
    return UsageError(
        f"nodes of {other} are named, and the cluster is {name}",
        "name nodes of one cluster, or give their indices: 0-3,5",
    )


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the second values of the pairs by the first: hosts by what they have in common."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def format_indices(indices: Iterable[int]) -> str:
    """Return `0-3,5` for 0, 1, 2, 3, 5."""
    return ",".join(_run_text(run, 0) for run in runs(sorted(set(indices))))


def check_indices(cluster: str, known: Collection[int], requested: Iterable[int]) -> None:
    """Raise UsageError naming the indices in `requested` that no node of the cluster has."""
    missing = [index for index in requested if index not in known]
    if missing:
        raise UsageError(
            f"cluster {cluster} has no node {format_indices(missing)}",
            f"its nodes are {format_indices(known)}",
        )


def fold_hosts(hosts: Sequence[str]) -> str:
    """Return host names folded into one word: `10.0.0.[1-3],node7`. Repeats are dropped.

    >>> fold_hosts(["demo-0", "demo-1", "demo-3"])
    'demo-[0-1,3]'
    """
    names = [_split(host) for host in hosts]
    # `node01` and `node1` are different hosts. Numbers with leading zeros fold only with numbers of
    # the same width.
    padded = {
        (prefix, suffix, len(digits))
        for prefix, digits, suffix in names
        if digits.startswith("0") and len(digits) > 1
    }
    groups: dict[tuple[str, str, int], set[int]] = {}
    for prefix, digits, suffix in names:
        width = len(digits) if (prefix, suffix, len(digits)) in padded else 0
        numbers = groups.setdefault((prefix, suffix, width), set())
        if digits:
            numbers.add(int(digits))
    return ",".join(_folded(*key, sorted(numbers)) for key, numbers in groups.items())


def _split(host: str) -> tuple[str, str, str]:
    """Return the text before the number that differs between hosts, the number, the text after it.

    The number is empty for a host without one and for an IPv6 address.
    """
    match = _NUMBER_IN_ADDRESS.fullmatch(host) or _NUMBER_IN_NAME.fullmatch(host)
    return (match[1], match[2], match[3]) if match else (host, "", "")


def _folded(prefix: str, suffix: str, padding: int, numbers: list[int]) -> str:
    if not numbers:
        return prefix
    text = ",".join(_run_text(run, padding) for run in runs(numbers))
    return f"{prefix}{text}{suffix}" if len(numbers) == 1 else f"{prefix}[{text}]{suffix}"


def _run_text(run: Sequence[int], padding: int) -> str:
    first, last = (str(number).zfill(padding) for number in (run[0], run[-1]))
    return first if first == last else f"{first}-{last}"


def runs(numbers: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the groups of consecutive numbers, in the order that is given."""
    found: list[list[int]] = []
    for number in numbers:
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return [tuple(run) for run in found]
