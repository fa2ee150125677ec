"""What the plan of a launch is made from: everything that is there already."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.images import Image, find_image
from clusterctl.ec2.instances import Instance, find_instances, launched_with
from clusterctl.ec2.keypairs import KeyPair, find_key_pairs
from clusterctl.ec2.machines import MachineType, find_machine_type
from clusterctl.ec2.network import (
    SecurityGroup,
    Vpc,
    caller_cidr,
    default_vpc,
    find_groups,
    parse_cidr,
)
from clusterctl.ec2.record import SETTLED_AFTER_S, SentLaunch, read_launches

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client


@dataclass(frozen=True)
class Observed:
    """The account as far as one cluster is concerned.

    `unsettled` are launches that were sent a short while ago and have shown no instance.
    """

    vpc: Vpc
    image: Image | None
    machine: MachineType
    ssh_from: str
    instances: tuple[Instance, ...] = ()
    key_pair: KeyPair | None = None
    group: SecurityGroup | None = None
    unsettled: tuple[SentLaunch, ...] = ()


def observe(client: EC2Client, spec: ClusterSpec, launch_record: Path) -> Observed:
    """Look, and change nothing. Raises AwsError, ClusterctlError."""
    machine = find_machine_type(client, spec.instance_type)
    vpc = default_vpc(client)
    instances = find_instances(client, spec.name)
    pinned = instances[0].image_id if instances else None
    key_pairs = find_key_pairs(client, spec.name)
    groups = find_groups(client, spec.name)
    group = groups[0] if groups else None
    return Observed(
        vpc=vpc,
        image=find_image(client, spec.image or pinned),
        machine=machine,
        ssh_from=_ssh_from(client, spec, vpc, group),
        instances=instances,
        key_pair=key_pairs[0] if key_pairs else None,
        group=group,
        unsettled=_unsettled(client, launch_record),
    )


def _ssh_from(client: EC2Client, spec: ClusterSpec, vpc: Vpc, group: SecurityGroup | None) -> str:
    if spec.ssh_from:
        return parse_cidr(spec.ssh_from)
    try:
        return caller_cidr(client.meta.endpoint_url, vpc)
    except ClusterctlError:
        # The rule of an earlier `up` will do: this machine may just not get out to the web.
        if group and group.ssh_from:
            return group.ssh_from[0]
        raise


def _unsettled(client: EC2Client, launch_record: Path) -> tuple[SentLaunch, ...]:
    sent = read_launches(launch_record)
    seen = launched_with(client, [launch.token for launch in sent])
    recent = time.time() - SETTLED_AFTER_S
    return tuple(launch for launch in sent if launch.token not in seen and launch.sent_at > recent)
