"""What must be known of the head node before a job: one shell command, and its parser.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

from dataclasses import dataclass

from clusterctl.domain.errors import ClusterctlError, MissingTool
from clusterctl.jobs.mpirun import MpiRun, parse_mpirun_version

# In order: one that is activated (where train.sh is typed), ours, the conda environments of the
# tutorial's Deep Learning AMI and of later ones, their Open MPI, the system's.
MPIRUN_PATHS = (
    '"${VIRTUAL_ENV:-/none}"/bin/mpirun',
    '"${CONDA_PREFIX:-/none}"/bin/mpirun',
    # Where `env install` was told to put ours.
    '"$(cat "$HOME"/.clusterctl/training-env 2>/dev/null || echo /none)"/bin/mpirun',
    "/opt/clusterctl/training/bin/mpirun",
    '"$HOME"/anaconda3/envs/tensorflow*/bin/mpirun',
    "/opt/amazon/openmpi5/bin/mpirun",
    "/opt/amazon/openmpi/bin/mpirun",
    "/usr/bin/mpirun",
)

# Where the EFA installer and older images put libfabric, and aws-ofi-nccl, through which NCCL uses
# it. NCCL looks for libnccl-net.so on the library path.
EFA_LIBRARIES = (
    "/opt/amazon/ofi-nccl/lib*/libnccl-net.so /opt/amazon/ofi-nccl/lib*/*/libnccl-net.so "
    "/opt/aws-ofi-nccl/lib*/libnccl-net.so /opt/aws-ofi-nccl/install/lib*/libnccl-net.so",
    "/opt/amazon/efa/lib*/libfabric.so.1",
)

PROBE = f"""\
printf 'home=%s\\n' "$HOME"
printf 'search_path=%s\\n' "$PATH"
printf 'library_path=%s\\n' "$LD_LIBRARY_PATH"
printf 'cpus=%s\\n' "$(nproc)"
printf 'hostname=%s\\n' "$(hostname)"
printf 'addresses=%s\\n' "$(hostname -I 2>/dev/null)"
printf 'interfaces=%s\\n' "$(ip -o -4 addr show 2>/dev/null | tr -s ' ' | cut -d ' ' -f 2,4 |
  tr '\\n' ' ')"
[ -e /proc/driver/nvidia/version ] && echo nvidia_driver=yes
# Without a driver, too: the lab's hosts have an nvidia-smi, and `--preset gpu --dry-run` shows the
# line that their GPUs would get.
if command -v nvidia-smi >/dev/null 2>&1; then
  printf 'gpus=%s\\n' "$(nvidia-smi -L 2>/dev/null | grep -c '^GPU ')"
  printf 'gpu_memory_mib=%s\\n' "$(nvidia-smi --query-gpu=memory.total \\
    --format=csv,noheader,nounits 2>/dev/null | head -n 1)"
fi
efa=0
for device in /sys/class/infiniband/*/device/driver; do
  case "$(readlink "$device")" in */efa) efa=$((efa + 1)) ;; esac
done
printf 'efa=%s\\n' "$efa"
for library in {EFA_LIBRARIES[0]}; do
  [ -e "$library" ] && printf 'ofi_nccl=%s\\n' "${{library%/*}}" && break
done
for library in {EFA_LIBRARIES[1]}; do
  [ -e "$library" ] && printf 'libfabric=%s\\n' "${{library%/*}}" && break
done
for mpirun in {" ".join(MPIRUN_PATHS)}; do
  [ -x "$mpirun" ] || continue
  for python in "${{mpirun%/*}}/python" "${{mpirun%/*}}/python3" "$(command -v python3)"; do
    [ -x "$python" ] && break
  done
  printf 'mpirun=%s\\n' "$mpirun"
  printf 'version=%s\\n' "$("$mpirun" --version 2>&1 | head -n 1)"
  printf 'python=%s\\n' "$python"
  "$python" -c 'import importlib.util as u, sys; sys.exit(not u.find_spec("horovod"))' \\
    2>/dev/null && echo horovod=yes
done
:
"""


@dataclass(frozen=True)
class Environment:
    """An mpirun and the Python interpreter that belongs to it."""

    mpirun: MpiRun
    python: str
    horovod: bool


@dataclass(frozen=True)
class HeadFacts:
    """What the head node has. `environments` are in the order of preference.

    `efa` counts the Elastic Fabric Adapters; `efa_libraries` are the folders of what NCCL needs for
    them. `interfaces`: by name, each with its IPv4 address and prefix (10.0.0.4/24).
    """

    home: str
    hostname: str = ""
    search_path: str = ""
    library_path: str = ""
    cpus: int = 1
    nvidia_driver: bool = False
    gpu_memory_mib: int | None = None
    addresses: tuple[str, ...] = ()
    gpus: int = 0
    efa: int = 0
    efa_libraries: tuple[str, ...] = ()
    environments: tuple[Environment, ...] = ()
    interfaces: tuple[tuple[str, str], ...] = ()


def parse_facts(text: str) -> HeadFacts:
    """The facts in the output of PROBE. Raises ClusterctlError when it is not that."""
    values: dict[str, str] = {}
    environments: list[dict[str, str]] = []
    for line in text.splitlines():
        key, found, value = line.partition("=")
        if not found:
            continue
        if key == "mpirun":
            environments.append({})
        (environments[-1] if environments else values)[key] = value
    if "home" not in values:
        raise ClusterctlError(
            "the head node did not say what it has", "does its login shell end early?"
        )
    memory = values.get("gpu_memory_mib", "").strip()
    gpus = values.get("gpus", "").strip()
    interfaces = values.get("interfaces", "").split()
    return HeadFacts(
        home=values["home"],
        hostname=values.get("hostname", ""),
        search_path=values.get("search_path", ""),
        library_path=values.get("library_path", ""),
        cpus=int(values.get("cpus") or 1),
        nvidia_driver="nvidia_driver" in values,
        gpu_memory_mib=int(memory) if memory.isdigit() else None,
        addresses=tuple(values.get("addresses", "").split()),
        gpus=int(gpus) if gpus.isdigit() else 0,
        efa=int(values.get("efa") or 0),
        efa_libraries=tuple(values[key] for key in ("ofi_nccl", "libfabric") if values.get(key)),
        environments=tuple(filter(None, map(_environment, environments))),
        interfaces=tuple(zip(interfaces[::2], interfaces[1::2])),
    )


def _environment(values: dict[str, str]) -> Environment | None:
    try:
        version = parse_mpirun_version(values.get("version", ""))
    except MissingTool:
        return None
    mpirun = MpiRun(values["mpirun"], version)
    return Environment(mpirun, values.get("python", ""), "horovod" in values)


def choose_environment(facts: HeadFacts, needs_horovod: bool = True) -> Environment:
    """The first environment with Horovod, else the first. Raises MissingTool."""
    where = facts.hostname or "the head node"
    if not facts.environments:
        raise MissingTool(
            f"there is no Open MPI on {where}",
            "launch the nodes from an image that has it, or install it there: "
            "sudo apt-get install openmpi-bin",
        )
    for environment in facts.environments:
        if environment.horovod:
            return environment
    if needs_horovod:
        looked = ", ".join(environment.python for environment in facts.environments)
        raise MissingTool(
            f"Horovod is not installed on {where} (looked in {looked})",
            "put it on every node: clusterctl env install NAME",
        )
    return facts.environments[0]
