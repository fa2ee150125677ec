"""Where mpirun has placed the ranks, as far as its map, its options and its messages tell.

Nothing is guessed: with an option that is not understood here, the result is empty.
tests/diagnosis/test_mapping.py compares it with the maps of Open MPI 4.1 and 5.0.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from clusterctl.node.untrusted import MOST_RANKS, whole

LAUNCHERS = ("mpirun", "mpiexec", "orterun", "prterun")
# Options by the number of their arguments. Those without any are harmless unless they are in PLACE.
_ONE = {
    *("np", "n", "c", "H", "host", "hostfile", "machinefile", "default-hostfile", "x", "map-by"),
    *("rank-by", "bind-to", "N", "npernode", "wdir", "wd", "path", "prefix", "output"),
    *("output-filename", "display", "timeout", "stdin", "tune", "am", "personality"),
    *("launch-agent", "runtime-options", "rtos", "get-stack-traces", "mapper", "set-cwd-to"),
    *("output-directory", "pmixam", "report-pid", "report-uri", "max-restarts", "stop-on-exec"),
}
_TWO = {"mca", "gmca", "omca", "prtemca", "pmixmca", "gprtemca", "gpmixmca"}
_NONE = {
    *("allow-run-as-root", "oversubscribe", "nooversubscribe", "tag-output", "timestamp-output"),
    *("display-map", "display-allocation", "report-bindings", "verbose", "v", "quiet", "q"),
    *("bynode", "byslot", "pernode", "nolocal-warning", "merge-stderr-to-stdout", "xml"),
    *("enable-recovery", "bind-to-none", "bind-to-core", "bind-to-socket", "report-state"),
    *("do-not-launch", "forward-signals", "debug-daemons", "leave-session-attached"),
}
# Objects of a host that `--map-by` counts through. Where the slots of a host are filled before the
# next host, these do not matter for the host of a rank.
_WITHIN_HOST = {
    *("slot", "core", "hwthread", "socket", "package", "numa", "board"),
    *("l1cache", "l2cache", "l3cache"),
}
# Modifiers of --map-by that do not change a rank's host while there are slots enough.
_HARMLESS = re.compile(r"(?:no)?oversubscribe|(?:no)?local|inherit|noinherit|bindto.*", re.I)


@dataclass(frozen=True)
class Placement:
    """The hosts of ranks, by the names that mpirun uses. `ranks` is their number; 0 if unknown.

    `source` is where it is from, in words.
    """

    hosts: dict[int, str] = field(default_factory=dict)
    ranks: int = 0
    source: str = ""


@dataclass
class _Options:
    """The options of an mpirun that place ranks. `per_host`: 0 without such an option."""

    np: int = 0
    hosts: list[tuple[str, int]] = field(default_factory=list)
    policy: str = "slot"
    per_host: int = 0
    program: list[str] = field(default_factory=list)


def placed(
    line: str, slots: Mapping[str, int], log: Sequence[str], variables: Mapping[str, str]
) -> Placement:
    """Return where ranks are: by the map in the log, else by mpirun's command line.

    `line` is the command line; `slots` are the hosts of its hosts file; `variables` are the
    launcher's environment variables. A rank that mpirun names with its host in the log is there.
    """
    shown = displayed(log)
    if shown:
        return Placement({**shown, **named(log)}, len(shown), "mpirun's map")
    if any("rmaps" in name for name in variables):
        return Placement(named(log))
    options = _options(line)
    if options is None:
        return Placement(named(log))
    hosts = options.hosts or [*slots.items()]
    if options.hosts and slots:
        # mpirun takes only those hosts of its hosts file that --host names; their slots differ
        # between its versions.
        hosts = []
    found = _filled(options, hosts)
    per_agent = _torchrun_ranks(options.program)
    if per_agent is None:
        return Placement(named(log))
    if per_agent:
        agents = [found[number] for number in sorted(found)]
        found = _in_order((host, per_agent) for host in agents)
    ranks = len(found) if found else options.np * max(1, per_agent)
    return Placement({**found, **named(log)}, ranks, "mpirun's options" if found else "")


def displayed(log: Sequence[str]) -> dict[int, str]:
    """Return the hosts of ranks in what `mpirun --display map` has printed; empty without that."""
    found: dict[int, str] = {}
    host = ""
    for line in log:
        at = re.search(r"Data for node:? (\S+)", line)
        host = at[1] if at else host
        rank = re.search(r"Data for proc: \[[^\],]+,\s*(\d+)\]|Process rank: (\d+)", line)
        if rank and host:
            found[int(rank[1] or rank[2])] = host
    return found


def named(log: Sequence[str]) -> dict[int, str]:
    """Return the hosts of ranks that mpirun names with their node, as at their end."""
    text = "\n".join(log)
    bindings = re.findall(r"process rank (\d+) with PID \d+ on node (\S+)", text)
    return {int(rank): host.rstrip(".,") for rank, host in bindings}


def _options(line: str) -> _Options | None:
    """Return the options of a command line's mpirun; None if one is not understood."""
    try:
        words = shlex.split(line)
    except ValueError:
        return None
    starts = [at for at, word in enumerate(words) if word.rpartition("/")[2] in LAUNCHERS]
    if not starts:
        return None
    words = words[starts[0] + 1 :]
    if ":" in words:  # several programs, each with its own options
        return None
    found = _Options()
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            found.program = [word, *words]
            return found
        name = word.lstrip("-")
        arguments = 2 if name in _TWO else 1 if name in _ONE else 0 if name in _NONE else None
        if arguments is None or len(words) < arguments:
            return None
        values = [words.pop(0) for _ in range(arguments)]
        is_cut = arguments == 1 and values[0].startswith("-")
        if is_cut or not _take(found, name, values):
            return None
    return found


def _take(found: _Options, name: str, values: list[str]) -> bool:
    """Store an option. Return whether it is understood."""
    value = values[0] if values else ""
    if name in ("np", "n", "c"):
        found.np = whole(value, MOST_RANKS) or 0
        return found.np > 0
    if name in ("H", "host"):
        return _take_hosts(found, value)
    if name in ("N", "npernode", "pernode"):
        number = 1 if name == "pernode" else whole(value, MOST_RANKS)
        found.policy, found.per_host = "ppr", number or 0
        return bool(number)
    if name in ("bynode", "byslot"):
        found.policy = name[2:]
        return True
    if name == "map-by":
        return _take_policy(found, value)
    if name == "rank-by":
        return value.lower() in ("slot", "fill") and found.policy in ("slot", "ppr")
    return not (name in _TWO and "rmaps" in value)


def _take_policy(found: _Options, value: str) -> bool:
    policy, *more = value.lower().split(":")
    per_host = whole(more[0], MOST_RANKS) if more else None
    if policy == "ppr" and per_host and more[1:2] == ["node"]:
        found.policy, found.per_host = "ppr", per_host
        more = more[2:]
    elif policy == "node" and not more:
        found.policy = "node"
    elif policy in _WITHIN_HOST:
        found.policy = "slot"
    else:
        return False
    return all(_HARMLESS.fullmatch(one) for one in more)


def _take_hosts(found: _Options, value: str) -> bool:
    for word in value.split(","):
        host, _, slots = word.partition(":")
        number = whole(slots or "1", MOST_RANKS)
        if host.split() != [host] or "[" in word or number is None:
            return False
        found.hosts.append((host, number))
    # A host that is named twice has the slots of both.
    merged: dict[str, int] = {}
    for host, number in found.hosts:
        merged[host] = merged.get(host, 0) + number
    found.hosts = [*merged.items()]
    return True


def _filled(options: _Options, hosts: Sequence[tuple[str, int]]) -> dict[int, str]:
    """Return the ranks' hosts; empty if there are too few slots, or no hosts that are known."""
    most = options.per_host or max((slots for _, slots in hosts), default=0)
    left = {host: min(slots, most) for host, slots in hosts}
    ranks = options.np or sum(left.values())
    if ranks > min(MOST_RANKS, sum(left.values())):
        return {}
    if options.policy != "node":
        return _in_order(left.items(), ranks)
    found: dict[int, str] = {}
    while len(found) < ranks:
        for host in left:
            if left[host] and len(found) < ranks:
                found[len(found)] = host
                left[host] -= 1
    return found


def _in_order(ranks: Iterable[tuple[str, int]], most: int = MOST_RANKS) -> dict[int, str]:
    """Return the host of each rank, of hosts that get so many ranks one after another."""
    hosts = (host for host, number in ranks for _ in range(number))
    return dict(enumerate(islice(hosts, most)))


def _torchrun_ranks(program: Sequence[str]) -> int | None:
    """Return how many ranks each torchrun starts that mpirun has started; 0 if it starts none.

    None: it is a torchrun, and their number is not known.
    """
    line = " ".join(program)
    if not re.search(r"torchrun|torch\.distributed\.(?:run|launch)", line):
        return 0
    number = re.search(r"--nproc[-_]per[-_]node[= ](\S+)", line)
    return whole(number[1], MOST_RANKS) if number else 1
