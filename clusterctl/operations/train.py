"""Start a training job on a cluster: inspect the nodes, plan, ship the files, start it detached."""

from __future__ import annotations

import glob
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from clusterctl.copy.fetch import UrlAccess, send_tools
from clusterctl.copy.report import TransferReport
from clusterctl.copy.request import CopyRequest
from clusterctl.domain.cluster import Cluster
from clusterctl.domain.errors import (
    ClusterctlError,
    ConnectionLost,
    HostUnreachable,
    NotFound,
    UsageError,
)
from clusterctl.domain.files import write_file
from clusterctl.domain.findings import Finding, errors, folded, in_order
from clusterctl.domain.hostsfile import HostsFile, HostSlots, format_hosts_file, parse_hosts_file
from clusterctl.domain.ranges import fold_hosts, format_indices, grouped
from clusterctl.domain.results import CommandResult, FanoutResult, make_room, parse_outputs
from clusterctl.domain.units import count
from clusterctl.jobs.deploy import (
    EXAMPLES,
    Code,
    deploy_files,
    deployed_files,
    example_files,
    program_to_ship,
    remove_code,
    ship_code,
)
from clusterctl.jobs.detached import job_running_error, spec_of, start_job, submission_of
from clusterctl.jobs.head_facts import HeadFacts, depends_on_gpus, facts_of_head
from clusterctl.jobs.head_facts import facts_to_read as facts_to_read_of_head
from clusterctl.jobs.plan import (
    CODE_FOLDER,
    JobPlan,
    JobRequest,
    check_per_host,
    check_request,
    new_job_id,
    plan_job,
    with_trainer_run,
)
from clusterctl.jobs.preflight import (
    NotReady,
    crowding_findings,
    facts_of_node,
    facts_to_read,
    findings_by_message,
    preflight,
)
from clusterctl.jobs.script_mode import STREAMED, ScriptMode
from clusterctl.node.facts.gpus import capabilities
from clusterctl.node.facts.report import Fact, FactReport
from clusterctl.node.jobs.jobs import Submitted
from clusterctl.node.jobs.spec import JobSpec, Watchdog
from clusterctl.node.scripts.collect import no_upload_to
from clusterctl.node.scripts.parameter_servers import are_in, tf_config
from clusterctl.node.scripts.pipe import Channels, files_of, list_channels
from clusterctl.operations.access import Access
from clusterctl.operations.copy import sender
from clusterctl.operations.local_state import hosts_text
from clusterctl.operations.logs import (
    RunningWork,
    refuse_while_running,
    running_work,
    stop_commands,
    work_facts,
)
from clusterctl.transport.call import NodeCall, call, read_reports
from clusterctl.transport.dial import Target

if TYPE_CHECKING:
    from clusterctl.ec2.instances import Instance
    from clusterctl.ec2.money.prices import Prices

DOING = "looking at it"
LIST_TIMEOUT_S = 600.0  # for listing millions of objects in S3


@dataclass(frozen=True)
class TrainingPlan:
    """A job, the hosts file it runs with, and the findings of the checks before it.

    `running` is what runs on the cluster already, `code` the user's program that is shipped from
    this machine, and `versions` the installed versions by node and program. `copies` has the copies
    of a script-mode program's channels, by channel name.
    """

    job: JobPlan
    hosts: HostsFile
    running: RunningWork
    findings: tuple[Finding, ...] = ()
    code: Code | None = None
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    script_mode: ScriptMode | None = None
    copies: Mapping[str, CopyRequest] = field(default_factory=dict)

    @property
    def tf_config(self) -> dict[str, Any]:
        """The TF_CONFIG of the chief in a job with parameter servers; empty for any other job."""
        filled = self.hosts.fill(self.job.ranks, self.job.per_host)
        addresses = [entry.host for entry, ranks in zip(self.hosts.entries, filled) if ranks]
        if not (self.script_mode and are_in(self.script_mode.distribution, addresses)):
            return {}
        return tf_config(addresses, self.job.port, addresses[0])

    def watched(self, watchdog: Watchdog) -> TrainingPlan:
        """Return the plan with a watchdog, which is from `watchdog.prepare`."""
        return replace(self, job=replace(self.job, watchdog=watchdog))

    def check(self) -> None:
        """Raise NotReady if a finding is an error."""
        if errors(self.findings):
            raise NotReady(self.findings)


@dataclass(frozen=True)
class StartedJob:
    """A job that runs or is queued. `kept` lists the shipped files that users changed on nodes and
    that were left as they are, each with the hosts, as in `demo-[0-3]`."""

    job: JobPlan
    started: Submitted
    kept: tuple[tuple[str, str], ...]


def plan_training(
    access: Access, request: JobRequest, force: bool = False, script_mode: ScriptMode | None = None
) -> TrainingPlan:
    """Plan a job without starting it.

    `force` turns errors of the checks into warnings, except those about deleting an earlier run.
    `script_mode` is set if `request.script_mode` is. Raise UsageError, NotEnoughGpus, MissingTool,
    and HostError of the head node.
    """
    hosts = live_hosts(access)
    more_slots = _more_slots(access, request.per_host)
    more = more_slots + ", or " if more_slots else ""
    more += _more_gpus(access.cluster, request.ranks)
    # Before any connection is made, so that an impossible request fails at once.
    check_per_host(request, hosts, more_slots)
    check_request(request, hosts.slots, more, "slots" if more_slots else "GPUs")
    if request.environment:
        request = replace(request, environment=request.environment.rstrip("/"))
    code = None
    if request.script:
        code = program_to_ship(request.script, request.source_dir, request.script_mode)
    reports = _first_reports(access, request.environment)
    facts = head_facts(access, request.environment, reports)
    job = plan_job(request, facts, hosts, new_job_id())
    job = with_trainer_run(job, EXAMPLES / "tensorflow")
    copies = channel_copies(script_mode, job.job_id) if script_mode else {}
    running = running_work(access, known=reports).trainings
    findings, versions = preflight_nodes(access, job, hosts, running, force)
    if code:
        there = versions.get(access.head_name, {})
        findings = in_order([*findings, *code_findings(code, job, there, bool(script_mode))])
    return TrainingPlan(job, hosts, running, findings, code, versions, script_mode, copies)


def code_findings(
    code: Code, job: JobPlan, versions: Mapping[str, str], in_script_mode: bool
) -> Iterator[Finding]:
    """Check what a shipped program needs beyond its files. `versions` are those of the environment
    that runs it, by package."""
    text = (code.folder / code.script).read_text(errors="replace")
    without = versions and "torch" not in versions and not job.torchrun
    if without and re.search(r"^(import|from) torch\b", text, re.MULTILINE):
        yield Finding.warning(
            "script.torch",
            f"{code.script} imports torch, which the environment of {job.python} does not have",
            "--launcher torchrun takes an interpreter that has it; or name an environment "
            "of yours: --env DIR",
        )
    needs = posixpath.join(posixpath.dirname(code.script), "requirements.txt")
    if needs in code.files and not in_script_mode:
        yield Finding.info(
            "script.requirements",
            f"{needs} is not installed: that is done only for programs in script mode",
            "install what is missing into the environment of every node; or use script mode: "
            "--hyperparameter NAME=VALUE for the program's arguments (docs/script-mode.md)",
        )


def channel_copies(mode: ScriptMode, job_id: str) -> dict[str, CopyRequest]:
    """Return the copy of each channel to its folder in the job's folder on the nodes, by name.

    Channels that are on the nodes already and streams from S3 need no copy. Raise UsageError if a
    channel's path on this machine does not exist.
    """
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


def _no_copy(name: str, request: CopyRequest) -> TransferReport:
    raise UsageError(
        f"channel {name}: {request.sources[0]} is not on the nodes",
        "start the job with `clusterctl train`, which copies it",
    )


@dataclass(frozen=True)
class Retries:
    """After a lost node a job is started again up to `times` times, with at least `min_gpus` ranks
    (None: with all)."""

    times: int = 0
    min_gpus: int | None = None

    def check(self, ranks: int) -> None:
        """Raise UsageError for a least number of GPUs without retries, or above that of ranks."""
        if self.min_gpus and not self.times:
            raise UsageError("--min-gpus is for --retries", "--retries 3")
        if self.min_gpus and self.min_gpus > ranks:
            raise UsageError(f"--min-gpus {self.min_gpus} is more than GPUS", f"{ranks} at most")


def start_training(
    access: Access,
    plan: TrainingPlan,
    how: str = "refuse",
    machines: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    retries: Retries = Retries(),
    copy_channel: Callable[[str, CopyRequest], TransferReport] = _no_copy,
) -> StartedJob:
    """Put the files on every node and start the job on the head node.

    For `how` see Submission. `machines` describes each node for the job's record (`machines_of`).
    `copy_channel` copies a channel, given its name and the copy.

    Raise NotReady, JobRunning, HostError, ClusterctlError.
    """
    plan.check()
    _refuse_a_second(access, plan.running, how)
    text = format_hosts_file(plan.hosts)
    shipped = _on_all(access, deploy_files(access.connections, access.targets, text))
    nodes = _node_records(access, plan, machines)
    job = plan.job
    if plan.script_mode:
        contract = plan.script_mode.contract(job, nodes)
        listed = list_streams(access, plan.script_mode, job)
        for name, found in listed.items():
            contract["channels"][name].update(found)
        job = replace(job, contract=contract)
    spec = training_spec(replace(plan, job=job), nodes, retries)
    to = (access.connections, access.targets)
    may_run = False
    try:
        if plan.code:
            _on_all(access, ship_code(*to, plan.code, job.job_id, job.contract))
        if plan.script_mode and plan.script_mode.model_url:
            _check_upload(access, plan.script_mode.model_url)
        for name, channel in plan.copies.items():
            _check_copied(name, copy_channel(name, channel))
        request = submission_of(job, spec, how)
        may_run = True
        started = start_job(access.connections, access.head, request, access.cluster.name)
    except BaseException as error:
        # A lost connection and Ctrl-C leave it open whether a requested start took place.
        is_open = isinstance(error, (ConnectionLost, HostUnreachable, KeyboardInterrupt))
        if plan.code and not (may_run and is_open):
            remove_code(*to, job.job_id)
        raise
    kept = grouped((name, one.host) for one in shipped for name in deployed_files(one).kept)
    folded = tuple((name, fold_hosts(hosts)) for name, hosts in kept.items())
    return StartedJob(plan.job, started, folded)


def _refuse_a_second(access: Access, running: RunningWork, how: str) -> None:
    """Raise JobRunning if another training runs that this one may not run next to.

    The queue waits for jobs, but not for a run that was started by hand. A training may run at the
    same time as served models.
    """
    if how == "refuse" and running.jobs:
        raise job_running_error(running.jobs[0].job_id, access.cluster.name)
    if how != "force":
        known = {job.job_id for job in running.jobs}
        by_hand = tuple(one for one in running.launchers if one.job_id not in known)
        others = replace(running, jobs=(), processes=by_hand)
        refuse_while_running(access, others, "two would share its GPUs", ())


def training_spec(plan: TrainingPlan, nodes: Sequence[dict[str, Any]], retries: Retries) -> JobSpec:
    """Return the specification of a training on these nodes (`_node_records`). Pure."""
    code = plan.code
    return spec_of(
        plan.job,
        nodes=tuple(nodes),
        hosts=tuple(node["name"] for node in nodes),
        hourly_usd=_sum_of(nodes, "hourly_usd"),
        list_hourly_usd=_sum_of(nodes, "list_hourly_usd"),
        code=code.as_data() if code else None,
        git={"commit": code.commit, "changed": len(code.changed.splitlines())}
        if code and code.commit
        else None,
        retries=retries.times,
        min_ranks=retries.min_gpus or plan.job.ranks,
        model_dir=plan.script_mode.model_url if plan.script_mode else None,
        metric_definitions=dict(plan.script_mode.metrics) if plan.script_mode else {},
    )


def _sum_of(nodes: Sequence[Mapping[str, Any]], name: str) -> float | None:
    """Return the sum of a price of all nodes; None if one of them is not known."""
    prices: list[Any] = [node.get(name) for node in nodes]
    return None if None in prices else sum(prices)


def _check_upload(access: Access, url: str) -> None:
    """Make sure that the head node has a tool to upload a model to S3, and that credentials and
    bucket are there. Raise ClusterctlError."""
    connections, request = access.connections, CopyRequest((url,), "~")
    urls = UrlAccess(access.folder.home / "cache")
    report = send_tools(connections, [access.head], request, urls, sender(connections))
    for error in filter(None, (node.error for node in report.nodes)):
        raise error
    node_call = NodeCall(no_upload_to, url, "listing the bucket", LIST_TIMEOUT_S)
    problem = call(connections, access.head, node_call)
    if problem:
        raise ClusterctlError(
            f"{access.head.host}: the model could not be uploaded to {url}: {problem}",
            "give the nodes a role that may write there (clusterctl up NAME --instance-profile new "
            "--checkpoint-prefix BUCKET/PREFIX), or --model-dir a folder of this machine",
        )


def list_streams(access: Access, mode: ScriptMode, job: JobPlan) -> dict[str, dict[str, Any]]:
    """List the objects of each stream channel, for the contract: of S3 on the head node, of files
    here on this machine.

    Raise NotFound if a stream has no objects, UsageError if fewer than the ranks that share them,
    HostError, ClusterctlError.
    """
    listed, requested = {}, {}
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
            requested[channel.name] = {"source": channel.source, **channel.options}
    if requested:
        environ = {one.name: one.value for one in job.variables if one.name.startswith("AWS_")}
        channels = Channels(requested, environ)
        node_call = NodeCall(list_channels, channels, "listing the channels", LIST_TIMEOUT_S)
        there = call(access.connections, access.head, node_call)
        if there.error:
            raise ClusterctlError(f"{access.head.host}: {there.error}", "nothing was started")
        listed.update(there.listed)
    for channel in mode.channels:
        objects = len(listed[channel.name]["objects"]) if channel.is_stream else job.ranks
        shares = channel.options.get("distribution") == "ShardedByS3Key"
        if objects < (job.ranks if shares else 1):
            if not objects:
                raise NotFound(
                    f"channel {channel.name}: there is nothing at {channel.source}",
                    "check the bucket and the prefix: aws s3 ls lists what is below one"
                    if channel.source.startswith("s3://")
                    else "put files into that folder",
                )
            raise UsageError(
                f"channel {channel.name}: {count(objects, 'object')} in {channel.source} for "
                f"{count(job.ranks, 'rank')}",
                "give every rank at least one, or distribution: FullyReplicated",
            )
    return listed


def _check_copied(channel: str, report: TransferReport) -> None:
    """Raise ClusterctlError unless all nodes have all of a channel."""
    if report.problem:
        hosts = fold_hosts([one.host for one in report.failed or report.nodes])
        raise ClusterctlError(
            f"channel {channel} is not whole on {hosts}: {report.problem.message}",
            report.problem.hint,
        )


def _node_records(
    access: Access, plan: TrainingPlan, machines: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the records of the nodes with ranks, for the job (see JobSpec).

    The head node is the first, and always has ranks.
    """
    ranks = plan.hosts.fill(plan.job.ranks, plan.job.per_host)
    filled = zip(access.cluster.in_service, plan.hosts.entries, ranks)
    return [
        {
            "name": node.name,
            "address": entry.host,
            "instance_id": node.instance_id,
            "slots": entry.slots,
            "ranks": ranks,
            "instance_type": node.instance_type,
            "zone": node.zone,
            **machines.get(node.name, {}),
            "versions": dict(plan.versions.get(node.name, {})),
        }
        for node, entry, ranks in filled
        if ranks
    ]


def machines_of(
    instances: Sequence[Instance], prices: Prices, listed: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Return EC2's description of each node of a cluster, by node name, for a job's record.

    `listed` are the types' prices on demand (`list_prices`).
    """
    # Imported here, because head nodes import this module (operations/watchdog.py) and have no
    # clusterctl.ec2.
    from clusterctl.ec2.instances import members_of
    from clusterctl.ec2.money.costs import node_cost
    from clusterctl.ec2.money.prices import price_key

    now = datetime.now(timezone.utc)
    return {
        one.node.name: {
            "image": one.image_id,
            "market": one.market.value,
            "efa": one.efa,
            "placement_group": one.placement_group,
            "hourly_usd": node_cost(one, prices.get(price_key(one)), now).hourly_usd,
            "list_hourly_usd": listed.get(one.node.instance_type),
        }
        for one in members_of(instances)
    }


def _on_all(access: Access, shipped: FanoutResult[CommandResult]) -> Sequence[CommandResult]:
    """Return the results of all nodes. Raise ClusterctlError if any node failed."""
    if shipped.failures:
        first, cluster = shipped.failures[0].error, access.cluster.name
        raise ClusterctlError(
            f"not every node got its files: {fold_hosts([f.host for f in shipped.failures])}"
            + (f" ({first.message})" if first else ""),
            (first.hint or make_room(first.message, cluster) if first else "")
            or f"mpirun needs all of them; see why: clusterctl doctor {cluster}",
        )
    return shipped.values


def preflight_nodes(
    access: Access, job: JobPlan, hosts: HostsFile, running: RunningWork, force: bool = False
) -> tuple[tuple[Finding, ...], dict[str, Mapping[str, str]]]:
    """Check all nodes before a job, with one command on each. Return the findings and the installed
    versions by node; the versions are empty if the head node did not answer.

    With `force`, errors become warnings except those about deleting an earlier run, and a node that
    did not answer in `running` is no error.
    """
    path = posixpath.relpath(job.script_path or "/", job.home or "/")
    facts = facts_to_read(job, ships_script=bool(job.code) or path in example_files())
    reports = read_reports(access.connections, access.targets, facts, DOING)
    facts_read = parse_outputs(reports, lambda report: facts_of_node(report.host, report))
    unsaid = () if force else running.silent
    failures = {one.host: one.error for one in (*unsaid, *facts_read.failures)}
    silent = [(host, error.message) for host, error in failures.items() if error]
    unreachable = unreachable_findings(access.cluster.name, silent)
    if not facts_read.values or facts_read.outcomes[0].error:
        return tuple(unreachable), {}
    per_host = zip(access.targets, hosts.fill(job.ranks, job.per_host))
    with_ranks = {target.host: ranks for target, ranks in per_host if ranks}
    home = str(Path("~").expanduser())
    besides = [
        *leftovers(access.cluster.name, running),
        *crowding_findings(facts_read.values, with_ranks),
    ]
    found = preflight(job, facts_read.values, with_ranks, force, home, besides)
    return in_order([*unreachable, *found]), {one.host: one.versions for one in facts_read.values}


def unreachable_findings(cluster: str, silent: Sequence[tuple[str, str]]) -> list[Finding]:
    """Return errors about nodes that did not answer. `silent` are pairs of host and reason."""
    index = ",".join(host.rpartition("-")[2] for host, _ in silent)
    hint = (
        "mpirun needs all nodes in service: leave it out (clusterctl quarantine "
        f"{cluster} {index}), or give it a new machine (clusterctl replace {cluster} {index})"
    )
    return findings_by_message("node.unreachable", silent, hint)


def leftovers(cluster: str, running: RunningWork) -> list[Finding]:
    """Return an error for each node with leftover processes of an earlier job, which would share
    the GPUs with a new one. No hint ends a served model unasked."""
    by_host = grouped((process.host, process) for process in running.leftovers)
    # A user may have emptied the variable that has the job's id.
    jobs = {host: {one.job_id or None for one in found} for host, found in by_host.items()}
    end = f"clusterctl kill {cluster}"
    # Processes without a job's id are ended together with all others of their node.
    unnamed = [host for host in by_host if None in jobs[host] and host not in running.served_on]
    indices = format_indices(int(host.rpartition("-")[2]) for host in unnamed)
    found = []
    for host, (first, *more) in by_host.items():
        message = f"process {first.pid} of an earlier job is still there"
        message += f", and {count(len(more), 'other')}" if more else ""
        message += f": {first.short_command}"
        kills = [f"{end} {job}" for job in sorted(filter(None, jobs[host]))]
        hint = ""
        if None in jobs[host]:
            kills = [f"{end} --nodes {indices}"]
            if host in running.served_on:
                stop = stop_commands(cluster, running.served_on[host])
                hint = f"end the model there first: {stop}; then "
                kills = [f"{end} --nodes {host.rpartition('-')[2]}"]
        hint += f"see what it ends: {kills[0]} --dry-run; end it: {'; '.join(kills)}"
        found.append(Finding.error("job.leftovers", message, hint, host))
    return folded(found)


def _first_reports(access: Access, environment: str | None) -> FanoutResult[FactReport]:
    """Query, with one command on each node, what a plan depends on and what runs already."""

    def facts(target: Target) -> list[Fact]:
        of_head = facts_to_read_of_head(environment) if target.host == access.head_name else ()
        return [*of_head, *work_facts(access, target)]

    return read_reports(access.connections, (access.head, *access.targets[1:]), facts, DOING)


def head_facts(
    access: Access, environment: str | None = None, known: FanoutResult[FactReport] | None = None
) -> HeadFacts:
    """Query the head node's facts. `environment` is a virtual environment to search first. `known`
    are reports that begin with the head node's, if it was requested a moment ago. Raise HostError,
    ClusterctlError.

    If the GPUs decide which environment is used, those of the other nodes count, too; a node that
    does not answer is left out.
    """
    read = partial(read_reports, access.connections, doing=DOING)
    [outcome, *_] = (known or read([access.head], facts_to_read_of_head(environment))).outcomes
    facts = facts_of_head(outcome.result())
    others = [one for one in access.targets if one.host != access.head_name]
    if not depends_on_gpus(facts) or not others:
        return facts
    found = read(others, [capabilities]).values
    more = (one for report in found for one in report.get(capabilities) or ())
    return replace(facts, capabilities=(*facts.capabilities, *more))


def write_hosts_files(access: Access) -> FanoutResult[CommandResult]:
    """Write the hosts file on this machine and on every node in service. Return an outcome for each
    node."""
    text = format_hosts_file(live_hosts(access))
    # The local file also lists the nodes in quarantine, as comments at its end.
    quarantined = hosts_text(access.cluster).split("#", 1)[1:]
    write_file(access.folder.hosts, text + "".join(f"#{comments}" for comments in quarantined))
    return deploy_files(access.connections, access.targets, text)


def live_hosts(access: Access) -> HostsFile:
    """Return a hosts file with the private addresses of the nodes in service, head node first.

    A node's slots are the GPUs that `up` counted on it, from the local hosts file. If it has none
    for the node, they are the GPUs of the instance type, or 1.
    """
    path = access.folder.hosts
    text = path.read_text() if path.exists() else ""
    kept = parse_hosts_file(text, str(path)).entries if text.strip() else ()
    counted = {entry.host: entry.slots for entry in kept}
    return HostsFile(
        tuple(
            HostSlots(node.private_ip, counted.get(node.private_ip, max(node.gpus, 1)))
            for node in access.cluster.in_service
        )
    )


def _more_slots(access: Access, per_host: int | None) -> str:
    """Return how nodes without GPUs get more slots; empty if a node has a GPU."""
    if any(node.gpus for node in access.cluster.in_service):
        return ""
    path = access.folder.hosts
    return f"write slots={per_host or 'N'} for each node into {path} (until the next `up`)"


def _more_gpus(cluster: Cluster, ranks: int) -> str:
    """Return the hint of NotEnoughGpus: the command that adds enough nodes for `ranks`."""
    per_node = max(cluster.head.gpus, 1)
    quarantined = len(cluster.nodes) - len(cluster.in_service)
    nodes = -(-ranks // per_node) + quarantined
    aside = f" ({count(quarantined, 'node')} in quarantine)" if quarantined else ""
    return f"add nodes{aside}: clusterctl up {cluster.name} --nodes {nodes}"
