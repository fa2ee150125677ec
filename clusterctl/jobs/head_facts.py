"""The facts about the head node that a job's plan depends on, and the choice of its environment.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass

from clusterctl.domain.errors import ClusterctlError, MissingTool
from clusterctl.domain.hostsfile import HostsFile
from clusterctl.domain.releases import NEWEST_FROM
from clusterctl.jobs.mpirun import MpiRun, parse_mpirun_version

# Prefixes of the names of interfaces that are no network cards. Bridges and the loopback have the
# same address on every host.
VIRTUAL_INTERFACES = ("lo", "docker", "br-", "virbr", "lxcbr", "lxdbr", "podman", "cni")
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
# Python interpreters that may have PyTorch, as a shell expands them: of the active environment, of
# newer and older Deep Learning AMIs, of our training environment, of the system.
TORCH_PYTHONS = (
    '"${VIRTUAL_ENV:-/none}"/bin/python',
    "/opt/pytorch/bin/python3",
    "/opt/conda/envs/pytorch*/bin/python3",
    '"$HOME"/anaconda3/envs/pytorch*/bin/python',
    "/opt/clusterctl/training/bin/python",
    "/usr/local/bin/python3",
    "/usr/bin/python3",
)
# Places of mpirun in the order of preference, as a shell expands them: the active environment (for
# train.sh), our training environment, the conda environments of the tutorial's Deep Learning AMI,
# the Open MPI of Deep Learning AMIs, the system's. New GPUs change the order (`_by_gpus`).
MPIRUN_2_15 = "/opt/clusterctl/training/bin/mpirun"
NEWEST_MPIRUN = "/opt/clusterctl/training-newest/bin/mpirun"
MPIRUN_PATHS = (
    '"${VIRTUAL_ENV:-/none}"/bin/mpirun',
    '"${CONDA_PREFIX:-/none}"/bin/mpirun',
    # The folder that `env install` was given for our training environment.
    '"$(cat "$HOME"/.clusterctl/training-env 2>/dev/null || echo /none)"/bin/mpirun',
    MPIRUN_2_15,
    NEWEST_MPIRUN,
    '"$HOME"/anaconda3/envs/tensorflow*/bin/mpirun',
    "/opt/amazon/openmpi5/bin/mpirun",
    "/opt/amazon/openmpi/bin/mpirun",
    "/usr/bin/mpirun",
)

# Where the EFA installer and older images put aws-ofi-nccl, NCCL's plugin for EFA, and libfabric,
# which the plugin needs. NCCL looks for libnccl-net.so on the library path.
EFA_LIBRARIES = (
    "/opt/amazon/ofi-nccl/lib*/libnccl-net.so /opt/amazon/ofi-nccl/lib*/*/libnccl-net.so "
    "/opt/aws-ofi-nccl/lib*/libnccl-net.so /opt/aws-ofi-nccl/install/lib*/libnccl-net.so",
    "/opt/amazon/efa/lib*/libfabric.so.1",
)

# Ports from this one on, in steps of three, are for jobs' processes on every node. They are below
# Linux's ephemeral ports, which begin at 32768.
FIRST_PORT, PORT_STEP, PORT_STEPS = 20_000, 3, 3_333

# Prints the compute capability of each GPU: 9.0.
PRINT_CAPABILITIES = "nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null"
# Prints the facts about the head node, which parse_facts() reads, as lines of KEY=VALUE. Ports are
# those that a process listens on (state 0A in /proc/net/tcp, hexadecimal), and those of jobs that
# have not ended: a queued one does not listen yet.
PROBE = f"""\
# Not in the home folder, where Python would take a folder named horovod or torch for the package.
cd /
# -E: also if PYTHONHOME or another variable of the login keeps Python from working.
has_module() {{
  for option in -c -Ec; do
    "$python" $option 'import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))' \\
      "$1" 2>/dev/null && return
  done
  return 1
}}
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
  printf 'capabilities=%s\\n' "$({PRINT_CAPABILITIES} | tr '\\n' ' ')"
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
  has_module horovod && echo horovod=yes
done
for python in {" ".join(TORCH_PYTHONS)}; do
  has_module torch && printf 'torch_python=%s\\n' "$python" && break
done
sed -n 's/^ *[0-9]*: [0-9A-F]*:\\([0-9A-F]*\\) [0-9A-F:]* 0A .*/listening_port=\\1/p' \\
  /proc/net/tcp /proc/net/tcp6 2>/dev/null | sort -u
for job in "$HOME"/.clusterctl/jobs/*/command; do
  folder=${{job%/*}}
  read -r pid _ 2>/dev/null <"$folder/lock" || continue
  grep -qzx "CLUSTERCTL_JOB=${{folder##*/}}" "/proc/$pid/environ" 2>/dev/null || continue
  grep -Eo '(MASTER_PORT=|--master_port )[0-9]+' "$job" 2>/dev/null | sed 's/.*[ =]/job_port=/'
done
:
"""


@dataclass(frozen=True)
class Environment:
    """An mpirun and the Python interpreter that belongs to it."""

    mpirun: MpiRun
    python: str
    horovod: bool


def probe(environment: str | None = None) -> str:
    """Return PROBE as if the virtual environment were activated, so that it is preferred."""
    if environment is None:
        return PROBE
    in_home = environment.startswith("~")
    home, path = ('"$HOME"', environment[1:]) if in_home else ("", environment)
    return f"VIRTUAL_ENV={home}{shlex.quote(path)}\n{PROBE}"


@dataclass(frozen=True)
class HeadFacts:
    """The facts about the head node that a plan depends on. What is not there is empty.

    `environments` are in the order of preference. `gpu_memory_mib` is that of the first GPU. `efa`
    is the number of Elastic Fabric Adapters; `efa_libraries` are the folders with the libraries
    that NCCL needs for them. `interfaces` are pairs of a name and an IPv4 address with its prefix
    (10.0.0.4/24). `torch_python` is an interpreter that has PyTorch. `capabilities` are the GPUs'
    compute capabilities, 90 for 9.0, of all nodes where they are known. `busy_ports` are the ports
    on which a process listens, and those of jobs that have not ended.
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
    torch_python: str = ""
    capabilities: tuple[int, ...] = ()
    busy_ports: frozenset[int] = frozenset()


def parse_facts(text: str) -> HeadFacts:
    """Return the facts in the output of PROBE. Raises ClusterctlError if it is something else."""
    values: dict[str, str] = {}
    environments: list[dict[str, str]] = []
    torch_python = ""
    ports: set[int] = set()
    for line in text.splitlines():
        key, found, value = line.partition("=")
        if not found:
            continue
        if key == "mpirun":
            environments.append({})
        if key == "torch_python":
            torch_python = value
        if key in _PORT_BASES:
            ports.add(int(value, _PORT_BASES[key]))
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
        torch_python=torch_python,
        capabilities=parse_capabilities(values.get("capabilities", "")),
        busy_ports=frozenset(ports),
    )


def parse_capabilities(text: str) -> tuple[int, ...]:
    """Return the compute capabilities in the output of PRINT_CAPABILITIES, 90 for 9.0."""
    found = re.findall(r"(\d+)\.(\d)(?!\S)", text)
    return tuple(int(major) * 10 + int(minor) for major, minor in found)


_PORT_BASES = {"listening_port": 16, "job_port": 10}


def _environment(values: dict[str, str]) -> Environment | None:
    try:
        version = parse_mpirun_version(values.get("version", ""))
    except MissingTool:
        return None
    mpirun = MpiRun(values["mpirun"], version)
    return Environment(mpirun, values.get("python", ""), "horovod" in values)


def choose_environment(facts: HeadFacts, needs_horovod: bool = True) -> Environment:
    """Return the first environment with Horovod; if it is not needed, else the first one.

    Raises MissingTool if there is none.
    """
    where = facts.hostname or "the head node"
    if not facts.environments:
        raise MissingTool(
            f"there is no Open MPI on {where}",
            "launch the nodes from an image that has it, or install it there: "
            "sudo apt-get install openmpi-bin",
        )
    environments = _by_gpus(facts)
    for environment in environments:
        if environment.horovod:
            return environment
    if needs_horovod:
        looked = ", ".join(environment.python for environment in environments)
        raise MissingTool(
            f"Horovod is not installed on {where} (looked in {looked})",
            "put it on every node: clusterctl env install NAME",
        )
    return environments[0]


def depends_on_gpus(facts: HeadFacts) -> bool:
    """Return whether the GPUs decide between two environments of `env install`."""
    return {MPIRUN_2_15, NEWEST_MPIRUN} <= {one.mpirun.path for one in facts.environments}


def _by_gpus(facts: HeadFacts) -> list[Environment]:
    """Return the environments in the order of preference. For GPUs of compute capability 9.0 and
    later, the newest TensorFlow comes before 2.15, which has no kernels for them.

    An environment that is active, or that `env install` was told to make, is in the list a second
    time, before all others, and stays there.
    """
    environments = list(facts.environments)
    paths = [one.mpirun.path for one in environments]
    is_new = max(facts.capabilities, default=0) >= NEWEST_FROM
    if is_new and depends_on_gpus(facts):
        newest = environments[paths.index(NEWEST_MPIRUN)]
        last = len(paths) - 1 - paths[::-1].index(MPIRUN_2_15)
        environments.insert(last, newest)
    return environments


def head_slots(facts: HeadFacts, hosts: HostsFile) -> int:
    """Return the slots of the head node in the hosts file; if it is not there, its GPUs, or 1.

    The hosts file may have any of the head node's names and addresses.
    """
    names = {*LOCAL_NAMES, facts.hostname, *facts.addresses}
    for entry in hosts.entries:
        if entry.host in names:
            return entry.slots
    return max(1, facts.gpus)


def shared_network(hosts: Iterable[str], facts: HeadFacts) -> str:
    """Return the smallest network around the head node's IPv4 subnet that has all the hosts.

    They may be in several subnets of a VPC. The result is empty if it is uncertain: for hosts that
    are known by name only, or if a bridge of the head node overlaps.
    """
    try:
        addresses = [ipaddress.IPv4Address(host) for host in hosts if host not in LOCAL_NAMES]
        there = [(name, ipaddress.IPv4Interface(address)) for name, address in facts.interfaces]
    except ValueError:
        return ""
    others = [interface.network for name, interface in there if name.startswith(VIRTUAL_INTERFACES)]
    cards = [interface for name, interface in there if not name.startswith(VIRTUAL_INTERFACES)]
    ours = [card for card in cards if card.ip in addresses]
    near = [card for card in cards if any(address in card.network for address in addresses)]
    for card in [*ours, *near, *cards][:1]:
        network = card.network
        while not all(address in network for address in addresses):
            network = network.supernet()
        if network.prefixlen and not any(map(network.overlaps, others)):
            return str(network)
    return ""


def first_address(hosts: HostsFile, facts: HeadFacts) -> str:
    """Return the address of the first host, which has rank 0, as all hosts reach it.

    If the file calls it `localhost` and has others, that is its address in their network; if that
    is not known, `localhost`.
    """
    host = hosts.entries[0].host
    if host not in LOCAL_NAMES or len(hosts.entries) == 1:
        return host
    network = shared_network(hosts.hosts, facts)
    for _, address in facts.interfaces if network else ():
        own = ipaddress.IPv4Interface(address).ip
        if own in ipaddress.IPv4Network(network):
            return str(own)
    return host


def free_port(job_id: str, facts: HeadFacts) -> int:
    """Return the first of three ports for a job, none of them busy on the head node.

    The search begins at a place that follows from the job's id, so that two jobs which are planned
    at the same moment hardly get the same. Raises ClusterctlError if none is free.
    """
    begin = int(job_id[-4:], 16)
    for step in range(PORT_STEPS):
        port = FIRST_PORT + PORT_STEP * ((begin + step) % PORT_STEPS)
        if facts.busy_ports.isdisjoint(range(port, port + PORT_STEP)):
            return port
    last = FIRST_PORT + PORT_STEP * PORT_STEPS - 1
    raise ClusterctlError(
        f"no three ports are free on {facts.hostname or 'the head node'}, {FIRST_PORT} to {last}",
        "end what listens there: clusterctl run NAME -- ss -ltnp",
    )
