"""Snapshots of accounts, as `observe` would return them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from clusterctl.domain.cluster import ClusterSpec, Node, NodeState
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.launch.observe import Catalogue, Observed, inherited, with_reservation_market
from clusterctl.ec2.machines import Image, MachineType
from clusterctl.ec2.money.prices import Price
from clusterctl.ec2.network.vpcs import SecurityGroup, Subnet, Vpc
from clusterctl.ec2.resources import KeyPair, Resource, ResourceKind

PUBLIC_KEY = "ssh-ed25519 AAAAkey clusterctl-demo"
SPEC = ClusterSpec("demo", 4, "p4d.24xlarge")
MACHINE = MachineType(
    "p4d.24xlarge",
    8,
    96,
    ("x86_64",),
    gpu_name="A100",
    network_cards=4,
    card_interfaces=(15, 15, 15, 15),
    efa_interfaces=4,
    usage_classes=("capacity-block", "on-demand", "spot"),
)
PLAIN = replace(MACHINE, network_cards=1, card_interfaces=(15,), efa_interfaces=0)
IMAGE = Image("ami-1", "Deep Learning", "/dev/sda1", 75, "x86_64", user="ubuntu", driver="oss")
ZONES = ("us-east-1a", "us-east-1b", "us-east-1c")
SUBNETS = tuple(
    Subnet(f"subnet-{zone[-1]}", "vpc-1", zone, "172.31.0.0/20", 4000, True) for zone in ZONES
)
CATALOGUE = Catalogue(
    machines={"p4d.24xlarge": PLAIN},
    images={"p4d.24xlarge": IMAGE},
    offers={"p4d.24xlarge": frozenset(ZONES)},
    subnets=SUBNETS,
    prices={"p4d.24xlarge": Price(21.96, "a table", "2026-07-20")},
)
NOTHING = Observed(
    spec=SPEC,
    region="us-east-1",
    vpc=Vpc("vpc-1", "172.31.0.0/16"),
    ssh_from="203.0.113.7/32",
    catalogue=CATALOGUE,
)


def offering(machine: MachineType = PLAIN, image: Image | None = IMAGE, **more) -> Observed:
    """Return an account without the cluster, where EC2 offers this machine and image."""
    return replace(
        NOTHING,
        catalogue=replace(
            CATALOGUE,
            machines={machine.name: machine},
            images={machine.name: image} if image else {},
            offers={machine.name: frozenset(ZONES)},
            prices={machine.name: Price(21.96, "a table", "2026-07-20")},
            **more,
        ),
    )


GROUP = SecurityGroup("sg-1", ("203.0.113.7/32",), members_in=True, members_out=True)
KEY_PAIR = KeyPair("clusterctl-demo", PUBLIC_KEY)


def instance(index: int, state: NodeState = NodeState.RUNNING, **fields) -> Instance:
    node = Node(
        index=index,
        name=f"demo-{index}",
        instance_id=f"i-{index}",
        state=state,
        instance_type="p4d.24xlarge",
        gpus=8,
        private_ip=f"10.0.0.{index + 4}",
        public_ip=None,
        zone="us-east-1a",
        launched_at=datetime(2026, 11, 1, tzinfo=timezone.utc),
    )
    node_fields = {
        key: fields.pop(key) for key in ("instance_type", "instance_id") if key in fields
    }
    common = Instance(
        node=replace(node, **node_fields),
        cluster="demo",
        ssh_user="ubuntu",
        wanted=(0, 1, 2, 3),
        image_id="ami-1",
        key_name="clusterctl-demo",
        launch_token="earlier",
        subnet_id="subnet-a",
        interface_id=f"eni-{index}",
        placement_group="clusterctl-demo",
    )
    return replace(common, **fields)


def with_nodes(*indices: int) -> Observed:
    """Return an account with a cluster of these nodes, and all that belongs to it."""
    instances = tuple(instance(index) for index in indices)
    return replace(
        NOTHING,
        instances=instances,
        key_pair=KEY_PAIR,
        group=GROUP,
        placement_group=Resource(
            ResourceKind.PLACEMENT_GROUP, "pg-1", state="available", name="clusterctl-demo"
        ),
    )


def settled(spec: ClusterSpec, observed: Observed) -> Observed:
    """Return the settled request that `observe` makes of this one for this snapshot."""
    spec = inherited(spec, observed.instances)
    spec = with_reservation_market(spec, observed.catalogue.reservation)
    return replace(observed, spec=spec)
