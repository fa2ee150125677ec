"""Waiting for what a cluster has on AWS, and the termination of its instances."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, MissingTool
from clusterctl.domain.timeouts import Clock, Polling, Timeouts
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import Instance, batches, find_instances, launched_with
from clusterctl.ec2.resources import NOT_TERMINATED, ResourceKind, find_resources

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


def anothers_key(name: str) -> MissingTool:
    """Return the error for a key pair at EC2 that is not the one of this machine."""
    return MissingTool(
        f"the key of cluster {name} is not on this machine: another one has launched it or "
        "tried to, or its folder here is lost",
        "choose another name; or copy the cluster's folder from that machine; or see what there is "
        f"before you remove it: clusterctl status {name}, then clusterctl down {name}",
    )


def await_available(client: EC2Client, name: str, timeouts: Timeouts = Timeouts()) -> None:
    """Wait until the cluster's placement group accepts instances.

    Raises AwsError, and ClusterctlError if that takes more than `placement_group_s`.
    """
    kind = ResourceKind.PLACEMENT_GROUP
    polling = Polling(timeouts.clock, timeouts.placement_group_s, 0.1)
    while True:
        states = {group.state for group in find_resources(client, name, kind)}
        if states == {"available"}:
            return
        if polling.left_s < 0:
            raise ClusterctlError(
                f"the placement group of {name} does not become available: "
                f"{', '.join(states) or 'EC2 does not show it'}",
                "run `up` again, or do without: --no-placement-group",
            )
        polling.wait()


# Instances per TerminateInstances call.
BATCH = 100


class StillShuttingDown(ClusterctlError):
    """Instances that are being terminated have not ended in time. They will."""


def terminate(
    client: EC2Client,
    name: str,
    chosen: Collection[str] | Callable[[Instance], bool],
    polling: Polling,
    on_poll: Callable[[Sequence[Instance]], None] = lambda left: None,
    until_gone: bool = True,
) -> tuple[str, ...]:
    """Terminate a cluster's instances, wait until they are gone, and return the nodes' names.

    `chosen` are their ids, or a function that accepts them: each poll finds these by tag, so it
    also terminates those of a launch still under way. `on_poll` receives the remaining instances of
    each poll. Without `until_gone` it waits only until they shut down: they cost nothing any more,
    but still take room in their reservation, placement group and subnet. Raises AwsError, and once
    the time of `polling` is up ClusterctlError: StillShuttingDown if all shut down.
    """
    by_tag = chosen if callable(chosen) else None
    ids = () if callable(chosen) else chosen
    nodes: dict[str, None] = {}
    # Whatever EC2 shows of them: it may show an instance, or its tags, late.
    request_termination(client, tuple(ids))
    while True:
        found = find_instances(client, name, NOT_TERMINATED)
        left = [one for one in found if (by_tag(one) if by_tag else one.node.instance_id in ids)]
        on_poll(left)
        nodes.update(dict.fromkeys(one.node.name for one in left))
        if until_gone and not left:
            return tuple(nodes)
        # Repeat the request until they shut down: EC2 may accept one for an instance that is still
        # pending and not carry it out.
        awake = [one for one in left if one.node.state is not NodeState.SHUTTING_DOWN]
        if not until_gone and not awake:
            return tuple(nodes)
        request_termination(client, [one.node.instance_id for one in awake])
        if polling.left_s < 0:
            hint = f"see `clusterctl status {name}`"
            if by_tag:
                hint = f"run it again later: clusterctl down {name}"
            kind = ClusterctlError if awake else StillShuttingDown
            raise kind(
                f"still {'running' if awake else 'shutting down'}: "
                f"{', '.join(one.node.name for one in left)}",
                f"their termination is requested; {hint}",
            )
        polling.wait()


def request_termination(client: EC2Client, ids: Sequence[str]) -> None:
    """Call TerminateInstances, leaving out ids that EC2 does not know. Raises AwsError if EC2
    refuses one of them: then none of its batch ends."""
    for batch in batches(ids, BATCH):
        try:
            with translated():
                client.terminate_instances(InstanceIds=batch)
        except AwsError as error:
            # One id that EC2 does not know, because it is too new or too old, fails the call for
            # all. So each is sent separately.
            if error.code != "InvalidInstanceID.NotFound":
                raise
            if len(batch) > 1:
                for one in batch:
                    request_termination(client, [one])


def terminate_each(client: EC2Client, ids: Sequence[str]) -> dict[str, AwsError]:
    """Terminate all that EC2 lets end, and return the error of each instance that it refuses.

    One instance that is protected, or that the caller has no right to, fails the call for all.
    """
    refused: dict[str, AwsError] = {}
    for batch in batches(ids, BATCH):
        try:
            request_termination(client, batch)
        except AwsError as error:
            if len(batch) == 1:
                refused[batch[0]] = error
            for one in batch if len(batch) > 1 else ():
                refused |= terminate_each(client, [one])
    return refused


def await_launches(
    client: EC2Client, tokens: Sequence[str], until: float, clock: Clock
) -> tuple[Instance, ...]:
    """Wait until each of these client tokens has made instances, or until `until` (Unix time).

    For launches of unknown outcome. Returns the instances that EC2 has shown. Raises AwsError.
    """
    polling = Polling(clock, until - clock.time())
    while True:
        made = launched_with(client, tokens)
        if polling.left_s <= 0 or {one.launch_token for one in made} >= set(tokens):
            return made
        polling.wait()
