"""The hosts file of Open MPI and the tutorial: one `ADDRESS slots=N` per line.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from clusterctl.domain.errors import UsageError

LONGEST_NAME = 253  # characters of a host name (RFC 1035, without the length bytes)


@dataclass(frozen=True)
class HostSlots:
    """A host and its slots, the number of ranks it takes.

    `max_slots` is Open MPI's hard limit, or None where the file has none.
    """

    host: str
    slots: int = 1
    max_slots: int | None = None
    json_names = ("host", "slots")


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
        first = line_of.setdefault(_canonical(entry.host), number)
        if first != number:
            raise UsageError(
                f"{source}: {entry.host} is on lines {first} and {number}",
                "keep one line per host and add up its slots",
            )
        entries.append(entry)
    if not entries:
        raise UsageError(
            f"{source} names no host",
            "write one ADDRESS slots=N per line; `clusterctl hosts NAME` prints a cluster's",
        )
    return HostsFile(tuple(entries), tuple(lines))


def is_plain(text: str) -> bool:
    """Return whether Open MPI reads a hosts file as `parse_hosts_file` does.

    It refuses Windows line ends, a byte order mark and `SLOTS`. To a host without slots it gives as
    many as that has cores.
    """
    read = re.sub("#.*", "", text)
    hosts = [line for line in read.split("\n") if line.strip()]
    return all("slots" in line for line in hosts) and not re.search("[\r\ufeff]", read)


def format_hosts_file(hosts: HostsFile) -> str:
    """Return the file's text: the lines it was read from, if any, else `HOST slots=N` per host."""
    lines = hosts.lines or tuple(_format_entry(entry) for entry in hosts.entries)
    return "".join(line + "\n" for line in lines)


def _format_entry(entry: HostSlots) -> str:
    limit = f" max-slots={entry.max_slots}" if entry.max_slots is not None else ""
    return f"{entry.host} slots={entry.slots}{limit}"


def _parse_entry(words: list[str], where: str) -> HostSlots:
    host = parse_host(words[0], where)
    settings = _settings(words[1:], where)
    slots = settings.pop("slots", None)
    max_slots = settings.pop("max-slots", None)
    if slots is None:
        slots = 1 if max_slots is None else max_slots
    if max_slots is not None and max_slots < slots:
        raise UsageError(f"{where}: max-slots={max_slots} is less than slots={slots}")
    return HostSlots(host, slots, max_slots)


def parse_host(word: str, where: str) -> str:
    """Return the host name or address in the first word of a line. Raises UsageError.

    A shell of ssh_config's `Match exec` and ProxyCommand gets it, so nothing else may be in it.
    """
    _, at, address = word.rpartition("@")
    if at:
        raise UsageError(
            f"{where}: {word!r} names a user",
            f"write only {address}; the user is the option --user, or `User` in ~/.ssh/config",
        )
    # One colon means a port. A bare IPv6 address has at least two colons and does not match.
    port = re.fullmatch(r"([^:\[\]]+|\[[^\[\]]+\]):(\d+)", word)
    if port:
        raise UsageError(
            f"{where}: {word!r} names a port or, as in MPICH's files, slots",
            f"for slots write {port[1]} slots={port[2]}; for a port write only the address, and "
            f"`Port {port[2]}` for it in ~/.ssh/config",
        )
    bare = word[1:-1] if word.startswith("[") and word.endswith("]") else word
    if bare != word and ":" not in bare or re.match(r"\[\w+:(children|vars)\]", word):
        raise UsageError(
            f"{where}: {word!r} is no host: only an IPv6 address stands in brackets",
            "leave out the sections of an Ansible inventory, and write one ADDRESS slots=N per "
            "line; a host or an IPv4 address needs no brackets",
        )
    problem = _host_problem(bare)
    if problem:
        raise UsageError(f"{where}: {problem}: {word!r}", "write one ADDRESS slots=N per line")
    return bare


def _host_problem(host: str) -> str:
    """Return why a word is neither a host name nor an address; "" if it is one."""
    if ":" in host:
        return "" if _is_ipv6(host) else "not an IPv6 address"
    # ssh and mpirun take such words for addresses in other notations, as 10.0.0.010 for 10.0.0.8.
    if host.replace(".", "").isnumeric() or host[:2] in ("0x", "0X"):
        byte = r"(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
        good = re.fullmatch(rf"{byte}(?:\.{byte}){{3}}", host)
        return "" if good else "not an IPv4 address of four numbers up to 255, without zeros before"
    # An alias of ~/.ssh/config may have an underscore.
    good = re.fullmatch(r"\w(?:[\w-]*\w)?(?:\.\w(?:[\w-]*\w)?)*\.?", host)
    return "" if good and len(host) <= LONGEST_NAME else "not a host name or address"


def _is_ipv6(host: str) -> bool:
    """Return whether this is an IPv6 address, with or without a zone such as %eth0."""
    address, percent, zone = host.partition("%")
    if percent and not re.fullmatch(r"[\w.-]+", zone):
        return False
    try:
        ipaddress.IPv6Address(address)
    except ValueError:
        return False
    return True


def _canonical(host: str) -> str:
    """Return an IPv6 address in its one shortest form, and any other host as it is."""
    if not _is_ipv6(host):
        return host
    address, percent, zone = host.partition("%")
    return f"{ipaddress.IPv6Address(address)}{percent}{zone}"


def _settings(words: list[str], where: str) -> dict[str, int]:
    settings: dict[str, int] = {}
    # People write "slots = 8" as often as "slots=8".
    for word in re.sub(r"\s*=\s*", "=", " ".join(words)).split():
        key, _, value = word.partition("=")
        key = key.lower().replace("_", "-")
        if key not in ("slots", "max-slots"):
            number = f"slots={word}" if word.isdigit() else "slots=N"
            raise UsageError(f"{where}: cannot read {word!r}", f"write {number} or max-slots=N")
        if not re.fullmatch(r"\d{1,6}", value, re.ASCII) or int(value) < 1:
            raise UsageError(
                f"{where}: {key} must be a number from 1, not {value!r}",
                f"write {key}=N, as in {key}=8",
            )
        if key in settings:
            raise UsageError(f"{where}: {key} is given twice")
        settings[key] = int(value)
    return settings
