"""The commands that change a cluster's machines: up, add, remove, replace, start, stop, down."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, check_nodes, cluster_command
from clusterctl.cli.launching import (
    WaitingOptions,
    launcher_of,
    price_consent,
    printed_progress,
    spec_options,
    waiting_options,
)
from clusterctl.cli.params import dry_run_option, indices_argument, json_option, yes_option
from clusterctl.cli.status import end_words, print_nodes, with_counts
from clusterctl.configuration.options import SpecDraft
from clusterctl.domain.cluster import Cluster, ClusterSpec, Market, NodeState
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.findings import Finding
from clusterctl.domain.ranges import fold_hosts, format_indices
from clusterctl.domain.timeouts import Age
from clusterctl.domain.units import count, format_bytes, format_duration
from clusterctl.ec2.money.costs import LEAST_LEFT_S, format_usd

if TYPE_CHECKING:
    from clusterctl.ec2.instances import Instance
    from clusterctl.ec2.launch.observe import Request
    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.operations.down import Removable
    from clusterctl.operations.losses import Losses
    from clusterctl.operations.up import UpReport


IDLE = "nothing to launch or change in EC2"
ENDS_JOB = "stopping the nodes ends it"


@dataclass(frozen=True)
class ReadyCluster(Cluster):
    """What `up`, `add`, `replace` and `start` report: with the indices of the nodes that they
    launched."""

    launched: tuple[int, ...] = ()
    hosts_file: str = ""


def print_plan(plan: LaunchPlan) -> None:
    """Print the steps, their price an hour, the places to try next, and the estimate."""
    if not plan.refused:
        output.findings(plan.findings)
    for number, step in enumerate(plan.steps, start=1):
        cost = "" if step.hourly_usd is None else f"  [{format_usd(step.hourly_usd)} an hour]"
        output.line(f"{number}. {step.describe()}{cost}")
    if len(plan.places) > 1 and plan.steps:
        others = ", ".join(f"{place.instance_type} in {place.zone}" for place in plan.places[1:])
        output.line(f"if there is no capacity: {others}")
    if plan.estimate:
        for each in plan.estimate.lines:
            output.line(f"{each.count} x {each.what}: {format_usd(each.hourly_usd)} an hour")
        output.line(f"in all: {format_usd(plan.estimate.hourly_usd)} an hour")
        once = plan.estimate.once
        if once:
            output.line(
                f"once: {once.nodes} x disk filled from its image at {once.mib_s} MiB/s: "
                f"at most {format_usd(once.nodes * once.usd_each)}"
            )
        if plan.estimate.price_source:
            output.note(f"price: {plan.estimate.price_source}")
    if not plan.refused:
        # The plan has EC2's part only: whether a node is ready, it does not know.
        idle = f"{IDLE}; up makes sure that each node is ready"
        output.note(idle if plan.idle else "nothing was done")


def show_report(app: AppContext, report: UpReport, as_json: bool) -> None:
    """Print a cluster that is ready, and the commands to use it."""
    cluster = with_counts(report.cluster, report.gpus)
    if as_json:
        hosts_file = str(app.folder(cluster.name).hosts)
        output.data(ReadyCluster(**vars(cluster), launched=report.launched, hosts_file=hosts_file))
        return
    if report.finished:
        output.note(
            f"finished what was requested before: {report.finished.described(cluster.name)}"
        )
        if report.finished.replace:  # --with-data is not on record
            output.note(
                "replaced nodes have empty disks; what --with-data named is not copied: clusterctl "
                f"copy {cluster.name} DIR/ DIR/ --from INDEX "
                f"--nodes {format_indices(report.finished.replace)}"
            )
    elif not report.launched and not report.started:
        done = "; ".join(report.changed)
        output.note(f"{done or IDLE}: {cluster.name} is up and ready")
    print_nodes(cluster)
    name = cluster.name
    install = "" if report.can_train else f"install:  clusterctl env install {name}\n"
    output.note(
        f"log in:   clusterctl ssh {name}\n"
        f"{install}"
        f"copy:     clusterctl copy {name} ~/data/tf-imagenet/ '~/data/tf-imagenet/'\n"
        f"train:    clusterctl train {name} {sum(report.gpus) or len(report.gpus)}\n"
        f"remove:   clusterctl down {name}"
    )


@contextmanager
def naming_ups_options(name: str) -> Iterator[None]:
    """In the block, have a refused launch of a command without the options of `up` name `up`."""
    from clusterctl.operations.launcher import LaunchRefused

    try:
        yield
    except LaunchRefused as refused:
        if any("--" in one.message + one.hint for one in refused.findings):
            refused.hint = f"the options that are named above are those of: clusterctl up {name}"
        raise


def show_plan(plan: LaunchPlan, as_json: bool) -> None:
    """Print the plan, its findings and its cost. Raises LaunchRefused if `up` would."""
    from clusterctl.operations.launcher import LaunchRefused

    if as_json:
        output.data(plan)
    else:
        print_plan(plan)
    if plan.refused:
        refused = LaunchRefused(plan.spec.name, plan.findings)
        if as_json:
            # They are in the JSON already.
            refused.findings = ()
        raise refused


@cluster_command(explicit=True)
@spec_options
@yes_option
@dry_run_option
@json_option("Launch")
def up(
    app: AppContext,
    name: str,
    draft: SpecDraft,
    waiting: WaitingOptions,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch cluster NAME and wait until all its nodes are ready.

    Run it again to go on after an interruption, to start what is stopped, or to launch again what
    is gone. Its settings come from the options and from clusterctl.yaml.

    \b
    clusterctl up demo --nodes 4 --instance-type p4d.24xlarge
    clusterctl up demo --nodes 4 --instance-type p4d.24xlarge --dry-run
    clusterctl up demo --nodes 2 --instance-type g5.12xlarge --lab
    """
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.up import plan_up
    from clusterctl.operations.up import up as launch

    request = launch_request(draft, app.settings.lab)
    if dry_run:
        show_plan(plan_up(Launcher(app.clients, app.folder(name)), request), as_json)
        return
    with launcher_of(app, name, waiting, price_consent(app, yes)) as launcher:
        report = launch(launcher, request)
    show_report(app, report, as_json)
    _show_end(app, name)


def _check_idle(draft: SpecDraft, lab: bool) -> None:
    """Refuse an idle time that would stop a cluster while its user reads. Raises UsageError."""
    idle_s = draft.values.get("idle-stop")
    if idle_s is not None and idle_s < LEAST_LEFT_S and not lab:
        raise UsageError(
            f"--idle-stop {format_duration(idle_s)} would stop the cluster before a first job",
            "five minutes are the least: --idle-stop 30m",
        )


def _show_end(app: AppContext, name: str) -> None:
    """Print when and why a cluster ends; warn of what it costs a day if nothing ends it."""
    from clusterctl.domain.cluster import AWAKE
    from clusterctl.ec2.instances import find_instances
    from clusterctl.ec2.launch.capacity import block_end
    from clusterctl.operations.costs import spending_of

    # Read again: the command has changed tags that the end follows from.
    instances = find_instances(app.ec2, name)
    if not any(one.node.state in AWAKE for one in instances):
        return  # It has ended by now.
    money = spending_of(app.clients, instances)
    spot = any(one.market is Market.SPOT for one in instances)
    end = end_words(
        money,
        datetime.now(timezone.utc),
        kept=money.limits.at_power_off == "stop" and not spot,
        block_ends_at=block_end(app.ec2, instances),
    )
    if end:
        output.note(f"end:      {end}")
    elif app.settings.lab:
        output.note(f"end:      nothing ends {name} by itself")
    else:
        output.findings([_unlimited(name, money.hourly_usd)])


def _unlimited(name: str, hourly_usd: float | None) -> Finding:
    price = "an unknown price" if hourly_usd is None else f"{format_usd(hourly_usd * 24)} a day"
    message = f"no limit is set: nothing ends {name}, at {price}, until it is removed"
    hint = f"have its nodes end themselves: clusterctl up {name} --max-hours 24"
    return Finding.warning("cost.unlimited", message, hint)


def launch_request(draft: SpecDraft, lab: bool) -> Request:
    """Return the request of a launch. Raises UsageError.

    If nodes or type are not given, they are taken from the existing cluster, once EC2 has described
    it.
    """
    from clusterctl.ec2.launch.observe import fixed_request, spec_of_existing

    _check_idle(draft, lab)
    try:
        return fixed_request(draft.spec())
    except UsageError:
        if "nodes" in draft.values and "instance-type" in draft.values:
            raise

    def completed(there: Sequence[Instance]) -> ClusterSpec:
        if not there:
            return draft.spec()
        same = spec_of_existing(draft.name, there)
        return draft.spec(nodes=same.nodes, instance_type=same.instance_type)

    return completed


@cluster_command()
@click.argument("number", type=int, metavar="N")
@waiting_options
@yes_option
@dry_run_option
@json_option("Launch")
def add(
    app: AppContext,
    name: str,
    number: int,
    waiting: WaitingOptions,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Launch N more nodes for cluster NAME, as those that it has: type, image, zone, group.

    All nodes know each other afterwards, and the hosts file has them.

    \b
    clusterctl add demo 2
    clusterctl add demo 2 --dry-run
    """
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.members import add as launch
    from clusterctl.operations.members import plan_add

    if dry_run:
        launcher = Launcher(app.clients, app.folder(name))
        with naming_ups_options(name):
            show_plan(plan_add(launcher, number), as_json)
        return
    with (
        naming_ups_options(name),
        launcher_of(app, name, waiting, price_consent(app, yes)) as launcher,
    ):
        report = launch(launcher, number)
    show_report(app, report, as_json)
    _show_end(app, name)


removal_force_option = click.option(
    "--force", is_flag=True, help="Even while a job runs, and whatever was not fetched."
)


@cluster_command(explicit=True)
@indices_argument
@yes_option
@removal_force_option
@json_option("Reduced")
def remove(
    app: AppContext, name: str, indices: tuple[int, ...], yes: bool, force: bool, as_json: bool
) -> None:
    """Terminate the nodes INDEX... of cluster NAME, and take them out of the others' hosts file.

    The head node (0) stays; nodes keep their index. Needs a confirmation; a script has to give
    --yes.

    \b
    clusterctl remove demo 3
    clusterctl remove demo 2-3 5 --yes
    """
    from clusterctl.operations.members import remove as take_away

    _check_nodes_going(app, name, indices, "remove", yes, force)
    with launcher_of(app, name) as launcher:
        removed = take_away(launcher, indices)
    if as_json:
        output.data(removed)
        return
    output.line(f"removed {fold_hosts(removed.removed)}")
    if not removed.is_finished:
        left = format_indices(node.index for node in removed.nodes)
        output.note(
            f"not all of the others ({left}) run: they learn of it by `clusterctl start {name}`"
        )


@cluster_command(explicit=True)
@indices_argument
@waiting_options
@click.option("--with-data", "data", metavar="DIR", help="Then copy DIR from the nearest node.")
@yes_option
@removal_force_option
@json_option("ReadyCluster")
def replace(
    app: AppContext,
    name: str,
    indices: tuple[int, ...],
    waiting: WaitingOptions,
    data: str | None,
    yes: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Launch new machines for the nodes INDEX... of cluster NAME, then terminate the old ones.

    Same zone, placement group, image and index; what the old machines stored is gone. The old
    ones stay if no new one can be launched. In a full capacity reservation they are terminated
    first, once all checks have passed.
    Needs a confirmation; a script has to give --yes.

    \b
    clusterctl replace demo 2
    clusterctl replace demo 2 --with-data '~/data/tf-imagenet'
    clusterctl replace demo 2 --capacity-timeout 1h --yes
    """
    from clusterctl.operations.members import nearest_peer, replace_nodes

    _check_nodes_going(app, name, indices, "replace", yes, force)
    if data:
        with app.open(name) as access:
            # Raises UsageError if no node can supply the data, before any is terminated.
            nearest_peer(access.cluster, indices)
    with naming_ups_options(name), launcher_of(app, name, waiting) as launcher:
        report = replace_nodes(launcher, indices)
    show_report(app, report, as_json)
    return _copy_data(app, name, indices, data, as_json) if data else 0


def _copy_data(
    app: AppContext, name: str, indices: tuple[int, ...], folder: str, as_json: bool
) -> int:
    """Copy the folder's content from the nearest other node to these; return the exit status."""
    from clusterctl.cli.copy.options import CopyOptions, request_of
    from clusterctl.cli.copy.view import showing
    from clusterctl.operations.copy import copy_to_cluster
    from clusterctl.operations.members import nearest_peer

    options = CopyOptions(quiet=as_json)
    whole = folder.rstrip("/") + "/"
    with showing(options) as shown, app.open(name) as access:
        peer = nearest_peer(access.cluster, indices)
        nodes = format_indices(indices)
        output.note(
            f"copying {whole} from {peer.name}; if it is cut off: clusterctl copy {name} "
            f"{shlex.quote(whole)} {shlex.quote(whole)} --from {peer.index} --nodes {nodes}"
        )
        request = request_of(options, (whole,), whole, peer.index)
        report = copy_to_cluster(access, access.select(indices), request, watch=shown.watch)
    return shown.finish(report)


@cluster_command()
@waiting_options
@yes_option
@json_option("ReadyCluster")
def start(app: AppContext, name: str, waiting: WaitingOptions, yes: bool, as_json: bool) -> None:
    """Start the stopped nodes of cluster NAME, and wait until all are ready.

    Addresses change: hosts file, known_hosts and ssh_config follow. A node that is gone is
    launched again, as `up` would.

    \b
    clusterctl start demo
    clusterctl start demo --capacity-timeout 2h
    """
    from clusterctl.operations.power import start as power_on

    with launcher_of(app, name, waiting, price_consent(app, yes)) as launcher:
        report = power_on(launcher)
    show_report(app, report, as_json)
    _show_end(app, name)


@cluster_command(explicit=True)
@click.option(
    "--force", is_flag=True, help="Also while a job runs, and whatever is on instance stores."
)
@json_option("Stopped")
def stop(app: AppContext, name: str, force: bool, as_json: bool) -> None:
    """Stop all nodes of cluster NAME, and wait until they are.

    Their root volumes are kept, and cost; what is on instance store (/opt/dlami/nvme) is lost. If
    something is there, it asks first. `clusterctl start` restarts them, if EC2 has
    machines in their zone then.

    \b
    clusterctl stop demo
    """
    from clusterctl.operations.power import stop as power_off

    with launcher_of(app, name) as launcher:
        found = power_off(launcher, lambda cluster: None if force else _check_nodes(app, cluster))
    _note_reservations(found.reservations, app.ec2.meta.region_name)
    if as_json:
        output.data(found)
    elif not found.stopped:
        output.note(f"nothing to do: {name} is stopped")
    else:
        output.line(f"stopped {name}; its disks go on costing money")


def _note_reservations(ids: Sequence[str], region: str) -> None:
    """Say which reservations go on costing money without running nodes.

    Whether they have been cancelled meanwhile is not checked.
    """
    for one in ids:
        output.note(
            f"{one} goes on costing as much as if its machines ran, unless it has ended: "
            f"aws ec2 cancel-capacity-reservation --capacity-reservation-id {one} --region {region}"
        )


def _check_nodes(app: AppContext, cluster: Cluster) -> None:
    """Raise JobRunning if a job runs, and ask whether to erase instance stores that hold data.

    Raises MissingTool without the cluster's key here, click.Abort.
    """
    from clusterctl.operations.logs import refuse_while_training
    from clusterctl.operations.power import stored_bytes

    name = cluster.name
    running = [node for node in cluster.nodes if node.state is NodeState.RUNNING]
    with app.open(name) as access:
        refuse_while_training(access, ENDS_JOB, access.all_targets)
        stored = stored_bytes(access, running)
    full = [one.host for one in stored.outcomes if one.value]
    silent = fold_hosts([one.host for one in stored.failures])
    if full:
        size = format_bytes(sum(stored.values))
        output.note(f"stopping erases {size} on the instance store of {fold_hosts(full)}")
    if silent:
        output.note(f"{silent}: not known whether an instance store holds data, which is lost")
    if full or silent:
        output.confirm(f"Stop the nodes of {name}?", False, instead="--force")
        with app.open(name) as access:  # the answer may take long
            refuse_while_training(access, ENDS_JOB, access.all_targets)


def check_removal(app: AppContext, name: str, found: Removable, yes: bool) -> None:
    """Show what would be lost with the cluster, and ask whether to remove it.

    If the answer takes long, it looks again, and asks again if something else would be lost. With
    `yes` it does not ask. Raises ResultsAtRisk if something would be lost then, UsageError if
    it cannot ask, click.Abort.
    """
    from clusterctl.operations.losses import Losses, ResultsAtRisk
    from clusterctl.operations.site import others_finding

    if not (found.instances or found.others):
        return
    nodes = count(len(found.instances), "node")
    question = f"Terminate the {nodes} of {name}?"
    if found.others:
        question = f"Remove {name}, with what was not made from here?"
        output.findings([others_finding(name, found.others)])
    shown: frozenset[object] | None = None
    while True:
        losses = Losses()
        if found.instances:
            losses = _losses(app, name, found.instances, found.others)
        at_risk = losses.findings(app.folder(name))
        if shown is not None and losses.things <= shown:
            return
        if yes and at_risk:
            elsewhere = " --launched-elsewhere" if found.others else ""
            raise ResultsAtRisk(
                f"nothing was removed: what is named above goes with the nodes of {name}",
                f"save it first, or lose it: clusterctl down {name} --yes --discard-results"
                f"{elsewhere}",
                at_risk,
            )
        output.findings(at_risk)
        age, shown = Age(app.timeouts.clock), losses.things
        output.confirm(question, yes)
        if age.seconds < app.timeouts.holds_s:
            return


def _check_nodes_going(
    app: AppContext, name: str, indices: tuple[int, ...], verb: str, yes: bool, force: bool
) -> None:
    """Show what would be lost with these nodes of the cluster, and ask whether to go on.

    `verb` is remove or replace. With `yes` it does not ask. With nodes that are missing, nothing
    more is lost. Without `force`, raises JobRunning while a job runs, HostError if the head node
    does not respond, and, with `yes`, ResultsAtRisk if something would be lost. Raises UsageError
    if it cannot ask, MissingTool without the cluster's key, ClusterctlError without a head node,
    click.Abort.
    """
    from clusterctl.operations.access import cluster_key
    from clusterctl.operations.losses import ResultsAtRisk
    from clusterctl.operations.members import check_head, check_removable
    from clusterctl.operations.site import check_not_anothers
    from clusterctl.operations.status import cluster_status

    folder = app.folder(name)
    found = cluster_status(app.clients, folder)
    check_nodes(app, name, indices)
    if verb == "remove":
        check_removable(name, indices)
    cluster_key(folder)
    check_not_anothers(app.clients.ec2, folder)
    nodes = fold_hosts([f"{name}-{index}" for index in indices])
    if not {one.node.index for one in found.instances} & set(indices):
        output.confirm(f"{verb.capitalize()} {nodes}, of which there is no machine?", yes)
        return
    check_head(name, found.instances)
    losses = _losses(app, name, found.instances, indices=indices)
    # A node that cannot be reached may be the reason: it goes without --force, too.
    unknown = {host: why for host, why in losses.unknown.items() if host not in losses.off}
    at_risk = dataclasses.replace(losses, unknown=unknown).findings(folder)
    found_there = losses.findings(folder)
    if yes and at_risk and not force:
        again = f"clusterctl {verb} {name} {format_indices(indices)}"
        raise ResultsAtRisk(
            f"nothing was done: what is named above goes with {nodes}",
            f"save it first, or lose it: {again} --yes --force",
            found_there,
        )
    output.findings(found_there)
    output.confirm(f"{verb.capitalize()} {nodes}, and lose what is stored there?", yes)
    if not force:
        _refuse_while_job_needs(
            app, name, found.instances, indices, f"{verb[:-1]}ing nodes may end it"
        )


def _refuse_while_job_needs(
    app: AppContext,
    name: str,
    instances: Sequence[Instance],
    indices: tuple[int, ...],
    because: str,
) -> None:
    """Raise JobRunning while a job runs, or while one of these nodes serves a model; HostError if
    the head node does not answer."""
    from clusterctl.operations.logs import refuse_while_training
    from clusterctl.operations.losses import Losses, known_without_asking

    machines = _machines(app, name, instances)
    if known_without_asking(machines, app.folder(name)) == Losses():
        return
    # Of two machines with one index, the first is the one that may run a job.
    nodes = {node.index: node for node in reversed(machines.nodes)}
    first = dataclasses.replace(machines, nodes=tuple(nodes[index] for index in sorted(nodes)))
    with app.access(first) as access:
        going = [access.target(node) for node in first.nodes if node.index in indices]
        refuse_while_training(access, because, going)


def _machines(app: AppContext, name: str, instances: Sequence[Instance]) -> Cluster:
    """Return the cluster with its nodes and the machines that they replace.

    Of two head nodes the first is the one that has the records: one that has been ready, and of two
    such the one that is replaced.
    """
    from clusterctl.ec2.instances import as_cluster
    from clusterctl.operations.known_hosts import LearntHostKeys

    learnt = LearntHostKeys(app.folder(name).known_hosts)
    machines = sorted(
        instances, key=lambda one: (one.node.index, not learnt.recall(one.node), not one.retired)
    )
    cluster = as_cluster(app.ec2, name, instances)
    return dataclasses.replace(cluster, nodes=tuple(one.node for one in machines))


def _losses(
    app: AppContext,
    name: str,
    instances: Sequence[Instance],
    others: Sequence[object] = (),
    indices: tuple[int, ...] | None = None,
) -> Losses:
    """Return what would be lost with these nodes of the cluster; None are all. Raises AwsError."""
    from clusterctl.operations.losses import Losses, find_losses, known_without_asking

    cluster = _machines(app, name, instances)
    # What this folder knows is of its own nodes.
    known = None if others else known_without_asking(cluster, app.folder(name))
    if known:
        return known
    hosts = None if indices is None else [f"{name}-{index}" for index in indices]
    try:
        with app.access(cluster) as access:
            return find_losses(access, app.timeouts.at_risk_s, hosts)
    except ClusterctlError as error:  # the key is not on this machine
        return Losses(unknown={cluster.head.name: error.message})


@cluster_command(explicit=True)
@yes_option
@click.option(
    "--discard-results",
    is_flag=True,
    help="With --yes: even if a job runs, results were not fetched, or the head is silent.",
)
@click.option(
    "--launched-elsewhere",
    is_flag=True,
    help="With --yes: also what was not made from this machine.",
)
@json_option("Down")
def down(
    app: AppContext,
    name: str,
    yes: bool,
    discard_results: bool,
    launched_elsewhere: bool,
    as_json: bool,
) -> None:
    """Remove cluster NAME: instances, address, groups, key pair, its own role, local folder.

    Everything is found by its tag or name, so it works after an interrupted `up`. It shows what
    would be lost: jobs that run, and checkpoints, models and other files that were not fetched
    since they changed. It names what was not launched from this machine. Then it asks; a script has
    to give --yes.

    \b
    clusterctl down demo
    clusterctl down demo --yes
    clusterctl down demo --yes --discard-results
    """
    from clusterctl.operations.down import down as remove
    from clusterctl.operations.down import find_removable
    from clusterctl.operations.ended import did_you_mean
    from clusterctl.operations.site import NotLaunchedHere

    folder = app.folder(name)
    found = find_removable(app.clients, folder, app.timeouts)
    if found.others and yes and not launched_elsewhere:
        raise NotLaunchedHere(name, found.others)
    if not (yes and discard_results):
        check_removal(app, name, found, yes)
    try:
        removed = remove(app.clients, folder, printed_progress(), app.timeouts, found.others)
    except KeyboardInterrupt:
        output.note("something may be left")
        output.note_resume_command()
        raise
    _note_reservations(removed.reservations, app.ec2.meta.region_name)
    if as_json:
        output.data(removed)
    elif removed.nothing:
        meant = did_you_mean(folder).strip()
        also = f"; {meant}" if meant else ""
        output.note(f"nothing to do: there is nothing of a cluster {name}{also}")
    else:
        nodes = count(len(removed.nodes), "node")
        output.line(f"removed {name}: {nodes}, and all that was made for it")
