"""What is asked of EC2: steps, network interfaces, and the whole RunInstances request. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clusterctl.domain.cluster import ClusterSpec, Disk, Market
from clusterctl.domain.ranges import format_indices
from clusterctl.domain.units import count
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.images import Image
from clusterctl.ec2.launch.capacity import Place
from clusterctl.ec2.machines import MachineType, find_machine_type
from clusterctl.ec2.money.costs import format_limits

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class ResultOf:
    """An argument that is known only once an earlier step has answered: a key of its answer."""

    key: str

    def __str__(self) -> str:
        return f"<{self.key} of an earlier step>"


@dataclass(frozen=True)
class Step:
    """`operation` is boto3's method. `done_if` are error codes that say it was done before.

    `hourly_usd` is what its result costs from then on; None where that is nothing, or not known.
    """

    operation: str
    arguments: Mapping[str, Any]
    summary: str
    gives: tuple[str, ...] = ()
    done_if: tuple[str, ...] = ()
    hourly_usd: float | None = None

    def describe(self) -> str:
        """`RunInstances: 4 x p3.16xlarge ...`, on one line."""
        return f"{operation_name(self.operation)}: {self.summary}"

    def resolved(self, results: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments with the results of earlier steps filled in."""
        filled: dict[str, Any] = _fill(self.arguments, results)
        return filled


def operation_name(method: str) -> str:
    """`RunInstances` for `run_instances`."""
    return "".join(word.capitalize() for word in method.split("_"))


def _fill(value: Any, results: Mapping[str, Any]) -> Any:
    if isinstance(value, ResultOf):
        return results[value.key]
    if isinstance(value, Mapping):
        return {key: _fill(part, results) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_fill(part, results) for part in value]
    return value


def efa_wanted(machine: MachineType, nodes: int, asked: bool | None) -> bool:
    """EFA serves traffic between nodes: a single one has no use for it."""
    if asked is None:
        return machine.efa_interfaces > 0 and nodes > 1
    return asked and machine.efa_interfaces > 0


def efa_cards(machine: MachineType) -> tuple[int, ...]:
    """The network cards that get an EFA.

    Where EC2 does not say which take one: with one fewer than cards, card 0 has none (p6-b300).
    """
    cards = machine.efa_cards or tuple(range(machine.network_cards))
    if not machine.efa_cards and machine.efa_interfaces == machine.network_cards - 1:
        cards = cards[1:]
    return cards[: machine.efa_interfaces]


def layout(
    machine: MachineType, efa: bool, subnet_id: str | None, group_id: Any, public: bool
) -> list[dict[str, Any]]:
    """NetworkInterfaces of RunInstances. A public address is asked for on a lone interface only.

    With several network cards: an ordinary primary interface, and an EFA-only one on every card,
    which takes no IP address. Source: AWS's guide "Maximize network bandwidth on EC2 instances with
    multiple network cards" (efa-acc-inst-types).
    EC2 refuses AssociatePublicIpAddress beside a second interface, even as False.
    """
    common: dict[str, Any] = {"Groups": [group_id], "DeleteOnTermination": True}
    if subnet_id:
        common["SubnetId"] = subnet_id
    cards = efa_cards(machine) if efa else ()
    primary = {"DeviceIndex": 0, **common}
    if len(cards) > 1 or (cards and 0 not in cards):
        more = [card for card in cards if card or _takes_two(machine)]
        if 0 in cards and 0 not in more:
            primary["InterfaceType"] = "efa"
        return [{**primary, "NetworkCardIndex": 0}, *(_efa_only(card, common) for card in more)]
    if cards:
        primary["InterfaceType"] = "efa"
    return [{**primary, "AssociatePublicIpAddress": public}]


def several(machine: MachineType, efa: bool) -> bool:
    """Whether nodes have more than one interface, and so no public address of their own."""
    return len(layout(machine, efa, None, "", public=False)) > 1


def without_address(spec: ClusterSpec, machine: MachineType) -> bool:
    """Whether nodes get no public address by themselves: the others are reached through the head.

    EC2 gives none to who has several interfaces.
    """
    return spec.private or several(machine, efa_wanted(machine, spec.nodes, spec.efa))


def interfaces_needed(machine: MachineType, nodes: int, spec: ClusterSpec) -> int:
    """How many so many more nodes of a cluster take of the region's network interfaces."""
    efa = efa_wanted(machine, spec.nodes, spec.efa)
    return nodes * len(layout(machine, efa, None, "", public=False))


def _takes_two(machine: MachineType) -> bool:
    return not machine.card_interfaces or machine.card_interfaces[0] > 1


def _efa_only(card: int, common: dict[str, Any]) -> dict[str, Any]:
    # The primary interface is device 0 of card 0.
    return {
        "DeviceIndex": 0 if card else 1,
        "NetworkCardIndex": card,
        "InterfaceType": "efa-only",
        **common,
    }


LEAST_GIB = 150
# Big machines load images and write checkpoints faster than gp3's free share (3,000 and 125).
LARGE_GPUS, LARGE_IOPS, LARGE_MIB_S = 4, 6000, 500


# The root is loaded from the image's snapshot while it is read, at a rate that EC2 leaves open: the
# first `import tensorflow` takes minutes. The fastest rate that can be bought, in MiB/s.
LOAD_MIB_S = 300


def load_mib_s(machine: MachineType, image_gib: int) -> int | None:
    """At which rate the root volume is filled from its image, where that is worth its price.

    On big machines it is less than half a minute of the machine's own for 100 GiB.
    """
    return LOAD_MIB_S if machine.gpus >= LARGE_GPUS and image_gib else None


def root_disk(asked: Disk, machine: MachineType, image_gib: int) -> Disk:
    """`image_gib` is the size of the image's snapshot. None: gp3's own share."""
    large = machine.gpus >= LARGE_GPUS
    return Disk(
        asked.size_gib or max(image_gib, LEAST_GIB),
        asked.iops or (LARGE_IOPS if large else None),
        asked.throughput_mib_s or (LARGE_MIB_S if large else None),
        asked.kms_key,
    )


def root_rate(client: EC2Client, instance_id: str) -> float | None:
    """Bytes a second that the root volume of a machine takes: the least of what the volume (a gp3)
    and the machine's way to EBS carry. None where EC2 says neither. Raises AwsError.
    """
    with translated():
        found = client.describe_instances(InstanceIds=[instance_id])
        machine = found["Reservations"][0]["Instances"][0]
        ids = [
            one["Ebs"]["VolumeId"]
            for one in machine["BlockDeviceMappings"]
            if one["DeviceName"] == machine["RootDeviceName"]
        ]
        volumes = client.describe_volumes(VolumeIds=ids)["Volumes"] if ids else []
    ebs_mb_s = find_machine_type(client, machine["InstanceType"]).ebs_mb_s
    rates = [ebs_mb_s * 1e6, *(one.get("Throughput", 0) * 2.0**20 for one in volumes)]
    return min((rate for rate in rates if rate), default=None)


DEFAULT_USER = "ubuntu"


@dataclass(frozen=True)
class Launch:
    """Some nodes of a cluster at a place: all that a request says, but its token.

    `wanted` are the indices of the whole cluster. `least` nodes have to be launched, or none.
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

    @property
    def efa(self) -> bool:
        return efa_wanted(self.machine, self.spec.nodes, self.spec.efa)

    @property
    def without_address(self) -> bool:
        return without_address(self.spec, self.machine)

    @property
    def disk(self) -> Disk:
        """The root volume: what was asked for, or what the image and the machine call for."""
        return root_disk(self.spec.disk, self.machine, self.image.root_gib)


def run_step(launch: Launch, token: str, hourly_usd: float | None = None) -> Step:
    """The step that launches them."""
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
    """The arguments of RunInstances."""
    spec = launch.spec
    public = not launch.without_address
    return {
        "ClientToken": token,
        "ImageId": launch.image.image_id,
        "InstanceType": launch.place.instance_type,
        # All or nothing, unless fewer will do: half a cluster costs money and trains nothing.
        "MinCount": launch.least,
        "MaxCount": len(launch.indices),
        "KeyName": tags.resource_name(spec.name),
        "NetworkInterfaces": layout(
            launch.machine, launch.efa, launch.place.subnet_id, launch.group_id, public
        ),
        "BlockDeviceMappings": [
            {"DeviceName": launch.image.root_device, "Ebs": _root_volume(launch)}
        ],
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
    """The kinds of things that the request makes."""
    kinds = ["instance", "volume", "network-interface"]
    return [*kinds, "spot-instances-request"] if launch.spec.market is Market.SPOT else kinds


def base_tags(spec: ClusterSpec) -> dict[str, str]:
    """What everything made for a cluster carries."""
    return {tags.CLUSTER: spec.name, "Name": spec.name, **dict(spec.tags)}


def tagged(kinds: Iterable[str], labels: Mapping[str, str]) -> list[dict[str, Any]]:
    """TagSpecifications."""
    return [{"ResourceType": kind, "Tags": tags.tag_list(labels)} for kind in kinds]


def runs(indices: Sequence[int]) -> list[tuple[int, ...]]:
    """Group neighbouring indices: one RunInstances gives consecutive indices only."""
    found: list[tuple[int, ...]] = []
    for index in indices:
        if found and index == found[-1][-1] + 1:
            found[-1] = (*found[-1], index)
        else:
            found.append((index,))
    return found


def _root_volume(launch: Launch) -> dict[str, Any]:
    disk, load = launch.disk, load_mib_s(launch.machine, launch.image.root_gib)
    return {
        "VolumeSize": disk.size_gib,
        "VolumeType": "gp3",
        **({"Iops": disk.iops} if disk.iops else {}),
        **({"Throughput": disk.throughput_mib_s} if disk.throughput_mib_s else {}),
        **({"VolumeInitializationRate": load} if load else {}),
        "DeleteOnTermination": True,
        # An image's snapshot need not be encrypted for that.
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
    """What becomes of a node that its own timer has switched off."""
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
