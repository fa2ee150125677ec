"""Findings about how the nodes of a cluster differ, and about what is wrong with each node.

The most frequent value is the norm. If two are equally frequent, it is the first node's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from clusterctl.bootstrap.inspection import RequestedEquipment, efa_findings
from clusterctl.bootstrap.training import FOLDER
from clusterctl.diagnosis.hostchecks import namesakes, slowdowns, usual_clock
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.jobs.head_facts import VIRTUAL_INTERFACES
from clusterctl.jobs.preflight import INSTALL, UNSET, misled_python, version_mismatches
from clusterctl.node.facts.disks import FileSystem
from clusterctl.node.record import from_data

CROWDED, FULL = 0.90, 0.98  # shares of a file system
# From this difference on the logs of two nodes cannot be put in order. (Signatures and certificates
# bear minutes.)
SKEW_S = 1.0
# 1024 open files are every distribution's default. Open MPI and NCCL need a descriptor for each
# peer, and more. EFA locks the memory that it sends from.
LEAST_NOFILE, LEAST_MEMLOCK = 1024, 1 << 30
LEAST_SHM = 64 << 20  # free bytes in /dev/shm
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
# The check of a fact that could not be found out.
NOT_CHECKED = "fact.unknown"


@dataclass(frozen=True)
class ExaminedNode:
    """The answer of a node (`said`, from `node/diagnosis/doctor.py`), and other facts about it.

    `gpus` and `efa` are the numbers that its instance type has. `clock_offset_s` is its clock minus
    this machine's, with an error of up to `clock_error_s`.
    """

    host: str
    instance_type: str = ""
    address: str = ""
    said: Mapping[str, Any] = field(default_factory=dict)
    gpus: int = 0
    efa: int = 0
    clock_offset_s: float = 0.0
    clock_error_s: float = 0.0

    @property
    def versions(self) -> Mapping[str, str]:
        return self.said.get("versions") or {}

    @property
    def cards(self) -> Sequence[Mapping[str, Any]]:
        return (self.said.get("gpus") or {}).get("gpus") or ()

    @property
    def index(self) -> str:
        return self.host.rpartition("-")[2]


def clock_of(sent_s: float, back_s: float, clock: Mapping[str, float]) -> tuple[float, float]:
    """Return a node's clock minus ours, and the largest error: half of the round trip (RFC 5905).

    `sent_s` and `back_s` are our times of request and answer, `clock` has the node's times when it
    began and finished its answer.
    """
    first_s, last_s = clock["first_s"], clock["last_s"]
    on_the_way_s = max(0.0, (back_s - sent_s) - (last_s - first_s))
    return ((first_s - sent_s) + (last_s - back_s)) / 2, on_the_way_s / 2


def interface(node: ExaminedNode) -> Mapping[str, Any]:
    """Return the interface with the node's own address, which mpirun uses; empty if none has it."""
    found = node.said.get("interfaces") or ()
    return next((one for one in found if one["address"].split("/")[0] == node.address), {})


def nccl_interface(node: ExaminedNode) -> str:
    """Return the interface that NCCL chooses by itself; empty if there is none.

    NCCL prefers EFA, then InfiniBand, then the first interface that is up and is no bridge.
    """
    if node.said.get("efa"):
        return f"EFA x {len(node.said['efa'])}"
    found = node.said.get("interfaces") or ()
    there = [one["name"] for one in found if one["address"] and one["state"] != "down"]
    left = [name for name in there if not name.startswith((*VIRTUAL_INTERFACES, "veth"))]
    return next((name for name in left if name.startswith("ib")), left[0] if left else "")


def _limit(node: ExaminedNode, name: str) -> str:
    limits = node.said.get("limits")
    if not limits:
        return ""
    value = limits.get(name)
    if value is None:
        return "unlimited"
    return format_bytes(value) if name.endswith("bytes") else str(value)


def _scripts(node: ExaminedNode) -> str:
    """Return a checksum over all scripts, short enough for a column."""
    there = node.said.get("scripts")
    return f"{crc32(repr(sorted(there.items())).encode()):08x}" if there else ""


def _text(*path: str) -> Callable[[ExaminedNode], str]:
    """Return a function that gets the text at a path of keys in a node's answer."""

    def value(node: ExaminedNode) -> str:
        found: Any = node.said
        for name in path:
            found = (found or {}).get(name)
        return "" if found is None else str(found)

    return value


def _mpirun(node: ExaminedNode) -> str:
    return node.versions.get("mpirun", "").rpartition(" ")[2]


def _on_path(node: ExaminedNode) -> str:
    found = node.said.get("mpirun_on_path")
    return f"{found[0]} {found[1].rpartition(' ')[2]}" if found else ""


# Columns of the table by heading: the function of the value, and the severity of a difference. INFO
# means that the column is only shown.
COLUMNS: Mapping[str, tuple[Callable[[ExaminedNode], str], Severity]] = {
    "TYPE": (lambda node: node.instance_type, WARNING),
    "KERNEL": (_text("system", "kernel"), WARNING),
    "CPUS": (_text("system", "cpus"), WARNING),
    "GPUS": (lambda node: str(len(node.cards)), INFO),  # gpu.count compares it with the type's
    "DRIVER": (_text("gpus", "driver"), WARNING),
    "CUDA": (_text("gpus", "cuda"), WARNING),
    "NCCL": (_text("versions", "nccl"), ERROR),
    "MPIRUN": (_mpirun, ERROR),
    "MPIRUN ON PATH": (_on_path, WARNING),
    "PYTHON": (_text("versions", "python"), WARNING),
    "TENSORFLOW": (_text("versions", "tensorflow"), ERROR),
    "HOROVOD": (_text("versions", "horovod"), ERROR),
    "HOROVOD HAS": (_text("versions", "horovod_has"), ERROR),
    "SCRIPTS": (_scripts, WARNING),
    "DATA": (lambda node: " ".join(map(str, node.said.get("data") or ())), WARNING),
    "MTU": (lambda node: str(interface(node).get("mtu", "")), WARNING),
    "MPI IF": (lambda node: str(interface(node).get("name", "")), INFO),
    "NCCL IF": (nccl_interface, INFO),
    "EFA": (lambda node: str(len(node.said.get("efa") or ())), INFO),
    "NOFILE": (lambda node: _limit(node, "nofile"), WARNING),
    "MEMLOCK": (lambda node: _limit(node, "memlock_bytes"), WARNING),
    "FABRIC": (_text("fabric_manager"), ERROR),
}
HINTS = {
    "SCRIPTS": "`train` ships the examples, and leaves alone what was changed there; the head "
    "node's everywhere: clusterctl copy NAME --from 0 '~/examples/horovod/' "
    "'~/examples/horovod/'",
    "DATA": "compare them: clusterctl data verify NAME",
    "TYPE": "the slowest node sets the pace of all; another machine in its place: clusterctl "
    "replace NAME",
    "KERNEL": "an update came with a reboot, or is waiting for one: clusterctl reboot NAME",
    "MTU": "large frames vanish between interfaces of different MTU: sudo ip link set {name} mtu "
    "{norm}",
    **dict.fromkeys(("NCCL", "MPIRUN", "PYTHON", "TENSORFLOW", "HOROVOD", "HOROVOD HAS"), INSTALL),
}


@dataclass(frozen=True)
class Table:
    """The values of all nodes by heading, in the order of `hosts`, and the norm of each heading."""

    hosts: tuple[str, ...]
    cells: Mapping[str, tuple[str, ...]]
    norms: Mapping[str, str]

    def odd(self, heading: str, row: int) -> bool:
        """Return whether a cell differs from the norm."""
        return self.cells[heading][row] != self.norms[heading]

    @property
    def differing(self) -> tuple[str, ...]:
        """The headings under which not all values are the same."""
        return tuple(name for name, cells in self.cells.items() if len(set(cells)) > 1)


def drift(nodes: Sequence[ExaminedNode]) -> Table:
    """Return the table that compares the nodes."""
    cells = {name: tuple(value(node) for node in nodes) for name, (value, _) in COLUMNS.items()}
    norms = {name: _norm(values) for name, values in cells.items()}
    return Table(tuple(node.host for node in nodes), cells, norms)


def _norm(values: Sequence[str]) -> str:
    # Counter returns equally frequent values in the order in which it first met them.
    return Counter(values).most_common(1)[0][0] if values else ""


def findings(nodes: Sequence[ExaminedNode]) -> list[Finding]:
    """Return the findings about nodes that answered.

    Failed SSH connections between nodes count only if both have answered.
    """
    names = {node.address: node.host for node in nodes}
    found = [*_drift(nodes), *_clocks(nodes), *_names(nodes)]
    for node in nodes:
        for check in (_facts, _gpus, _xids, _efa, _network, _limits, _disks, _software):
            found += check(node)
        found += _mesh(node, names)
    return found


def measures(nodes: Sequence[ExaminedNode]) -> str:
    """Return, in words, how far clocks are apart and which disk is the fullest."""
    far_ms = max((abs(node.clock_offset_s) for node in nodes), default=0.0) * 1000
    error_ms = max((node.clock_error_s for node in nodes), default=0.0) * 1000
    shares = [
        (one["used_bytes"] / room, one["path"], node.host)
        for node in nodes
        for one in node.said.get("filesystems") or ()
        for room in [one["used_bytes"] + one["free_bytes"]]
        if room
    ]
    share, path, host = max(shares, default=(0.0, "/", ""))
    clocks = f"clocks within {max(far_ms, error_ms):.0f} ms of this machine's"
    return f"{clocks}, fullest disk {share * 100:.0f} % ({path} on {host})"


def _drift(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """Yield a finding for each cell that differs from the norm."""
    table = drift(nodes)
    for heading in table.differing:
        severity = COLUMNS[heading][1]
        if severity is INFO:
            continue
        for row, node in enumerate(nodes):
            if not table.odd(heading, row) or _unasked(node, heading):
                continue
            cell, norm = table.cells[heading][row], table.norms[heading]
            what = heading.lower() if heading not in ("NCCL", "MTU", "CUDA") else heading
            others = f"most have {norm}" if len(nodes) > 2 else f"{nodes[0].host} has {norm}"
            message = f"{what}: {cell or 'none'}, {others if norm else 'the others have none'}"
            if heading == "SCRIPTS":
                message = _script_message(node, nodes, table)
            name = interface(node).get("name", "eth0")
            hint = HINTS.get(heading, "").format(name=name, norm=norm)
            check_id = f"drift.{heading.lower().replace(' ', '_')}"
            yield Finding(check_id, severity, message, node.host, hint)


def _unasked(node: ExaminedNode, heading: str) -> bool:
    """Return whether the node's answer lacks this fact. Another finding reports that."""
    asked = {"SCRIPTS": "scripts", "DATA": "data", "KERNEL": "system", "MTU": "interfaces"}
    by_versions = ("NCCL", "MPIRUN", "PYTHON", "TENSORFLOW", "HOROVOD", "HOROVOD HAS")
    name = "versions" if heading in by_versions else asked.get(heading, "")
    return bool(name) and name not in node.said


def _script_message(node: ExaminedNode, nodes: Sequence[ExaminedNode], table: Table) -> str:
    norm = next(
        other.said.get("scripts") or {}
        for row, other in enumerate(nodes)
        if not table.odd("SCRIPTS", row)
    )
    there = node.said.get("scripts") or {}
    names = sorted(n for n in {*there, *norm} if there.get(n) != norm.get(n))
    more = f" and {count(len(names) - 1, 'other file')}" if len(names) > 1 else ""
    return f"other examples than most nodes: {names[0]}{more}"


def _clocks(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """Compare the clocks of nodes and of this machine."""
    timed = [node for node in nodes if node.clock_error_s < float("inf")]
    # If more nodes agree with each other than with this machine, its own clock is wrong.
    usual_s = usual_clock([(node.clock_offset_s, node.clock_error_s) for node in timed], SKEW_S)
    for node in timed:
        off_s = node.clock_offset_s - usual_s
        if abs(off_s) - node.clock_error_s > SKEW_S:
            way = "ahead" if off_s > 0 else "behind"
            message = f"its clock is {format_duration(abs(off_s))} {way}"
            hint = (
                "log lines of several nodes cannot be put in order, and AWS refuses signatures "
                f"from 5 min on: clusterctl run NAME --nodes {node.index} 'sudo chronyc makestep'"
            )
            yield Finding("clock.skew", WARNING, message, node.host, hint)
    if usual_s:
        message = (
            f"this machine's clock is {format_duration(abs(usual_s))} "
            f"{'behind' if usual_s > 0 else 'ahead of'} that of the nodes"
        )
        yield Finding("clock.here", WARNING, message, hint="set it: timedatectl set-ntp true")


def _names(nodes: Sequence[ExaminedNode]) -> Iterator[Finding]:
    """Find nodes with the same hostname."""
    for name, twins in namesakes(nodes, _text("system", "hostname")).items():
        for node in twins:
            others = ", ".join(one.host for one in twins if one is not node)
            yield Finding(
                "hostname.duplicate",
                ERROR,
                f"its hostname is {name}, as that of {others}: Horovod takes their ranks for those "
                "of one machine",
                node.host,
                "give each its own again: clusterctl doctor NAME --fix",
            )


def _facts(node: ExaminedNode) -> Iterator[Finding]:
    for what, why in (node.said.get("errors") or {}).items():
        hangs = why.startswith("no answer")
        mount = what.partition("mount ")[2]
        message = (
            f"{mount}: the file system gives no answer" if mount and hangs else f"{what}: {why}"
        )
        hint = "what touches it hangs, too: see `mount` and `dmesg` there" if mount else ""
        severity = ERROR if hangs and (mount or what == "gpus") else WARNING
        check_id = "fact.hangs" if hangs else NOT_CHECKED
        yield Finding(check_id, severity, message, node.host, hint)


def _again(node: ExaminedNode) -> str:
    return (
        f"clusterctl reboot NAME {node.index}; if it comes back so: clusterctl quarantine NAME "
        f"{node.index}, and clusterctl replace NAME {node.index}"
    )


def _gpus(node: ExaminedNode) -> Iterator[Finding]:
    if not node.gpus or "gpus" in (node.said.get("errors") or {}):
        return
    if len(node.cards) < node.gpus:
        seen = f"nvidia-smi sees {count(len(node.cards), 'GPU')}, its type has {node.gpus}"
        yield Finding("gpu.count", ERROR, seen, node.host, _again(node))
    for number, card in enumerate(node.cards):
        which = f"GPU {number} ({card['bus']})"
        bad = {name: n for name, n in card["ecc"].items() if name.startswith("volatile")}
        if bad:
            told = ", ".join(f"{n} {name[9:].replace('_', ' ')}" for name, n in bad.items())
            message = f"{which} has memory errors since its last reset: {told}"
            yield Finding("gpu.ecc", ERROR, message, node.host, _again(node))
        if card["remap_failed"]:
            message = f"{which}: a bad memory row could not be remapped"
            hint = f"another machine in its place: clusterctl replace NAME {node.index}"
            yield Finding("gpu.remap", ERROR, message, node.host, hint)
        elif card["remap_pending"]:
            message = f"{which}: a bad memory row is remapped at the next reset"
            hint = f"clusterctl reboot NAME {node.index}"
            yield Finding("gpu.remap", WARNING, message, node.host, hint)
        slowed = slowdowns(card["throttled"])
        if slowed:
            message = f"{which} is slowed down: {', '.join(slowed).replace('_', ' ')}"
            hint = f"if it stays so: clusterctl replace NAME {node.index}"
            yield Finding("gpu.throttled", WARNING, message, node.host, hint)
    for gpu, links in (node.said.get("nvlink") or {}).items():
        message = f"GPU {gpu}: NVLink {', '.join(map(str, links))} inactive"
        yield Finding("gpu.nvlink", ERROR, message, node.host, _again(node))
    manager = node.said.get("fabric_manager")
    if manager not in (None, "active"):
        restart = "'sudo systemctl restart nvidia-fabricmanager'"
        hint = f"clusterctl run NAME --nodes {node.index} {restart}"
        message = f"nvidia-fabricmanager is {manager or 'not there'}: NVSwitch carries nothing"
        yield Finding("gpu.fabric", ERROR, message, node.host, hint)
    for told in node.said.get("dcgm") or ():
        yield Finding("gpu.dcgm", ERROR, f"dcgmi diag -r 1: {told}", node.host, _again(node))


# Meaning and severity of Xid errors, by NVIDIA's catalogue (driver r590) and AWS's health checks.
XIDS: Mapping[int, tuple[str, Severity]] = {
    **dict.fromkeys((13, 31, 32, 69, 94, 126), ("the program's own fault, mostly", WARNING)),
    **dict.fromkeys((43, 45, 63, 92, 121), ("tells of another error, or of one mended", INFO)),
    **dict.fromkeys((46, 62, 109, 158), ("the GPU gave no answer in time", ERROR)),
    **dict.fromkeys((48, 95), ("a memory error that could not be mended", ERROR)),
    64: ("a bad memory row could not be remapped", ERROR),
    74: ("an error of NVLink", ERROR),
    79: ("the GPU has fallen off the bus", ERROR),
    **dict.fromkeys((110, 119, 120), ("the GPU's own processor failed", ERROR)),
    **dict.fromkeys((136, 140, 143, 155, 156), ("the GPU wants a reset", ERROR)),
    **dict.fromkeys(range(144, 151), ("an error of NVLink 5", WARNING)),
    54: ("the auxiliary power is not connected", ERROR),
    **dict.fromkeys((151, 168), ("the machine wants a restart", ERROR)),
    154: ("the driver names what would help", WARNING),
}
XID = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)\).*?: (\d+)")


def _xids(node: ExaminedNode) -> Iterator[Finding]:
    """Find Xid errors, by which NVIDIA's driver reports errors of GPUs in the kernel log."""
    seen: Counter[tuple[str, int]] = Counter()
    ages: dict[tuple[str, int], float | None] = {}
    for line in node.said.get("kernel_log") or ():
        match = XID.search(line["text"])
        if match:
            key = (match[1].removeprefix("PCI:"), int(match[2]))
            seen[key] += 1
            ages[key] = line["age_s"]
    for (bus, number), times in seen.items():
        meaning, severity = XIDS.get(
            number, ("not in our list: see NVIDIA's Xid catalogue", WARNING)
        )
        age_s = ages[(bus, number)]
        when = "" if age_s is None else f", {format_duration(age_s)} ago"
        often = f" {times} times" if times > 1 else ""
        hint = _again(node) if severity is ERROR else ""
        yield Finding(
            "gpu.xid",
            severity,
            f"Xid {number} of GPU {bus}{often}{when}: {meaning}",
            node.host,
            hint,
        )


def _efa(node: ExaminedNode) -> Iterator[Finding]:
    if "efa" in node.said:
        yield from efa_findings(
            node.host, len(node.said["efa"]) or None, RequestedEquipment(efa=node.efa)
        )


def _network(node: ExaminedNode) -> Iterator[Finding]:
    """Check that NCCL chooses the interface of the cluster's network."""
    found = node.said.get("interfaces")
    if found is None:
        return
    own, nccl = interface(node), nccl_interface(node)
    if not own:
        message = f"no interface has its address, {node.address}"
        hint = f"clusterctl reboot NAME {node.index}"
        yield Finding("net.interface", ERROR, message, node.host, hint)
    elif nccl and not nccl.startswith("EFA") and nccl != own["name"]:
        message = f"NCCL would take {nccl}, and the cluster's network is on {own['name']}"
        hint = f"train with -x NCCL_SOCKET_IFNAME={own['name']}"
        yield Finding("net.interface", WARNING, message, node.host, hint)


def _limits(node: ExaminedNode) -> Iterator[Finding]:
    limits = node.said.get("limits") or {}
    for name, least, what in (
        ("nofile", LEAST_NOFILE, "open files (nofile)"),
        ("memlock_bytes", LEAST_MEMLOCK if node.efa else 0, "locked memory (memlock)"),
    ):
        value = limits.get(name)
        if value is not None and value < least:
            shown, wanted = (
                (format_bytes(value), format_bytes(least))
                if "bytes" in name
                else (
                    str(value),
                    str(least),
                )
            )
            soft = "memlock unlimited" if "bytes" in name else "nofile 65536"
            yield Finding(
                f"limits.{name.partition('_')[0]}",
                WARNING,
                f"a rank may have {shown} of {what}: fewer than {wanted}",
                node.host,
                f"echo '* - {soft}' | sudo tee /etc/security/limits.d/clusterctl.conf, and log in "
                "anew",
            )


def disk_findings(host: str, system: FileSystem, knows_fills: bool = False) -> Iterator[Finding]:
    """Yield the findings about one file system: its space, its inodes, and whether it is read-only.

    Above CROWDED it is a warning, from FULL on an error. For /dev/shm only the free space counts.
    `knows_fills`: see room_hint.
    """
    path, free = system.path, format_bytes(system.free_bytes)
    if path == "/dev/shm":  # noqa: S108
        if system.free_bytes < min(LEAST_SHM, (system.used_bytes + system.free_bytes) // 2):
            yield Finding(
                "shm.full",
                ERROR,
                f"{path} has {free} left: ranks of one node talk through it",
                host,
                "see what is there (ls -l /dev/shm); what killed ranks left is theirs: "
                "clusterctl run NAME --nodes "
                f"{host.rpartition('-')[2]} 'rm -f /dev/shm/nccl-* /dev/shm/*_segment*'",
            )
        return
    inodes = f"% of its inodes are used, {system.inodes_free} are free"
    for kind, share, before, after in (
        ("", system.used_share, f"{path} is", f"% full, {free} free"),
        ("inodes.", system.inodes_share, f"{path}:", inodes),
    ):
        if share > CROWDED:
            full = share >= FULL
            yield Finding(
                f"disk.{kind}{'full' if full else 'crowded'}",
                ERROR if full else WARNING,
                f"{before} {share * 100:.0f} {after}",
                host,
                room_hint(path, knows_fills),
            )
    if system.readonly and path != "/":
        message = f"{path} is read-only: a volume that fails becomes so"
        yield Finding("disk.readonly", ERROR, message, host, "see `dmesg` there")


def room_hint(path: str, knows_fills: bool) -> str:
    """Return how to make room on a full file system. `knows_fills`: `disk` has looked for its
    largest folders, which it does not suggest again."""
    find = "" if knows_fills else "see what fills it (clusterctl disk NAME); "
    remove = "remove old logs and checkpoints (clusterctl clean-logs NAME --jobs)"
    if path == "/":
        return f"{find}{remove}, or enlarge the root volume: clusterctl disk NAME --grow GIB"
    return f"{find}{remove}, and data in {path} that no job reads"


def _disks(node: ExaminedNode) -> Iterator[Finding]:
    for system in node.said.get("filesystems") or ():
        yield from disk_findings(node.host, from_data(FileSystem, system))


def _software(node: ExaminedNode) -> Iterator[Finding]:
    if "versions" not in node.said:
        return
    if "mpirun" not in node.versions or "horovod" not in node.versions:
        lacks = "Horovod" if "mpirun" in node.versions else "Open MPI"
        hint = "make it: clusterctl env install NAME"
        message = f"no {lacks} to train with (clusterctl's own is in {FOLDER})"
        yield Finding("env.missing", WARNING, message, node.host, hint)
    if misled_python(node.versions):
        yield Finding("env.variables", ERROR, misled_python(node.versions), node.host, UNSET)
    for text in version_mismatches(node.versions, is_trainer=False):
        yield Finding("env.mismatch", ERROR, text, node.host, INSTALL)
    here, other = node.versions.get("mpirun"), node.said.get("mpirun_on_path")
    if here and other and other[1] and other[1] != here:
        message = (
            f"`mpirun` in a shell there is {other[0]} ({other[1].rpartition(' ')[2]}), jobs take "
            f"{here.rpartition(' ')[2]}"
        )
        hint = "type the whole path of the one that is meant; clusterctl's jobs do"
        yield Finding("mpi.two", INFO, message, node.host, hint)


def _mesh(node: ExaminedNode, names: Mapping[str, str]) -> Iterator[Finding]:
    for address, why in (node.said.get("unreached") or {}).items():
        if address in names:
            message = f"cannot get through to {names[address]} ({address}): {why}"
            hint = "keys, host keys and names are put right by: clusterctl up NAME"
            if re.search(r"time|no answer|no route|unreachable|refused", why, re.IGNORECASE):
                ping = f"clusterctl run NAME --nodes {node.index} 'ping -c 3 {address}'"
                hint = (
                    f"its packets do not get there, or its sshd is off: {ping}; see the security "
                )
                hint += "groups of both and the network ACL of the subnet"
            yield Finding("ssh.mesh", ERROR, message, node.host, hint)
