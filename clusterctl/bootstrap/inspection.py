"""The script that inspects a new node, the parser of its output, and the findings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from clusterctl.bootstrap.training import FOLDER
from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.units import count
from clusterctl.node.guard.activity import STORE

# The service of Deep Learning AMIs that mounts the instance store, and its timeout.
STORE_UNIT = "dlami-nvme"
STORE_WITHIN_S = 60
# The least share of its volume that a file system has: tables, the journal and the boot partition
# take some percent.
LEAST_OF_ROOT = 0.85


@dataclass(frozen=True)
class RequestedEquipment:
    """What the launch requested: the number of EFA interfaces, GiB of the root volume. 0: none."""

    efa: int = 0
    root_gib: int = 0


@dataclass(frozen=True)
class FileSystem:
    """A mounted file system. `source` is its device."""

    source: str
    size_gib: float


@dataclass(frozen=True)
class Equipment:
    """Disks and EFA devices of a node. `efa` is their number; None without EFA's driver.

    `file_systems` are by mount point. `store_unit` has systemd's properties of the service that
    mounts the instance store on Deep Learning AMIs; empty without that service. `store_disks`: the
    node has disks of an instance store. `fabric_manager` is the state of NVIDIA's Fabric Manager,
    and `inactive_links` the number of NVLinks that are down; empty and None without an NVSwitch.
    """

    file_systems: Mapping[str, FileSystem] = field(default_factory=dict)
    store_unit: Mapping[str, str] = field(default_factory=dict)
    store_disks: bool = False
    efa: int | None = None
    fabric_manager: str = ""
    inactive_links: int | None = None


# systemctl works only where systemd runs. The service may still be starting after cloud-init.
_DISKS = f"""
if [ -d /run/systemd/system ] && command -v systemctl >/dev/null 2>&1; then
    waited=0
    while :; do
        unit=$(systemctl show {STORE_UNIT} -p LoadState -p ActiveState -p Result -p Job \\
            2>/dev/null </dev/null)
        case $unit in *LoadState=loaded*) ;; *) unit=; break ;; esac
        case $unit in *ActiveState=activating*|*Job=[1-9]*) ;; *) break ;; esac
        [ $waited -lt {STORE_WITHIN_S} ] || break
        waited=$((waited + 1))
        sleep 1
    done
    printf '%s\\n' "$unit" | while read -r line; do echo "store-unit $line"; done
fi
for disk in /dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage*; do
    if [ -e "$disk" ]; then echo 'store-disks yes'; break; fi
done
df -P -k / {STORE} 2>/dev/null </dev/null | while read -r line; do echo "df $line"; done
"""
# The driver makes these devices where the machine has NVSwitches. There CUDA works only once Fabric
# Manager has set up the fabric: until then it fails with error 802, while nvidia-smi works.
NVSWITCHES = "/dev/nvidia-nvswitch*"
FABRIC_WITHIN_S = 60
_NVSWITCH = f"""
set -- {NVSWITCHES}
if [ -e "$1" ]; then
    waited=0
    while :; do
        state=$(systemctl is-active nvidia-fabricmanager 2>/dev/null </dev/null)
        [ "$state" = activating ] && [ $waited -lt {FABRIC_WITHIN_S} ] || break
        waited=$((waited + 1))
        sleep 1
    done
    echo "fabric-manager ${{state:-unknown}}"
    links=$(nvidia-smi nvlink -s 2>/dev/null </dev/null) &&
        echo "inactive-links $(printf '%s' "$links" | grep -ci inactive)"
fi
"""
# On the largest instance types the devices appear one after another.
_EFA = """
if [ -d /sys/module/efa ]; then
    for attempt in 1 2 3 4; do
        set -- /sys/class/infiniband/*
        [ -e "$1" ] || shift
        [ $# -ge {efa} ] && break
        [ $attempt -eq 4 ] || sleep 5
    done
    echo "efa $#"
fi
"""


def parse_equipment(lines: Mapping[str, list[str]]) -> Equipment:
    """Parse the script's output: the rest of each line, by the line's first word."""
    systems = (line.split() for line in lines.get("df", ()))
    properties = (line.partition("=") for line in lines.get("store-unit", ()))
    return Equipment(
        file_systems={
            words[5]: FileSystem(words[0], int(words[1]) / 2**20)
            for words in systems
            if len(words) == 6 and words[1].isascii() and words[1].isdigit()
        },
        store_unit={name: value for name, equals, value in properties if equals},
        store_disks="store-disks" in lines,
        efa=_status(_one(lines, "efa")),
        fabric_manager=_one(lines, "fabric-manager"),
        inactive_links=_status(_one(lines, "inactive-links")),
    )


def check_equipment(
    host: str, found: Equipment, requested: RequestedEquipment
) -> tuple[Finding, ...]:
    """Return the findings about one node's disks, EFA devices and NVSwitches."""
    return (
        *_store(host, found),
        *efa_findings(host, found.efa, requested),
        *_root(host, found, requested),
        *_nvswitch(host, found),
    )


def _nvswitch(host: str, found: Equipment) -> Iterator[Finding]:
    if found.fabric_manager == "unknown":
        text = "whether NVIDIA's Fabric Manager runs is not known: systemctl does not say"
        yield Finding.info("gpu.fabric", text, host=host)
    elif found.fabric_manager not in ("", "active"):
        # It may still start.
        yield fabric_finding(host, found.fabric_manager, Severity.WARNING)
    if found.inactive_links:
        cluster, _, index = host.rpartition("-")
        yield Finding.warning(
            "gpu.nvlink",
            f"{count(found.inactive_links, 'NVLink')} of its GPUs "
            f"{'is' if found.inactive_links == 1 else 'are'} down: `nvidia-smi nvlink -s`",
            f"the slowest GPU sets the pace; if a reboot does not help: clusterctl replace "
            f"{cluster} {index}",
            host,
        )


def fabric_finding(host: str, state: str, severity: Severity) -> Finding:
    """Return the finding about NVIDIA's Fabric Manager in a state other than active."""
    return Finding(
        "gpu.fabric",
        severity,
        f"NVIDIA's Fabric Manager is {state}: until it is active, CUDA programs fail with error "
        "802, system not yet initialized",
        host,
        "there: sudo systemctl restart nvidia-fabricmanager; if it fails, its version differs from "
        "the driver's: journalctl -u nvidia-fabricmanager",
    )


def _store(host: str, found: Equipment) -> Iterator[Finding]:
    unit = found.store_unit
    if STORE in found.file_systems:
        message = f"instance store: {found.file_systems[STORE].size_gib:.0f} GiB at {STORE}"
        yield Finding.info("store.mount", message, host=host)
    elif unit.get("ActiveState") == "activating" or unit.get("Job", "0") != "0":
        yield _not_mounted(host, f"{STORE_UNIT} has not finished after {STORE_WITHIN_S} s")
    elif unit.get("Result", "success") != "success":
        yield _not_mounted(host, f"{STORE_UNIT} has failed ({unit['Result']})")
    elif found.store_disks and unit:
        yield _not_mounted(host, f"{STORE_UNIT} has done nothing")
    elif found.store_disks:
        message = f"it has an instance store, which its image does not mount at {STORE}"
        yield Finding.info("store.mount", message, host=host)


def _not_mounted(host: str, why: str) -> Finding:
    return Finding.warning(
        "store.mount",
        f"its instance store is not mounted at {STORE}: {why}",
        f"see `systemctl status {STORE_UNIT}` there; what is written to {STORE} fills the root "
        "volume",
        host,
    )


def efa_findings(
    host: str, devices: int | None, requested: RequestedEquipment
) -> Iterator[Finding]:
    """Yield findings about EFA. `devices` is None without EFA's driver."""
    if not requested.efa:
        return
    if devices is None:
        yield Finding.info(
            "efa.driver",
            "no EFA driver is loaded: ranks talk over TCP, slower than they could",
            "see whether the image has it: `modinfo efa` there; Deep Learning AMIs, the default "
            "without --image, have it",
            host,
        )
    elif devices < requested.efa:
        yield Finding.warning(
            "efa.count",
            f"{devices} of {count(requested.efa, 'EFA device')} there",
            "reboot the node, or replace it: the slowest node sets the pace of all",
            host,
        )


def _root(host: str, found: Equipment, requested: RequestedEquipment) -> Iterator[Finding]:
    root = found.file_systems.get("/")
    # Some root file systems have no device (an overlay, the lab's hosts), so no volume to compare.
    if (
        root
        and root.source.startswith("/dev/")
        and root.size_gib < requested.root_gib * LEAST_OF_ROOT
    ):
        yield Finding.warning(
            "disk.size",
            f"its root file system has {root.size_gib:.0f} GiB of {requested.root_gib} requested",
            "cloud-init grows it at boot where the image lets it: see `growpart` in "
            "/var/log/cloud-init.log there",
            host,
        )


MPI_KEY = "clusterctl_mpi"  # mpirun's private key in ~/.ssh
LOG_LINES = 20  # of cloud-init's log

# Each command gets a stdin of its own: that of the shell is the script itself.
_CLOUD_INIT = f"""
echo 'stage cloud-init'
if command -v cloud-init >/dev/null 2>&1; then
    cloud-init status --wait >/dev/null 2>&1 </dev/null
    status=$?
    echo "cloud-init $status"
    show="tail -n {LOG_LINES} /var/log/cloud-init-output.log"
    case $status in
    0|2) ;;
    *) {{ $show || sudo -n $show; }} 2>/dev/null </dev/null | sed 's/^/log /' ;;
    esac
else
    echo 'cloud-init absent'
fi
"""
_GPUS = """
echo 'stage gpus'
if command -v nvidia-smi >/dev/null 2>&1; then
    for attempt in 1 2 3; do
        listing=$(nvidia-smi -L 2>&1 </dev/null)
        status=$?
        [ $status -eq 0 ] && break
        [ $attempt -eq 3 ] || sleep 2
    done
    echo "nvidia-smi $status"
    printf '%s\\n' "$listing" | sed 's/^/gpu /'
else
    echo 'nvidia-smi absent'
fi
"""
_MPI_KEY = f"""
mkdir -p -m 700 ~/.ssh
if [ ! -s ~/.ssh/{MPI_KEY} ]; then
    ssh-keygen -q -t ed25519 -N '' -C clusterctl-mpi -f ~/.ssh/{MPI_KEY} </dev/null
fi
printf 'mpi-key %s\\n' "$(ssh-keygen -y -f ~/.ssh/{MPI_KEY} </dev/null)"
"""
# The folder that `env install` has remembered, its default, or conda of older Deep Learning AMIs.
_TRAINING = f"""
for env in "$(cat ~/.clusterctl/training-env 2>/dev/null)" {FOLDER} ~/anaconda3/envs/tensorflow*; do
    [ -x "$env/bin/mpirun" ] && echo training there && break
done
"""


def inspection_script(head: bool, efa: int = 0) -> str:
    """Return the script for `sh -s`. On the head node it also creates the key that mpirun uses.

    `efa` is the number of EFA devices that the node should have.
    """
    hostname = "\nprintf 'hostname %s\\n' \"$(hostname)\"\n"
    mpi_key = _MPI_KEY if head else ""
    devices = _EFA.replace("{efa}", str(efa)) if efa else ""
    parts = (_CLOUD_INIT, _GPUS, _DISKS, _NVSWITCH, devices, _TRAINING, mpi_key, hostname)
    return "".join((*parts, "echo complete\n"))


@dataclass(frozen=True)
class Inspection:
    """What the inspection of one node found. `gpus` is None without nvidia-smi, `cloud_init` (its
    exit status) without cloud-init.

    `training`: there is a training environment; `train` checks it in detail.
    """

    hostname: str
    cloud_init: int | None
    gpus: int | None
    mpi_key: str = ""
    log: str = ""
    gpu_text: str = ""
    equipment: Equipment = field(default_factory=Equipment)
    training: bool = False


def parse_inspection(host: str, stdout: str) -> Inspection:
    """Parse the script's output. Raises CommandFailed if it is not complete."""
    lines: dict[str, list[str]] = {}
    for line in stdout.splitlines():
        key, _, value = line.partition(" ")
        lines.setdefault(key, []).append(value)
    if "complete" not in lines:
        raise CommandFailed(host, "the shell of the login user does not run a plain script")
    listing, name = lines.get("gpu", []), _one(lines, "hostname")
    status = _status(_one(lines, "nvidia-smi"))
    counted = sum(bool(re.match(r"GPU \d+:", line)) for line in listing) if status == 0 else 0
    return Inspection(
        # It is written to known_hosts of other nodes, where `*` would match every host.
        hostname=name if re.fullmatch(r"[A-Za-z0-9.-]{1,253}", name, re.ASCII) else "",
        cloud_init=_status(_one(lines, "cloud-init")),
        gpus=None if status is None else counted,
        mpi_key=_one(lines, "mpi-key").strip(),
        log="\n".join(lines.get("log", [])),
        gpu_text="\n".join(listing),
        equipment=parse_equipment(lines),
        training="training" in lines,
    )


def _one(lines: Mapping[str, list[str]], key: str) -> str:
    return (lines.get(key) or [""])[0]


def _status(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def check_inspection(host: str, found: Inspection, gpus: int) -> None:
    """Raise CommandFailed if cloud-init failed or the node has fewer than `gpus` GPUs."""
    if found.cloud_init not in (None, 0, 2):
        raise CommandFailed(
            host,
            f"cloud-init failed (exit status {found.cloud_init}):\n{found.log}".rstrip("\n:"),
            "see /var/log/cloud-init-output.log on the node, and the --user-data you gave",
        )
    cluster, _, index = host.rpartition("-")
    another_machine = f"give it another machine: clusterctl replace {cluster} {index}"
    if gpus and found.gpus is None:
        raise CommandFailed(
            host,
            f"there is no nvidia-smi, and its type has {count(gpus, 'GPU')}",
            "choose an image with NVIDIA's driver: --image",
        )
    if gpus and found.gpus == 0:
        output = found.gpu_text or "nothing"
        raise CommandFailed(
            host,
            f"nvidia-smi sees no GPU, its type has {gpus}; its output: {output}",
            f"choose an image whose driver knows this GPU (--image), or {another_machine}",
        )
    if (found.gpus or 0) < gpus:
        raise CommandFailed(
            host,
            f"nvidia-smi sees {count(found.gpus or 0, 'GPU')}, its type has {gpus}",
            another_machine,
        )
