"""Applies and removes the faults of running hosts."""

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

# Fault -> its value for a host without it.
NO_FAULTS: Mapping[str, Any] = {
    "frozen": False,
    "cut": False,
    "shape": None,  # or bits a second down and up, 0 for no limit
    "left": None,  # or bytes
    "readonly": False,
    "gpu": None,  # or what the simulated nvidia-smi reads, and an Xid error for the kernel's log
}
# A host loses these when it goes off, with its processes, its link and its mounts. It keeps others.
CLEARED_AT_POWER_OFF: Mapping[str, Any] = {"frozen": False, "cut": False, "readonly": False}


# The number of the first GPU's PCI bus. The others follow.
FIRST_GPU_BUS = 0x17


@dataclass(frozen=True)
class HostState:
    """A running host: its PID 1, the bridge's end of its link, and the volume of its /data."""

    pid: int
    link: str
    data: Path = Path()


def freeze(host: HostState, frozen: bool) -> None:
    """Stop all processes of a host, or let them go on."""
    if not frozen:
        for pid in _processes_of(host.pid):
            _signal(pid, signal.SIGCONT)
        return
    stopped: set[int] = set()
    # A process may fork before it is stopped. So repeat this until there is no new one.
    while running := set(_processes_of(host.pid)) - stopped:
        for pid in running:
            _signal(pid, signal.SIGSTOP)
        stopped |= running


def cut(host: HostState, down: bool) -> None:
    """Set the host's link down, or up."""
    network.ip_batch([f"link set {host.link} {'down' if down else 'up'}"], check=False)


def shape(host: HostState, rates: list[int] | None) -> None:
    """Limit the link's rates, in bits per second to the host and from it; None: no limits."""
    down_bit, up_bit = rates or (0, 0)
    _set_rate(host.link, down_bit)
    _set_rate("eth0", up_bit, inside=host.pid)


# Runs in the host: writes the files of the simulated nvidia-smi, and a line of the kernel's log.
_BREAK_GPU = """
cd /etc/clusterctl-lab && [ -e gpus.txt ] || exit 1
[ -e gpus.whole ] || cp gpus.txt gpus.whole
if [ -n "$lost" ]; then sed "${lost}d" gpus.whole >gpus.txt; else cp gpus.whole gpus.txt; fi
if [ "$fault" = null ]; then rm -f gpu-fault.json
else echo "$fault" >gpu-fault.new && mv gpu-fault.new gpu-fault.json; fi
[ -z "$line" ] || { read -r up _ </proc/uptime; echo "[$up] $line" >>kmsg; }
"""


def break_gpu(host: HostState, wanted: dict[str, Any] | None) -> None:
    """Break a simulated GPU, or repair it (None). Raise ValueError if the host has no GPU."""
    broken = wanted or {"gpu": -1, "lost": False, "xid": 0}
    bus = f"PCI:0000:00:{FIRST_GPU_BUS + broken['gpu']:02x}"
    environment = {
        **os.environ,
        "fault": json.dumps(wanted),
        # The line of gpus.txt to leave out: nvidia-smi does not list a lost GPU.
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
    "left": lambda host, left: volumes.fill(host.data, left),
    "readonly": lambda host, readonly: volumes.set_readonly(host.pid, readonly),
    "gpu": break_gpu,
}


def _processes_of(init: int) -> Iterator[int]:
    """Return the processes in a host's PID namespace, under the daemon's pids."""
    own = _pid_namespace(init)
    for entry in Path("/proc").iterdir():
        if own and entry.name.isdigit() and _pid_namespace(int(entry.name)) == own:
            yield int(entry.name)


def _pid_namespace(pid: int) -> str:
    """Return a name of the process's PID namespace; empty if the process is gone."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


# A link's rate is limited by a token bucket at each end. The one at the bridge limits the host's
# download, the one at its eth0 the upload. Ethernet frames count in full, as on a real link: of
# 9015 bytes 8949 are data.

# The bucket holds this much time at the full rate. It is small enough that a transfer of a tenth of
# a second shows the rate, and large enough that no rate is lost when a busy machine is late.
BURST_S = 0.004
LEAST_BURST = 10_240  # bytes: a frame, which tbf drops if it is larger than the bucket
# The kernel joins segments into packets of up to 64 KiB (GSO). With this burst (bytes) they pass
# whole, at a tenth of the work; with a smaller one tbf splits them. Links below WHOLE_FROM_BIT bits
# per second keep the small burst, since this one would be noticeable there.
WHOLE_BURST = 68 * 1024
WHOLE_FROM_BIT = 30_000_000
# The queue holds this much time at the full rate. What does not fit is dropped, and TCP slows down.
QUEUE_S = 0.05
LEAST_QUEUED, MOST_QUEUED = 128 * 1024, 64 * 1024 * 1024  # bytes, at the least two packets of GSO


def shape_of(rate_bit: int) -> str:
    """Return `tc`'s arguments for the queue at one end of a link."""
    least = WHOLE_BURST if rate_bit >= WHOLE_FROM_BIT else LEAST_BURST
    burst = max(least, int(rate_bit * BURST_S / 8))
    queued = min(MOST_QUEUED, max(LEAST_QUEUED, int(rate_bit * QUEUE_S / 8)))
    return f"tbf rate {rate_bit}bit burst {burst}b limit {burst + queued}b"


def _set_rate(link: str, rate_bit: int, inside: int = 0) -> None:
    """Limit one end of a link; 0 removes the limit. `inside` is the PID 1 of the end's host."""
    enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else []
    # `tc qdisc delete` fails on a link without a queue of its own. Setting the default does not.
    queue = shape_of(rate_bit) if rate_bit else "noqueue"
    command = ["tc", "qdisc", "replace", "dev", link, "root", *queue.split()]
    subprocess.run([*enter, *command], check=True)
