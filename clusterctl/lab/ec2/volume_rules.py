"""What an EBS volume may be: decided from what is asked and the snapshot that it comes from."""

from __future__ import annotations

from dataclasses import dataclass

IOPS_TYPES = ("io1", "io2")
TYPES = ("standard", "gp2", "gp3", "st1", "sc1", *IOPS_TYPES)
GP3_IOPS, GP3_THROUGHPUT, GP3_SIZE = (3000, 80_000), (125, 2000), (1, 65_536)
LOAD_MIB_S = (100, 300)
IOPS_PER_GIB, THROUGHPUT_PER_IOPS = 500, 0.25


@dataclass(frozen=True)
class VolumeRequest:
    """A volume to make with an instance. None: not asked for."""

    device: str
    type: str
    size_gib: int | None
    iops: int | None = None
    throughput: int | None = None
    snapshot_id: str | None = None
    snapshot_gib: int = 0
    encrypted: bool = False
    kms_key_id: str | None = None
    delete: bool = False
    load_mib_s: int | None = None

    @property
    def effective_iops(self) -> int | None:
        return self.iops or (GP3_IOPS[0] if self.type == "gp3" else None)

    @property
    def effective_throughput(self) -> int | None:
        return self.throughput or (GP3_THROUGHPUT[0] if self.type == "gp3" else None)

    @property
    def effective_gib(self) -> int:
        return self.size_gib or self.snapshot_gib


@dataclass(frozen=True)
class Refusal:
    code: str
    message: str


def check_disk(disk: VolumeRequest) -> Refusal | None:
    """The first of EC2's rules that it breaks."""
    if disk.type not in TYPES:
        return Refusal(
            "InvalidParameterValue",
            f"Value ({disk.type}) for parameter volumeType is invalid. Unknown volume type.",
        )
    if not disk.effective_gib:
        return Refusal(
            "MissingParameter", "The request must contain the parameter size or snapshotId"
        )
    if disk.snapshot_id and disk.effective_gib < disk.snapshot_gib:
        return Refusal(
            "InvalidBlockDeviceMapping",
            f"Volume of size {disk.size_gib}GB is smaller than snapshot '{disk.snapshot_id}', "
            f"expect size >= {disk.snapshot_gib}GB",
        )
    if disk.kms_key_id and not disk.encrypted:
        return Refusal(
            "InvalidParameterDependency",
            "The parameter KmsKeyId requires the parameter Encrypted to be set.",
        )
    if disk.load_mib_s is not None and not disk.snapshot_id:
        return _combination(
            "The parameter VolumeInitializationRate is supported for volumes from snapshots only."
        )
    if disk.load_mib_s is not None and not LOAD_MIB_S[0] <= disk.load_mib_s <= LOAD_MIB_S[1]:
        return Refusal(
            "InvalidParameterValue",
            f"Volume initialization rate (MiBps) of {disk.load_mib_s} is not between "
            f"{LOAD_MIB_S[0]} and {LOAD_MIB_S[1]}",
        )
    return _check_performance(disk)


def _check_performance(disk: VolumeRequest) -> Refusal | None:
    if disk.throughput is not None and disk.type != "gp3":
        return _combination(f"The parameter throughput is not supported for {disk.type} volumes.")
    if disk.iops is not None and disk.type not in ("gp3", *IOPS_TYPES):
        return _combination(f"The parameter iops is not supported for {disk.type} volumes.")
    if disk.type in IOPS_TYPES and disk.iops is None:
        return Refusal(
            "MissingParameter",
            f"The parameter iops must be specified for {disk.type} volumes.",
        )
    return _check_gp3(disk) if disk.type == "gp3" else None


def _check_gp3(disk: VolumeRequest) -> Refusal | None:
    iops, throughput = disk.effective_iops or 0, disk.effective_throughput or 0
    for value, (least, most), what in (
        (disk.effective_gib, GP3_SIZE, "size (GiB)"),
        (iops, GP3_IOPS, "iops"),
        (throughput, GP3_THROUGHPUT, "throughput (MiBps)"),
    ):
        if not least <= value <= most:
            edge = f"low; minimum is {least}" if value < least else f"high; maximum is {most}"
            return Refusal("InvalidParameterValue", f"Volume {what} of {value} is too {edge}.")
    if iops > max(GP3_IOPS[0], IOPS_PER_GIB * disk.effective_gib):
        return Refusal(
            "InvalidParameterValue",
            f"Iops to volume size ratio of {iops / disk.effective_gib:.6f} is too high; maximum is "
            f"{IOPS_PER_GIB:.6f} iops per GiB",
        )
    if throughput > THROUGHPUT_PER_IOPS * iops:
        return Refusal(
            "InvalidParameterValue",
            f"Throughput (MiBps) to iops ratio of {throughput / iops:.6f} is too high; maximum is "
            f"{THROUGHPUT_PER_IOPS:.6f} MiBps per iops",
        )
    return None


def _combination(message: str) -> Refusal:
    return Refusal("InvalidParameterCombination", message)
