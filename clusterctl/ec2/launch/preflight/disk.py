"""The root volume: what the image needs, and what a gp3 can be. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.spec import ClusterSpec
from clusterctl.ec2.images.find import Image
from clusterctl.ec2.instances import Instance, standing
from clusterctl.ec2.launch.preflight.case import Case, error
from clusterctl.ec2.launch.root_disk import root_disk
from clusterctl.ec2.machines import MachineType

# gp3, EBS user guide (2026): IOPS and MiB/s, and what each needs of the other.
GP3_IOPS, GP3_MIB_S, GP3_GIB = (3000, 80_000), (125, 2000), (1, 65_536)
IOPS_PER_GIB, MIB_S_PER_IOPS = 500, 0.25


OPTIONS = {
    "size_gib": "--disk-gib",
    "iops": "--disk-iops",
    "throughput_mib_s": "--disk-throughput",
    "kms_key": "--kms-key",
}


def kept(spec: ClusterSpec, there: Sequence[Instance]) -> Iterator[Finding]:
    """Warn of another disk than that of the nodes that are there, which keep theirs.

    `spec` is that of a cluster which grows: what was left open in it is the head node's.
    """
    members = standing(there)
    if not members:
        return
    head = members[0].disk
    asked = [
        option
        for name, option in OPTIONS.items()
        if getattr(spec.disk, name) != getattr(head, name)
    ]
    if asked:
        yield Finding(
            "disk.kept",
            Severity.WARNING,
            f"{', '.join(asked)}: the nodes that are there keep their disks, new ones are launched "
            "with it",
            hint=f"another disk for all of them takes a new cluster: clusterctl down {spec.name}",
        )


def disk(case: Case) -> Iterator[Finding]:
    disk = case.spec.disk
    images = {image for image in case.catalogue.images.values() if image}
    yield from _snapshot(disk.size_gib, images)
    yield from _key(disk.kms_key or "", case.seen.region)
    for what, value, (least, most), option in (
        ("GiB", disk.size_gib, GP3_GIB, "--disk-gib"),
        ("IOPS", disk.iops, GP3_IOPS, "--disk-iops"),
        ("MiB/s", disk.throughput_mib_s, GP3_MIB_S, "--disk-throughput"),
    ):
        if value is not None and not least <= value <= most:
            yield error(
                "disk.limits",
                f"a gp3 volume has {least} to {most} {what}, not {value}",
                f"choose another {option}",
            )


def performance(case: Case, machine: MachineType) -> Iterator[Finding]:
    """What the volume of this type's nodes would be, not only what was asked for."""
    image = case.catalogue.images.get(machine.name)
    disk = root_disk(case.spec.disk, machine, image.root_gib if image else 0)
    iops, mib_s = disk.iops or GP3_IOPS[0], disk.throughput_mib_s or GP3_MIB_S[0]
    if not GP3_IOPS[0] <= iops <= GP3_IOPS[1] or not GP3_MIB_S[0] <= mib_s <= GP3_MIB_S[1]:
        return
    if disk.size_gib and 0 < disk.size_gib * IOPS_PER_GIB < iops:
        yield error(
            "disk.iops",
            f"{iops} IOPS need a volume of {-(-iops // IOPS_PER_GIB)} GiB, not {disk.size_gib}",
            "raise --disk-gib, or lower --disk-iops",
        )
    if mib_s > MIB_S_PER_IOPS * iops:
        needed = math.ceil(mib_s / MIB_S_PER_IOPS)
        yield error(
            "disk.throughput", f"{mib_s} MiB/s need {needed} IOPS", f"give --disk-iops {needed}"
        )


def _key(key: str, region: str) -> Iterator[Finding]:
    """Told to be elsewhere, the key is not there: EC2 would find out when the nodes start."""
    there = key.split(":")[3] if key.startswith("arn:") else region
    if there != region:
        yield error(
            "disk.key",
            f"the KMS key {key} is in {there}, the cluster would be in {region}",
            "choose another --kms-key: volumes are encrypted with keys of their own region",
        )


def _snapshot(size_gib: int | None, images: set[Image]) -> Iterator[Finding]:
    for image in sorted(images, key=lambda one: one.image_id):
        if size_gib is not None and size_gib < image.root_gib:
            yield error(
                "disk.size",
                f"a root volume of {size_gib} GiB is smaller than the image's snapshot: "
                f"{image.image_id} has {image.root_gib} GiB",
                f"give --disk-gib {image.root_gib} or more, or leave it out",
            )
