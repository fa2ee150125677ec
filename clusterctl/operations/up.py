"""`up`: launch or complete a cluster, and wait until all its nodes are ready."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

from clusterctl.domain.cluster import ASLEEP, AWAKE, Cluster, Limits, Market
from clusterctl.domain.errors import AwsError, ClusterctlError, NoSuchCluster
from clusterctl.domain.findings import Finding, Severity, errors
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.timeouts import Polling
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import (
    Instance,
    duplicate_nodes,
    find_instances,
    set_at_power_off,
    tag,
    unfinished_of,
    untag,
)
from clusterctl.ec2.launch.execution import CapacityTimeout, PlanCheck, carry_out, dry_run_findings
from clusterctl.ec2.launch.observe import Request, observe
from clusterctl.ec2.launch.plan import LaunchPlan, plan_launch
from clusterctl.ec2.launch.preflight import AWAITED
from clusterctl.ec2.money.costs import Spending, left_findings, passed_end
from clusterctl.ec2.resources import anothers_key, terminate
from clusterctl.ec2.tags import Creations, Unfinished, format_limits
from clusterctl.node.guard.settings import GRACE_S
from clusterctl.operations.costs import (
    note_spent,
    record_lost_cost,
    record_removal_cost,
    running_cost,
    spending_of,
)
from clusterctl.operations.guards import with_complete_user_data
from clusterctl.operations.launcher import Launcher, LaunchRefused
from clusterctl.operations.local_state import LocalKey, keep_end, keep_key, local_key
from clusterctl.operations.readiness import make_ready
from clusterctl.operations.site import changing, check_site, keep_site, site_of

# How long a reservation takes at most to show the place of a terminated instance as free: EC2 says
# several minutes (EC2 user guide, "Launch instances using Capacity Blocks").
FREED_WITHIN_S = 900.0


@dataclass(frozen=True)
class UpReport:
    """A cluster that is ready.

    `instances` are its members as EC2 last showed them. `gpus` are the GPUs that nvidia-smi counted
    on each node in service. `launched` are the indices of the nodes that this run launched, or that
    an interrupted `add` launched and this run finished; `started` are those that were stopped.
    `finished` is the work of earlier, interrupted commands that this run completed. `can_train` is
    true if every node in service has an environment for training. `changed` has what this run has
    changed at EC2, in words.
    """

    cluster: Cluster
    instances: tuple[Instance, ...]
    launched: tuple[int, ...]
    gpus: tuple[int, ...]
    started: tuple[int, ...] = ()
    can_train: bool = True
    finished: Unfinished = Unfinished()
    changed: tuple[str, ...] = ()


def plan_up(launcher: Launcher, request: Request) -> LaunchPlan:
    """Return the steps that `up` would take. Changes nothing, neither locally nor at EC2.

    Raises UsageError where the cluster is in another region or account, MissingTool where it has
    nodes but its key is not on this machine, AwsError, ClusterctlError.
    """
    check_site(launcher.folder, launcher.clients)
    return _plan(launcher, request, local_key(launcher.folder, launcher.name))


def up(launcher: Launcher, request: Request) -> UpReport:
    """Launch what is missing, wait until every node is ready, and write the local files.

    The local files are the hosts file, known_hosts and ssh_config. Raises LaunchRefused with the
    findings of the checks, AwsError, UsageError, and ClusterctlError naming each node that did not
    get ready.
    """
    with changing(launcher.folder, launcher.clients, launcher.timeouts):
        return start_up(launcher, request)


def start_up(launcher: Launcher, request: Request) -> UpReport:
    """Do what `up` does. The caller holds the cluster's lock and has checked the account."""
    plan, instances = launch(launcher, request)
    leaving, finished = plan.observed.leaving, unfinished_of(plan.observed.instances)
    with _naming_limits(plan):
        cluster, gpus, can_train = make_ready(launcher, instances, plan.observed.instances, leaving)
    if leaving and finished and not any(found.unfinished for found in instances):
        # All nodes are new, so the record of the work would go with the old ones: a `replace` that
        # is interrupted then and run again would replace the new ones.
        ids = [found.node.instance_id for found in instances]
        tag(launcher.clients.ec2, ids, {tags.UNFINISHED: finished.text})
    terminate_leaving(launcher, leaving)
    if finished or plan.spec.by_add:
        clear_unfinished(launcher)
    # With --min-nodes, EC2 may have launched fewer nodes than were missing.
    there = {node.index for node in cluster.nodes}
    launched = tuple(sorted({*plan.missing, *finished.add} & there))
    changed = tuple(step.summary for step in plan.steps)
    return UpReport(cluster, instances, launched, gpus, plan.stopped, can_train, finished, changed)


def clear_unfinished(launcher: Launcher) -> None:
    """Remove the tag that records unfinished work, from all nodes. Raises AwsError.

    Afterwards a repeated `add` adds more nodes. With the tag it would continue the first `add`.
    """
    client, name = launcher.clients.ec2, launcher.name

    def clear() -> None:
        ids = [found.node.instance_id for found in find_instances(client, name)]
        untag(client, ids, tags.UNFINISHED)

    launcher.progress.done = True
    try:
        clear()
    except KeyboardInterrupt:
        # All the work is done, so the tag must go: a repeated `add` would else do nothing.
        clear()
        raise
    except AwsError:
        # EC2 may have removed the tag and the response been lost: only a tag that is still there
        # is a failure.
        if any(found.unfinished for found in find_instances(client, name)):
            raise


def terminate_leaving(
    launcher: Launcher, leaving: Sequence[Instance], why: str = "no longer needed"
) -> None:
    """Terminate these nodes, which the plan replaces or removes, and no others.

    Waits until they are gone. Raises AwsError, ClusterctlError at the deadline.
    """
    if leaving:
        names = fold_hosts([found.node.name for found in leaving])
        launcher.progress.step(f"terminating {names}, {why}")
        notify = launcher.progress.step
        record_removal_cost(launcher.home, launcher.clients, launcher.name, leaving, notify)
        ids = [found.node.instance_id for found in leaving]
        # So that they are not taken for lost nodes once their index is wanted again.
        unmarked = [one.node.instance_id for one in leaving if not one.retired]
        with suppress(AwsError):
            tag(launcher.clients.ec2, unmarked, {tags.RETIRED: "yes"})
        polling = Polling(launcher.timeouts.clock, launcher.timeouts.removed_s)
        terminate(launcher.clients.ec2, launcher.name, ids, polling)


def creations_of(launcher: Launcher) -> Creations:
    """Return the record of what `up` has started to make for the cluster."""
    return Creations(launcher.folder.creations, launcher.timeouts, launcher.progress.step)


def launch(launcher: Launcher, request: Request) -> tuple[LaunchPlan, tuple[Instance, ...]]:
    """Do the part of `up` that needs only EC2: plan, check, and carry out the plan.

    Returns the plan and the cluster's members after it. Raises LaunchRefused, AwsError, UsageError,
    ClusterctlError, and what `launcher.approve` raises.
    """
    client, folder, progress = launcher.clients.ec2, launcher.folder, launcher.progress
    progress.step("looking at what is there")
    key, name = local_key(folder, launcher.name), launcher.name
    plan, waited_s = _plan_with_capacity(launcher, request, key)
    launcher = replace(launcher, capacity_timeout_s=_capacity_timeout_s(launcher, plan))
    freeing = plan.terminated_first
    for finding in plan.findings:
        if finding.severity is Severity.WARNING:
            progress.finding(finding)
    if plan.stopped and plan.spec.limits.ends:
        money = spending_of(launcher.clients, plan.observed.instances)
        for finding in ended_findings(name, plan.spec.limits, money):
            progress.finding(finding)
    if plan.missing or plan.stopped or plan.grants:
        launcher.approve(plan)
    PlanCheck(client, plan, launcher.timeouts).if_old()
    keep_site(folder, site_of(launcher.clients, plan.observed.instances))
    keep_key(folder, key)
    if freeing:
        _check_stays(plan)
        terminate_leaving(launcher, freeing, "whose place in the reservation its new machine needs")
        with _naming_terminated(name, freeing):
            plan, waited_s = _plan_with_capacity(launcher, request, key)
    if plan.missing or plan.stopped:
        awake = [one for one in plan.observed.instances if one.node.state in AWAKE]
        progress.awake_before = frozenset(one.node.instance_id for one in awake)
    _keep_disks(launcher, plan)
    if plan.missing:
        record = (launcher.home, launcher.clients, name, plan.missing, plan.observed.instances)
        record_lost_cost(*record, progress.step)
    with _naming_limits(plan), _naming_terminated(name, freeing):
        instances = carry_out(
            *(launcher.clients, plan, folder.launch, creations_of(launcher)),
            max(0.0, launcher.capacity_timeout_s - waited_s),
            lambda: prepare_start(launcher),
        )
    # The lock covers this machine only: another machine may have launched the same nodes, or
    # removed them.
    if not instances:
        raise NoSuchCluster(
            f"the nodes of {name} were removed while `up` was at work",
            f"see what there is: clusterctl status {name}; then run it again",
        )
    if not plan.observed.instances:
        keep_end(folder, None, "")  # It is the end of an earlier cluster of that name.
    if twice := duplicate_nodes(name, [one.node for one in instances]):
        raise twice
    return plan, instances


def _keep_disks(launcher: Launcher, plan: LaunchPlan) -> None:
    """Let EC2 only stop the nodes whose limits change when they switch themselves off.

    A node that cannot get its new end must not lose its disk at the old one. `update_guards` sets
    this back where a node got it.
    """
    other = format_limits(plan.spec.limits)
    changed = [one for one in plan.observed.instances if one.limits_text not in ("", other)]
    kept = [one.node.instance_id for one in changed if one.market is not Market.SPOT]
    set_at_power_off(launcher.clients.ec2, kept, "stop")


def _check_stays(plan: LaunchPlan) -> None:
    """Raise ClusterctlError if no node would be left, whose tags have the cluster's settings."""
    if not plan.observed.members:
        name = plan.spec.name
        raise ClusterctlError(
            f"all nodes of {name} are in a full reservation: to replace all of them at once, each "
            "would have to be terminated first, and nothing would be left of the cluster",
            "replace some of them first"
            if plan.spec.nodes > 1
            else f"launch it again: clusterctl down {name}; clusterctl up {name} ...",
        )


@contextmanager
def _naming_terminated(name: str, gone: Sequence[Instance]) -> Iterator[None]:
    """Have an error name the nodes that were terminated for their places, and the way back."""
    try:
        yield
    except ClusterctlError as error:
        if gone:
            names = fold_hosts([found.node.name for found in gone])
            back = f"{names}: terminated, with its disk; once that is fixed: clusterctl up {name}"
            workers = [str(found.node.index) for found in gone if found.node.index]
            if workers:
                back += f"; to go on without: clusterctl remove {name} {' '.join(workers)}"
            error.hint = "; ".join(filter(None, [error.hint, back]))
        raise


@contextmanager
def _naming_limits(plan: LaunchPlan) -> Iterator[None]:
    """Have an error name the limits that the nodes may keep because of it."""
    try:
        yield
    except ClusterctlError as error:
        limits = format_limits(plan.spec.limits)
        earlier = {
            one.earlier_limits or one.limits_text or "none"
            for one in plan.observed.members
            if one.earlier_limits or one.limits_text != limits
        }
        if earlier:
            kept = f"the nodes may still have their earlier limits ({', '.join(sorted(earlier))})"
            error.hint = "; ".join(filter(None, [error.hint, kept]))
        raise


def prepare_start(launcher: Launcher) -> None:
    """Do what has to be done before stopped nodes are started. Raises AwsError.

    EC2 forgets when the last run began and ended as soon as it starts an instance again, so the
    cost is recorded. Until a node that is started knows its new end, no power-off may cost its
    disk; `update_guards` sets that back.
    """
    asleep = find_instances(launcher.clients.ec2, launcher.name, tuple(one.value for one in ASLEEP))
    note_spent(launcher.clients, asleep)
    kept = [one.node.instance_id for one in asleep if one.market is not Market.SPOT]
    set_at_power_off(launcher.clients.ec2, kept, "stop")


def ended_findings(name: str, limits: Limits, money: Spending) -> Iterator[Finding]:
    """Warn before stopped nodes are started though their end by these limits has passed."""
    passed = passed_end(limits, money.ran_h, money.spent_usd, money.hourly_usd)
    left = count(round(GRACE_S / 60), "minute")
    hint = f"a new end: clusterctl up {name}, with all limits that are to hold"
    if passed:
        yield Finding.warning(
            "limits.ended",
            f"the end by {passed.option} has passed: the nodes run {left} from when they are ready",
            hint,
        )
    elif limits.ends and not money.complete:
        yield Finding.warning(
            "limits.unknown",
            "EC2 does not know for how long the nodes have run. If their end has passed by their "
            f"own count, they run {left} from when they are ready",
            hint,
        )


def _plan_with_capacity(
    launcher: Launcher, request: Request, key: LocalKey
) -> tuple[LaunchPlan, float]:
    """Return a plan that is not refused, after reserved capacity has become free or active, and
    after how many seconds.

    Raises LaunchRefused at once for any other reason, else after the capacity timeout.
    """
    began = launcher.timeouts.clock.monotonic()
    capacity: CapacityTimeout | None = None
    while True:
        plan = _plan(launcher, request, key)
        wrong = errors(plan.findings)
        if not wrong:
            return plan, launcher.timeouts.clock.monotonic() - began
        refused = LaunchRefused(launcher.name, plan.findings)
        if any(one.check not in AWAITED for one in wrong):
            raise refused
        launcher.progress.step(wrong[0].message)
        timeout_s = _capacity_timeout_s(launcher, plan)
        capacity = capacity or CapacityTimeout(timeout_s, launcher.timeouts.clock)
        try:
            capacity.wait(
                AwsError("ReservationCapacityExceeded", wrong[0].message), launcher.progress.step
            )
        except AwsError:
            raise refused from None


def _capacity_timeout_s(launcher: Launcher, plan: LaunchPlan) -> float:
    """Return how long to wait for capacity, also for the place of a node that is being replaced.

    An interrupted `replace` may have terminated that node just now.
    """
    replaced = {*unfinished_of(plan.observed.instances).replace} & {*plan.missing}
    freed = plan.spec.capacity_reservation and (plan.terminated_first or replaced)
    return max(launcher.capacity_timeout_s, FREED_WITHIN_S if freed else 0.0)


def _plan(launcher: Launcher, request: Request, key: LocalKey) -> LaunchPlan:
    name, clients = launcher.name, launcher.clients
    records = (launcher.folder.launch, creations_of(launcher))
    observed = observe(clients, name, request, *records)
    if observed.instances and key.unwritten is not None:
        raise anothers_key(name)
    plan = plan_launch(with_complete_user_data(clients, observed), key.public, uuid.uuid4().hex)
    if plan.refused:
        return plan
    found = (*_passed_limits(launcher, plan), *dry_run_findings(clients.ec2, plan))
    return replace(plan, findings=(*plan.findings, *found))


def _passed_limits(launcher: Launcher, plan: LaunchPlan) -> list[Finding]:
    """Refuse limits that would end the cluster at once: new ones, and kept ones for more nodes.

    Limits that stay as they are do not keep `up` from completing what is there.
    """
    limits, there = plan.spec.limits, plan.observed.instances
    changed = any(one.limits_text != format_limits(limits) for one in plan.observed.members)
    if not (changed or plan.missing):
        return []
    ran_h, spent_usd, at_most, complete = 0.0, 0.0, False, True
    if there:
        money = spending_of(launcher.clients, there)
        ran_h, spent_usd = money.ran_h, money.spent_usd
        at_most, complete = money.at_most, money.complete
    if plan.missing:
        # The checks of a launch have compared these with the price of the new nodes.
        limits = replace(limits, budget_usd=None, max_hourly_usd=None)
    hourly = running_cost(launcher.clients, plan).hourly_usd
    return left_findings(limits, ran_h, spent_usd, hourly, at_most, complete)
