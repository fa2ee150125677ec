"""`selftest`: launch two nodes, train, measure, hang a rank, diagnose it, and remove everything.

Each step calls the operation of the command that a user would type: `up`, `env install`, `train`,
`bench --network`, `diagnose`, `cancel`, `down`, `gc`. Here are only their order, and what of each
is checked. `clusterctl.operations.selftest_report` has the report.

The nodes get limits when they are launched, so their own guards end them also where this program
is killed.
"""

from __future__ import annotations

import platform
import shlex
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from functools import partial
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import clusterctl
from clusterctl.bench.network import NetworkFigures, allreduce_lines, findings, summary
from clusterctl.bootstrap.training import EnvRequest
from clusterctl.diagnosis.verdict import Diagnosis, diagnose
from clusterctl.domain.cluster import ClusterSpec, Limits, Market, NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, CommandFailed
from clusterctl.domain.findings import Finding, errors
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.timeouts import Polling, backoff_delays
from clusterctl.domain.units import count
from clusterctl.ec2.gc.orphans import GcOptions
from clusterctl.ec2.instances import find_instances, find_states
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.ec2.launch.plan import LaunchPlan
from clusterctl.ec2.launch.preflight import cluster_estimate
from clusterctl.ec2.money.costs import CostEstimate, format_spent, format_usd
from clusterctl.ec2.money.prices import PUBLIC_IPV4_HOUR_USD, Price, find_price
from clusterctl.ec2.resources import (
    CREATED_BY,
    NOT_TERMINATED,
    find_key_pairs,
    find_made,
    terminate,
)
from clusterctl.ec2.tags import CREATIONS
from clusterctl.jobs.detached import LogFollower, find_job
from clusterctl.jobs.plan import JobRequest
from clusterctl.jobs.processes import all_of, list_processes
from clusterctl.node.jobs.processes import NodeProcess, ProcessQuery
from clusterctl.node.jobs.spec import JobRecord, JobState
from clusterctl.operations.access import Access
from clusterctl.operations.bench_network import measure_network
from clusterctl.operations.costs import cost_report
from clusterctl.operations.diagnose import collect
from clusterctl.operations.down import down
from clusterctl.operations.environment import Installation
from clusterctl.operations.gc import GarbageCollector
from clusterctl.operations.interrupts import Interrupts
from clusterctl.operations.kill import cancel
from clusterctl.operations.launcher import Launcher, LaunchRefused, LineProgress
from clusterctl.operations.local_state import public_key
from clusterctl.operations.logs import follow
from clusterctl.operations.results import NoResults, results_of_cluster
from clusterctl.operations.selftest_report import (
    SelftestReport,
    StepResult,
    StepVerdict,
    masked,
    tail_of,
)
from clusterctl.operations.site import changing
from clusterctl.operations.status import find_own
from clusterctl.operations.train import head_facts, plan_training, start_training
from clusterctl.operations.up import creations_of, plan_up, start_up
from clusterctl.operations.watchdog import prepare

NODES = 2
MAX_HOURS = 2.0
# A node bills from its launch, and its guard counts from its boot (docs/costs.md); it bills on
# until EC2 has terminated it. How long the two take on AWS is not known: clusterctl was never run
# there. A quarter of an hour is what `down` waits for the second (Timeouts.terminated_s).
UNCOUNTED_HOURS = 0.25
BUDGET_PART = 0.9  # of --max-cost, for the same reason
TRAINING_STEPS = 200
# Without GPUs: ResNet-50 would take minutes, and show no more.
CPU_ARGUMENTS = ("--model", "resnet18", "--image_size", "32", "--batch_size", "2")
# More than a training can make before it is stopped.
ENDLESS_STEPS = 1_000_000
# How long a job may take to its first steps (TensorFlow compiles kernels before), and after a hang
# to its next one.
STEPS_WITHIN_S = 900.0
FIRST_STEPS = 3
POLL_S = 2.0
# Without a step for so long, the training of `train` is diagnosed and ended; at its start, three
# times as long (docs/training.md, "A watchdog").
HUNG_AFTER_S = 300.0
# A job counts as stuck after ten seconds without a step (diagnosis/case.py), or some steps.
DIAGNOSES, DIAGNOSIS_GAP_S = 6, 10.0
# Connections of a pair, and seconds for each of its rates: the defaults of `bench --network`.
STREAMS, RATE_S = 8, 1.0
# How often a removal is tried that fails, and the pause after a failure. It also takes so many
# presses of Ctrl-C to end it.
REMOVALS, REMOVAL_GAP_S = 3, 10.0
NOTHING_LAUNCHED = "this self-test launched nothing"
NO_CAPACITY = (
    "try another --region or --instance-type, or let it wait: CLUSTERCTL_CAPACITY_TIMEOUT=2h "
    "clusterctl selftest"
)
SWEEPS = 8  # after a removal: EC2 may show deleted resources for a while
NO_HANG = "no rank was stopped"
KEPT_BYTES = 16 << 10  # of a step's output


class Passed(NamedTuple):
    """What a step found that passed. `figures` are lines, `versions` by program."""

    message: str
    figures: Sequence[str] = ()
    versions: Mapping[str, str] = MappingProxyType({})


class StepNotRun(Exception):
    """A step that has nothing to run on. The message is the reason."""


@dataclass(frozen=True)
class SelftestStep:
    """One step. It is run if all steps in `needs` have passed. `title` describes it.

    `always`: it is run whatever happened before, also after an interrupt.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    run: Callable[[Selftest], Passed]
    json_names = ("name", "title", "needs")
    always: bool = False


@dataclass(frozen=True)
class Hang:
    """The processes of one rank that were stopped, and the last step that the job had made."""

    job_id: str
    host: str
    rank: int
    pids: tuple[int, ...]
    step: int


def line_of(finding: Finding) -> str:
    """Return a finding as a line, without its hint."""
    host = f"{finding.host}: " if finding.host else ""
    return f"{finding.severity.value}: {host}{finding.message} [{finding.check}]"


@dataclass
class Selftest:
    """The cluster of a self-test, and what the steps leave for those that follow.

    `open` returns access to the cluster. `notify` receives lines of progress, `show` the output of
    jobs. `is_free`: nothing is billed, as in the lab. `launch_id` begins the client tokens of what
    this self-test launches; it is empty until the launch begins. `instance_ids` are its nodes as
    far as EC2 has shown them, `others` what others have made under the same name. The launcher's
    progress is replaced by one that is kept for the report.
    """

    launcher: Launcher
    spec: ClusterSpec
    open: Callable[[], Access]
    notify: Callable[[str], None]
    show: Callable[[bytes], None]
    is_free: bool = False
    estimate: str = ""
    began: datetime = field(default_factory=lambda: datetime.now(timezone.utc))
    place: str = ""
    launch_id: str = ""
    instance_ids: set[str] = field(default_factory=set)
    others: tuple[str, ...] = ()
    ranks: int = 0
    on_gpus: bool = False
    network: NetworkFigures | None = None
    hang: Hang | None = None
    names: dict[str, str] = field(default_factory=lambda: {str(Path.home()): "~"})
    _output: bytes = b""

    def __post_init__(self) -> None:
        progress = LineProgress(self.say, lambda finding: self.say(line_of(finding)))
        self.launcher = replace(self.launcher, progress=progress, approve=self._begin)
        self.interrupts = Interrupts(self.launcher.timeouts.clock)

    def _begin(self, plan: LaunchPlan) -> None:
        """Note that the launch begins: the next step of the plan makes something."""
        self.launch_id = plan.launch_id

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self.spec.name

    def say(self, text: str) -> None:
        """Report a line of progress, and keep it for the report."""
        self.notify(text)
        self.keep(f"{text}\n".encode())

    def keep(self, chunk: bytes) -> None:
        """Keep the end of a step's output for the report."""
        self._output = (self._output + chunk)[-KEPT_BYTES:]

    def take_output(self) -> list[str]:
        """Return the last lines since the last call."""
        output, self._output = self._output, b""
        return tail_of(output)


def selftest_spec(spec: ClusterSpec, instance_type: str, max_cost_usd: float) -> ClusterSpec:
    """Return the cluster of a self-test: two nodes that end themselves, the rest as in `spec`.

    No other limit of the user's holds: with an idle limit, a node that is out of time would stop
    and keep its disk. Raises UsageError for a cost that is no number of dollars.
    """
    limits = Limits(max_hours=MAX_HOURS, budget_usd=BUDGET_PART * max_cost_usd)
    return replace(
        spec, nodes=NODES, min_nodes=None, instance_type=instance_type, or_types=(), limits=limits
    )


def at_most(estimate: CostEstimate, on_demand: Price | None) -> CostEstimate:
    """Return the estimate with spot machines at their price on demand.

    A spot price can rise while the nodes run. That it ends at the price on demand, since no maximum
    price is sent, is from AWS's guide on spot instances, as remembered: it was not checked.
    """
    machines, *others = estimate.lines
    usd = None if on_demand is None else on_demand.hourly_usd
    source = "" if on_demand is None else f"{on_demand.source}, {on_demand.as_of}, on demand"
    return replace(
        estimate,
        lines=(replace(machines, hourly_usd_each=usd), *others),
        price_source=f"{source}: the most that spot can cost",
    )


def most_usd(estimate: CostEstimate | None) -> float | None:
    """Return about what nodes of this estimate cost at most, US dollars; None if that is unknown.

    They run for MAX_HOURS by their guards' count, and bill for UNCOUNTED_HOURS more.
    """
    if estimate is None or estimate.hourly_usd is None:
        return None
    once = estimate.once.nodes * estimate.once.usd_each if estimate.once else 0.0
    return (MAX_HOURS + UNCOUNTED_HOURS) * estimate.hourly_usd + once


def check_absent(launcher: Launcher) -> None:
    """Raise ClusterctlError if EC2 or this machine has anything of a cluster of this name.

    `remove` would take it for the self-test's own. Raises AwsError.
    """
    name, folder = launcher.name, launcher.folder
    nodes = find_own(launcher.clients, folder)
    made = find_made(launcher.clients.ec2, name, creations_of(launcher))
    kinds = Counter([*("node" for _ in nodes), *(CREATIONS[CREATED_BY[one.kind]] for one in made)])
    found = [count(number, kind) for kind, number in kinds.items()]
    if any(path.name != "lock" for path in folder.path.glob("*")):
        found.append(f"the folder {folder.path}")
    if found:
        exists = "exists" if nodes else "has left something"
        raise ClusterctlError(
            f"cluster {name} {exists}: {', '.join(found)}; a self-test would remove that",
            f"remove it first: clusterctl down {name}; or name another: clusterctl selftest OTHER",
        )


def too_dear(nodes: str, most_usd: float | None, max_cost_usd: float) -> Finding:
    return Finding.error(
        "cost.budget",
        f"{nodes} cost up to about {format_usd(most_usd)} in {MAX_HOURS:g} hours and the time that "
        f"they take to start and to end; --max-cost allows {format_usd(max_cost_usd)}",
        "choose a smaller --instance-type, or raise --max-cost",
    )


def plan(launcher: Launcher, spec: ClusterSpec, max_cost_usd: float) -> tuple[LaunchPlan, str]:
    """Return the plan of the launch, and in words what the self-test costs at most.

    Changes nothing. Raises LaunchRefused as `up` would and where the cost may exceed
    `max_cost_usd`, ClusterctlError where something of a cluster of that name exists, AwsError.
    """
    check_absent(launcher)
    planned = plan_up(launcher, fixed_request(spec))
    machine = planned.observed.catalogue.machines.get(spec.instance_type)
    estimate = planned.estimate
    if estimate is None and machine:
        estimate = cluster_estimate(planned.observed, machine)
    if estimate and spec.market is Market.SPOT:
        on_demand = find_price(launcher.clients, spec.instance_type, Market.ON_DEMAND)
        estimate = at_most(estimate, on_demand)
    most = most_usd(estimate)
    nodes = f"{count(NODES, 'node')} of {spec.instance_type}"
    found = planned.findings
    if (most is None or not most <= max_cost_usd) and (estimate or not planned.refused):
        # The others on money name a budget, which nobody gave to the self-test.
        others = (one for one in errors(found) if not one.check.startswith("cost."))
        found = (*others, too_dear(nodes, most, max_cost_usd))
    if errors(found) or estimate is None:
        raise LaunchRefused(spec.name, found)
    source = f" ({estimate.price_source})" if estimate.price_source else ""
    words = (
        f"at most about {format_usd(most)}: {nodes} for {MAX_HOURS:g} hours, and "
        f"{UNCOUNTED_HOURS * 60:.0f} minutes to start and to end, at "
        f"{format_usd(estimate.hourly_usd)} an hour{source}"
    )
    return planned, words


def left_by_guards(planned: LaunchPlan) -> str:
    """Return in words what is left where the nodes end only by their limits."""
    free = "a security group, a key and perhaps a placement group, which are free"
    if any(step.operation == "allocate_address" for step in planned.steps):
        return (
            f"{free}, and an elastic address, which costs {format_usd(PUBLIC_IPV4_HOUR_USD)} an "
            f"hour until it is released: clusterctl down {planned.spec.name}"
        )
    return free


# The steps.


def launch(test: Selftest) -> Passed:
    launcher = test.launcher
    try:
        with changing(launcher.folder, launcher.clients, launcher.timeouts):
            # Long after the first check, if the question was left unanswered.
            check_absent(launcher)
            report = start_up(launcher, fixed_request(test.spec))
    except AwsError as error:
        # The hint of `up` has options that a self-test lacks.
        hint = NO_CAPACITY if "Capacity" in error.code else error.hint
        raise AwsError(error.code, error.message, hint) from error
    cluster = report.cluster
    test.instance_ids.update(node.instance_id for node in cluster.nodes)
    for node in cluster.nodes:
        addresses = [one for one in (node.private_ip, node.public_ip, node.address) if one]
        hosts = [f"ip-{one.replace('.', '-')}" for one in addresses]
        test.names.update(dict.fromkeys((*addresses, *hosts), node.name))
    test.ranks = sum(report.gpus) or len(report.gpus)
    [image, *_] = {one.image_id for one in report.instances}
    zone = cluster.nodes[0].zone
    test.place = f"{len(cluster.nodes)} x {cluster.head.instance_type} in {zone}, image {image}"
    return Passed(f"{test.place}; {count(sum(report.gpus), 'GPU')}")


def install(test: Selftest) -> Passed:
    with test.open() as access:
        installation = Installation(access, EnvRequest())
        test.say(f"{count(len(installation.steps), 'step')} to install")
        report = installation.run(test.say)
        test.on_gpus = head_facts(access).nvidia_driver
    if report.exit_status:
        wrong = [f"{one.host}: {one.error.message}" for one in report.failures if one.error]
        wrong += [one.message for one in errors(report.findings)]
        raise ClusterctlError("the training environment is not ready: " + "; ".join(wrong))
    hosts = fold_hosts([node.host for node in report.nodes])
    figures = [one.message for one in report.findings]
    return Passed(f"{report.folder} is ready on {hosts}", figures, report.nodes[0].installed)


def train(test: Selftest) -> Passed:
    request = _training(test, TRAINING_STEPS)
    with test.open() as access:
        planned = plan_training(access, request)
        test.say(planned.job.line)
        # A training that hangs would else be waited for until the nodes end themselves.
        watchdog = prepare(access, HUNG_AFTER_S, True, offline=test.is_free)
        job_id = start_training(access, planned.watched(watchdog)).job.job_id
        log = LogFollower(partial(_both, test), lambda why, _: test.say(why.message))
        job = follow(access, job_id, log)
        if job.state is not JobState.SUCCEEDED:
            raise ClusterctlError(f"the job {job.state} (exit status {job.exit_status})")
        figures = _training_figures(access, job)
    versions = next(iter(planned.versions.values()), {})
    message = f"{TRAINING_STEPS} steps on {count(test.ranks, 'rank')}, preset {job.spec.preset}"
    return Passed(message, figures, versions)


def _both(test: Selftest, chunk: bytes) -> None:
    test.show(chunk)
    test.keep(chunk)


def _training(test: Selftest, steps: int) -> JobRequest:
    arguments = ["--num_batches", str(steps)]
    if steps == ENDLESS_STEPS:
        # A row for each step, from which `diagnose` sees soon that there are none any more.
        arguments += ["--display_every", "1"]
    if not test.on_gpus:
        arguments += CPU_ARGUMENTS
    return JobRequest(ranks=test.ranks, synthetic=True, arguments=tuple(arguments))


def _training_figures(access: Access, job: JobRecord) -> list[str]:
    """Return images a second and the last row. Raise ClusterctlError if there are none."""
    try:
        run = results_of_cluster(access, job.job_id).runs[-1]
    except (NoResults, IndexError):
        raise ClusterctlError("the job succeeded, and its log has no table of steps") from None
    speed, each = run.images_per_s, run.images_per_s_per_gpu
    shown = "not known" if speed is None or each is None else f"{speed:.1f}, {each:.1f} a rank"
    last = run.rows[-1] if run.rows else None
    rest = f"step {last.step}: loss {last.loss:.3f}" if last else "no row"
    return [f"images a second: {shown}", rest]


def measure(test: Selftest) -> Passed:
    with test.open() as access:
        report = measure_network(access, streams=STREAMS, seconds=RATE_S)
    test.network = report
    lines = summary(report)
    for table in report.allreduce:
        error = f": {table.error}" if table.error else ""
        lines.append(f"allreduce by {table.program}, {count(table.ranks, 'rank')}{error}")
        lines += ["  " + "  ".join(filter(None, row)) for row in allreduce_lines(table)]
    found = findings(report, test.name)
    wrong = [f"{one.host}: {one.message}" for one in errors(found)]
    if wrong or not report.many:
        raise ClusterctlError("\n".join(["not all pairs were measured", *wrong, *lines]))
    lines += map(line_of, found)
    return Passed(f"{count(len(report.many) // 2, 'pair')} measured", lines)


def nccl_tests(test: Selftest) -> Passed:
    """Check what `bench --network` has measured with nccl-tests."""
    if (network := test.network) is None:
        raise StepNotRun("the network was not measured")
    measured = (*network.allreduce, *network.collectives)
    tables = [one for one in measured if "nccl-tests" in one.program]
    rows = [row for table in tables for row in table.rows]
    errors = [f"{one.program}: {one.error}" for one in tables if one.error]
    if rows and not errors:
        best = max(row.busbw_bytes_s for row in rows)
        programs = ", ".join(one.program.partition(" ")[0] for one in tables)
        return Passed(f"{programs}: at most {best / 1e9:.2f} GB/s bus bandwidth")
    if not test.on_gpus:
        raise StepNotRun("the nodes have no NVIDIA driver: there is no GPU to measure")
    if errors:
        raise ClusterctlError("; ".join(errors))
    raise StepNotRun("the head node has no nccl-tests: see docs/benchmarks.md")


def hang(test: Selftest) -> Passed:
    """Start a training, and stop one rank of the last node once the job makes steps."""
    with test.open() as access:
        planned = plan_training(access, _training(test, ENDLESS_STEPS))
        job_id = start_training(access, planned).job.job_id
        test.say(f"job {job_id} runs; waiting for its first steps")
        _await_step(access, job_id, FIRST_STEPS)
        query = ProcessQuery(job_id=job_id)
        found = all_of(list_processes(access.connections, access.targets, query))
        host, rank, pids = _one_rank(found, access.targets[-1].host)
        _signal(access, host, "STOP", pids)
        step = find_job(access.connections, access.head, job_id).row.step or 0
    test.hang = Hang(job_id, host, rank, pids, step)
    return Passed(f"rank {rank} on {host} stopped with SIGSTOP at step {step}")


def _one_rank(found: Sequence[NodeProcess], host: str) -> tuple[str, int, tuple[int, ...]]:
    """Return the host, number and processes of the last rank on a host. Raises ClusterctlError."""
    own = [one for one in found if one.role == "rank" and one.host == host]
    ranks = [one.rank for one in own if one.rank is not None]
    if not ranks:
        raise ClusterctlError(f"the job has no rank on {host}")
    # Programs that the rank has started have its number, too.
    return host, max(ranks), tuple(one.pid for one in own if one.rank == max(ranks))


def _signal(access: Access, host: str, signal: str, pids: Sequence[int]) -> None:
    [target] = [one for one in access.targets if one.host == host]
    command = shlex.join(["kill", f"-{signal}", *map(str, pids)])
    result = access.connections.run(target, command, timeout_s=30)
    if not result.ok:
        raise CommandFailed(host, f"{command} failed: {result.stderr.strip()}")


def _await_step(access: Access, job_id: str, step: int) -> int:
    """Wait until the job has made that step, and return its last one. Raises ClusterctlError."""
    clock = access.timeouts.clock
    until = clock.monotonic() + STEPS_WITHIN_S
    while True:
        job = find_job(access.connections, access.head, job_id)
        if not job.is_active:
            raise ClusterctlError(f"the job {job.state} (exit status {job.exit_status})")
        if (job.row.step or 0) >= step:
            return job.row.step or 0
        if clock.monotonic() > until:
            raise ClusterctlError(f"the job made no step {step} within {STEPS_WITHIN_S:g} s")
        clock.sleep(POLL_S)


def name_it(test: Selftest) -> Passed:
    """Run `diagnose` until its verdict is about the stopped rank."""
    if (hang := test.hang) is None:
        raise StepNotRun(NO_HANG)
    for _ in range(DIAGNOSES):
        test.launcher.timeouts.clock.sleep(DIAGNOSIS_GAP_S)
        with test.open() as access:
            evidence = collect(access, hang.job_id)
        found = diagnose(evidence)
        test.say(found.verdict)
        if is_named(found, hang):
            figures = (f"observed for {evidence.took_s:.1f} s", *found.findings[0].evidence)
            return Passed(found.verdict, figures)
    raise ClusterctlError(f"its verdict does not name rank {hang.rank} on {hang.host}")


def is_named(found: Diagnosis, hang: Hang) -> bool:
    """Return whether the verdict is about that rank on that host, and no other."""
    lead = found.findings[0] if found.findings else None
    return bool(
        lead and lead.check == found.check and (lead.host, lead.ranks) == (hang.host, (hang.rank,))
    )


def resume(test: Selftest) -> Passed:
    """Let the rank go on, see that the job makes steps again, and end the job."""
    if (hang := test.hang) is None:
        raise StepNotRun(NO_HANG)
    with test.open() as access:
        _signal(access, hang.host, "CONT", hang.pids)
        step = _await_step(access, hang.job_id, hang.step + FIRST_STEPS)
        report = cancel(access, hang.job_id)
    if report.others.exit_status:
        left = [f"{one.host}: process {one.pid}" for one in report.others.left]
        left += [one.host for one in report.others.failures]
        left += [
            f"{one.host}: {one.mib} MiB of GPU {one.gpu}"
            for one in report.others.held or ()
            if one.mib is not None
        ]
        raise ClusterctlError("after cancel there is still: " + "; ".join(left))
    return Passed(f"steps went on to {step}; cancelled, and no process of the job is left")


def remove(test: Selftest) -> Passed:
    """Remove what this self-test launched: REMOVALS tries, ended early by as many presses.

    Raises StepNotRun if it launched nothing: whatever has its name belongs to another user.
    """
    if not test.launch_id:
        raise StepNotRun(NOTHING_LAUNCHED)
    first = presses = test.interrupts.presses
    failures, pause_s = 0, 0.0
    while True:
        try:
            # The pause is interruptible, too, and an interrupt in it ends only the pause.
            once = partial(_remove_once, test, pause_s)
            return test.interrupts.interruptible(once, beyond=presses)
        except KeyboardInterrupt:
            presses, pause_s = max(presses + 1, test.interrupts.presses), 0.0
            left = REMOVALS - (presses - first)
            if left <= 0:
                raise
            test.say(f"removing goes on; Ctrl-C {count(left, 'time')} more leaves what is there")
        except Exception as error:  # any, such as a full disk: nodes that are left cost money
            failures, pause_s = failures + 1, REMOVAL_GAP_S
            if failures == REMOVALS:
                raise
            test.say(f"cannot remove it yet: {error}")


def _remove_once(test: Selftest, pause_s: float) -> Passed:
    launcher = test.launcher
    launcher.timeouts.clock.sleep(pause_s)
    _spare_others(test)
    removed = down(launcher.clients, launcher.folder, launcher.progress, launcher.timeouts)
    if not removed.nothing:
        return Passed(f"{count(len(removed.nodes), 'node')}, and all that was made for them")
    if left := _still_shown(test):
        raise ClusterctlError(f"EC2 does not list {', '.join(left)} as nodes of {test.name}")
    return Passed("nothing was left to remove")


def _spare_others(test: Selftest) -> None:
    """Raise ClusterctlError if another user has launched a cluster of the same name meanwhile.

    The lock of `launch` keeps out only what runs on this machine, and `down` removes by name. Then
    only the nodes that this self-test has launched are terminated.
    """
    launcher, name = test.launcher, test.name
    client, folder = launcher.clients.ec2, launcher.folder
    nodes = find_instances(client, name, NOT_TERMINATED)
    own = [one for one in nodes if one.launch_token.startswith(f"{test.launch_id}-")]
    test.instance_ids.update(one.node.instance_id for one in own)
    key = public_key(folder)
    # EC2 may leave out the public half of a key.
    keys = [one for one in find_key_pairs(client, name) if one.public_key and not one.holds(key)]
    others = [one.node.instance_id for one in nodes if one not in own]
    test.others = (*others, *(f"the key pair {one.name}" for one in keys))
    if test.others:
        if own:
            ids = [one.node.instance_id for one in own]
            polling = Polling(launcher.timeouts.clock, launcher.timeouts.terminated_s)
            terminate(client, name, ids, polling)
        raise ClusterctlError(
            f"this self-test did not make {', '.join(test.others)}, which has the same name: "
            "only its own nodes were terminated",
            "the next time, name another: clusterctl selftest OTHER",
        )


def _still_shown(test: Selftest) -> list[str]:
    """Return the ids of the nodes that EC2 still shows, queried each by its id."""
    client = test.launcher.clients.ec2
    states = {one: find_states(client, [one]).get(one) for one in sorted(test.instance_ids)}
    return [one for one in states if states[one] not in (None, NodeState.TERMINATED)]


def verify(test: Selftest) -> Passed:
    """Ask EC2 for every kind of resource of the cluster. Raises ClusterctlError if one is left."""
    if not test.launch_id:
        raise StepNotRun(NOTHING_LAUNCHED)
    interrupts = test.interrupts
    return interrupts.interruptible(partial(_verify, test), beyond=interrupts.presses)


def _verify(test: Selftest) -> Passed:
    launcher = test.launcher
    region = str(launcher.clients.ec2.meta.region_name)
    collector = GarbageCollector(
        {region: launcher.clients},
        launcher.home,
        GcOptions(cluster=test.name),
        test.say,
        launcher.timeouts,
    )
    left, unlisted = _await_none(collector, test)
    if not left:
        # EC2's lists are late: one that shows nothing may be older than what was made last.
        launcher.timeouts.clock.sleep(launcher.timeouts.shown_s)
        left, unlisted = _remaining(collector, test)
    down_again = f"clusterctl down {test.name}"
    if left:
        hint = "" if test.others else f"remove it: {down_again}"
        raise ClusterctlError(f"still there: {', '.join(left)}", hint)
    if unlisted:
        raise ClusterctlError(
            f"EC2 did not list: {', '.join(unlisted)}", f"to be sure: {down_again}"
        )
    return Passed(f"EC2 in {region} has nothing of {test.name}")


def _await_none(collector: GarbageCollector, test: Selftest) -> tuple[list[str], list[str]]:
    """Return what `_remaining` does, once nothing is left, or after SWEEPS."""
    for gap_s in islice(backoff_delays(), SWEEPS):
        left, unlisted = _remaining(collector, test)
        if not left:
            break
        test.launcher.timeouts.clock.sleep(gap_s)
    return left, unlisted


def _remaining(collector: GarbageCollector, test: Selftest) -> tuple[list[str], list[str]]:
    """Return what EC2 shows of the cluster, and the kinds that it did not list, in words."""
    sweep = collector.sweep()
    found = [one.resource for one in sweep.classified if one.resource.cluster == test.name]
    left = [f"{one.kind.value} {one.id}" for one in found]
    listed = {one.id for one in found}
    left += [f"instance {one}" for one in _still_shown(test) if one not in listed]
    return left, [one.kind.value for one in sweep.failures]


STEPS: tuple[SelftestStep, ...] = (
    SelftestStep("launch", "launching two nodes", (), launch),
    SelftestStep("install", "installing the training environment", ("launch",), install),
    SelftestStep("train", f"training {TRAINING_STEPS} synthetic steps", ("install",), train),
    SelftestStep("network", "measuring the network", ("install",), measure),
    SelftestStep("nccl-tests", "reading what nccl-tests measured", ("network",), nccl_tests),
    SelftestStep("hang", "stopping one rank of a training", ("train",), hang),
    SelftestStep("diagnose", "asking diagnose which rank", ("hang",), name_it),
    SelftestStep("resume", "letting it go on, and ending the job", ("hang",), resume),
    SelftestStep("remove", "removing everything", (), remove, always=True),
    SelftestStep("verify", "asking EC2 what is left", (), verify, always=True),
)


def run_steps(
    test: Selftest, steps: Sequence[SelftestStep], keep: Callable[[Sequence[StepResult]], None]
) -> tuple[StepResult, ...]:
    """Run the steps in order, and return a result of each.

    Ctrl-C interrupts the step that runs: of those after it only the steps with `always` are run. No
    error of a step or of `keep` is raised. `keep` receives the results after each step. Signals
    raise KeyboardInterrupt only while a step runs, and are noted at any time, if the caller handles
    them by `test.interrupts`.
    """
    results: dict[str, StepResult] = {}
    for step in steps:
        why = reason_not_to_run(step, results, bool(test.interrupts.reason))
        if why:
            results[step.name] = StepResult(step.name, StepVerdict.NOT_RUN, why)
        else:
            results[step.name] = _result(test, step)
        try:
            keep(tuple(results.values()))
        except KeyboardInterrupt:
            test.interrupts.note()
        except Exception as fault:  # any: what was launched has to be removed all the same
            test.notify(f"warning: the results so far are not kept: {fault}")
    return tuple(results.values())


def reason_not_to_run(
    step: SelftestStep, results: Mapping[str, StepResult], interrupted: bool = False
) -> str:
    """Return why a step is not run; empty if it is."""
    if step.always:
        return ""
    if interrupted:
        return "the self-test was interrupted"
    for need in step.needs:
        verdict = results[need].verdict
        if verdict is not StepVerdict.PASSED:
            was = "was not run" if verdict is StepVerdict.NOT_RUN else verdict.value
            return f"it needs the step {need}, which {was}"
    return ""


def _result(test: Selftest, step: SelftestStep) -> StepResult:
    """Run one step, and return how it ended."""
    clock = test.launcher.timeouts.clock
    test.notify(f"{step.name}: {step.title}")
    test.take_output()
    began = clock.monotonic()
    try:
        verdict, done = StepVerdict.PASSED, _run(test, step)
    except KeyboardInterrupt:
        test.interrupts.note()
        verdict, done = StepVerdict.INTERRUPTED, Passed(test.interrupts.reason)
    except StepNotRun as reason:
        verdict, done = StepVerdict.NOT_RUN, Passed(str(reason))
    except ClusterctlError as error:
        verdict, done = StepVerdict.FAILED, Passed(*_failure(error))
    except Exception as fault:  # any: what was launched has to be removed all the same
        test.keep(traceback.format_exc().encode())
        verdict = StepVerdict.FAILED
        done = Passed(f"a fault of clusterctl's: {type(fault).__name__}: {fault}")
    result = StepResult(
        step.name,
        verdict,
        "\n".join(masked(done.message.splitlines(), test.names)),
        0.0 if verdict is StepVerdict.INTERRUPTED else clock.monotonic() - began,
        tuple(masked(done.figures, test.names)),
        tuple(masked(test.take_output(), test.names)),
        done.versions,
    )
    test.notify(f"{step.name}: {verdict.value}: {result.message}")
    return result


def _run(test: Selftest, step: SelftestStep) -> Passed:
    # The steps that are always run decide themselves what a signal ends.
    run = partial(step.run, test)
    return run() if step.always else test.interrupts.interruptible(run)


def _failure(error: ClusterctlError) -> tuple[str, list[str]]:
    """Return the message of an error, and its findings as lines."""
    found: Sequence[Finding] = getattr(error, "findings", ())
    code = f"{error.code}: " if isinstance(error, AwsError) and error.code else ""
    hint = f"\nhint: {error.hint}" if error.hint else ""
    return f"{code}{error.message}{hint}", [*map(line_of, found)]


def report_of(test: Selftest, results: Sequence[StepResult] = ()) -> SelftestReport:
    """Return the report of what has run so far. Queries EC2 for the costs once all has ended."""
    has_ended = bool(results) and results[-1].name == "verify"
    return SelftestReport(
        version=f"clusterctl {clusterctl.__version__}",
        machine=f"Python {platform.python_version()}, {platform.system()} {platform.machine()}",
        began=f"{test.began:%Y-%m-%d %H:%M:%S} UTC",
        place=test.place or f"none yet; {NODES} x {test.spec.instance_type} requested",
        estimate=test.estimate,
        spent=_spent(test) if has_ended else "",
        results=tuple(results),
        interrupted=bool(test.interrupts.reason),
    )


def _spent(test: Selftest) -> str:
    """Return what the nodes have cost, in words."""
    clients, home = test.launcher.clients, test.launcher.home
    try:
        region = str(clients.ec2.meta.region_name)
        costs = cost_report({region: clients}, home, test.name, test.began)
    except ClusterctlError as error:
        return f"not known: {masked([error.message], test.names)[0]}"
    free = "; the local EC2 bills nothing" if test.is_free else ""
    return f"{format_spent(costs.spent_usd, costs.complete, costs.at_most)} by list prices{free}"
