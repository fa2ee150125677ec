"""The root volume: what the image needs, and what a gp3 can be. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from clusterctl.domain.findings import Finding
from clusterctl.ec2.images import Image
from clusterctl.ec2.preflight.case import Case, error

# gp3, EBS user guide (2026): IOPS and MiB/s, and what each needs of the other.
GP3_IOPS, GP3_MIB_S, GP3_GIB = (3000, 80_000), (125, 2000), (1, 65_536)
IOPS_PER_GIB, MIB_S_PER_IOPS = 500, 0.25


def disk(case: Case) -> Iterator[Finding]:
    disk = case.spec.disk
    images = {image for image in case.catalogue.images.values() if image}
    yield from _snapshot(disk.size_gib, images)
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
    if disk.iops and disk.size_gib and disk.iops > IOPS_PER_GIB * disk.size_gib:
        yield error(
            "disk.iops",
            f"{disk.iops} IOPS need a volume of {-(-disk.iops // IOPS_PER_GIB)} GiB",
            "raise --disk-gib, or lower --disk-iops",
        )
    iops = disk.iops or GP3_IOPS[0]
    if disk.throughput_mib_s and disk.throughput_mib_s > MIB_S_PER_IOPS * iops:
        needed = round(disk.throughput_mib_s / MIB_S_PER_IOPS)
        yield error(
            "disk.throughput",
            f"{disk.throughput_mib_s} MiB/s need {needed} IOPS",
            f"give --disk-iops {needed}",
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
