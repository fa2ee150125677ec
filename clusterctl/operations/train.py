"""Start a job on a cluster: look at the nodes, plan, ship the files, start it detached."""

from __future__ import annotations

import glob
import json
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterctl.copy.report import TransferReport
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import parse_source
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import ClusterctlError, CommandFailed, UsageError
from clusterctl.domain.findings import Finding
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file, parse_hosts_file
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult, json_lines, read_each
from clusterctl.domain.units import count
from clusterctl.jobs.deploy import (
    EXAMPLES,
    Code,
    code_of,
    deploy_files,
    deployed_files,
    example_files,
    ship_code,
)
from clusterctl.jobs.detached import Started, in_the_way, start_job
from clusterctl.jobs.plan import (
    CODE_FOLDER,
    HeadFacts,
    JobPlan,
    JobRequest,
    check_request,
    new_job_id,
    parse_facts,
    plan_job,
    port_of,
    probe,
    settled,
)
from clusterctl.jobs.preflight import (
    NodeLook,
    NotReady,
    crowding_findings,
    errors,
    in_order,
    parse_look,
    preflight,
    question,
    together,
)
from clusterctl.jobs.processes import NodeProcess
from clusterctl.jobs.script_mode import STREAMED, ScriptMode
from clusterctl.node.packer import program_of
from clusterctl.node.scripts.parameter_servers import are_in, tf_config
from clusterctl.node.scripts.pipe import files_of
from clusterctl.operations.access import Access
from clusterctl.operations.copy import sender
from clusterctl.operations.local_state import hosts_text, write_file
from clusterctl.operations.logs import Running, refuse_beside_a_run, what_runs
from clusterctl.operations.s3sync import SyncRequest, ready_tools

if TYPE_CHECKING:
    from clusterctl.ec2.instances import Instance
    from clusterctl.ec2.money.prices import Prices

LOOK = program_of("clusterctl.node.jobs.preflight")
LIST_STREAMS = program_of("clusterctl.node.scripts.pipe")
PROBE_TIMEOUT_S = 60.0
LIST_TIMEOUT_S = 600.0  # of millions of objects


@dataclass(frozen=True)
class TrainingPlan:
    """A job, the hosts file it runs with, and what speaks against it or is worth a word.

    `running` is what runs already, `code` what is shipped from here, `versions` what is installed,
    by node. `brings` is what copies the channels of a script-mode program, by name.
    """

    job: JobPlan
    hosts: HostsFile
    running: Running
    findings: tuple[Finding, ...] = ()
    code: Code | None = None
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    script_mode: ScriptMode | None = None
    brings: Mapping[str, CopyRequest] = field(default_factory=dict)

    @property
    def tf_config(self) -> dict[str, Any]:
        """That of the chief of a job with parameter servers; empty for any other."""
        filled = self.hosts.fill(self.job.ranks, self.job.per_host)
        addresses = [entry.host for entry, ranks in zip(self.hosts.entries, filled) if ranks]
        if not (self.script_mode and are_in(self.script_mode.distribution, addresses)):
            return {}
        return tf_config(addresses, port_of(self.job.job_id), addresses[0])

    def check(self) -> None:
        """Raises NotReady when a finding is an error."""
        if errors(self.findings):
            raise NotReady(self.findings)


@dataclass(frozen=True)
class StartedJob:
    """A job that runs, or waits for others. `kept`: per file that users changed on nodes, the hosts
    that kept theirs."""

    job: JobPlan
    started: Started
    kept: tuple[tuple[str, str], ...]


def plan_training(
    access: Access, request: JobRequest, force: bool = False, script_mode: ScriptMode | None = None
) -> TrainingPlan:
    """What would run. Raises UsageError, NotEnoughGpus, MissingTool, HostError of the head node.

    `force`: what speaks against it becomes a warning, but for what would delete an earlier run.
    `script_mode` comes with such a request.
    """
    hosts = live_hosts(access)
    more = _more_gpus(access.cluster, request.ranks)
    # Before any connection: asking for the impossible should not need one.
    check_request(request, hosts.slots, more)
    code = code_of(request.script, request.source_dir) if request.script else None
    job = plan_job(request, head_facts(access, request.environment), hosts, new_job_id())
    job = settled(job, EXAMPLES / "tensorflow")
    brings = channel_copies(script_mode, job.job_id) if script_mode else {}
    running = what_runs(access).trainings
    findings, versions = look_before(access, job, hosts, running, force)
    return TrainingPlan(job, hosts, running, findings, code, versions, script_mode, brings)


def channel_copies(mode: ScriptMode, job_id: str) -> dict[str, CopyRequest]:
    """What brings each channel to its folder of the job; those that are on the nodes, and streams
    from S3, need none. Raises UsageError: there is nothing of the name here."""
    copies = {}
    for channel in mode.channels:
        if channel.is_on_nodes or (channel.is_stream and not channel.is_here):
            continue
        source = channel.source
        if channel.is_here:
            path = Path(channel.path).expanduser()
            if not path.exists():
                raise UsageError(f"channel {channel.name}: there is no {path} here")
            source = f"{path.resolve()}/" if path.is_dir() else str(path.resolve())
        below = STREAMED if channel.is_stream else "input/data"
        place = f"~/{CODE_FOLDER}/{job_id}/{below}/{channel.name}/"
        copies[channel.name] = CopyRequest((glob.escape(source),), place)
    return copies


def start_training(
    access: Access,
    plan: TrainingPlan,
    how: str = "refuse",
    watchdog: str = "",
    machines: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    retries: int = 0,
    min_gpus: int | None = None,
    bring: Callable[[str, CopyRequest], TransferReport] | None = None,
    cache: Path | None = None,
) -> StartedJob:
    """Put the files on every node and start the job, looked after by a watchdog with these settings
    (`watchdog.prepare`). Raises NotReady, JobRunning, HostError.

    `how`: see start_job. `machines` is for the record: what `machines_of` knows of each node.
    `bring` copies a channel, given its name. `cache` keeps the tool that brings a model to S3, for
    a head node that has none.
    """
    plan.check()
    if how == "refuse":
        if plan.running.jobs:
            raise in_the_way(plan.running.jobs[0].job_id, access.cluster.name)
        refuse_beside_a_run(access, plan.running, "two would share its GPUs")
    text = format_hosts_file(plan.hosts)
    shipped = _on_all(access, deploy_files(access.connections, access.targets, text))
    nodes = _node_records(access, plan, machines)
    job = replace(plan.job, watchdog=watchdog)
    if plan.script_mode:
        contract = plan.script_mode.contract(job, nodes)
        listed = list_streams(access, plan.script_mode, job)
        for name, found in listed.items():
            contract["channels"][name].update(found)
        job = replace(job, contract=contract)
    if plan.code:
        to = (access.connections, access.targets)
        _on_all(access, ship_code(*to, plan.code, job.job_id, job.contract))
    if plan.script_mode and plan.script_mode.model_url:
        assert cache, "a model that goes to S3 comes with a place for the tool"
        _check_tool(access, plan.script_mode.model_url, cache)
    for name, request in plan.brings.items():
        assert bring, "channels come with what brings them"
        _check_brought(name, bring(name, request))
    kept: dict[str, list[str]] = {}
    for result in shipped:
        for name in deployed_files(result).kept:
            kept.setdefault(name, []).append(result.host)
    files = {"nodes.json": json.dumps(nodes, indent=1)}
    if plan.code:
        files["code.json"] = json.dumps(plan.code.as_data(), indent=1)
    prices: list[Any] = [node.get("usd_per_hour") for node in nodes]
    is_work_tree = plan.code and plan.code.commit
    record = {
        "hosts": [node["name"] for node in nodes],
        "usd_per_hour": None if None in prices else sum(prices),
        "git": {"commit": plan.code.commit, "changed": len(plan.code.changed.splitlines())}
        if plan.code and is_work_tree
        else None,
        "retries": retries,
        "min_ranks": min_gpus or plan.job.ranks,
        "model_dir": plan.script_mode.model_url if plan.script_mode else None,
        "metric_definitions": dict(plan.script_mode.metrics) if plan.script_mode else {},
    }
    started = start_job(
        access.connections, access.head, job, access.cluster.name, how, files, record
    )
    folded = tuple((name, fold_hosts(hosts)) for name, hosts in kept.items())
    return StartedJob(plan.job, started, folded)


def _check_tool(access: Access, url: str, cache: Path) -> None:
    """The head node has what brings a model to S3. Raises ClusterctlError."""
    connections = access.connections
    wanted = SyncRequest((parse_source(url),), "~")
    ready = ready_tools(connections, [access.head], wanted, cache, sender(connections))
    for outcome in ready.failures:
        assert outcome.error
        raise outcome.error


def list_streams(access: Access, mode: ScriptMode, job: JobPlan) -> dict[str, dict[str, Any]]:
    """What each stream has, as the head node sees it, for the contract. Raises UsageError: nothing,
    or fewer objects than ranks that share them; HostError, ClusterctlError."""
    listed, asked = {}, {}
    for channel in mode.channels:
        if channel.is_stream and channel.is_here:
            path = Path(channel.path).expanduser()
            try:
                found = files_of(path) if path.is_dir() else [(path.name, path.stat().st_size, "")]
            except OSError as error:
                raise UsageError(
                    f"channel {channel.name}: {error.filename}: {error.strerror}"
                ) from None
            listed[channel.name] = {"objects": found}
        elif channel.is_stream:
            asked[channel.name] = {"source": channel.source, **channel.options}
    if asked:
        environ = {one.name: one.value for one in job.variables if one.name.startswith("AWS_")}
        told = LIST_STREAMS.stdin({"channels": asked, "environ": environ})
        result = access.connections.run(
            access.head, LIST_STREAMS.command(), stdin=told, timeout_s=LIST_TIMEOUT_S
        )
        [answer] = json_lines(result, "listing the channels")
        if "error" in answer:
            raise ClusterctlError(f"{access.head.host}: {answer['error']}", "nothing was started")
        listed.update(answer)
    for channel in mode.channels:
        there = len(listed[channel.name]["objects"]) if channel.is_stream else job.ranks
        shares = channel.options.get("distribution") == "ShardedByS3Key"
        if there < (job.ranks if shares else 1):
            raise UsageError(
                f"channel {channel.name}: {count(there, 'object')} in {channel.source}"
                + (f" for {count(job.ranks, 'rank')}" if there else ""),
                "give every rank at least one, or distribution: FullyReplicated",
            )
    return listed


def _check_brought(channel: str, report: TransferReport) -> None:
    """Raises ClusterctlError for the nodes that lack some of a channel."""
    if report.failed:
        [first, *_] = report.failed
        raise ClusterctlError(
            f"channel {channel} is not whole on {fold_hosts([one.host for one in report.failed])}"
            + (f": {first.error.message}" if first.error else ""),
            first.error.hint if first.error else "",
        )


def _node_records(
    access: Access, plan: TrainingPlan, machines: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The nodes with ranks, head first, as nodes.json has them (node/jobs/jobs.py)."""
    ranks = plan.hosts.fill(plan.job.ranks, plan.job.per_host)
    filled = zip(access.cluster.in_service, plan.hosts.entries, ranks)
    return [
        {
            "name": node.name,
            "address": entry.host,
            "slots": entry.slots,
            "ranks": ranks,
            "instance_type": node.instance_type,
            "availability_zone": node.availability_zone,
            **machines.get(node.name, {}),
            "versions": dict(plan.versions.get(node.name, {})),
        }
        for node, entry, ranks in filled
        # The head node runs mpirun, whether or not it has ranks.
        if ranks or node == access.cluster.head
    ]


def machines_of(instances: Sequence[Instance], prices: Prices) -> dict[str, dict[str, Any]]:
    """What EC2 has said of each node of a cluster, by its name, for a job's record."""
    # Where a head node looks after a job (operations/watchdog.py) there is nothing that asks EC2.
    from clusterctl.ec2.instances import members_of
    from clusterctl.ec2.money.costs import node_cost, price_key

    now = datetime.now(timezone.utc)
    return {
        one.node.name: {
            "image": one.image_id,
            "market": one.market.value,
            "efa": one.efa,
            "placement_group": one.placement_group,
            "usd_per_hour": node_cost(one, prices.get(price_key(one)), now).usd_per_hour,
        }
        for one in members_of(instances)
    }


def _on_all(access: Access, shipped: FanoutResult[CommandResult]) -> Sequence[CommandResult]:
    """What came of it on every node. Raises ClusterctlError for those where it failed."""
    if shipped.failures:
        first = shipped.failures[0].error
        raise ClusterctlError(
            f"not every node got its files: {fold_hosts([f.host for f in shipped.failures])}"
            + (f" ({first.message})" if first else ""),
            f"mpirun needs all of them; see `clusterctl status {access.cluster.name}`",
        )
    return shipped.values


def look_before(
    access: Access, job: JobPlan, hosts: HostsFile, running: Running, force: bool = False
) -> tuple[tuple[Finding, ...], dict[str, Mapping[str, str]]]:
    """What speaks against the job on any node, and what is installed there: one question to all of
    them at once."""
    asked = question(job)
    path = posixpath.relpath(job.script_path or "/", job.home or "/")
    if job.code or path in example_files():
        asked["script"] = ""  # the start puts it there
    payload = json.dumps(asked).encode()
    answers = access.connections.run_all(
        access.targets, LOOK.command(), stdin=LOOK.stdin(payload), timeout_s=PROBE_TIMEOUT_S
    )
    looks = read_each(answers, _look)
    unsaid = () if force else running.silent
    failures = {one.host: one.error for one in (*unsaid, *looks.failures)}
    silent = [(host, error.message) for host, error in failures.items() if error]
    hint = f"mpirun needs all nodes; see `clusterctl status {access.cluster.name}`"
    unreachable = together("node.unreachable", silent, hint)
    if not looks.values or looks.outcomes[0].error:
        return tuple(unreachable), {}
    per_host = zip(access.targets, hosts.fill(job.ranks, job.per_host))
    with_ranks = {target.host: ranks for target, ranks in per_host if ranks}
    home = str(Path("~").expanduser())
    besides = [
        *leftovers(access.cluster.name, running),
        *crowding_findings(looks.values, with_ranks),
    ]
    found = preflight(job, looks.values, with_ranks, force, home, besides)
    return in_order([*unreachable, *found]), {one.host: one.versions for one in looks.values}


def leftovers(cluster: str, running: Running) -> list[Finding]:
    """What an earlier job left, by node: it would share the GPUs of the new one."""
    by_host: dict[str, list[NodeProcess]] = {}
    for process in running.leftovers:
        by_host.setdefault(process.host, []).append(process)
    said = (
        (
            host,
            f"process {first.pid} of an earlier job is still there"
            + (f", and {count(len(more), 'other')}" if more else "")
            + f": {first.short_command}",
        )
        for host, (first, *more) in by_host.items()
    )
    return together("job.leftovers", said, f"end it first: clusterctl kill {cluster}")


def _look(result: CommandResult) -> NodeLook:
    [answer] = json_lines(result, "looking at it")
    return parse_look(result.host, answer)


def head_facts(access: Access, environment: str | None = None) -> HeadFacts:
    """What the head node has, in that environment first. Raises HostError, ClusterctlError."""
    look = probe(environment)
    result = access.connections.run(access.head, look, timeout_s=PROBE_TIMEOUT_S)
    if not result.ok:
        raise CommandFailed(result.host, f"cannot look at it: {result.stderr.strip()}")
    return parse_facts(result.stdout)


def spread_hosts(access: Access) -> FanoutResult[CommandResult]:
    """Write the hosts file anew here, and on every node that is in service. One outcome each."""
    text = format_hosts_file(live_hosts(access))
    away = hosts_text(access.cluster).split("#", 1)[1:]
    write_file(access.folder.hosts, text + "".join(f"#{comments}" for comments in away))
    return deploy_files(access.connections, access.targets, text)


def live_hosts(access: Access) -> HostsFile:
    """The hosts file of the cluster as it is now, head first.

    Slots are those that `up` counted on the node where it did, else what its type promises.
    """
    counted: dict[str, int] = {}
    if access.folder.hosts.exists():
        kept = parse_hosts_file(access.folder.hosts.read_text(), str(access.folder.hosts))
        counted = {entry.host: entry.slots for entry in kept.entries}
    return HostsFile(
        tuple(
            HostSlots(node.private_ip, counted.get(node.private_ip, max(node.gpus, 1)))
            for node in access.cluster.in_service
        )
    )


def _more_gpus(cluster: Cluster, ranks: int) -> str:
    per_node = max(cluster.head.gpus, 1)
    away = len(cluster.nodes) - len(cluster.in_service)
    aside = f" ({count(away, 'node')} in quarantine)" if away else ""
    return f"add nodes{aside}: clusterctl up {cluster.name} --nodes {-(-ranks // per_node) + away}"
