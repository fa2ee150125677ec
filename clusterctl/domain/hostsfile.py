"""The hosts file of Open MPI and the tutorial: one `ADDRESS slots=N` per line.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from clusterctl.domain.errors import UsageError


@dataclass(frozen=True)
class HostSlots:
    """A host and its slots, the number of ranks it takes.

    `max_slots` is Open MPI's hard limit, or None where the file has none.
    """

    host: str
    slots: int = 1
    max_slots: int | None = None


@dataclass(frozen=True)
class HostsFile:
    """The hosts of a hosts file, in the order of the file.

    `lines` is the text that they were read from. It is empty where they come from no file.
    """

    entries: tuple[HostSlots, ...]
    lines: tuple[str, ...] = ()

    @property
    def slots(self) -> int:
        return sum(entry.slots for entry in self.entries)

    @property
    def hosts(self) -> list[str]:
        return [entry.host for entry in self.entries]

    def fill(self, ranks: int, most: int | None = None) -> list[int]:
        """Return how many of `ranks` ranks each host gets, at most `most` on one host.

        mpirun fills the slots of one host after the other, in the order of the file.
        """
        filled = []
        for entry in self.entries:
            filled.append(min(entry.slots, ranks, most or ranks))
            ranks -= filled[-1]
        return filled


def parse_hosts_file(text: str, source: str = "hosts file") -> HostsFile:
    """Parse a hosts file: comments, blank lines, CRLF, `max-slots` and IPv6 are understood.

    A host without `slots` has one, or as many as its `max-slots`. Raises UsageError, which names
    `source` and the line, or both lines of a host that is named twice.
    """
    entries: list[HostSlots] = []
    line_of: dict[str, int] = {}
    lines = text.lstrip("\ufeff").splitlines()
    for number, line in enumerate(lines, start=1):
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        entry = _parse_entry(words, f"{source}, line {number}")
        if entry.host in line_of:
            raise UsageError(
                f"{source}: {entry.host} is on lines {line_of[entry.host]} and {number}",
                "keep one line per host and add up its slots",
            )
        line_of[entry.host] = number
        entries.append(entry)
    if not entries:
        raise UsageError(f"{source} names no host", "write one ADDRESS slots=N per line")
    return HostsFile(tuple(entries), tuple(lines))


def format_hosts_file(hosts: HostsFile) -> str:
    """Return the file's text: the lines it was read from, if any, else `HOST slots=N` per host."""
    lines = hosts.lines or tuple(_format_entry(entry) for entry in hosts.entries)
    return "".join(line + "\n" for line in lines)


def _format_entry(entry: HostSlots) -> str:
    limit = f" max-slots={entry.max_slots}" if entry.max_slots is not None else ""
    return f"{entry.host} slots={entry.slots}{limit}"


def _parse_entry(words: list[str], where: str) -> HostSlots:
    host, settings = words[0], _settings(words[1:], where)
    _, at, address = host.rpartition("@")
    if at:
        raise UsageError(
            f"{where}: {host!r} names a user",
            f"write {address} alone; the user is the option --user, or `User` in ~/.ssh/config",
        )
    # One colon means a port. A bare IPv6 address has at least two colons and does not match.
    port = re.fullmatch(r"(?:[^:]+|\[.+\]):(\d+)", host)
    if port:
        raise UsageError(
            f"{where}: {host!r} names a port",
            f"write the address alone, and `Port {port[1]}` for it in ~/.ssh/config",
        )
    if not re.fullmatch(r"\[?[\w.:%-]+\]?", host) or host.startswith("-"):
        raise UsageError(f"{where}: not a host name or address: {host!r}")
    slots = settings.pop("slots", None)
    max_slots = settings.pop("max-slots", None)
    if slots is None:
        slots = 1 if max_slots is None else max_slots
    if max_slots is not None and max_slots < slots:
        raise UsageError(f"{where}: max-slots={max_slots} is less than slots={slots}")
    return HostSlots(host.strip("[]"), slots, max_slots)


def _settings(words: list[str], where: str) -> dict[str, int]:
    settings: dict[str, int] = {}
    # People write "slots = 8" as often as "slots=8".
    for word in re.sub(r"\s*=\s*", "=", " ".join(words)).split():
        key, _, value = word.partition("=")
        key = key.lower().replace("_", "-")
        if key not in ("slots", "max-slots"):
            raise UsageError(f"{where}: cannot read {word!r}", "write slots=N or max-slots=N")
        if not re.fullmatch(r"\d{1,6}", value, re.ASCII) or int(value) < 1:
            raise UsageError(f"{where}: {key} must be a number from 1, not {value!r}")
        if key in settings:
            raise UsageError(f"{where}: {key} is given twice")
        settings[key] = int(value)
    return settings
