"""The commands that are tested under faults: each with the state before it and after it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.domain.cluster import Cluster, ClusterSpec, NodeState
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2.instances import Instance, as_cluster
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.ec2.session import Clients
from clusterctl.operations import down as down_module
from clusterctl.operations import members, power
from clusterctl.operations import up as up_module
from clusterctl.operations.launcher import Launcher
from clusterctl.operations.readiness import InstanceWatch, has_ended

NAME = "demo"
# Several network cards need an elastic address. EFA and several nodes need a placement group.
# It also has a role of its own.
SPEC = ClusterSpec(NAME, 3, "g6e.24xlarge", instance_profile="new")
SHORT = Timeouts(shown_s=0.1)
_sleep = time.sleep

Action = Callable[[Launcher], Any]


def make_ready(
    launcher: Launcher, members: Sequence[Instance], *_: object
) -> tuple[Cluster, tuple[int, ...], bool]:
    """Replaces the wait for ready hosts, since there are none: nodes run, or it is an error."""
    cluster = as_cluster(launcher.clients.ec2, launcher.name, members)
    watch = InstanceWatch(launcher.clients.ec2, launcher.name, members)
    ids = [node.instance_id for node in cluster.nodes]
    settled_at = time.monotonic() + launcher.timeouts.shown_s
    deadline = time.monotonic() + 240
    while True:
        settled = time.monotonic() > settled_at
        shown = [seen.node for seen in map(watch.read, ids) if seen]
        dead = [node.name for node in shown if has_ended(node.state, settled)]
        if dead:
            raise ClusterctlError(f"not ready: {dead}", "")
        nodes = tuple(shown)
        if all(node.state is NodeState.RUNNING for node in nodes) and len(nodes) == len(ids):
            return replace(cluster, nodes=nodes), tuple(node.gpus for node in nodes), True
        assert time.monotonic() < deadline
        time.sleep(0.02)


def shorten_timeouts(put: Callable[[Any, str, Any], None] = setattr) -> None:
    """Shorten all waits, and skip getting hosts ready."""
    from botocore.retries.quota import RetryQuota

    from clusterctl.lab.ec2 import options, placement_groups

    put(time, "sleep", lambda seconds: _sleep(min(seconds, 0.02)))
    put(placement_groups, "PENDING_S", 0.03)
    put(options, "KNOWN_AFTER_S", 0.03)
    # Clients are shared by all cases, but a real command starts with its full quota of retries.
    put(RetryQuota, "acquire", lambda quota, amount: True)
    put(up_module, "make_ready", make_ready)
    put(members, "make_ready", make_ready)


def up(launcher: Launcher, nodes: int = SPEC.nodes) -> None:
    up_module.up(launcher, fixed_request(replace(SPEC, nodes=nodes)))


def down(launcher: Launcher) -> None:
    down_module.down(launcher.clients, launcher.folder, timeouts=launcher.timeouts)


def down_from(clients: Clients, folder: ClusterFolder) -> None:
    """Remove the cluster from a machine with this folder, whoever has launched it."""
    others = down_module.find_removable(clients, folder).others
    down_module.down(clients, folder, agreed=others)


def stop(launcher: Launcher) -> None:
    power.stop(launcher)


def start(launcher: Launcher) -> None:
    power.start(launcher)


def nothing(launcher: Launcher) -> None:
    pass


def up_and_stopped(launcher: Launcher) -> None:
    up(launcher)
    stop(launcher)


def _add(launcher: Launcher) -> None:
    members.add(launcher, 1)


def _remove(*indices: int) -> Action:
    return lambda launcher: members.remove(launcher, indices)


def _replace(*indices: int) -> Action:
    return lambda launcher: members.replace_nodes(launcher, indices)


@dataclass(frozen=True)
class Command:
    """A command. `before` makes the state that it finds. `again` is what its user does after a
    failure. In the end the nodes with `indices` are in `state`. `back` leads to the state of `up`.
    It is None where nodes have been stopped: their later commands also record the earlier cost.
    """

    act: Action
    before: Action = up
    again: Action | None = None
    indices: tuple[int, ...] = (0, 1, 2)
    state: NodeState = NodeState.RUNNING
    back: Action | None = nothing

    @property
    def once_more(self) -> Action:
        return self.again or self.act


COMMANDS = {
    "up": Command(up, before=nothing),
    "down": Command(down, again=up),
    "add": Command(_add, indices=(0, 1, 2, 3), back=_remove(3)),
    "remove": Command(_remove(1), indices=(0, 2), back=_add),
    "replace": Command(_replace(1)),
    "replace-head": Command(_replace(0)),
    "stop": Command(stop, state=NodeState.STOPPED, back=None),
    "start": Command(start, before=up_and_stopped, back=None),
}
