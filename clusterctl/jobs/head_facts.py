"""The facts about the head node that a job's plan depends on, and the choice of its environment
and of its ports.

Python 3.8 and the standard library only: this module also runs on the nodes (jobs/train_sh).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

from clusterctl.domain.errors import ClusterctlError, CommandFailed, MissingTool
from clusterctl.domain.hostsfile import HostsFile
from clusterctl.domain.releases import NEWEST_FROM
from clusterctl.jobs.mpirun import MpiRun, parse_mpirun_version
from clusterctl.node.facts.gpus import capabilities, gpus, has_driver
from clusterctl.node.facts.network import addresses, efa, efa_libraries, ipv4, listening_ports
from clusterctl.node.facts.processes import job_ports
from clusterctl.node.facts.report import Fact, FactReport, function_of
from clusterctl.node.facts.software import (
    MPIRUN_2_15,
    NEWEST_MPIRUN,
    Mpi,
    environments,
    torch_python,
)
from clusterctl.node.facts.system import login, system
from clusterctl.node.record import pick

# Prefixes of the names of interfaces that are no network cards. Bridges and the loopback have the
# same address on every host.
VIRTUAL_INTERFACES = ("lo", "docker", "br-", "virbr", "lxcbr", "lxdbr", "podman", "cni")
LOCAL_NAMES = {"localhost", "127.0.0.1", "::1"}
# Ports from this one on, in steps of three, are for jobs' processes on every node. They are below
# Linux's ephemeral ports, which begin at 32768.
FIRST_PORT, PORT_STEP, PORT_STEPS = 20_000, 3, 3_333


@dataclass(frozen=True)
class Environment:
    """An mpirun and the Python interpreter that belongs to it."""

    mpirun: MpiRun
    python: str
    horovod: bool


def facts_to_read(environment: str | None = None) -> tuple[Fact, ...]:
    """Return the facts about the head node, for `facts_of_head`. `environment` is a virtual
    environment that is preferred."""
    return (
        *(system, login, addresses, ipv4, efa, efa_libraries, listening_ports, job_ports),
        *(gpus, has_driver, capabilities),
        partial(environments, active=environment or ""),
        partial(torch_python, active=environment or ""),
    )


@dataclass(frozen=True)
class HeadFacts:
    """The facts about the head node that a plan depends on. What is not there is empty. Messages
    call the node `host`.

    `environments` are in the order of preference. `gpu_memory_mib` is that of the first GPU. `efa`
    is the number of Elastic Fabric Adapters; `efa_libraries` are the folders with the libraries
    that NCCL needs for them. `interfaces` are pairs of a name and an IPv4 address with its prefix
    (10.0.0.4/24). `torch_python` is an interpreter that has PyTorch. `capabilities` are the GPUs'
    compute capabilities, 90 for 9.0, of all nodes where they are known. `busy_ports` are the ports
    on which a process listens, and those of jobs that have not ended.
    """

    home: str
    host: str = "the head node"
    hostname: str = ""
    search_path: str = ""
    library_path: str = ""
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


def facts_of_head(report: FactReport) -> HeadFacts:
    """Return the facts in a node's report. Raises CommandFailed if one could not be read, except
    those about GPUs: a broken GPU is a finding of the checks."""
    machine, user, found = report.get(system), report.get(login), report.get(gpus)
    host = report.host or "this node"
    for reading in report.failed(*map(function_of, facts_to_read())):
        if reading not in report.failed(gpus, capabilities):
            raise CommandFailed(host, f"cannot read its state: {reading.label}: {reading.error}")
    if not machine or not user:
        raise CommandFailed(
            host, "cannot read its state: its report has neither home nor processors"
        )
    cards = found.gpus if found else ()
    memory = cards[0].memory_total_mib if cards else None
    return pick(
        *(HeadFacts, user, machine),
        host=host,
        nvidia_driver=bool(report.get(has_driver)),
        gpu_memory_mib=None if memory is None else int(memory),
        addresses=report.get(addresses) or (),
        gpus=len(cards),
        efa=len(report.get(efa) or ()),
        efa_libraries=report.get(efa_libraries) or (),
        environments=tuple(filter(None, map(_environment, report.get(environments) or ()))),
        interfaces=report.get(ipv4) or (),
        torch_python=report.get(torch_python) or "",
        capabilities=report.get(capabilities) or (),
        busy_ports=frozenset(report.get(listening_ports) or ()) | {*(report.get(job_ports) or ())},
    )


def _environment(found: Mpi) -> Environment | None:
    """Return the environment; None if its mpirun is not Open MPI's."""
    try:
        version = parse_mpirun_version(found.version)
    except MissingTool:
        return None
    return Environment(MpiRun(found.mpirun, version), found.python, found.horovod)


def choose_environment(facts: HeadFacts, needs_horovod: bool = True) -> Environment:
    """Return the first environment with Horovod; if it is not needed, else the first one.

    Raises MissingTool if there is none.
    """
    if not facts.environments:
        raise MissingTool(
            f"there is no Open MPI on {facts.host}",
            "launch the nodes from an image that has it, or install it there: "
            "sudo apt-get install openmpi-bin",
        )
    environments = _by_gpus(facts)
    for environment in environments:
        if environment.horovod:
            return environment
    if needs_horovod:
        searched = ", ".join(environment.python for environment in environments)
        raise MissingTool(
            f"Horovod is not installed on {facts.host} (searched in {searched})",
            "put it on every node: clusterctl env install NAME",
        )
    return environments[0]


def depends_on_gpus(facts: HeadFacts) -> bool:
    """Return whether the GPUs decide between two environments of `env install`."""
    return {MPIRUN_2_15, NEWEST_MPIRUN} <= {one.mpirun.path for one in facts.environments}


def _by_gpus(facts: HeadFacts) -> list[Environment]:
    """Return the environments in the order of preference. For GPUs of compute capability 9.0 and
    later, the newest TensorFlow comes before 2.15, which has no kernels for them.

    An environment that is active, or that `env install` was to make, is in the list a second
    time, before all others, and stays there.
    """
    found = list(facts.environments)
    paths = [one.mpirun.path for one in found]
    is_new = max(facts.capabilities, default=0) >= NEWEST_FROM
    if is_new and depends_on_gpus(facts):
        newest = found[paths.index(NEWEST_MPIRUN)]
        last = len(paths) - 1 - paths[::-1].index(MPIRUN_2_15)
        found.insert(last, newest)
    return found


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
        f"no three ports are free on {facts.host}, {FIRST_PORT} to {last}",
        "end what listens there: clusterctl run NAME -- ss -ltnp",
    )
