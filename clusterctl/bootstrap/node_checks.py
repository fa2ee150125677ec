"""What is not as asked on a node that works all the same: findings, not failures. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count

STORE = "/opt/dlami/nvme"
STORE_UNIT = "dlami-nvme"
STORE_WITHIN_S = 60
# A file system is some percent smaller than its volume: tables, journal, the boot partition.
LEAST_OF_ROOT = 0.85


@dataclass(frozen=True)
class Asked:
    """What the launch asked for: EFA interfaces, and GiB of root volume. 0: nothing."""

    efa: int = 0
    root_gib: int = 0


@dataclass(frozen=True)
class FileSystem:
    source: str
    size_gib: float


@dataclass(frozen=True)
class Equipment:
    """What a node said of its disks and EFA devices. `efa` is None without EFA's driver.

    `file_systems` by where they are mounted; `store_unit` are properties of the service that
    mounts the instance store on Deep Learning AMIs, none where there is no such service.
    `store_disks`: there are disks of an instance store.
    """

    file_systems: Mapping[str, FileSystem] = field(default_factory=dict)
    store_unit: Mapping[str, str] = field(default_factory=dict)
    store_disks: bool = False
    efa: int | None = None


def equipment_script(efa: int) -> str:
    """Part of the inspection script; `efa` is how many EFA devices there should be."""
    return _DISKS + (_EFA.replace("{efa}", str(efa)) if efa else "")


# systemctl is of use only where systemd runs. The service may still be at it after cloud-init.
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
# On the largest types the devices appear one after the other.
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


def parse_equipment(said: Mapping[str, Sequence[str]]) -> Equipment:
    """From what the script printed, by the first word of each line."""
    systems = (line.split() for line in said.get("df", ()))
    properties = (line.partition("=") for line in said.get("store-unit", ()))
    counted = (said.get("efa") or [""])[0]
    return Equipment(
        file_systems={
            words[5]: FileSystem(words[0], int(words[1]) / 2**20)
            for words in systems
            if len(words) == 6 and words[1].isascii() and words[1].isdigit()
        },
        store_unit={name: value for name, equals, value in properties if equals},
        store_disks="store-disks" in said,
        efa=int(counted) if counted.isascii() and counted.isdigit() else None,
    )


def check_equipment(host: str, found: Equipment, asked: Asked) -> tuple[Finding, ...]:
    """What a user should know of one node."""
    return (*_store(host, found), *_efa(host, found, asked), *_root(host, found, asked))


def _store(host: str, found: Equipment) -> Iterator[Finding]:
    unit = found.store_unit
    if STORE in found.file_systems:
        message = f"instance store: {found.file_systems[STORE].size_gib:.0f} GiB at {STORE}"
        yield Finding("store.mount", Severity.INFO, message, host)
    elif unit.get("ActiveState") == "activating" or unit.get("Job", "0") != "0":
        yield _not_mounted(host, f"{STORE_UNIT} is still at it after {STORE_WITHIN_S} s")
    elif unit.get("Result", "success") != "success":
        yield _not_mounted(host, f"{STORE_UNIT} has failed ({unit['Result']})")
    elif found.store_disks and unit:
        yield _not_mounted(host, f"{STORE_UNIT} has done nothing")
    elif found.store_disks:
        message = f"it has an instance store, which its image does not mount at {STORE}"
        yield Finding("store.mount", Severity.INFO, message, host)


def _not_mounted(host: str, why: str) -> Finding:
    return Finding(
        "store.mount",
        Severity.WARNING,
        f"its instance store is not mounted at {STORE}: {why}",
        host,
        f"see `systemctl status {STORE_UNIT}` there; what is written to {STORE} fills the root "
        "volume",
    )


def _efa(host: str, found: Equipment, asked: Asked) -> Iterator[Finding]:
    if not asked.efa:
        return
    if found.efa is None:
        yield Finding(
            "efa.driver",
            Severity.INFO,
            "no EFA driver is loaded: ranks talk over TCP, slower than they could",
            host,
            "Deep Learning AMIs have the driver: --image",
        )
    elif found.efa < asked.efa:
        yield Finding(
            "efa.count",
            Severity.WARNING,
            f"{found.efa} of {count(asked.efa, 'EFA device')} there",
            host,
            "reboot the node, or replace it: the slowest node sets the pace of all",
        )


def _root(host: str, found: Equipment, asked: Asked) -> Iterator[Finding]:
    root = found.file_systems.get("/")
    # Without a device behind it (an overlay, the lab's hosts) there is no volume to compare with.
    if root and root.source.startswith("/dev/") and root.size_gib < asked.root_gib * LEAST_OF_ROOT:
        yield Finding(
            "disk.size",
            Severity.WARNING,
            f"its root file system has {root.size_gib:.0f} GiB of the {asked.root_gib} asked for",
            host,
            "cloud-init grows it at boot where the image lets it: see `growpart` in "
            "/var/log/cloud-init.log there",
        )


def folded(findings: Sequence[Finding]) -> list[Finding]:
    """One finding for all hosts of which the same is said."""
    hosts: dict[Finding, list[str]] = {}
    for finding in findings:
        hosts.setdefault(replace(finding, host=None), []).append(finding.host or "")
    return [replace(finding, host=fold_hosts(names)) for finding, names in hosts.items()]
