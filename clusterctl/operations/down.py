"""`down`: remove everything of a cluster, so that nothing runs and nothing is billed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from clusterctl.domain.errors import ClusterctlError, NoSuchCluster
from clusterctl.domain.files import ClusterFolder
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.domain.units import count
from clusterctl.ec2.health import GONE
from clusterctl.ec2.instances import (
    Instance,
    billing_reservations,
    find_instances,
    find_untagged,
    missing_of,
)
from clusterctl.ec2.node_role import delete_node_role, role_name
from clusterctl.ec2.resources import (
    NOT_TERMINATED,
    KeyPair,
    ResourceKind,
    await_launches,
    delete_all,
    details_of,
    find_key_pairs,
    find_made,
    request_termination,
    terminate,
)
from clusterctl.ec2.tags import CLUSTER, Creations
from clusterctl.operations.costs import record_lost_cost, record_removal_cost
from clusterctl.operations.ended import launched_here
from clusterctl.operations.launcher import StepProgress
from clusterctl.operations.local_state import delete_folder, locked, record_removed, sent_launches
from clusterctl.operations.site import NotLaunchedHere, Ownership, check_site, ownership, site_of

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

    from clusterctl.ec2.session import Clients


@dataclass(frozen=True)
class RemovedCluster:
    """What `down` removed.

    `nodes` are node names, `addresses` elastic addresses, `security_groups` ids,
    `placement_groups`, `key_pairs` and `roles` names. `folder` is true for the local folder.
    `reservations` are the ids of the Capacity Reservations that the nodes were in, which go on
    billing.
    """

    nodes: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    placement_groups: tuple[str, ...] = ()
    key_pairs: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    folder: bool = False
    reservations: tuple[str, ...] = ()

    @property
    def nothing(self) -> bool:
        """Whether there was nothing, not even the local folder."""
        return self == RemovedCluster()


@dataclass(frozen=True)
class Removable:
    """What EC2 has of a cluster: its instances, and what was not made from this machine.

    `others` are instances among them and other resources, each as `Ownership.others` names it.
    """

    instances: tuple[Instance, ...]
    others: tuple[str, ...]


def find_removable(
    clients: Clients, folder: ClusterFolder, timeouts: Timeouts = Timeouts()
) -> Removable:
    """Return what `down` would remove, with the name of each resource that it keeps.

    Raises AwsError, and UsageError if the folder's cluster is in another account.
    """
    instances = _find_nodes(clients, folder)
    creations = Creations(folder.creations, timeouts)
    made = find_made(clients.ec2, folder.name, creations)
    own = ownership(folder, creations, details_of(made, KeyPair))
    return Removable(instances, own.others(instances, made))


def _find_nodes(clients: Clients, folder: ClusterFolder) -> tuple[Instance, ...]:
    instances = find_instances(clients.ec2, folder.name, NOT_TERMINATED)
    check_site(folder, clients, instances)
    return instances


def down(
    clients: Clients,
    folder: ClusterFolder,
    progress: StepProgress | None = None,
    timeouts: Timeouts = Timeouts(),
    agreed: Collection[str] = (),
) -> RemovedCluster:
    """Remove everything that carries the cluster's tag, then its folder. Return what was removed.

    Works after an `up` that was interrupted at any point. What was not made from this machine, as
    far as its folder shows, is removed only if it is among `agreed` (see `Removable.others`). Else
    only the own nodes are terminated, and NotLaunchedHere is raised. If the cluster was launched
    from this folder and EC2 has nothing of it, the folder is kept and NoSuchCluster is raised.
    Raises AwsError, UsageError for another account, ClusterctlError at a deadline.
    """
    progress = progress or StepProgress()
    removal = _Removal(clients, folder, progress, timeouts, agreed)
    if not folder.path.exists():
        return removal.run(())
    with locked(folder):
        # Existing nodes carry the account number, so `down` works even where STS is unreachable.
        there = _find_nodes(clients, folder)
        made = wait_for_unfinished_launches(clients.ec2, folder, progress.step, timeouts)
        by_id = {one.node.instance_id: one for one in (*made, *there)}
        known = [one for one in by_id.values() if one.node.state.value in NOT_TERMINATED]
        # Nodes that ended by themselves: EC2 forgets them within the hour, too.
        ended = (folder.home, clients, folder.name, missing_of(known), known)
        record_lost_cost(*ended, progress.step)
        removed = removal.run(known)
        if (
            removed.nothing
            and folder.launched
            and not launched_here(folder, find_instances(clients.ec2, folder.name, GONE))
        ):
            # Nodes may still run in another region or account, and only the key in this folder
            # can log in to them.
            raise NoSuchCluster(
                f"there is nothing of cluster {folder.name} in {site_of(clients)}, though it was "
                f"launched from {folder.path}; that folder, with its key, is kept",
                "check with `clusterctl gc --all-regions` and with the account's other profiles; "
                f"if the cluster is gone for good, delete the folder: rm -r {folder.path}",
            )
        delete_folder(folder)
    return replace(removed, folder=True)


def wait_for_unfinished_launches(
    client: EC2Client, folder: ClusterFolder, notify: Callable[[str], None], timeouts: Timeouts
) -> tuple[Instance, ...]:
    """Wait for launches of unknown outcome, until EC2 shows their instances or is overdue.

    `notify` receives a line of progress if there is something to wait for. Returns the instances
    that EC2 has shown. Raises AwsError.
    """
    sent = sent_launches(folder)
    until = max((launch.sent_at + timeouts.shown_s for launch in sent), default=0.0)
    if until > timeouts.clock.time():
        notify(f"waiting for what launches of {folder.name} have made to show")
    return await_launches(client, [launch.token for launch in sent], until, timeouts.clock)


@dataclass
class _Removal:
    """A removal under way: what it needs, and what it has removed so far.

    `profiles` are the instance profiles of the nodes, `reservations` as in RemovedCluster.
    """

    clients: Clients
    folder: ClusterFolder
    progress: StepProgress
    timeouts: Timeouts
    agreed: Collection[str]
    nodes: dict[str, None] = field(default_factory=dict)
    profiles: set[str] = field(default_factory=set)
    reservations: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._client, self._name = self.clients.ec2, self.folder.name
        self._creations = Creations(self.folder.creations, self.timeouts, self.progress.step)
        self._nodes_left: int | None = None

    def run(self, known: Sequence[Instance]) -> RemovedCluster:
        """Remove what EC2 shows of the cluster, and the instances that it has shown: `known`.

        Raises NotLaunchedHere if something is left that is neither this machine's nor `agreed`.
        """
        client, name, timeouts = self._client, self._name, self.timeouts
        key_pairs = self._creations.find("import_key_pair", lambda: find_key_pairs(client, name))
        own = ownership(self.folder, self._creations, key_pairs, self.agreed)
        known = [one for one in known if own.has(one)]
        if known:
            self._listed(known)
        self._end(own, known)
        self.progress.step(f"removing what was made for {name}, once nothing uses it any more")
        made = find_made(client, name, self._creations)
        there = find_instances(client, name, NOT_TERMINATED)
        pairs = details_of(made, KeyPair)
        left = ownership(self.folder, self._creations, pairs, self.agreed).others(there, made)
        if left:
            raise NotLaunchedHere(name, left)
        has_own_role = role_name(name, client.meta.region_name) in self.profiles
        # An instance that EC2 did not show before may be what still uses a group.
        timeout = (timeouts.group_free_s, timeouts.clock, lambda: self._end(own))
        shown = (timeouts.shown_s, timeouts.clock)
        addresses = delete_all(client, made, ResourceKind.ADDRESS, *shown)
        self._check_untagged(own)
        groups = delete_all(client, made, ResourceKind.SECURITY_GROUP, *timeout)
        placements = delete_all(client, made, ResourceKind.PLACEMENT_GROUP, *timeout)
        # After all that costs money, since others may have added to it what keeps it.
        roles: tuple[str, ...] = ()
        # A role with nothing else may be that of an `up` of another machine, which has just begun.
        may_be_new = any(map(self._creations.began, ("create_role", "create_instance_profile")))
        if self.nodes or may_be_new or made or has_own_role:
            roles = delete_node_role(self.clients, name, self._creations, has_own_role, timeouts)
        removed = RemovedCluster(
            addresses=tuple(one.name for one in addresses),
            security_groups=tuple(one.id for one in groups),
            placement_groups=tuple(one.name for one in placements),
            key_pairs=tuple(pair.name for pair in pairs),
            roles=roles,
            nodes=tuple(self.nodes),
            reservations=tuple(sorted(self.reservations)),
        )
        if not removed.nothing:
            # The key pair is deleted last. A `down` that was interrupted earlier finds it when it
            # is run again, and so still deletes the folder.
            record_removed(self.folder)
        delete_all(client, made, ResourceKind.KEY_PAIR, *shown)
        if not removed.nothing:
            # The record is gone by now, so the polls that follow wait for nothing.
            _wait_until_gone(client, name, self._creations)
        return removed

    def _end(self, own: Ownership, known: Sequence[Instance] = ()) -> None:
        """Terminate the own nodes, and those that are known, and wait until they are gone."""
        request_termination(self._client, [one.node.instance_id for one in known])
        polling = Polling(self.timeouts.clock, self.timeouts.terminated_s)
        ended = terminate(self._client, self._name, own.has, polling, on_poll=self._listed)
        self.nodes.update(dict.fromkeys([*(one.node.name for one in known), *ended]))

    def _check_untagged(self, own: Ownership) -> None:
        """Raise ClusterctlError if a machine with the cluster's key, but without its tag, runs on.

        EC2 may show a tag late: then it is terminated as soon as EC2 shows it.
        """
        client, name = self._client, self._name
        polling = Polling(self.timeouts.clock, self.timeouts.shown_s)
        while untagged := find_untagged(client, name):
            if polling.left_s < 0:
                ids = [one.node.instance_id for one in untagged]
                raise ClusterctlError(
                    f"{', '.join(ids)}: launched with the key of {name}, but without its tag "
                    f"{CLUSTER}; not terminated, and billed until that is done",
                    "see whose it is; to terminate it: aws ec2 terminate-instances "
                    f"--instance-ids {' '.join(ids)}; then run it again: clusterctl down {name}",
                )
            polling.wait()
            self._end(own)

    def _listed(self, left: Sequence[Instance]) -> None:
        self.reservations.update(billing_reservations(left))
        self.profiles.update(one.instance_profile for one in left)
        notify = self.progress.step
        # Costs are noted before the first termination: EC2 forgets an instance within the hour.
        if self._nodes_left is None:
            record_removal_cost(self.folder.home, self.clients, self._name, left, notify)
        names = {one.node.name for one in left}
        if names and self._nodes_left != len(names):
            self._nodes_left = len(names)
            notify(f"terminating {self._name}: {count(len(names), 'node')} left")


def _wait_until_gone(client: EC2Client, name: str, creations: Creations) -> None:
    """Wait until EC2 shows nothing of the cluster any more, for `shown_s` at most.

    The next `up` would build on an address or a group that is gone. Raises AwsError.
    """
    polling = Polling(creations.timeouts.clock, creations.timeouts.shown_s)
    while find_made(client, name, creations) and polling.left_s >= 0:
        polling.wait()
