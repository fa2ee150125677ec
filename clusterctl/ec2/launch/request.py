"""The requests to EC2 as values: steps, network interfaces, root volumes, RunInstances."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from clusterctl.domain.cluster import ClusterSpec, Disk, Market
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.launch.capacity import Place
from clusterctl.ec2.machines import Image, MachineType
from clusterctl.ec2.tags import format_limits


@dataclass(frozen=True)
class ResultOf:
    """A placeholder for an argument that an earlier step provides. `key` is a key of its
    response."""

    key: str

    def __str__(self) -> str:
        return f"<{self.key} of an earlier step>"

    as_record = __str__


@dataclass(frozen=True)
class Step:
    """One call to EC2 or IAM. `operation` is boto3's method, `summary` a line for the user.

    `gives` are the keys of the answer that later steps need. `done_if` are error codes which mean
    that the step was done before. `hourly_usd` is what its result costs an hour; None where that is
    nothing or unknown. `service` is `ec2` or `iam`.
    """

    operation: str
    arguments: Mapping[str, Any]
    summary: str
    gives: tuple[str, ...] = ()
    done_if: tuple[str, ...] = ()
    hourly_usd: Optional[float] = None
    service: str = "ec2"
    json_names = ("operation", "arguments", "summary", "hourly_usd")

    def describe(self) -> str:
        """Return a line such as `RunInstances: 4 x p3.16xlarge ...`."""
        return f"{operation_name(self.operation)}: {self.summary}"

    def resolved(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with the results of earlier steps in place of each ResultOf."""
        filled: dict[str, Any] = _fill(self.arguments, results)
        return filled


def operation_name(method: str) -> str:
    """Return the name of the API operation: `RunInstances` for `run_instances`."""
    return "".join(word.capitalize() for word in method.split("_"))


def _fill(value: Any, results: Mapping[str, Any]) -> Any:
    if isinstance(value, ResultOf):
        return results[value.key]
    if isinstance(value, Mapping):
        return {key: _fill(part, results) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(part, results) for part in value]
    return value


def efa_wanted(machine: MachineType, nodes: int, requested: bool | None) -> bool:
    """Return whether nodes get EFAs. `requested` is the user's choice; None means the default.

    By default only clusters of several nodes get them, because EFA carries traffic between nodes.
    """
    if requested is None:
        return machine.efa_interfaces > 0 and nodes > 1
    return requested and machine.efa_interfaces > 0


def efa_cards(machine: MachineType) -> tuple[int, ...]:
    """Return the indices of the network cards that get an EFA.

    Where EC2 does not list them and there is one EFA fewer than cards, card 0 has none (p6-b300).
    """
    cards = machine.efa_cards or tuple(range(machine.network_cards))
    if not machine.efa_cards and machine.efa_interfaces == machine.network_cards - 1:
        cards = cards[1:]
    return cards[: machine.efa_interfaces]


# Types whose security groups forget a TCP connection that is idle for 350 seconds, and then drop
# its packets: those of Nitro v6 but P6e (EC2 user guide, "Security group connection tracking").
# Between nodes every connection is tracked. Others forget it after TRACKED_S, the most there is.
FORGETS_SOON = re.compile(r"p6-")
TRACKED_S = 432000


def network_interfaces(
    machine: MachineType, efa: bool, subnet_id: str | None, group_id: Any, public: bool
) -> list[dict[str, Any]]:
    """Return the NetworkInterfaces of a RunInstances request.

    With several network cards there is an ordinary primary interface, and on every card an EFA-only
    one, which takes no IP address (EC2 user guide, "Maximize network bandwidth on EC2 instances
    with multiple network cards", efa-acc-inst-types). `public` counts for a single interface only:
    with several EC2 refuses AssociatePublicIpAddress, even if it is False.
    """
    common: dict[str, Any] = {"Groups": [group_id], "DeleteOnTermination": True}
    if subnet_id:
        common["SubnetId"] = subnet_id
    cards = efa_cards(machine) if efa else ()
    primary = {"DeviceIndex": 0, **common}
    if FORGETS_SOON.match(machine.name):
        primary["ConnectionTrackingSpecification"] = {"TcpEstablishedTimeout": TRACKED_S}
    if len(cards) > 1 or (cards and 0 not in cards):
        # Whether card 0 takes an EFA-only interface besides the primary one.
        takes_two = not machine.card_interfaces or machine.card_interfaces[0] > 1
        more = [card for card in cards if card or takes_two]
        if 0 in cards and 0 not in more:
            primary["InterfaceType"] = "efa"
        return [{**primary, "NetworkCardIndex": 0}, *(_efa_only(card, common) for card in more)]
    if cards:
        primary["InterfaceType"] = "efa"
    return [{**primary, "AssociatePublicIpAddress": public}]


def several(machine: MachineType, efa: bool) -> bool:
    """Return whether nodes have several network interfaces. EC2 gives these no public address."""
    return len(network_interfaces(machine, efa, None, "", public=False)) > 1


def lacks_public_address(spec: ClusterSpec, machine: MachineType) -> bool:
    """Return whether EC2 gives nodes no public address.

    Then the head node gets an elastic one, and the other nodes are reached through it.
    """
    return spec.private or several(machine, efa_wanted(machine, spec.nodes, spec.efa))


def interfaces_needed(machine: MachineType, nodes: int, spec: ClusterSpec) -> int:
    """Return how many network interfaces `nodes` more nodes of the cluster take."""
    efa = efa_wanted(machine, spec.nodes, spec.efa)
    return nodes * len(network_interfaces(machine, efa, None, "", public=False))


def _efa_only(card: int, common: dict[str, Any]) -> dict[str, Any]:
    # Device indices count within a card. Device 0 of card 0 is the primary interface.
    return {
        "DeviceIndex": 0 if card else 1,
        "NetworkCardIndex": card,
        "InterfaceType": "efa-only",
        **common,
    }


# The default size of a root volume, unless the image's is larger.
LEAST_GIB = 150
# GPUs from which on a machine counts as large.
LARGE_GPUS = 4
# Large machines read data and write checkpoints faster than the performance included in gp3's price
# allows (3,000 IOPS, 125 MiB/s). They get more by default.
LARGE_IOPS, LARGE_MIB_S = 6000, 500


# A new root volume loads each block from the image's snapshot when it is first read, at a rate that
# EC2 does not guarantee. The first `import tensorflow` takes minutes. These are the slowest and the
# fastest rate in MiB/s at which EC2 fills a volume for money (VolumeInitializationRate).
LOAD_MIB_S = range(100, 300 + 1)
# The volumes that are filled at the same time in a region may have this rate together (EBS user
# guide, "Initialize Amazon EBS volumes"). By default a launch leaves a tenth for others.
LOAD_REGION_MIB_S, LOAD_LAUNCH_MIB_S = 5000, 4500


def load_mib_s(
    machine: MachineType, image_gib: int, nodes: int, requested: int | None
) -> int | None:
    """Return the rate in MiB/s at which EC2 fills each root volume of a cluster from its image.

    None where that is not worth its price, and where there are too many nodes for the region's
    limit. 100 GiB cost $0.36, as much as one minute of a p4d.24xlarge.
    """
    if requested is not None or not image_gib:
        return (requested or None) if image_gib else None
    rate = min(LOAD_MIB_S[-1], LOAD_LAUNCH_MIB_S // nodes)
    return rate if machine.gpus >= LARGE_GPUS and rate in LOAD_MIB_S else None


def root_disk(requested: Disk, machine: MachineType, image_gib: int) -> Disk:
    """Return the root volume: what was requested, with defaults for the rest.

    `image_gib` is the size of the image's snapshot, 0 if unknown. In the result, IOPS and
    throughput of None mean the performance included in gp3's price.
    """
    large = machine.gpus >= LARGE_GPUS
    return Disk(
        requested.size_gib or max(image_gib, LEAST_GIB),
        requested.iops or (LARGE_IOPS if large else None),
        requested.throughput_mib_s or (LARGE_MIB_S if large else None),
        requested.kms_key,
    )


# The login user where neither the user nor the image names one.
DEFAULT_USER = "ubuntu"


@dataclass(frozen=True)
class Launch:
    """A launch of some nodes at a place: everything in the request except its token.

    `indices` are those of the nodes, `wanted` those of the whole cluster. EC2 launches at least
    `least` nodes or none. `group_id` is the security group's id, or a ResultOf. Without `fills` the
    request leaves out filling the volumes: EC2 has refused that.
    """

    spec: ClusterSpec
    place: Place
    machine: MachineType
    image: Image
    indices: tuple[int, ...]
    least: int
    wanted: tuple[int, ...]
    group_id: Any
    placement_group: bool
    fills: bool = True

    @property
    def load_mib_s(self) -> int | None:
        """The rate at which EC2 fills each root volume; None for no rate.

        It depends on the whole cluster, so that a request can be sent again when some of the nodes
        exist. EBS takes no rate in a Local Zone.
        """
        if not self.fills or self.place.in_local_zone:
            return None
        gib, requested = self.image.root_gib, self.spec.disk.load_mib_s
        return load_mib_s(self.machine, gib, len(self.wanted), requested)

    @property
    def efa(self) -> bool:
        return efa_wanted(self.machine, self.spec.nodes, self.spec.efa)

    @property
    def without_address(self) -> bool:
        return lacks_public_address(self.spec, self.machine)

    @property
    def disk(self) -> Disk:
        """The root volume: what was requested, with defaults by image and instance type."""
        return root_disk(self.spec.disk, self.machine, self.image.root_gib)


def run_step(launch: Launch, token: str, hourly_usd: float | None = None) -> Step:
    """Return the RunInstances step of a launch, with `token` as its ClientToken."""
    machine, name = launch.machine, launch.spec.name
    gpus = f" with {count(machine.gpus, 'GPU')} each" if machine.gpus else " without GPUs"
    nodes = f"node {name}-{launch.indices[0]}"
    if len(launch.indices) > 1:
        nodes = f"nodes {name}-[{format_indices(launch.indices)}]"
    market = "" if launch.spec.market is Market.ON_DEMAND else f", {launch.spec.market.value}"
    summary = (
        f"{len(launch.indices)} x {machine.name}{gpus}, {nodes}, image {launch.image.image_id}, "
        f"{launch.place.zone}{market}"
    )
    return Step(
        "run_instances",
        run_request(launch, token),
        summary,
        gives=("Instances",),
        hourly_usd=hourly_usd,
    )


def run_request(launch: Launch, token: str) -> dict[str, Any]:
    """Return the arguments of RunInstances."""
    spec = launch.spec
    public = not launch.without_address
    return {
        "ClientToken": token,
        "ImageId": launch.image.image_id,
        "InstanceType": launch.place.instance_type,
        # All nodes or none, unless --min-nodes allows fewer: half a cluster costs money but cannot
        # train.
        "MinCount": launch.least,
        "MaxCount": len(launch.indices),
        "KeyName": tags.resource_name(spec.name),
        "NetworkInterfaces": network_interfaces(
            launch.machine, launch.efa, launch.place.subnet_id, launch.group_id, public
        ),
        "BlockDeviceMappings": [
            {"DeviceName": launch.image.root_device, "Ebs": _root_volume(launch)}
        ],
        # IMDSv2 with one hop: neither forged requests nor containers get the role's credentials.
        "MetadataOptions": {
            "HttpTokens": "required",
            "HttpEndpoint": "enabled",
            "HttpPutResponseHopLimit": 1,
        },
        **_market(launch),
        **(
            {"Placement": {"GroupName": tags.resource_name(spec.name)}}
            if launch.placement_group
            else {}
        ),
        **(
            {"IamInstanceProfile": {"Name": spec.instance_profile}} if spec.instance_profile else {}
        ),
        **_shutdown(launch),
        **({"UserData": spec.user_data} if spec.user_data else {}),
        "TagSpecifications": tagged(_made(launch), _labels(launch, token)),
    }


def _made(launch: Launch) -> list[str]:
    """Return the kinds of resources that the request creates, which all get the tags."""
    kinds = ["instance", "volume", "network-interface"]
    return [*kinds, "spot-instances-request"] if launch.spec.market is Market.SPOT else kinds


def base_tags(spec: ClusterSpec) -> dict[str, str]:
    """Return the tags of every resource that is created for a cluster."""
    return {tags.CLUSTER: spec.name, "Name": spec.name, **dict(spec.tags)}


def tagged(kinds: Iterable[str], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the TagSpecifications that give these tags to these kinds of resources."""
    return [{"ResourceType": kind, "Tags": tags.tag_list(labels)} for kind in kinds]


def _root_volume(launch: Launch) -> dict[str, Any]:
    disk, load = launch.disk, launch.load_mib_s
    return {
        "VolumeSize": disk.size_gib,
        "VolumeType": "gp3",
        **({"Iops": disk.iops} if disk.iops else {}),
        **({"Throughput": disk.throughput_mib_s} if disk.throughput_mib_s else {}),
        **({"VolumeInitializationRate": load} if load else {}),
        "DeleteOnTermination": True,
        # This also works for an image whose snapshot is not encrypted.
        "Encrypted": True,
        **({"KmsKeyId": disk.kms_key} if disk.kms_key else {}),
    }


def _market(launch: Launch) -> dict[str, Any]:
    request: dict[str, Any] = {}
    if launch.spec.market is Market.SPOT:
        spot = {"SpotInstanceType": "one-time", "InstanceInterruptionBehavior": "terminate"}
        request["InstanceMarketOptions"] = {"MarketType": "spot", "SpotOptions": spot}
    if launch.spec.market is Market.CAPACITY_BLOCK:
        request["InstanceMarketOptions"] = {"MarketType": "capacity-block"}
    if launch.spec.capacity_reservation:
        request["CapacityReservationSpecification"] = {
            "CapacityReservationTarget": {"CapacityReservationId": launch.spec.capacity_reservation}
        }
    return request


def _shutdown(launch: Launch) -> dict[str, str]:
    """Return the argument for what EC2 does with a node that powers itself off at its limits."""
    limits = launch.spec.limits
    # A one-time spot instance is terminated in any case.
    if launch.spec.market is Market.SPOT or not (limits.ends or limits.idle_minutes):
        return {}
    return {"InstanceInitiatedShutdownBehavior": limits.at_power_off}


def _labels(launch: Launch, token: str) -> dict[str, str]:
    spec = launch.spec
    labels = {
        **base_tags(spec),
        tags.FIRST_INDEX: str(launch.indices[0]),
        tags.NODES: tags.indices_text(launch.wanted),
        tags.GPUS: str(launch.machine.gpus),
        tags.USER: spec.ssh_user or launch.image.user or DEFAULT_USER,
        tags.IMAGE: launch.image.image_id,
        tags.DISK: tags.disk_text(launch.disk),
        tags.LAUNCH: token,
    }
    if launch.spec.market is not Market.ON_DEMAND:
        labels[tags.MARKET] = launch.spec.market.value
    if spec.private:
        labels[tags.PRIVATE] = "yes"
    limits = format_limits(spec.limits)
    if limits:
        labels[tags.LIMITS] = limits
    return labels
