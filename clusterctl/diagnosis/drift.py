"""The findings of `doctor`: how the nodes of a cluster differ, and what is wrong with each node.

The most frequent value is the norm. If two are equally frequent, it is the first node's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar
from zlib import crc32

from clusterctl.bootstrap.inspection import RequestedEquipment, efa_findings, fabric_finding
from clusterctl.bootstrap.training import FOLDER
from clusterctl.diagnosis.hostchecks import (
    CARD_TROUBLES,
    SHM,
    TAKEN_FOR_ONE,
    card_errors_in_words,
    fullness,
    idle_among,
    namesakes,
    reboot_hint,
    skews,
    slowdown,
    usual_clock,
)
from clusterctl.domain.cluster import Node
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.jobs.head_facts import VIRTUAL_INTERFACES
from clusterctl.jobs.preflight import INSTALL, UNSET, misled_python, version_mismatches
from clusterctl.node.facts.disks import PATHS, MountedFileSystem, mount
from clusterctl.node.facts.gpus import GpuState, dcgm, fabric_manager, gpus, nvlink
from clusterctl.node.facts.network import (
    NO_VERDICT,
    Interface,
    efa,
    efa_cards,
    interfaces,
    moved,
    unreached,
)
from clusterctl.node.facts.report import FactReport
from clusterctl.node.facts.software import data, mpirun_on_path, scripts, versions
from clusterctl.node.facts.system import kernel_log, limits, system

T = TypeVar("T")
# 1024 open files are every distribution's default. Open MPI and NCCL need a descriptor for each
# peer, and more. EFA locks the memory that it sends from.
LEAST_NOFILE, LEAST_MEMLOCK = 1024, 1 << 30
# What the EFA cards of a node have moved each, in the median, if they are in use.
USED_CARD_BYTES = 1 << 30
ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
Findings = Iterator[Finding]
# The checks of a fact that could not be read, at all or in time.
NOT_CHECKED, HANGS = "fact.unknown", "fact.hangs"


@dataclass(frozen=True)
class Examined:
    """A node as EC2 describes it, and its report. `efa` is the number of EFA devices requested.

    A host of no cluster is a node without an instance, of which only the address is known.
    """

    node: Node
    report: FactReport
    efa: int = 0

    @property
    def host(self) -> str:
        return self.node.name

    @property
    def index(self) -> int:
        return self.node.index

    @property
    def hostname(self) -> str:
        found = self.report.get(system)
        return found.hostname if found else ""

    @property
    def versions(self) -> Mapping[str, str]:
        return self.report.get(versions) or {}

    @property
    def cards(self) -> Sequence[GpuState]:
        found = self.report.get(gpus)
        return found.gpus if found else ()

    @property
    def interface(self) -> Interface | None:
        """The interface with the node's own address, which mpirun uses."""
        found = self.report.get(interfaces) or ()
        own = self.node.private_ip
        return next((one for one in found if own and one.address.split("/")[0] == own), None)

    @property
    def nccl_interface(self) -> str:
        """The interface that NCCL chooses by itself: EFA, then InfiniBand, then the first one that
        is up and is no bridge."""
        devices = self.report.get(efa)
        if devices:
            return f"EFA x {len(devices)}"
        found = self.report.get(interfaces) or ()
        usable = [one.name for one in found if one.address and one.state != "down"]
        cards = [name for name in usable if not name.startswith((*VIRTUAL_INTERFACES, "veth"))]
        return next((name for name in cards if name.startswith("ib")), cards[0] if cards else "")


@dataclass(frozen=True)
class Column:
    """A column of the table. A difference in it is a finding of this severity; INFO: it is only
    shown. A node whose fact could not be read has an empty cell, which is compared with none, since
    another finding reports that.

    `hint` may contain {index}, {interface} and {norm}.
    """

    fact: Callable[..., Any] | None
    cell: Callable[[Examined], object]
    severity: Severity = WARNING
    hint: str = ""

    def is_known(self, one: Examined) -> bool:
        return self.fact is None or one.report.has(self.fact)

    def text(self, one: Examined) -> str:
        value = self.cell(one) if self.is_known(one) else None
        return "" if value is None else str(value)


def _column(
    fact: Callable[..., T | None],
    cell: Callable[[T], object],
    severity: Severity = WARNING,
    hint: str = "",
) -> Column:
    """Return a column whose cells come from one fact; they are empty where it is missing."""

    def of_node(one: Examined) -> object:
        value = one.report.get(fact)
        return None if value is None else cell(value)

    return Column(fact, of_node, severity, hint)


def _version(name: str, severity: Severity = ERROR) -> Column:
    return _column(versions, lambda found: found.get(name), severity, INSTALL)


def _limit(found: Mapping[str, int | None], name: str) -> object:
    value = found.get(name)
    if value is None:
        return "unlimited"
    return format_bytes(value) if name.endswith("bytes") else value


def _number(version: str) -> str:
    """Return 5.0.11 of `mpirun (Open MPI) 5.0.11`."""
    return version.rpartition(" ")[2]


def _digest(hashes: Mapping[str, str]) -> str:
    """Return a checksum over all scripts, short enough for a column."""
    return f"{crc32(repr(sorted(hashes.items())).encode()):08x}" if hashes else ""


TYPE_HINT = (
    "the slowest node sets the pace of all; another machine in its place: clusterctl replace NAME "
    "{index}"
)
KERNEL_HINT = "an update came with a reboot, or is waiting for one: clusterctl reboot NAME {index}"
DRIVER_HINT = "new nodes have the driver of the cluster's image: clusterctl replace NAME {index}"
SCRIPTS_HINT = (
    "`train` ships the examples, and keeps what was changed there; the head node's "
    "everywhere: clusterctl copy NAME --from 0 '~/examples/horovod/' '~/examples/horovod/'"
)
DATA_HINT = "compare them: clusterctl data verify NAME"
MTU_HINT = (
    "large frames vanish between interfaces of different MTU: sudo ip link set {interface} mtu "
    "{norm}"
)
COLUMNS: Mapping[str, Column] = {
    "TYPE": Column(None, lambda one: one.node.instance_type, hint=TYPE_HINT),
    "KERNEL": _column(system, lambda found: found.kernel, hint=KERNEL_HINT),
    "CPUS": _column(system, lambda found: found.cpus, hint=TYPE_HINT),
    # gpu.count compares it with the type's.
    "GPUS": Column(gpus, lambda one: len(one.cards), INFO),
    "DRIVER": _column(gpus, lambda found: found.driver, hint=DRIVER_HINT),
    # The newest that the driver knows: it differs with the driver.
    "CUDA": _column(gpus, lambda found: found.cuda, INFO),
    "NCCL": _version("nccl"),
    "MPIRUN": _column(versions, lambda found: _number(found.get("mpirun", "")), ERROR, INSTALL),
    "MPIRUN ON PATH": _column(mpirun_on_path, lambda found: f"{found[0]} {_number(found[1])}"),
    "PYTHON": _version("python", WARNING),
    "TENSORFLOW": _version("tensorflow"),
    "HOROVOD": _version("horovod"),
    "HOROVOD HAS": _version("horovod_has"),
    "SCRIPTS": _column(scripts, _digest, hint=SCRIPTS_HINT),
    "DATA": _column(data, lambda found: f"{found[0]} {found[1]}", hint=DATA_HINT),
    "MTU": Column(interfaces, lambda one: one.interface and one.interface.mtu, hint=MTU_HINT),
    "MPI IF": Column(interfaces, lambda one: one.interface and one.interface.name, INFO),
    "NCCL IF": Column(interfaces, lambda one: one.nccl_interface, INFO),
    "EFA": Column(efa, lambda one: len(one.report.get(efa) or ()), INFO),
    # limits.* and gpu.fabric say where these are too low, and where it does not run.
    "NOFILE": _column(limits, lambda found: _limit(found, "nofile"), INFO),
    "MEMLOCK": _column(limits, lambda found: _limit(found, "memlock_bytes"), INFO),
    "FABRIC": _column(fabric_manager, str, INFO),
}


@dataclass(frozen=True)
class NodeComparison:
    """The values of all nodes by heading, in the nodes' order, and the norm of each heading, to
    which only nodes count whose fact could be read."""

    nodes: tuple[Examined, ...]
    cells: Mapping[str, tuple[str, ...]]
    norms: Mapping[str, str]

    def is_odd(self, heading: str, row: int) -> bool:
        is_known = COLUMNS[heading].is_known(self.nodes[row])
        return is_known and self.cells[heading][row] != self.norms[heading]

    @property
    def differing(self) -> tuple[str, ...]:
        """The headings under which not all values are the same."""
        return tuple(name for name, cells in self.cells.items() if len(set(cells)) > 1)


def compare(nodes: Sequence[Examined]) -> NodeComparison:
    """Compare the nodes."""
    cells = {name: tuple(map(column.text, nodes)) for name, column in COLUMNS.items()}
    norms = {}
    for name, column in COLUMNS.items():
        known = Counter(cell for one, cell in zip(nodes, cells[name]) if column.is_known(one))
        # Counter returns equally frequent values in the order in which it first met them.
        norms[name] = known.most_common(1)[0][0] if known else ""
    return NodeComparison(tuple(nodes), cells, norms)


def check(nodes: Sequence[Examined]) -> list[Finding]:
    """Return the findings about nodes that gave a report.

    Failed SSH connections between nodes count only if both gave one.
    """
    names = {one.node.private_ip: one.host for one in nodes}
    found = [*_differences(nodes), *_clocks(nodes), *_hostnames(nodes)]
    for one in nodes:
        for check_node in CHECKS:
            found += check_node(one)
        found += _mesh(one, names)
    return found


def measures(nodes: Sequence[Examined]) -> str:
    """Return, in words, how far clocks are apart and which disk is the fullest."""
    far_ms = max((abs(one.report.clock_offset_s) for one in nodes), default=0.0) * 1000
    error_ms = max((one.report.clock_error_s for one in nodes), default=0.0) * 1000
    shares = [
        (disk.used_percent, disk.path, one.host) for one in nodes for disk in one.report.all(mount)
    ]
    percent, path, host = max(shares, default=(0, "/", ""))
    clocks = f"clocks within {max(far_ms, error_ms):.0f} ms of this machine's"
    return f"{clocks}, fullest disk {percent} % ({path} on {host})"


def _differences(nodes: Sequence[Examined]) -> Findings:
    """Yield a finding for each cell that differs from the norm."""
    table = compare(nodes)
    for heading in table.differing:
        column = COLUMNS[heading]
        if column.severity is INFO:
            continue
        for row, one in enumerate(nodes):
            if not table.is_odd(heading, row):
                continue
            cell, norm = table.cells[heading][row], table.norms[heading]
            # net.interface or env.missing reports it.
            if not cell and (heading == "MTU" or (column.fact is versions and _lacks(one))):
                continue
            what = heading if heading in ("NCCL", "MTU") else heading.lower()
            others = f"most have {norm}" if len(nodes) > 2 else f"{nodes[0].host} has {norm}"
            message = f"{what}: {cell or 'none'}, {others if norm else 'the others have none'}"
            if heading == "SCRIPTS":
                message = _changed_scripts(one, table)
            name = one.interface.name if one.interface else "eth0"
            hint = column.hint.format(index=one.index, interface=name, norm=norm)
            check_id = f"drift.{heading.lower().replace(' ', '_')}"
            yield Finding(check_id, column.severity, message, one.host, hint)


def _changed_scripts(one: Examined, table: NodeComparison) -> str:
    usual = next(
        other.report.get(scripts) or {}
        for row, other in enumerate(table.nodes)
        if table.cells["SCRIPTS"][row] == table.norms["SCRIPTS"]
    )
    own = one.report.get(scripts) or {}
    names = sorted(name for name in {*own, *usual} if own.get(name) != usual.get(name))
    more = f" and {count(len(names) - 1, 'other file')}" if len(names) > 1 else ""
    return f"other examples than most nodes: {names[0]}{more}"


def _clocks(nodes: Sequence[Examined]) -> Findings:
    """Compare the clocks of nodes and of this machine."""
    clocks = [(one.report.clock_offset_s, one.report.clock_error_s) for one in nodes]
    for one, skew in zip(nodes, skews(clocks)):
        if skew:
            hint = (
                "log lines of several nodes cannot be put in order, and AWS refuses signatures "
                f"from 5 min on: clusterctl run NAME --nodes {one.index} 'sudo chronyc makestep'"
            )
            yield Finding("clock.skew", WARNING, f"its clock is {skew}", one.host, hint)
    # If more nodes agree with each other than with this machine, its own clock is wrong.
    usual_s = usual_clock(clocks)
    if usual_s:
        message = (
            f"this machine's clock is {format_duration(abs(usual_s))} "
            f"{'behind' if usual_s > 0 else 'ahead of'} that of the nodes"
        )
        yield Finding("clock.here", WARNING, message, hint="set it: timedatectl set-ntp true")


def _hostnames(nodes: Sequence[Examined]) -> Findings:
    """Find nodes with the same hostname."""
    for name, sharing in namesakes(nodes, lambda one: one.hostname).items():
        for node in sharing:
            others = ", ".join(one.host for one in sharing if one is not node)
            yield Finding(
                "hostname.duplicate",
                ERROR,
                f"its hostname is {name}, as that of {others}: {TAKEN_FOR_ONE}",
                node.host,
                "give each its own again: clusterctl doctor NAME --fix",
            )


def _unread(one: Examined) -> Findings:
    """Report the facts that could not be read."""
    for reading in one.report.failed():
        fact, _, path = reading.label.partition(" ")
        if fact == mount.__name__ and path and reading.timed_out:
            yield hanging_finding(one.host, path, reading.error)
            continue
        is_broken = reading.timed_out and fact in (mount.__name__, gpus.__name__)
        check_id = HANGS if reading.timed_out else NOT_CHECKED
        message = f"cannot read {reading.label}: {reading.error}"
        hint = reboot_hint(one.index) if is_broken else ""
        yield Finding(check_id, ERROR if is_broken else WARNING, message, one.host, hint)


def hanging_finding(host: str, path: str, error: str) -> Finding:
    """Return the error about a file system that does not answer."""
    message = f"{path}: the file system does not answer ({error})"
    hint = "what touches it hangs, too: see `mount` and `dmesg` there"
    return Finding(HANGS, ERROR, message, host, hint)


def _gpus(one: Examined) -> Findings:
    if not one.report.has(gpus):
        return
    if len(one.cards) < one.node.gpus:
        counted = f"nvidia-smi sees {count(len(one.cards), 'GPU')}, its type has {one.node.gpus}"
        yield Finding("gpu.count", ERROR, counted, one.host, reboot_hint(one.index))
    for number, card in enumerate(one.cards):
        which = f"GPU {number} ({card.bus})"
        bad = {name: n for name, n in card.ecc.items() if name.startswith("volatile")}
        if bad:
            counts = ", ".join(f"{n} {name[9:].replace('_', ' ')}" for name, n in bad.items())
            message = f"{which} has memory errors since its last reset: {counts}"
            yield Finding("gpu.ecc", ERROR, message, one.host, reboot_hint(one.index))
        if card.remap_failed:
            message = f"{which}: a bad memory row could not be remapped"
            hint = f"another machine in its place: clusterctl replace NAME {one.index}"
            yield Finding("gpu.remap", ERROR, message, one.host, hint)
        elif card.remap_pending:
            message = f"{which}: a bad memory row is remapped at the next reset"
            hint = f"clusterctl reboot NAME {one.index}"
            yield Finding("gpu.remap", WARNING, message, one.host, hint)
        slowed = slowdown(card.throttled)
        if slowed:
            hint = f"if it stays so: clusterctl replace NAME {one.index}"
            yield Finding("gpu.throttled", WARNING, f"{which} {slowed}", one.host, hint)
    for gpu, links in (one.report.get(nvlink) or {}).items():
        message = f"GPU {gpu}: NVLink {', '.join(map(str, links))} inactive"
        yield Finding("gpu.nvlink", ERROR, message, one.host, reboot_hint(one.index))
    manager = one.report.get(fabric_manager)
    if manager not in (None, "active"):
        yield fabric_finding(one.host, manager or "not there", ERROR)
    for text in one.report.get(dcgm) or ():
        yield Finding(
            "gpu.dcgm", ERROR, f"dcgmi diag -r 1: {text}", one.host, reboot_hint(one.index)
        )


# Meaning and severity of Xid errors, by NVIDIA's catalogue (driver r590) and AWS's health checks.
XIDS: Mapping[int, tuple[str, Severity]] = {
    **dict.fromkeys((13, 31, 32, 69, 94, 126), ("the program's own fault, mostly", WARNING)),
    **dict.fromkeys((43, 45, 63, 92, 121), ("follows another error, or a corrected one", INFO)),
    **dict.fromkeys((46, 62, 109, 158), ("the GPU gave no answer in time", ERROR)),
    **dict.fromkeys((48, 95), ("an uncorrectable memory error", ERROR)),
    64: ("a bad memory row could not be remapped", ERROR),
    74: ("an error of NVLink", ERROR),
    79: ("the GPU has fallen off the bus", ERROR),
    **dict.fromkeys((110, 119, 120), ("the GPU's own processor failed", ERROR)),
    **dict.fromkeys((136, 140, 143, 155, 156), ("the GPU needs a reset", ERROR)),
    **dict.fromkeys(range(144, 151), ("an error of NVLink 5", WARNING)),
    54: ("the auxiliary power is not connected", ERROR),
    **dict.fromkeys((151, 168), ("the machine needs a restart", ERROR)),
    154: ("the driver names what would help", WARNING),
}
XID = re.compile(r"NVRM: Xid \(((?:PCI:)?[0-9a-fA-F:.]+)\).*?: (\d+)")


def _xids(one: Examined) -> Findings:
    """Find Xid errors, by which NVIDIA's driver reports errors of GPUs in the kernel log."""
    counted: Counter[tuple[str, int]] = Counter()
    ages: dict[tuple[str, int], float | None] = {}
    for line in one.report.get(kernel_log) or ():
        match = XID.search(line.text)
        if match:
            key = (match[1].removeprefix("PCI:"), int(match[2]))
            counted[key] += 1
            ages[key] = line.age_s
    for (bus, number), times in counted.items():
        meaning, severity = XIDS.get(
            number, ("not in our list: see NVIDIA's Xid catalogue", WARNING)
        )
        age_s = ages[(bus, number)]
        when = "" if age_s is None else f", {format_duration(age_s)} ago"
        often = f" {times} times" if times > 1 else ""
        message = f"Xid {number} of GPU {bus}{often}{when}: {meaning}"
        lines = f"clusterctl run NAME --nodes {one.index} 'sudo dmesg | grep Xid'"
        hint = {ERROR: reboot_hint(one.index), WARNING: f"see the lines: {lines}", INFO: ""}[
            severity
        ]
        yield Finding("gpu.xid", severity, message, one.host, hint)


def _efa(one: Examined) -> Findings:
    devices = one.report.get(efa)
    if devices is not None:
        yield from efa_findings(one.host, len(devices) or None, RequestedEquipment(efa=one.efa))
    cards = one.report.get(efa_cards) or ()
    idle, usual = idle_among({card.name: moved(card.counters) for card in cards}, USED_CARD_BYTES)
    if idle:
        which = ", ".join(idle[:4]) + ("…" if len(idle) > 4 else "")
        message = (
            f"{count(len(idle), 'EFA card')} moved nothing since the driver was loaded, and the "
            f"others {format_bytes(usual)} each: {which}"
        )
        yield Finding("efa.idle", WARNING, message, one.host, reboot_hint(one.index))
    # These are no proof: a peer may have been ended, or have failed, at any time since then.
    for card in cards:
        troubles = card_errors_in_words(card.counters, CARD_TROUBLES)
        if troubles:
            message = f"EFA card {card.name} since its driver was loaded: {troubles}"
            yield Finding("efa.counters", INFO, message, one.host)


def _network(one: Examined) -> Findings:
    """Check that NCCL chooses the interface of the cluster's network."""
    if not one.report.has(interfaces):
        return
    own, nccl = one.interface, one.nccl_interface
    if not one.node.instance_id:
        return
    if not own:
        message = f"no interface has its address, {one.node.private_ip}"
        hint = f"clusterctl reboot NAME {one.index}"
        yield Finding("net.interface", ERROR, message, one.host, hint)
    elif nccl and not nccl.startswith("EFA") and nccl != own.name:
        message = f"NCCL would take {nccl}, and the cluster's network is on {own.name}"
        hint = f"train with -x NCCL_SOCKET_IFNAME={own.name}"
        yield Finding("net.interface", WARNING, message, one.host, hint)


def _limits(one: Examined) -> Findings:
    found = one.report.get(limits) or {}
    for name, least, what, soft in (
        ("nofile", LEAST_NOFILE, "open files (nofile)", "nofile 65536"),
        ("memlock_bytes", LEAST_MEMLOCK if one.efa else 0, "locked memory (memlock)",
         "memlock unlimited"),
    ):  # fmt: skip
        value = found.get(name)
        if value is not None and value < least:
            shown, wanted = (_limit({name: number}, name) for number in (value, least))
            yield Finding(
                f"limits.{name.partition('_')[0]}",
                WARNING,
                f"the limit of {what} is {shown}, and ranks need {wanted}",
                one.host,
                f"echo '* - {soft}' | sudo tee /etc/security/limits.d/clusterctl.conf, and log in "
                "again",
            )


def disk_findings(
    host: str, system: MountedFileSystem, knows_fills: bool = False
) -> Iterator[Finding]:
    """Yield the findings about one file system: its space, its inodes, and whether it is read-only.

    `knows_fills`: see room_hint.
    """
    path = system.path
    shm_hint = (
        "see what is there (ls -l /dev/shm); remove what killed ranks left: clusterctl run NAME "
        f"--nodes {host.rpartition('-')[2]} 'rm -f /dev/shm/nccl-* /dev/shm/*_segment*'"
    )
    for short in fullness(system):
        hint = shm_hint if path == SHM else room_hint(path, knows_fills)
        yield Finding(short.check, short.severity, f"{path} {short.words}", host, hint)
    if system.lost_writes:
        message = f"{path} is read-only: a volume that fails becomes so"
        yield Finding("disk.readonly", ERROR, message, host, "see `dmesg` there")
    elif system.is_refusing:
        what = " and ".join(system.needed)
        message = f"{path} is mounted read-only: no job can write to {what}"
        hint = f"see why (`dmesg` there), and make it writable: sudo mount -o remount,rw {path}"
        yield Finding("disk.readonly", ERROR, message, host, hint)
    elif system.readonly and system.is_local and path in PATHS and path != "/":
        message = f"{path} is mounted read-only: no job can write there"
        yield Finding.info("disk.readonly", message, host=host)


def room_hint(path: str, knows_fills: bool) -> str:
    """Return how to make room on a full file system. `knows_fills`: `disk` has looked for its
    largest folders, which it does not suggest again."""
    find = "" if knows_fills else "see what fills it (clusterctl disk NAME); "
    clean = "clusterctl clean-logs NAME --jobs"
    if path == "/":
        return (
            f"{find}remove old logs and checkpoints ({clean}), or enlarge the root volume: "
            "clusterctl disk NAME --grow GIB"
        )
    # Jobs and their logs are in the home folder, unless --log_dir names another.
    return f"{find}remove data in {path} that no job reads, or what jobs wrote there ({clean})"


def _disks(one: Examined) -> Findings:
    for disk in one.report.all(mount):
        yield from disk_findings(one.host, disk)


def _lacks(one: Examined) -> str:
    """Return what a node lacks to train; empty for nothing, and for a host of no cluster."""
    names = {"mpirun": "Open MPI", "horovod": "Horovod"}
    absent = [name for key, name in names.items() if key not in one.versions]
    return absent[0] if absent and one.node.instance_id else ""


def _software(one: Examined) -> Findings:
    if not one.report.has(versions):
        return
    if _lacks(one):
        hint = "make it: clusterctl env install NAME"
        message = f"no {_lacks(one)} to train with (clusterctl's own is in {FOLDER})"
        yield Finding("env.missing", WARNING, message, one.host, hint)
    if misled_python(one.versions):
        yield Finding("env.variables", ERROR, misled_python(one.versions), one.host, UNSET)
    for text in version_mismatches(one.versions, is_trainer=False):
        yield Finding("env.mismatch", ERROR, text, one.host, INSTALL)
    of_jobs, on_path = one.versions.get("mpirun"), one.report.get(mpirun_on_path)
    if of_jobs and on_path and on_path[1] and on_path[1] != of_jobs:
        message = (
            f"`mpirun` in a shell there is {on_path[0]} ({_number(on_path[1])}), jobs take "
            f"{_number(of_jobs)}"
        )
        hint = "type the whole path of the one that is meant; clusterctl's jobs do"
        yield Finding("mpi.two", INFO, message, one.host, hint)


def _mesh(one: Examined, names: Mapping[str, str]) -> Iterator[Finding]:
    for address, reason in (one.report.get(unreached) or {}).items():
        if address in names and reason == NO_VERDICT:
            message = f"not known whether it gets through to {names[address]} ({address}): {reason}"
            hint = f"try only this: clusterctl run NAME --nodes {one.index} 'ssh {address} true'"
            yield Finding(NOT_CHECKED, WARNING, message, one.host, hint)
        elif address in names:
            message = f"cannot get through to {names[address]} ({address}): {reason}"
            hint = "keys, host keys and names are set again by: clusterctl up NAME"
            if re.search(r"time|no answer|no route|unreachable|refused", reason, re.IGNORECASE):
                ping = f"clusterctl run NAME --nodes {one.index} 'ping -c 3 {address}'"
                hint = (
                    f"its packets do not get there, or its sshd is off: {ping}; see the security "
                )
                hint += "groups of both and the network ACL of the subnet"
            yield Finding("ssh.mesh", ERROR, message, one.host, hint)


CHECKS = (_unread, _gpus, _xids, _efa, _network, _limits, _disks, _software)
