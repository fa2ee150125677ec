"""EBS volumes: finding the nodes' root volumes, and enlarging them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from clusterctl.domain.errors import AwsError
from clusterctl.domain.timeouts import Polling, Timeouts
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import described_instances
from clusterctl.ec2.machines import find_machine_type

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import VolumeModificationTypeDef


@dataclass(frozen=True)
class Volume:
    """An EBS volume. `mib_s` is its throughput; 0 where EC2 lists none."""

    id: str
    size_gib: int
    mib_s: int = 0


def root_volumes(client: EC2Client, instance_ids: Sequence[str]) -> dict[str, Volume]:
    """Return the root volume of each instance, by instance id. Raises AwsError.

    An instance whose root volume EC2 does not list is left out.
    """
    ids = {
        mapping["Ebs"]["VolumeId"]: machine["InstanceId"]
        for machine in described_instances(client, InstanceIds=list(instance_ids))
        for mapping in machine["BlockDeviceMappings"]
        if mapping["DeviceName"] == machine["RootDeviceName"]
    }
    with translated():
        described = client.describe_volumes(VolumeIds=list(ids))["Volumes"] if ids else []
    return {
        ids[one["VolumeId"]]: Volume(one["VolumeId"], one["Size"], one.get("Throughput", 0))
        for one in described
    }


def root_rate(client: EC2Client, instance_id: str, instance_type: str) -> float | None:
    """Return the bytes a second that can be written to an instance's root volume.

    The lower one of the throughput of the volume (a gp3) and of the instance's connection to EBS;
    None where EC2 lists neither. Raises AwsError.
    """
    volumes = root_volumes(client, [instance_id]).values()
    ebs_mb_s = find_machine_type(client, instance_type).ebs_mb_s
    rates = [ebs_mb_s * 1e6, *(volume.mib_s * 2.0**20 for volume in volumes)]
    return min((rate for rate in rates if rate), default=None)


def enlarge(client: EC2Client, volume: Volume, gib: int, timeouts: Timeouts = Timeouts()) -> None:
    """Enlarge a volume to `gib` GiB and wait until a file system can use the new size.

    Requests nothing if an interrupted command has requested the same size. Does nothing if the
    volume is large enough. The wait ends in EBS's state `optimizing`, long before all blocks have
    the volume's full speed. Raises AwsError: after `enlarged_s`, and for example because EBS allows
    one change of a volume in six hours.
    """
    change = _last_change(client, volume.id)
    if not (change and change["TargetSize"] == gib and change["ModificationState"] != "failed"):
        if volume.size_gib >= gib:
            return
        with translated():
            client.modify_volume(VolumeId=volume.id, Size=gib)
    polling = Polling(timeouts.clock, timeouts.enlarged_s, 0.5, 1.4, 10.0)
    while True:
        change = _last_change(client, volume.id)
        # EC2 may still show the change before this one, or none.
        state = change["ModificationState"] if change and change["TargetSize"] == gib else ""
        if state in ("optimizing", "completed"):
            return
        if change and state == "failed":
            message = change.get("StatusMessage") or "EBS does not say why"
            raise AwsError(
                "VolumeModificationFailed", f"{volume.id} could not be changed: {message}"
            )
        if polling.left_s < 0:
            raise AwsError(
                "VolumeModificationSlow",
                f"{volume.id} is still being changed after {timeouts.enlarged_s / 60:.0f} min",
                "the same command goes on",
            )
        polling.wait()


def _last_change(client: EC2Client, volume_id: str) -> VolumeModificationTypeDef | None:
    # With a filter, because EC2 refuses the id of a volume that was never changed.
    with translated():
        answer = client.describe_volumes_modifications(
            Filters=[{"Name": "volume-id", "Values": [volume_id]}]
        )
    return max(answer["VolumesModifications"], key=lambda one: one["StartTime"], default=None)
