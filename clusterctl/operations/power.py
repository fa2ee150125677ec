"""`stop` and `start`: stop a cluster's instances, and start them again with new addresses.

The root volumes are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import Cluster, Market, Node, NodeState
from clusterctl.domain.errors import ClusterctlError, CommandFailed, NoSuchCluster, UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult, last_line, parse_outputs
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.ec2.instances import (
    Instance,
    as_cluster,
    billing_reservations,
    find_instances,
    once_known,
    set_at_power_off,
)
from clusterctl.ec2.launch.observe import spec_of_existing
from clusterctl.node.guard.activity import STORE
from clusterctl.operations.costs import note_spent
from clusterctl.operations.ended import no_cluster
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.local_state import keep_end
from clusterctl.operations.site import changing
from clusterctl.operations.up import UpReport, start_up

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.operations.access import Access

# For one question to one node.
TIMEOUT_S = 30.0
# A store that holds less is empty: a new file system counts its own tables as used.
EMPTY_BYTES = 2**20


@dataclass(frozen=True)
class StoppedCluster(Cluster):
    """The cluster with all nodes stopped, and the names of the nodes that this run stopped.

    `reservations` are the ids of the Capacity Reservations that go on billing.
    """

    stopped: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()


def stop(
    launcher: Launcher, may_stop: Callable[[Cluster], None] = lambda cluster: None
) -> StoppedCluster:
    """Stop every running node, and wait until all are stopped. If none runs, that is a success.

    EC2 is first set to stop, and not to terminate, a node that switches itself off. So no later
    power-off costs a disk, until `start` has sent the node its new end.

    `may_stop` is called before anything is stopped, and raises to refuse, for example while a job
    runs. Raises UsageError for spot nodes, NoSuchCluster, AwsError, and ClusterctlError if a node
    is still starting or at the deadline.
    """
    client, name = launcher.clients.ec2, launcher.name
    with changing(launcher.folder, launcher.clients, launcher.timeouts):
        # Includes nodes that are being replaced or removed: they cost as much.
        there = find_instances(client, name)
        if not there:
            raise no_cluster(launcher.clients, launcher.folder)
        cluster = as_cluster(client, name, there)
        _check_stoppable(name, there)
        going = [one for one in there if one.node.state is NodeState.RUNNING]
        if going:
            may_stop(cluster)
            note_spent(launcher.clients, going)
            names = [one.node.name for one in going]
            launcher.progress.step(f"stopping {fold_hosts(names)}")
        # All of them: EC2 may still show one as stopped that was started a moment ago.
        ran, is_stopped = _stop(client, there, launcher.timeouts)
        stopped = _await_stopped(client, name, launcher.timeouts, ran, is_stopped)
        # Time in which it is stopped does not count: when it ends is not known until it starts.
        keep_end(launcher.folder, None, "")
        billing = billing_reservations(there)
        return StoppedCluster(**vars(stopped), stopped=tuple(ran), reservations=billing)


def stored_bytes(access: Access, nodes: Sequence[Node]) -> FanoutResult[int]:
    """Return how many bytes each node's instance store holds; 0 also for a node without one.

    A node that does not say is a failure.
    """
    targets = [access.target(node) for node in nodes]
    command = f"! mountpoint -q {STORE} || df -B1 --output=used {STORE}"
    return parse_outputs(access.connections.run_all(targets, command, timeout_s=TIMEOUT_S), _used)


def _used(result: CommandResult) -> int:
    """Read what `df --output=used` printed. Raises CommandFailed."""
    last = last_line(result.stdout) if result.stdout.strip() else "0"
    if not result.ok or not last.strip().isdigit():
        raise CommandFailed(result.host, f"cannot say what is on {STORE}: {result.stderr.strip()}")
    return int(last) if int(last) > EMPTY_BYTES else 0


def start(launcher: Launcher) -> UpReport:
    """Start the stopped nodes and join all nodes to one cluster with their new addresses.

    Missing nodes are launched, as by `up`. Raises what `up` raises.
    """
    with changing(launcher.folder, launcher.clients, launcher.timeouts):
        return start_up(launcher, lambda there: spec_of_existing(launcher.name, there))


def _check_stoppable(name: str, there: Sequence[Instance]) -> None:
    spot = [one.node.name for one in there if one.market is Market.SPOT]
    if spot:
        raise UsageError(
            f"{fold_hosts(spot)}: spot nodes cannot be stopped",
            f"remove the cluster instead: clusterctl down {name}",
        )
    pending = [one.node.name for one in there if one.node.state is NodeState.PENDING]
    if pending:
        raise ClusterctlError(
            f"{fold_hosts(pending)}: still starting, and EC2 stops only what runs",
            f"wait a minute, then run it again: clusterctl stop {name}",
        )


def _stop(
    client: EC2Client, going: Sequence[Instance], timeouts: Timeouts
) -> tuple[list[str], bool]:
    """Call StopInstances. Return the names of the nodes that ran, and whether all are stopped.

    Both are of EC2's answer, which is not late. A node that switches itself off from now on is
    stopped, too. Raises AwsError.
    """
    names = {one.node.instance_id: one.node.name for one in going}
    set_at_power_off(client, names, "stop")
    answer = once_known(lambda: client.stop_instances(InstanceIds=[*names]), timeouts)
    changes = answer["StoppingInstances"]
    ran = [one["InstanceId"] for one in changes if one["PreviousState"]["Name"] == "running"]
    is_stopped = all(one["CurrentState"]["Name"] == "stopped" for one in changes)
    return [name for id, name in names.items() if id in ran], is_stopped


def _await_stopped(
    client: EC2Client, name: str, timeouts: Timeouts, ran: list[str], is_stopped: bool
) -> Cluster:
    """Wait until all instances are shown as stopped, and `is_stopped`. Return the cluster.

    Stops instances that EC2 has not shown before, too, and adds their names to `ran`.
    """
    polling = Polling(timeouts.clock, timeouts.stopped_s)
    while True:
        there = find_instances(client, name)
        if not there:
            raise NoSuchCluster(
                f"cluster {name} disappeared while it stopped", "see `clusterctl gc`"
            )
        moving = [one.node.name for one in there if one.node.state is not NodeState.STOPPED]
        awake = any(one.node.state is NodeState.RUNNING for one in there)
        # An old answer, from before they were started, also shows all as stopped.
        if awake or not (moving or is_stopped):
            more, is_stopped = _stop(client, there, timeouts)
            ran += [one for one in more if one not in ran]
        if not moving and is_stopped:
            return as_cluster(client, name, there)
        if polling.left_s < 0:
            raise ClusterctlError(
                f"still stopping: {fold_hosts(moving or ran)}",
                f"the stop is requested; check later: clusterctl status {name}",
            )
        polling.wait()
