"""Settings for the guards, the programs on the nodes that keep a cluster's limits.

A guard gets its first settings in the user data, and new ones over SSH when the cluster changes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from clusterctl.bootstrap.guard import (
    first_settings,
    guard_end_command,
    guard_update_script,
    joined_settings,
    lifetime_s,
    parse_used_h,
    used_command,
    with_guard,
)
from clusterctl.bootstrap.trust import NodeIdentity
from clusterctl.domain.cluster import Cluster, Market
from clusterctl.domain.errors import AwsError, ClusterctlError, CommandFailed, UsageError
from clusterctl.domain.findings import Finding, Severity, errors
from clusterctl.domain.ranges import grouped
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.domain.units import format_duration
from clusterctl.ec2 import tags
from clusterctl.ec2.instances import (
    Instance,
    find_instances,
    find_user_data,
    members_or_all,
    set_at_power_off,
    tag,
    untag,
)
from clusterctl.ec2.launch.capacity import block_end
from clusterctl.ec2.launch.observe import Observed
from clusterctl.ec2.money.costs import EARLIER, Spending
from clusterctl.ec2.tags import limit_text, parse_limits
from clusterctl.node.facts.guard import guard_busy, guard_silence_s
from clusterctl.node.facts.report import FactReport
from clusterctl.node.guard.settings import GuardSettings, Worker, parse_settings
from clusterctl.operations.access import Access
from clusterctl.operations.costs import give_grace, note_spent, spending_of
from clusterctl.operations.launcher import Launcher, check_all
from clusterctl.operations.local_state import keep_end
from clusterctl.transport.call import read_reports
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients

# For what a node says of its guard.
GUARD_WITHIN_S = 20.0
# The shell that keeps a guard running waits 5 s, and the guard writes its state at once.
STARTS_WITHIN_S = 30.0
# For one command on one node.
TIMEOUT_S = 60.0
# EC2 is set to terminate a node within so long of when the node was told its end.
SET_WITHIN_S = 300.0
# Another one is started by the shell that keeps it running.
END_GUARD = 'sudo -n pkill -9 -f "lib/[c]lusterctl/guard run"'
# Prints a guard's settings; nothing on a node without a guard. Fails where sudo is refused.
SETTINGS_COMMAND = (
    "sudo -n sh -c 'cd /var/lib/clusterctl 2>/dev/null && [ -e guard.json ] || exit 0; "
    "exec cat guard.json'"
)


def with_complete_user_data(clients: Clients, observed: Observed) -> Observed:
    """Return `observed` with the complete user data for new nodes: the user's own and the guard.

    Nodes that join a cluster get the head node's user data, unless the user gives other, with the
    present limits. Nothing changes if no node is missing. Raises AwsError, and UsageError if the
    user data is too large or cannot be read.
    """
    spec = observed.spec
    if not observed.lacking:
        return observed
    there, data = members_or_all(observed.instances), spec.user_data
    if there and not data:
        data = find_user_data(clients.ec2, there[0].node.instance_id)
    prices = [price.hourly_usd for price in observed.catalogue.prices.values() if price]
    # With several instance types it is not known yet which one it will be. The most expensive one
    # gives the shortest lifetime; `update_guards` corrects it once the nodes run.
    hourly = spec.nodes * max(prices) if prices else None
    spot = spec.market is Market.SPOT
    off = "" if spot else spec.limits.at_power_off
    settings = first_settings(spec.name, spec.limits, hourly, spot, off)
    try:
        data = with_guard(data, settings)
    except UsageError:
        # The head node was launched with these data, perhaps without limits: `update_guards`
        # brings the guard.
        if spec.user_data or not there:
            raise
    return replace(observed, spec=replace(spec, user_data=data))


def update_guards(
    launcher: Launcher,
    cluster: Cluster,
    connections: Connections,
    targets: Sequence[Target],
    members: Sequence[NodeIdentity],
    quarantined: Sequence[Target] = (),
) -> None:
    """Send every guard its settings, and set what EC2 does when a node switches itself off.

    EC2 is set to terminate only nodes that know their end. The settings say when the node
    ends, and to the head node which workers it queries for idleness. `members` are the nodes of
    `targets`, the head node first. `quarantined` are the nodes in quarantine, which cost money as
    well; one that cannot be reached is a finding. Raises AwsError, and ClusterctlError naming the
    other nodes whose guard could not be set.
    """
    instances = find_instances(launcher.clients.ec2, cluster.name)
    spending = _present_spending(launcher, instances, connections, targets)
    end = ClusterEnd(launcher, spending)
    spot = any(found.market is Market.SPOT for found in instances)
    at_power_off = "" if spot else spending.limits.at_power_off
    first = first_settings(
        cluster.name,
        # `end` replaces these two limits. The idle time stays: only the guards can see it.
        replace(spending.limits, max_hours=None, budget_usd=None),
        spot=spot,
        at_power_off=at_power_off,
        block_ends_at=_block_ends_at(launcher.clients, instances),
    )
    settings = {
        target.host: joined_settings(first, index, cluster.ssh_user, members)
        for index, target in enumerate(targets)
    }
    # The head node does not ask nodes in quarantine whether they idle: each of them decides for
    # itself.
    own = joined_settings(first, None, cluster.ssh_user, members)
    settings |= {target.host: own for target in quarantined}
    client, nodes = launcher.clients.ec2, (*targets, *quarantined)

    def send(target: Target, left_s: float | None) -> CommandResult:
        return _notify(connections, target, settings[target.host], left_s)

    outcomes = _send_in_order(send, nodes, client, instances, end, at_power_off)
    _check_unchanged(launcher, cluster.name, instances)
    ends_at = None
    if end.left_s is not None:
        ends_at = datetime.now(timezone.utc) + timedelta(seconds=end.left_s)
    by = limit_text(spending.limits, spending.ended_by) if ends_at else ""
    keep_end(launcher.folder, ends_at, by)
    check_all(cluster, FanoutResult(outcomes[: len(targets)]))
    earlier = grouped((one.earlier_limits, one.node.instance_id) for one in instances)
    if not any(one.error for one in outcomes):
        for text, ids in earlier.items():
            if text:
                untag(client, ids, tags.EARLIER_LIMITS, text)
    for failure in outcomes[len(targets) :]:
        if failure.error and spending.limits.ends:
            launcher.progress.finding(_untold(cluster.name, failure.host, failure.error))


def _check_unchanged(launcher: Launcher, name: str, sent: Sequence[Instance]) -> None:
    """Raise ClusterctlError if another command has changed limits since `sent` were read, whose
    limits were sent to the nodes; the nodes are tagged as those that may still have these.

    Raises AwsError.
    """
    limits = {one.node.instance_id: one.limits_text for one in sent}
    # EC2 may still show a tag of before this command.
    polling = Polling(launcher.timeouts.clock, launcher.timeouts.holds_s)
    while True:
        there = find_instances(launcher.clients.ec2_as_shown, name)
        others = {one.limits_text for one in there} - {*limits.values()}
        if not others:
            return
        if polling.left_s < 0:
            break
        polling.wait()
    own = min(sent, key=lambda one: one.node.index).limits_text or "none"
    tag(launcher.clients.ec2, [*limits], {tags.EARLIER_LIMITS: own})
    raise ClusterctlError(
        f"another command has changed the limits of {name} ({min(others) or 'none'}) while others "
        f"({own}) were sent to its nodes",
        f"send one of them to all nodes: clusterctl up {name}",
    )


def _send_in_order(
    send: Callable[[Target, float | None], CommandResult],
    nodes: Sequence[Target],
    client: EC2Client,
    instances: Sequence[Instance],
    end: ClusterEnd,
    at_power_off: str,
) -> tuple[HostOutcome[CommandResult], ...]:
    """Send the guards of `nodes`, the head node first, their settings with the seconds that are
    left, and set EC2's part so that no disk is lost."""
    # A node that ends before EC2 is set to terminate it would be stopped, and its disk kept.
    least_s = SET_WITHIN_S if at_power_off == "terminate" else 0.0

    def one(target: Target) -> CommandResult:
        return send(target, end.left_s and max(end.left_s, least_s))

    ids = {one.node.name: one.node.instance_id for one in instances if not one.retired}
    # In this order no disk is lost: EC2 is set to `stop` before any guard may switch a node off for
    # idleness, and to `terminate` only for nodes that know their end and that no guard switches off
    # for idleness any more: not their own, nor the head node's.
    if at_power_off == "stop":
        set_at_power_off(client, [found.node.instance_id for found in instances], "stop")
    outcomes = fan_out(one, nodes).outcomes
    reached = [target for target, outcome in zip(nodes, outcomes) if not outcome.error]
    updated = [ids[target.host] for target in reached if target.host in ids]
    if at_power_off == "terminate" and ids.get(nodes[0].host) in updated:
        set_at_power_off(client, updated, "terminate")
    if end.left_s is not None and end.left_s < least_s:
        least_s = 0.0
        fan_out(one, reached)  # a node that cannot be reached again ends that much later
    return outcomes


def _present_spending(
    launcher: Launcher,
    instances: Sequence[Instance],
    connections: Connections,
    targets: Sequence[Target],
) -> Spending:
    """Return what the cluster has cost, with the time of earlier runs as its guards have counted
    it, and the grace of nodes that were started after their time."""
    spending = spending_of(launcher.clients, instances)
    used_h: dict[str, float] = {}
    if not spending.complete:
        # EC2 does not know how long earlier runs took; the guards count it.
        used_h = _used_h(instances, connections, targets)
        known = [one for one in instances if one.node.instance_id in used_h]
        note_spent(launcher.clients, known, used_h)
        spending = spending_of(launcher.clients, instances, used_h)
        for finding in spending.findings:
            if finding.check == "cost.incomplete" and spending.limits.ends:
                launcher.progress.finding(replace(finding, severity=Severity.WARNING))
    if spending.grace_due:
        spending = spending_of(launcher.clients, give_grace(launcher.clients, instances), used_h)
    return spending


def silent_guards(
    connections: Connections, targets: Sequence[Target], instances: Sequence[Instance]
) -> list[Finding]:
    """Return an error for each node whose guard is not at work, and cannot keep its limits; and
    what keeps an idle cluster running, as the head node's guard last found.

    A node that does not answer, or has no limits, is passed over.
    """
    limits = {one.node.name: one.limits_text for one in instances}
    guarded = [one for one in targets if needs_guard(one.host, limits.get(one.host, ""))]
    doing, facts = "looking for its guard", (guard_silence_s, guard_busy)
    reports = read_reports(connections, guarded, facts, doing, GUARD_WITHIN_S)
    found = (guard_findings(one.host, one, limits[one.host]) for one in reports.values)
    return [one for each in found for one in each]


def end_silent_guards(
    connections: Connections, targets: Sequence[Target], instances: Sequence[Instance]
) -> list[Finding]:
    """End the guards that are not at work, as one that hangs lets no other start, and return an
    error for each. `update_guards` starts them again."""
    found = errors(silent_guards(connections, targets, instances))
    silent = [target for target in targets if target.host in {one.host for one in found}]
    fan_out(lambda target: connections.run(target, END_GUARD, timeout_s=TIMEOUT_S), silent)
    return found


def await_guards(
    timeouts: Timeouts,
    connections: Connections,
    targets: Sequence[Target],
    instances: Sequence[Instance],
    found: Sequence[Finding],
) -> list[Finding]:
    """Wait for the guards that were `found` silent. Return these findings as warnings, for guards
    that are at work again, and as errors for the others."""
    polling = Polling(timeouts.clock, STARTS_WITHIN_S)
    silent = [target for target in targets if target.host in {one.host for one in found}]
    while True:
        still = {one.host for one in errors(silent_guards(connections, silent, instances))}
        if not still or polling.left_s < 0:
            break
        polling.wait()
    again, warns = "; it is started again", Severity.WARNING
    return [
        one
        if one.host in still
        else replace(one, severity=warns, message=one.message + again, hint="")
        for one in found
    ]


def needs_guard(host: str, limits_text: str) -> bool:
    """Return whether a node's own guard keeps these limits: that of the head node decides for all
    whether they idle."""
    limits = parse_limits(limits_text)
    return bool(limits.ends or (limits.idle_minutes and host.endswith("-0")))


def guard_findings(host: str, report: FactReport, limits_text: str) -> list[Finding]:
    """Return an error if the node with this report has limits and no guard that is at work; else
    why its guard counts the cluster as busy, if it decides whether it idles."""
    if not needs_guard(host, limits_text):
        return []
    cluster, silence_s = host.rpartition("-")[0], report.get(guard_silence_s)
    if silence_s is not None:
        message = f"its guard has done nothing for {format_duration(silence_s)}: it keeps no limit "
        hint = f"start it again: clusterctl up {cluster}"
        return [Finding.error("guard.silent", f"{message}({limits_text})", hint, host)]
    busy = report.get(guard_busy) or ()
    more = f", and {len(busy) - 3} more" if len(busy) > 3 else ""
    text = f"{cluster} counts as busy for --idle-stop: {'; '.join(busy[:3])}{more}"
    return [Finding.info("guard.busy", text)] if busy else []


def _untold(cluster: str, host: str, error: ClusterctlError) -> Finding:
    return Finding.warning(
        EARLIER,
        "in quarantine, its limits could not be updated (earlier ones, if any, hold): "
        f"{error.message}",
        f"when it answers: clusterctl up {cluster}; or: clusterctl remove {cluster} "
        f"{host.rpartition('-')[2]}",
        host,
    )


class ClusterEnd:
    """When the nodes of a cluster end by its limits, from now on. `spending` is the present one."""

    def __init__(self, launcher: Launcher, spending: Spending) -> None:
        self._clock = launcher.timeouts.clock
        self._ends_at: float | None = None
        if spending.ends_in_h is not None:
            self._ends_at = self._clock.monotonic() + spending.ends_in_h * 3600

    @property
    def left_s(self) -> float | None:
        """The seconds that are left, at least one; None without an end."""
        if self._ends_at is None:
            return None
        return max(1.0, self._ends_at - self._clock.monotonic())


class EndMessage:
    """Sends nodes the cluster's end at their first login, while others still boot.

    A node that was started has the end that it got before it was stopped. A failure of another
    node must not leave it with that one. Thread-safe.
    """

    def __init__(self, launcher: Launcher, cluster: str) -> None:
        self._launcher, self._cluster = launcher, cluster
        self._lock = threading.Lock()
        self._end: ClusterEnd | None = None
        self._lifetime_s: float | None = None

    def script(self) -> str:
        """Return lines for a node's shell, which never fail; empty if there is nothing to send.

        Raises no AwsError: `update_guards` sends it again.
        """
        with self._lock, suppress(AwsError):
            self._end = self._end or self._ask()
        left_s = self._end.left_s if self._end else None
        if left_s is None:
            return ""
        # The shell reads the rest of its script from stdin, which the command must not.
        return f"{guard_end_command(left_s, self._lifetime_s)} </dev/null >/dev/null 2>&1 || :\n"

    def _ask(self) -> ClusterEnd | None:
        """Return the end; None if there is no node yet."""
        clients = self._launcher.clients
        instances = find_instances(clients.ec2, self._cluster)
        if not instances:
            return None
        found = spending_of(clients, instances)
        if found.grace_due:
            # Their guards leave them GRACE_S from boot, `update_guards` from when all are ready.
            return ClusterEnd(self._launcher, replace(found, ends_in_h=None))
        if not found.complete:
            # EC2 does not know how long earlier runs took. Each guard knows it of its own node.
            self._lifetime_s = lifetime_s(found.limits, found.hourly_usd)
        return ClusterEnd(self._launcher, found)


def _block_ends_at(clients: Clients, instances: Sequence[Instance]) -> float | None:
    """Return the Unix time at which EC2 begins to terminate the nodes of a Capacity Block.

    None for other nodes. Read again each time: a block can be extended. Raises AwsError.
    """
    ends = block_end(clients.ec2, instances)
    return None if ends is None else ends.timestamp()


def update_idle_groups(access: Access, indices: Sequence[int]) -> FanoutResult[bool]:
    """Adapt the guards after these nodes went into quarantine or came back from it.

    The head node's guard then queries only the nodes in service for idleness, and a node in
    quarantine decides for itself. The result has the head node first, then these nodes: true where
    the guard has an idle limit. A node that does not answer is a failure. If the head node has no
    idle limit, or does not answer, the others are not contacted.
    """
    service = access.cluster.in_service
    workers = tuple(Worker(node.name, node.private_ip) for node in service[1:])
    own = {node.name: node.index for node in service}

    def one(target: Target) -> bool:
        result = access.connections.run(target, SETTINGS_COMMAND, timeout_s=TIMEOUT_S)
        report = result.stdout
        if not result.ok:
            reason = result.stderr.strip() or f"exit status {result.exit_status}"
            raise CommandFailed(
                target.host,
                f"whether its guard has an idle limit is not known: {reason}",
                "give the login user `sudo -n`",
            )
        if not report.strip():
            return False
        try:
            settings = parse_settings(report)
        except ValueError as wrong:
            raise CommandFailed(
                target.host,
                f"its guard's settings cannot be read: {wrong}",
                f"write them again: clusterctl up {access.cluster.name}",
            ) from None
        # On spot clusters, the head node's guard queries its workers for notices, too.
        if settings.idle_s is None and not settings.spot:
            return False
        is_head = target.host == access.head_name
        index = 0 if is_head else own.get(target.host)
        new = replace(settings, index=index, workers=workers if is_head else ())
        if new != settings:
            _notify(access.connections, target, new)
        return settings.idle_s is not None

    head = fan_out(one, (access.head,))
    if not any(head.values):
        return head
    return FanoutResult((*head.outcomes, *fan_out(one, access.select(indices)).outcomes))


def _notify(
    connections: Connections, target: Target, settings: GuardSettings, left_s: float | None = None
) -> CommandResult:
    """Send a guard its settings. Raises CommandFailed, HostError."""
    script = guard_update_script(settings, left_s).encode()
    result = connections.run(target, "sh -s", timeout_s=TIMEOUT_S, stdin=script)
    if not result.ok or not result.stdout.endswith("complete\n"):
        reason = result.stderr.strip() or f"exit status {result.exit_status}"
        by_sudo = "give the login user `sudo -n`, or no limits"
        step = by_sudo if "sudo:" in reason else "run it again"
        raise CommandFailed(
            target.host,
            f"its guard could not be set: {reason}",
            f"limits are kept by the nodes: {step}",
        )
    return result


def _used_h(
    instances: Sequence[Instance], connections: Connections, targets: Sequence[Target]
) -> dict[str, float]:
    """Return the hours that instances have run in all, by id, as counted by their guards.

    Leaves out nodes that cannot be reached and those whose guard has not counted from the start.
    """
    made = {one.node.name: one for one in instances if not one.retired and one.first_launched_at}

    def one(target: Target) -> float | None:
        found = made.get(target.host)
        if found is None or found.first_launched_at is None:
            return None
        report = connections.run(target, used_command(), timeout_s=TIMEOUT_S).stdout
        return parse_used_h(report, found.first_launched_at.timestamp())

    outcomes = fan_out(one, targets).outcomes
    return {made[one.host].node.instance_id: one.value for one in outcomes if one.value is not None}
