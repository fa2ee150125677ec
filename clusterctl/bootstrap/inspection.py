"""What a node says about itself once one can log in: one command, one round trip."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from clusterctl.bootstrap.node_checks import Equipment, equipment_script, parse_equipment
from clusterctl.bootstrap.training import FOLDER
from clusterctl.domain.errors import CommandFailed
from clusterctl.domain.units import count

MPI_KEY = "clusterctl_mpi"
MPI_KEY_COMMENT = "clusterctl-mpi"
LOG_LINES = 20

# Every command here has its own stdin: the script itself comes in on the shell's.
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
    ssh-keygen -q -t ed25519 -N '' -C {MPI_KEY_COMMENT} -f ~/.ssh/{MPI_KEY} </dev/null
fi
printf 'mpi-key %s\\n' "$(ssh-keygen -y -f ~/.ssh/{MPI_KEY} </dev/null)"
"""
# Where `env install` puts it, or was told to; the conda environments of older Deep Learning AMIs.
_TRAINING = f"""
for env in "$(cat ~/.clusterctl/training-env 2>/dev/null)" {FOLDER} ~/anaconda3/envs/tensorflow*; do
    [ -x "$env/bin/mpirun" ] && echo training there && break
done
"""


def inspection_script(head: bool, efa: int = 0) -> str:
    """The script for `sh -s`. On the head node it also makes the key that mpirun logs in with.

    `efa`: so many EFA devices should be there.
    """
    hostname = "\nprintf 'hostname %s\\n' \"$(hostname)\"\n"
    mpi_key = _MPI_KEY if head else ""
    parts = (_CLOUD_INIT, _GPUS, equipment_script(efa), _TRAINING, mpi_key, hostname)
    return "".join((*parts, "echo complete\n"))


@dataclass(frozen=True)
class Inspection:
    """What one node said. `gpus` is None without nvidia-smi, `cloud_init` without cloud-init.

    `training`: there is an environment to train in; `train` looks closer.
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
    """The script's output. Raises CommandFailed where it is not complete."""
    said: dict[str, list[str]] = {}
    for line in stdout.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value)
    if "complete" not in said:
        raise CommandFailed(host, "the shell of the login user does not run a plain script")
    listing = said.get("gpu", [])
    return Inspection(
        hostname=_hostname(_one(said, "hostname")),
        cloud_init=_status(_one(said, "cloud-init")),
        gpus=_count(_status(_one(said, "nvidia-smi")), listing),
        mpi_key=_one(said, "mpi-key").strip(),
        log="\n".join(said.get("log", [])),
        gpu_text="\n".join(listing),
        equipment=parse_equipment(said),
        training="training" in said,
    )


def _one(said: dict[str, list[str]], key: str) -> str:
    return (said.get(key) or [""])[0]


def _hostname(text: str) -> str:
    # It goes into the others' known_hosts, where `*` would stand for every host.
    return text if re.fullmatch(r"[A-Za-z0-9.-]{1,253}", text, re.ASCII) else ""


def _status(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None


def _count(status: int | None, listing: list[str]) -> int | None:
    if status is None:
        return None
    return sum(1 for line in listing if re.match(r"GPU \d+:", line)) if status == 0 else 0


def check_inspection(host: str, found: Inspection, gpus: int) -> None:
    """Raises CommandFailed where the node is not what its type promises: `gpus` GPUs, set up."""
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
        said = found.gpu_text or "nothing"
        raise CommandFailed(
            host,
            f"nvidia-smi sees no GPU, its type has {gpus}; it says: {said}",
            f"choose an image whose driver knows this GPU (--image), or {another_machine}",
        )
    if (found.gpus or 0) < gpus:
        raise CommandFailed(
            host,
            f"nvidia-smi sees {count(found.gpus or 0, 'GPU')}, its type has {gpus}",
            another_machine,
        )
