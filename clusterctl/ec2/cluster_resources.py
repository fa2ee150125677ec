"""A cluster's key pairs and placement groups, and the removal of everything a cluster has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import AwsError, ClusterctlError, MissingTool
from clusterctl.domain.timeouts import Clock, Timeouts
from clusterctl.ec2 import tags
from clusterctl.ec2.creations import Creations
from clusterctl.ec2.errors import backoff_delays, throttled, translated
from clusterctl.ec2.instances import Instance, batches, find_instances, launched_with
from clusterctl.ec2.network.vpcs import (
    ElasticAddress,
    SecurityGroup,
    find_addresses,
    find_groups,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class KeyPair:
    """A key pair in EC2. `public_key` is an OpenSSH line, empty where EC2 does not return it."""

    name: str
    public_key: str

    def holds(self, public_key: str) -> bool:
        """Return whether this is the same key. The comments may differ."""
        return self.public_key.split()[:2] == public_key.split()[:2]


def find_key_pairs(client: EC2Client, name: str) -> tuple[KeyPair, ...]:
    """Return the key pairs with the cluster's tag: usually one or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_key_pairs(Filters=[of_cluster], IncludePublicKey=True)["KeyPairs"]
    return tuple(KeyPair(pair["KeyName"], pair.get("PublicKey", "")) for pair in found)


def anothers_key(name: str) -> MissingTool:
    """Return the error for a key pair at EC2 that is not the one of this machine."""
    return MissingTool(
        f"the key of cluster {name} is not on this machine: another one has launched it or "
        "tried to, or its folder here is lost",
        "choose another name; or copy the cluster's folder from that machine; or see what there is "
        f"before you remove it: clusterctl status {name}, then clusterctl down {name}",
    )


@dataclass(frozen=True)
class PlacementGroup:
    """A placement group. `state` is EC2's: `pending`, `available` or `deleting`."""

    name: str
    state: str


def find_placement_groups(client: EC2Client, name: str) -> tuple[PlacementGroup, ...]:
    """Return the placement groups with the cluster's tag: usually one or none. Raises AwsError."""
    with translated():
        of_cluster: Any = tags.of_cluster(name)
        found = client.describe_placement_groups(Filters=[of_cluster])
    return tuple(
        PlacementGroup(group["GroupName"], group.get("State", ""))
        for group in found["PlacementGroups"]
        if group.get("State") != "deleted"
    )


def await_available(client: EC2Client, name: str, timeouts: Timeouts = Timeouts()) -> None:
    """Wait until the cluster's placement group accepts instances.

    Raises AwsError, and ClusterctlError if that takes more than `placement_group_s`.
    """
    clock = timeouts.clock
    deadline = clock.monotonic() + timeouts.placement_group_s
    for gap_s in backoff_delays(0.1):
        states = {group.state for group in find_placement_groups(client, name)}
        if states == {"available"}:
            return
        if clock.monotonic() > deadline:
            raise ClusterctlError(
                f"the placement group of {name} does not become available: "
                f"{', '.join(states) or 'EC2 does not show it'}",
                "run `up` again, or do without: --no-placement-group",
            )
        clock.sleep(gap_s)


@dataclass(frozen=True)
class Made:
    """What a cluster has besides its instances: usually one or none of each kind."""

    key_pairs: tuple[KeyPair, ...] = ()
    groups: tuple[SecurityGroup, ...] = ()
    placement_groups: tuple[PlacementGroup, ...] = ()
    addresses: tuple[ElasticAddress, ...] = ()


def find_made(client: EC2Client, name: str, creations: Creations) -> Made:
    """Return everything with the cluster's tag, waiting for what was started a short time ago.

    Raises AwsError.
    """
    return Made(
        creations.find("import_key_pair", lambda: find_key_pairs(client, name)),
        creations.find("create_security_group", lambda: find_groups(client, name)),
        creations.find("create_placement_group", lambda: find_placement_groups(client, name)),
        creations.find("allocate_address", lambda: find_addresses(client, name)),
    )


@dataclass(frozen=True)
class Deletion:
    """The API call that deletes one kind of resource.

    `operation` is boto3's method and `argument` its parameter: the resource's id, or its name with
    `by_name`. `gone` are the error codes that mean that it does not exist, `in_use` those that
    mean that something still uses it.
    """

    operation: str
    argument: str
    gone: tuple[str, ...]
    in_use: tuple[str, ...] = ()
    by_name: bool = False


DELETE_PLACEMENT_GROUP = Deletion(
    "delete_placement_group",
    "GroupName",
    ("InvalidPlacementGroup.Unknown",),
    ("InvalidPlacementGroup.InUse",),
    by_name=True,
)
DELETE_SECURITY_GROUP = Deletion(
    "delete_security_group",
    "GroupId",
    ("InvalidGroup.NotFound", "InvalidGroupId.NotFound"),
    ("DependencyViolation", "InvalidGroup.InUse"),
)


def delete(
    client: Any,
    deletion: Deletion,
    value: str,
    deadline: float,
    on_wait: Callable[[AwsError, float], object] = lambda error, left_s: None,
    clock: Clock = Clock(),
) -> None:
    """Delete the resource with this id or name, unless it is gone already.

    Tries again until `deadline` (by `clock.monotonic`) while something still uses it, as EC2
    reports for a while after an instance is gone, and while EC2 is throttling. `on_wait` receives
    the error before each retry, and the seconds left. Raises AwsError.
    """
    for gap_s in backoff_delays(0.5):
        try:
            with translated():
                getattr(client, deletion.operation)(**{deletion.argument: value})
            return
        except AwsError as error:
            if error.code in deletion.gone:
                return
            left_s = deadline - clock.monotonic()
            if left_s < 0 or not (error.code in deletion.in_use or throttled(error)):
                raise
            on_wait(error, left_s)
        clock.sleep(gap_s)


def delete_placement_groups(
    client: EC2Client,
    found: Iterable[PlacementGroup],
    timeout_s: float,
    clock: Clock = Clock(),
    on_wait: Callable[[], object] = lambda: None,
) -> tuple[str, ...]:
    """Delete these placement groups and return the names of those that were not being deleted.

    Waits up to `timeout_s` while terminated instances are still in a group, and calls `on_wait`
    before each further try. Raises AwsError.
    """
    deadline = clock.monotonic() + timeout_s
    groups = [group for group in found if group.state != "deleting"]
    for group in groups:
        again = (deadline, lambda error, left_s: on_wait())
        delete(client, DELETE_PLACEMENT_GROUP, group.name, *again, clock=clock)
    return tuple(group.name for group in groups)


NOT_TERMINATED = ("pending", "running", "stopping", "stopped", "shutting-down")
# Instances per TerminateInstances call.
BATCH = 100


class StillShuttingDown(ClusterctlError):
    """Instances that are being terminated have not ended in time. They will."""


def terminate(
    client: EC2Client,
    name: str,
    timeout_s: float,
    ids: Collection[str] | None = None,
    on_poll: Callable[[Sequence[Instance]], None] = lambda left: None,
    clock: Clock = Clock(),
    until_gone: bool = True,
    known: Sequence[Instance] = (),
    is_own: Callable[[Instance], bool] = lambda one: True,
) -> tuple[str, ...]:
    """Terminate a cluster's instances, wait until they are gone, and return the nodes' names.

    These are the instances with `ids`. None means all that `is_own` accepts: each poll finds them
    by tag, so it also terminates those of a launch still under way. `known` are some of
    these all that an earlier answer has shown: the next one may not. `on_poll` receives the
    remaining instances of each poll. Without `until_gone` it waits only until they shut down: they
    cost nothing any more, but still take room in their reservation, placement group and subnet.
    Raises AwsError, and after `timeout_s` ClusterctlError: StillShuttingDown if all shut down.
    """
    deadline = clock.monotonic() + timeout_s
    is_chosen = is_own if ids is None else lambda one: one.node.instance_id in ids
    nodes = dict.fromkeys(one.node.name for one in known)
    # Whatever EC2 shows of them: it may show an instance, or its tags, late.
    _terminate(client, [one.node.instance_id for one in known] if ids is None else tuple(ids))
    for gap_s in backoff_delays():
        found = find_instances(client, name, NOT_TERMINATED)
        left = [one for one in found if is_chosen(one)]
        on_poll(left)
        nodes.update(dict.fromkeys(one.node.name for one in left))
        if until_gone and not left:
            return tuple(nodes)
        # Repeat the request until they shut down: EC2 may accept one for an instance that is still
        # pending and not carry it out.
        awake = [one for one in left if one.node.state is not NodeState.SHUTTING_DOWN]
        if not until_gone and not awake:
            return tuple(nodes)
        _terminate(client, [one.node.instance_id for one in awake])
        if clock.monotonic() > deadline:
            hint = f"see `clusterctl status {name}`"
            if ids is None:
                hint = f"run it again later: clusterctl down {name}"
            kind = ClusterctlError if awake else StillShuttingDown
            raise kind(
                f"still {'running' if awake else 'shutting down'}: "
                f"{', '.join(one.node.name for one in left)}",
                f"their termination is requested; {hint}",
            )
        clock.sleep(gap_s)
    raise AssertionError("unreachable")


def _terminate(client: EC2Client, ids: Sequence[str]) -> None:
    """Call TerminateInstances, leaving out ids that EC2 does not know. Raises AwsError."""
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
                    _terminate(client, [one])


def delete_groups(
    client: EC2Client,
    groups: Sequence[SecurityGroup],
    timeout_s: float,
    clock: Clock = Clock(),
    on_wait: Callable[[], object] = lambda: None,
) -> tuple[str, ...]:
    """Delete these security groups and return their ids.

    Waits up to `timeout_s` while something still uses a group, and calls `on_wait` before each
    further try. Raises AwsError.
    """
    deadline = clock.monotonic() + timeout_s
    for group in groups:
        again = (deadline, lambda error, left_s: on_wait())
        delete(client, DELETE_SECURITY_GROUP, group.group_id, *again, clock=clock)
    return tuple(group.group_id for group in groups)


def delete_key_pairs(client: EC2Client, names: Sequence[str]) -> None:
    """Delete the key pairs with these names. Raises AwsError."""
    for name in names:
        with translated():
            client.delete_key_pair(KeyName=name)


def await_launches(
    client: EC2Client, tokens: Sequence[str], until: float, clock: Clock = Clock()
) -> tuple[Instance, ...]:
    """Wait until each of these client tokens has made instances, or until `until` (Unix time).

    For launches of unknown outcome. Returns the instances that EC2 has shown. Raises AwsError.
    """
    for gap_s in backoff_delays():
        made = launched_with(client, tokens)
        if clock.time() >= until or {one.launch_token for one in made} >= set(tokens):
            return made
        clock.sleep(gap_s)
    raise AssertionError("unreachable")
