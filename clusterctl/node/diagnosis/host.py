"""Facts about a node, whatever runs on it.

No question can delay another: each that may hang (a mount whose server is gone, a driver that lost
its GPU) runs in a process of its own. A process that hangs in the kernel cannot be killed. It is
left behind, and the answer says which question it was.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import struct
import time
from functools import partial
from pathlib import Path

from clusterctl.node.procfs import boot_id
from clusterctl.node.programs import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any
    from xml.etree.ElementTree import Element

WITHIN_S = 5.0  # timeout of each question, unless the caller has another
# Where a job's data, logs, checkpoints and sockets are. /opt/dlami/nvme has the striped local disks
# on the Deep Learning AMI.
PLACES = ("/", "/data", "/opt/dlami/nvme", "~", "/tmp", "/dev/shm")  # noqa: S108
# Types of remote file systems.
REMOTE = re.compile(r"nfs|cifs|smb|lustre|ceph|glusterfs|fuse|beegfs|9p|virtiofs")
# Kernel messages about GPUs, memory, disks and links. Others are not collected.
TELLING = re.compile(
    r"NVRM|SXid|nvidia|oom-kill|Out of memory|Killed process|blocked for more than|soft lockup"
    r"|hard LOCKUP|I/O error|I/O .*timeout|reset failure|read-only|nfs: server|Keep alive watchdog"
    r"|TX hasn't completed|Link is Down|NIC Link|EXT4-fs error|XFS.*(?:rror|hutdown)|Disk failure"
    r"|segfault|general protection|Machine Check|mce:|EDAC|\befa\b|Memory cgroup",
)
MOST_LINES = 200
LONGEST_LINE = 500


def facts(within_s: float = WITHIN_S) -> dict[str, Any]:
    """Return all facts by name. `errors` has the reasons for those that are missing. `clock` has
    the time before the first question and after the last."""
    clock = {"first_s": time.time()}
    questions: dict[str, Callable[[], Any]] = {
        "system": system,
        "memory": memory,
        "limits": limits,
        "interfaces": interfaces,
        "efa": efa,
        "kernel_log": kernel_log,
        "gpus": gpus,
        "nvlink": nvlink,
        "fabric_manager": fabric_manager,
    }
    asked = {f"mount {path}": partial(filesystem, path) for path in mounts()}
    answers, errors = ask({**questions, **asked}, within_s)
    systems = [answers.pop(name) for name in asked if name in answers]
    clock["last_s"] = time.time()
    return {**answers, "filesystems": systems, "clock": clock, "errors": errors}


def ask(
    questions: Mapping[str, Callable[[], Any]], within_s: float
) -> tuple[dict[str, Any], dict[str, str]]:
    """Answer all questions in parallel. Return the answers by name, and the reasons for those that
    are missing."""
    waiting = {_start(question): name for name, question in questions.items()}
    pids = dict(waiting)
    said: dict[int, bytes] = {read: b"" for read, _ in waiting}
    deadline = time.monotonic() + within_s
    answers: dict[str, Any] = {}
    errors: dict[str, str] = {}
    poll = select.poll()
    for read in said:
        poll.register(read, select.POLLIN)
    while waiting:
        left_s = deadline - time.monotonic()
        ready = [fd for fd, _ in poll.poll(max(0.0, left_s) * 1000)]
        for key in [key for key in waiting if key[0] in ready]:
            chunk = os.read(key[0], 1 << 16)
            if chunk:
                said[key[0]] += chunk
                continue
            name = waiting.pop(key)
            poll.unregister(key[0])
            _take(name, said[key[0]], answers, errors)
        if left_s <= 0 and not ready:
            break
    for (_, pid), name in waiting.items():
        errors[name] = f"no answer within {within_s:g} s"
        with contextlib.suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    for read, pid in pids:
        os.close(read)
        _reap(pid, 0.2 if (read, pid) in waiting else WITHIN_S)
    return answers, errors


def _reap(pid: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(pid, os.WNOHANG) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.005)


def _start(question: Callable[[], Any]) -> tuple[int, int]:
    """Fork a child that answers the question. Return the pipe for its answer, and its pid."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return read, pid
    try:
        os.setsid()
        # The child may hang for ever. It must not keep open what somebody reads to its end: sshd
        # reads the output of this program.
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
            if int(name) not in (0, 1, 2, write):
                with contextlib.suppress(OSError):
                    os.close(int(name))
        try:
            text = json.dumps({"value": question()})
        except Exception as failure:  # noqa: BLE001 - whatever it is, the other facts are told
            text = json.dumps({"error": f"{type(failure).__name__}: {failure}"})
        with os.fdopen(write, "wb") as pipe:
            pipe.write(text.encode())
    finally:
        os._exit(0)


def _take(name: str, said: bytes, answers: dict[str, Any], errors: dict[str, str]) -> None:
    try:
        answer = json.loads(said)
    except ValueError:
        errors[name] = "its process died"
        return
    if "error" in answer:
        errors[name] = answer["error"]
    else:
        answers[name] = answer["value"]


def system() -> dict[str, Any]:
    """Return the host's name, kernel, boot, uptime in seconds, processors and load."""
    name = os.uname()
    return {
        "hostname": name.nodename,
        "kernel": name.release,
        "boot_id": boot_id(),
        "uptime_s": _uptime_s(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def _uptime_s() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def memory() -> dict[str, int]:
    """Return bytes by the names of /proc/meminfo."""
    pairs = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    wanted = ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree", "Shmem")
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs if name in wanted}


def limits() -> dict[str, int | None]:
    """Return the soft limits of an SSH login, which a rank has, too. None: unlimited."""
    named = {
        "memlock_bytes": resource.RLIMIT_MEMLOCK,
        "nofile": resource.RLIMIT_NOFILE,
        "nproc": resource.RLIMIT_NPROC,
        "stack_bytes": resource.RLIMIT_STACK,
    }
    found = {name: resource.getrlimit(number)[0] for name, number in named.items()}
    return {
        name: None if value == resource.RLIM_INFINITY else value for name, value in found.items()
    }


# Requests of netdevice(7): the address and the netmask of an interface.
SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B


def interfaces() -> list[dict[str, Any]]:
    """Return the network interfaces. `address` is IPv4 with the prefix length; empty if none."""
    found = []
    for name in sorted(os.listdir("/sys/class/net")):  # noqa: PTH208
        folder = Path("/sys/class/net", name)
        if not folder.is_dir():
            continue
        dropped = {way: _number(folder / f"statistics/{way}_dropped") for way in ("rx", "tx")}
        failed = {way: _number(folder / f"statistics/{way}_errors") for way in ("rx", "tx")}
        found.append(
            {
                "name": name,
                "mtu": _number(folder / "mtu"),
                "state": _text(folder / "operstate"),
                "address": _address(name),
                "driver": _link(folder / "device/driver"),
                "dropped": sum(dropped.values()),
                "errors": sum(failed.values()),
            }
        )
    return found


def _address(name: str) -> str:
    """Return `10.0.3.7/20`; empty without an IPv4 address."""
    asked = struct.pack("256s", os.fsencode(name)[:15])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        try:
            answers = [
                fcntl.ioctl(any_socket, call, asked)[20:24]
                for call in (SIOCGIFADDR, SIOCGIFNETMASK)
            ]
        except OSError:
            return ""
    prefix = bin(int.from_bytes(answers[1], "big")).count("1")
    return f"{socket.inet_ntoa(answers[0])}/{prefix}"


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _number(path: Path) -> int:
    text = _text(path)
    return int(text) if text.isdigit() else 0


def _link(path: Path) -> str:
    try:
        return os.path.basename(os.readlink(path))  # noqa: PTH115, PTH119
    except OSError:
        return ""


def efa() -> list[str]:
    """Return the Elastic Fabric Adapters whose driver is loaded."""
    devices = sorted(Path("/sys/class/infiniband").glob("*/device/driver"))
    return [path.parts[-3] for path in devices if _link(path) == "efa"]


def mounts() -> list[str]:
    """Return the mount points of the file systems that a job may use, each file system once. A
    place that is no mount point counts as the one above it. /proc is read without waiting for a
    server."""
    table = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        words = line.split()
        kind, source = words[words.index("-") + 1 : words.index("-") + 3]
        # The kernel writes a space in a path as \040.
        path = re.sub(r"\\(\d{3})", lambda found: chr(int(found[1], 8)), words[4])
        table[path] = (words[2], kind, source)
    wanted = [os.path.expanduser(place) for place in PLACES]  # noqa: PTH111
    wanted += [path for path, (_, kind, _) in table.items() if REMOTE.search(kind)]
    found: dict[str, str] = {}
    for place in wanted:
        path = place
        while path not in table and path != "/":
            path = os.path.dirname(path)  # noqa: PTH120
        if path in table:
            found.setdefault(table[path][0], path)
    return list(found.values())


def filesystem(path: str) -> dict[str, Any]:
    """Return sizes in bytes. What is reserved for root does not count as free."""
    state = os.statvfs(path)
    return {
        "path": path,
        "size_bytes": state.f_blocks * state.f_frsize,
        "free_bytes": state.f_bavail * state.f_frsize,
        "used_bytes": (state.f_blocks - state.f_bfree) * state.f_frsize,
        "inodes": state.f_files,
        "inodes_free": state.f_favail,
        "readonly": bool(state.f_flag & os.ST_RDONLY),
    }


def kernel_log() -> list[dict[str, Any]]:
    """Return the last messages that match TELLING, with their age in seconds; None: not known."""
    journal = ["journalctl", "-kb", "--no-pager", "-o", "short-monotonic"]
    ways = (["dmesg"], ["sudo", "-n", "dmesg"], journal)
    said = next((text for text in map(output, ways) if text is not None), None)
    if said is None:
        raise PermissionError("neither dmesg nor journalctl shows the kernel's log")
    uptime_s = _uptime_s()
    return [_kernel_line(line, uptime_s) for line in said.splitlines() if TELLING.search(line)][
        -MOST_LINES:
    ]


def _kernel_line(line: str, uptime_s: float) -> dict[str, Any]:
    found = re.match(r"(?:<\d+>)?\[\s*(\d+\.\d+)\]\s?(?:\S+ kernel: )?(.*)", line)
    at, text = (float(found[1]), found[2]) if found else (None, line)
    age_s = None if at is None else round(max(0.0, uptime_s - at), 1)
    return {"age_s": age_s, "text": text[:LONGEST_LINE]}


def gpus() -> dict[str, Any] | None:
    """Return what nvidia-smi reports; None without that program. Raises OSError if it fails."""
    if not shutil.which("nvidia-smi"):
        return None
    said = output(["nvidia-smi", "-q", "-x"])
    if not said:
        raise OSError("nvidia-smi -q -x says nothing")
    from xml.etree.ElementTree import fromstring  # slow to import: a fifth of this program's start

    log = fromstring(said)
    return {
        "driver": _word(log, "driver_version"),
        "cuda": _word(log, "cuda_version"),
        "gpus": [_gpu(element) for element in log.iter("gpu")],
    }


def _gpu(gpu: Element) -> dict[str, Any]:
    ecc = {
        f"{period}_{name}": _figure(element)
        for period in ("volatile", "aggregate")
        for element in gpu.iterfind(f"ecc_errors/{period}/*")
        for name in [element.tag]
        if "uncorrectable" in name or "threshold" in name
    }
    # nvidia-smi renamed the throttle reasons to event reasons.
    events = gpu.find("clocks_event_reasons")
    events = gpu.find("clocks_throttle_reasons") if events is None else events
    return {
        "bus": (gpu.get("id") or "").lower(),
        "name": _word(gpu, "product_name"),
        "uuid": _word(gpu, "uuid"),
        "memory_total_mib": _number_of(gpu, "fb_memory_usage/total"),
        "memory_used_mib": _number_of(gpu, "fb_memory_usage/used"),
        "utilization_percent": _number_of(gpu, "utilization/gpu_util"),
        "power_w": _number_of(gpu, "gpu_power_readings/instant_power_draw")
        or _number_of(gpu, "gpu_power_readings/power_draw")
        or _number_of(gpu, "power_readings/power_draw"),
        "temperature_c": _number_of(gpu, "temperature/gpu_temp"),
        "clock_mhz": _number_of(gpu, "clocks/sm_clock"),
        "throttled": sorted(
            element.tag.partition("_reason_")[2]
            for element in (events if events is not None else ())
            if (element.text or "").strip() == "Active" and "idle" not in element.tag
        ),
        "ecc": {name: number for name, number in ecc.items() if number},
        "remap_pending": _word(gpu, "remapped_rows/remapped_row_pending") == "Yes",
        "remap_failed": _word(gpu, "remapped_rows/remapped_row_failure") == "Yes",
        "recovery_action": _word(gpu, "gpu_recovery_action"),
        "fabric": _word(gpu, "fabric/state"),
        "processes": [
            {"pid": _number_of(one, "pid"), "memory_mib": _number_of(one, "used_memory")}
            for one in gpu.iterfind("processes/process_info")
        ],
    }


def _word(element: Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _number_of(element: Element, path: str) -> float | None:
    """Return `42.00 W` as 42.0; None for N/A."""
    found = re.match(r"-?\d+(\.\d+)?", _word(element, path))
    return float(found[0]) if found else None


def _figure(element: Element) -> int:
    text = (element.text or "").strip()
    return int(text) if text.isdigit() else int(text == "Yes")


def nvlink() -> dict[str, list[int]] | None:
    """Return for each GPU the numbers of its inactive NVLinks; None without NVLink."""
    said = output(["nvidia-smi", "nvlink", "-s"]) if shutil.which("nvidia-smi") else None
    if not said or "Link" not in said:
        return None
    down: dict[str, list[int]] = {}
    gpu = ""
    for line in said.splitlines():
        head = re.match(r"GPU (\d+):", line)
        link = re.search(r"Link (\d+): <inactive>", line)
        gpu = head[1] if head else gpu
        if link:
            down.setdefault(gpu, []).append(int(link[1]))
    return down


def fabric_manager() -> str | None:
    """Return the state of NVIDIA's Fabric Manager, `active` or another of systemd's; None on a
    machine without NVSwitches."""
    if not Path("/dev/nvidia-nvswitch0").exists():
        return None
    # systemctl exits with 3 if the service does not run, which is a result.
    return (output(["systemctl", "is-active", "nvidia-fabricmanager"], check=False) or "").strip()
