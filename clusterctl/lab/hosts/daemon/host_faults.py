"""The faults of a running host, and what each degree of one means."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.lab.hosts.daemon import network, volumes

# Fault -> its degree where a host has not got it.
UNHARMED: Mapping[str, Any] = {
    "frozen": False,
    "cut": False,
    "shape": None,  # or bits a second down and up, 0 for no limit
    "left": None,  # or bytes
    "readonly": False,
    "gpu": None,  # or what its stand-in for nvidia-smi reads, and an Xid for the kernel's log
}
# These are gone with its processes, its link and its mounts. The others it keeps.
ENDED_WITH_THE_BOOT: Mapping[str, Any] = {"frozen": False, "cut": False, "readonly": False}


@dataclass(frozen=True)
class HostState:
    """A host that runs: its PID 1, the other end of its link, and the volume of its /data."""

    pid: int
    link: str
    data: Path = Path()


def freeze(host: HostState, frozen: bool) -> None:
    (_freeze if frozen else _thaw)(host.pid)


def cut(host: HostState, down: bool) -> None:
    network.ip_batch([f"link set {host.link} {'down' if down else 'up'}"], check=False)


def shape(host: HostState, rates: list[int] | None) -> None:
    _shape(host.link, host.pid, *(rates or (0, 0)))


def fill(host: HostState, left: int | None) -> None:
    volumes.fill(host.data, left)


def set_readonly(host: HostState, readonly: bool) -> None:
    volumes.set_readonly(host.pid, readonly)


# In the host: the file of the stand-ins for nvidia-smi, and a line of the kernel's.
_BREAK_GPU = """
cd /etc/clusterctl-lab && [ -e gpus.txt ] || exit 1
[ -e gpus.whole ] || cp gpus.txt gpus.whole
if [ -n "$lost" ]; then sed "${lost}d" gpus.whole >gpus.txt; else cp gpus.whole gpus.txt; fi
if [ "$fault" = null ]; then rm -f gpu-fault.json
else echo "$fault" >gpu-fault.new && mv gpu-fault.new gpu-fault.json; fi
[ -z "$line" ] || { read -r up _ </proc/uptime; echo "[$up] $line" >>kmsg; }
"""


def break_gpu(host: HostState, wanted: dict[str, Any] | None) -> None:
    """Have the simulated GPU answer as a broken one; None: as a whole one."""
    broken = wanted or {"gpu": -1, "lost": False, "xid": 0}
    bus = f"PCI:0000:00:{0x17 + broken['gpu']:02x}"
    environment = {
        **os.environ,
        "fault": json.dumps(wanted),
        # A GPU that is lost is not listed.
        "lost": str(broken["gpu"] + 1) if broken["lost"] else "",
        "line": f"NVRM: Xid ({bus}): {broken['xid']}, pid='<unknown>'" if broken["xid"] else "",
    }
    enter = ["nsenter", f"--target={host.pid}", "--mount", "--time", "sh", "-c", _BREAK_GPU]
    done = subprocess.run(enter, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip() or "it has no GPU")


APPLY_FAULT: Mapping[str, Callable[[HostState, Any], None]] = {
    "frozen": freeze,
    "cut": cut,
    "shape": shape,
    "left": fill,
    "readonly": set_readonly,
    "gpu": break_gpu,
}


def _freeze(init: int) -> None:
    """Stop every process of the host whose PID 1 this is, those that it is just forking too."""
    stopped: set[int] = set()
    while running := set(_processes_of(init)) - stopped:
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        stopped |= running


def _thaw(init: int) -> None:
    for pid in _processes_of(init):
        _signal(pid, signal.SIGCONT)


def _processes_of(init: int) -> Iterator[int]:
    """The processes in the PID namespace of a host."""
    own = _pid_namespace(init)
    for entry in Path("/proc").iterdir():
        if own and entry.name.isdigit() and _pid_namespace(int(entry.name)) == own:
            yield int(entry.name)


def _pid_namespace(pid: int) -> str:
    """Empty for a process that is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


# The rate of a link: token buckets at its two ends. What the bridge sends into it is the host's
# download, what its eth0 sends its upload. Whole Ethernet frames count, as on a link: of 1514 bytes
# 1448 are data.

# So much may pass at once: little enough that a transfer of a tenth of a second shows the rate,
# enough that none is lost when a busy machine is late.
BURST_S = 0.004
LEAST_BURST = 4096  # two frames
# The packets of 64 KiB that the kernel joins (GSO) pass whole, at a tenth of the work; a queue with
# a smaller burst cuts them. Slower links keep the small burst: there it would be felt.
WHOLE_BURST = 68 * 1024
WHOLE_FROM_BIT = 30_000_000
# How long what comes too fast waits; what does not fit is dropped, and TCP slows down.
QUEUE_S = 0.05
LEAST_QUEUED, MOST_QUEUED = 128 * 1024, 64 * 1024 * 1024  # at the least two such packets


def shape_of(rate_bit: int) -> str:
    """The queue of a link's end as `tc` takes it."""
    least = WHOLE_BURST if rate_bit >= WHOLE_FROM_BIT else LEAST_BURST
    burst = max(least, int(rate_bit * BURST_S / 8))
    queued = min(MOST_QUEUED, max(LEAST_QUEUED, int(rate_bit * QUEUE_S / 8)))
    return f"tbf rate {rate_bit}bit burst {burst}b limit {burst + queued}b"


def _shape(link: str, pid: int, down_bit: int, up_bit: int) -> None:
    """Give the link of the host of `pid` these rates; 0: as fast as it can."""
    _set_rate(link, down_bit)
    _set_rate("eth0", up_bit, inside=pid)


def _set_rate(link: str, rate_bit: int, inside: int = 0) -> None:
    enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else []
    # A link without a queue of its own has nothing that could be deleted: it gets the usual one.
    queue = shape_of(rate_bit) if rate_bit else "noqueue"
    command = ["tc", "qdisc", "replace", "dev", link, "root", *queue.split()]
    subprocess.run([*enter, *command], check=True)
