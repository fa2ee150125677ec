"""Accounts as `observe` would see them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

from clusterctl.domain.cluster import Node, NodeState
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.images import Image
from clusterctl.ec2.instances import Instance
from clusterctl.ec2.keypairs import KeyPair
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.network import SecurityGroup, Vpc
from clusterctl.ec2.observe import Observed

PUBLIC_KEY = "ssh-ed25519 AAAAkey clusterctl-demo"
SPEC = ClusterSpec("demo", 4, "p4d.24xlarge")
NOTHING = Observed(
    vpc=Vpc("vpc-1", "172.31.0.0/16"),
    image=Image("ami-1", "Deep Learning", "/dev/sda1", 75, "x86_64"),
    machine=MachineType("p4d.24xlarge", 8, 96, ("x86_64",)),
    ssh_from="203.0.113.7/32",
)
GROUP = SecurityGroup("sg-1", ("203.0.113.7/32",), members_in=True, members_out=True)
KEY_PAIR = KeyPair("key-1", "clusterctl-demo", PUBLIC_KEY)


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
        availability_zone="us-east-1a",
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
    )
    return replace(common, **fields)


def with_nodes(*indices: int) -> Observed:
    """A cluster that has these nodes, and all that belongs to it."""
    instances = tuple(instance(index) for index in indices)
    return replace(NOTHING, instances=instances, key_pair=KEY_PAIR, group=GROUP)
