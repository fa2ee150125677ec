"""`down`: nothing left running, nothing left billed."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from clusterctl.domain.errors import NoSuchCluster
from clusterctl.domain.units import count
from clusterctl.ec2.cluster_resources import (
    NOT_TERMINATED,
    await_launches,
    delete_groups,
    delete_key_pairs,
    delete_placement_groups,
    find_key_pairs,
    find_placement_groups,
    terminate_all,
)
from clusterctl.ec2.instances import Instance, find_instances
from clusterctl.ec2.network.vpcs import find_addresses, find_groups, release_addresses
from clusterctl.operations.costs import note_end
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.launcher import StepProgress
from clusterctl.operations.local_state import (
    check_site,
    forget,
    locked,
    note_end_seen,
    sent_launches,
    site_of,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients

TERMINATED_WITHIN_S = 900.0
GROUP_FREE_WITHIN_S = 300.0
# How long EC2 may take to show the instances of a launch whose answer nobody saw.
LAUNCH_SHOWS_WITHIN_S = 20.0


@dataclass(frozen=True)
class Leftovers:
    """What there is of a cluster: node names, addresses, groups, key pairs, the local folder."""

    nodes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()
    key_pairs: tuple[str, ...] = ()
    folder: bool = False

    @property
    def nothing(self) -> bool:
        return self == Leftovers()


def leftovers(clients: Clients, name: str, folder: ClusterFolder) -> Leftovers:
    """What `down` would remove. Raises AwsError, UsageError."""
    client = clients.ec2
    instances = find_instances(client, name, NOT_TERMINATED)
    check_site(folder, clients, instances)
    return Leftovers(
        nodes=tuple(found.node.name for found in instances),
        addresses=tuple(found.public_ip for found in find_addresses(client, name)),
        groups=tuple(group.group_id for group in find_groups(client, name)),
        placement_groups=tuple(group.name for group in find_placement_groups(client, name)),
        key_pairs=tuple(pair.name for pair in find_key_pairs(client, name)),
        folder=folder.path.exists(),
    )


def down(
    clients: Clients, name: str, folder: ClusterFolder, progress: StepProgress | None = None
) -> Leftovers:
    """Remove everything that carries the cluster's tag, then its folder; what that was.

    Works without the folder, and after an `up` cut off anywhere. The folder of a cluster that was
    launched and of which nothing is found stays: NoSuchCluster then. Raises AwsError, UsageError,
    ClusterctlError.
    """
    if not folder.path.exists():
        return _remove(clients, name, folder, progress or StepProgress())
    with locked(folder):
        # Nodes that are there say whose they are: they end also where STS cannot be reached.
        check_site(folder, clients, find_instances(clients.ec2, name, NOT_TERMINATED))
        await_sent(clients.ec2, folder, (progress or StepProgress()).step)
        removed = _remove(clients, name, folder, progress or StepProgress())
        if removed.nothing and folder.launched:
            # The key is the only way into nodes that may still run where nobody has looked.
            raise NoSuchCluster(
                f"there is nothing of cluster {name} in {site_of(clients)}, though it was "
                f"launched from {folder.path}; that folder, with its key, is kept",
                "look with `clusterctl gc --all-regions` and with the account's other profiles; "
                f"if the cluster is gone for good, delete the folder: rm -r {folder.path}",
            )
        forget(folder)
    return replace(removed, folder=True)


def await_sent(client: EC2Client, folder: ClusterFolder, tell: Callable[[str], None]) -> None:
    """Wait until the launches of unknown outcome show what they made, or will show nothing."""
    sent = sent_launches(folder)
    until = max((launch.sent_at + LAUNCH_SHOWS_WITHIN_S for launch in sent), default=0.0)
    if until > time.time():
        tell(f"waiting for what launches of {folder.path.name} have made to show")
    await_launches(client, [launch.token for launch in sent], until)


def launches_under_way(folder: ClusterFolder) -> int:
    """How many requests were sent whose answer nobody has seen."""
    return len(sent_launches(folder))


def _remove(
    clients: Clients, name: str, folder: ClusterFolder, progress: StepProgress
) -> Leftovers:
    client = clients.ec2
    told: list[int] = []

    def looked(left: Sequence[Instance]) -> None:
        if not told:
            note_end(folder.path.parent, clients, name, left)
        if left and told[-1:] != [len(left)]:
            told.append(len(left))
            progress.step(f"terminating {name}: {count(len(left), 'node')} left")

    nodes = terminate_all(client, name, TERMINATED_WITHIN_S, looked)
    progress.step(f"removing what was made for {name}, once nothing uses it any more")
    removed = Leftovers(
        nodes=nodes,
        addresses=release_addresses(client, name),
        groups=delete_groups(client, name, GROUP_FREE_WITHIN_S),
        placement_groups=delete_placement_groups(client, name, GROUP_FREE_WITHIN_S),
        key_pairs=tuple(pair.name for pair in find_key_pairs(client, name)),
    )
    if not removed.nothing:
        # The key pair goes last: cut off before here, `down` finds it when it is run again.
        note_end_seen(folder)
    delete_key_pairs(client, removed.key_pairs)
    return removed
