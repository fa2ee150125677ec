"""Whether an image can drive a machine's GPUs: what would show after an hour of paying. Pure."""

from __future__ import annotations

import re
from datetime import date, datetime, timezone

from clusterctl.domain.findings import Finding, Severity
from clusterctl.ec2.images.find import (
    PROPRIETARY_DRIVER,
    Image,
    default_pattern,
    needs_proprietary_driver,
)
from clusterctl.ec2.machines import MachineType

# Family -> what it computes with, for types that Horovod on NVIDIA's libraries cannot use.
_ACCELERATORS = (
    (r"trn\d", "AWS Trainium"),
    (r"inf\d", "AWS Inferentia"),
    (r"g4ad$", "AMD GPUs"),
    (r"dl1$", "Habana Gaudi"),
    (r"dl2q$", "Qualcomm AI 100"),
    (r"vt1$", "video transcoders"),
    (r"f\d", "FPGAs"),
)
_HOPPER_FAMILY = re.compile(r"p5")
_BLACKWELL_FAMILY = re.compile(r"p6|g7")
# AWS's first machines with Blackwell; CUDA 12.8, the first to know it, is a little older.
_BLACKWELL_SINCE = "2025-05-15"
# What the release notes call by its generation.
_FAMILIES = {
    "p4": ("p4d", "p4de"),
    "p6": ("p6-b200", "p6-b300"),
    "gr6(f)": ("gr6", "gr6f"),
}
_PLAIN_SYSTEM = re.compile(r"ubuntu/images|al2023-ami-|amzn2-ami-(hvm|kernel)|debian-\d|RHEL-")
_DLAMI = "Deep Learning "
_HAS_FRAMEWORK = re.compile(r"TensorFlow|Deep Learning AMI \(")


def image_findings(
    image: Image | None,
    machine: MachineType,
    wanted: str | None = None,
    today: date | None = None,
) -> list[Finding]:
    """All there is to say about running `image`, chosen by `wanted`, on this type."""
    today = today or datetime.now(timezone.utc).date()
    findings = _machine_findings(machine)
    if image is None:
        return [*findings, _no_image(machine, wanted)]
    of_software = [*_horovod(image, machine), *_kernels(machine)]
    return [*findings, *_fit(image, machine), *_age(image, today), *of_software]


def _machine_findings(machine: MachineType) -> list[Finding]:
    for pattern, what in _ACCELERATORS:
        if not machine.gpus and re.match(pattern, machine.family):
            return [
                _error(
                    "type.accelerator",
                    f"{machine.name} computes with {what}; Horovod needs NVIDIA GPUs",
                    "choose another, for example --instance-type g5.12xlarge",
                )
            ]
    if machine.gpu_name and not machine.gpus:
        return [
            Finding(
                "type.fractional",
                Severity.WARNING,
                f"{machine.name} has a part of one {machine.gpu_name} and no whole GPU: "
                "it gets no slot for a rank, and its driver is not the Deep Learning AMI's",
                hint="choose a whole GPU: --instance-type " + _whole(machine),
            )
        ]
    return []


def _whole(machine: MachineType) -> str:
    """`gr6.4xlarge` for `gr6f.4xlarge`; the smallest where there is no such size."""
    family = machine.family.rstrip("f")
    size = machine.name.partition(".")[2]
    smallest = "4xlarge" if family == "gr6" else "xlarge"
    return f"{family}.{smallest if size == 'large' else size}"


def _no_image(machine: MachineType, wanted: str | None) -> Finding:
    if wanted is not None:
        message = f"there is no image {wanted!r} in this region that {machine.name} can run"
        hint = "image ids are regional: check --image and --region, or leave --image out"
    else:
        message = (
            f"there is no image for {machine.name} in this region: "
            f"none is named {default_pattern(machine)!r}"
        )
        hint = "choose one with --image, or another region with --region"
        if needs_proprietary_driver(machine):
            message += "; its GPUs need NVIDIA's proprietary driver"
            hint = (
                "give an image of your own with a driver up to R580: --image AMI; "
                "or a newer type, for example --instance-type g5.12xlarge"
            )
    return _error("image.none", message, hint)


def _fit(image: Image, machine: MachineType) -> list[Finding]:
    if image.platform.lower().startswith("windows"):
        return [
            _error("image.platform", f"image {_called(image)} is Windows", "give a Linux --image")
        ]
    known = machine.architectures
    if known and image.architecture and image.architecture not in known:
        return [
            _error(
                "image.architecture",
                f"image {_called(image)} is for {image.architecture}, "
                f"{machine.name} is {' or '.join(known)}",
                "leave --image out, or choose one that fits",
            )
        ]
    return _driver(image, machine) if machine.gpus else []


def _driver(image: Image, machine: MachineType) -> list[Finding]:
    gpus = f"the {machine.gpu_name} of {machine.name}" if machine.gpu_name else machine.name
    blackwell = _BLACKWELL_FAMILY.match(machine.family)
    if needs_proprietary_driver(machine) and image.driver == "oss":
        return [
            _error(
                "image.driver",
                f"image {_called(image)} has NVIDIA's open kernel modules, "
                f"which do not know {gpus}: they need Turing or newer",
                f"leave --image out, or give --image '{PROPRIETARY_DRIVER}'",
            )
        ]
    if blackwell and image.driver == "proprietary":
        return [
            _error(
                "image.driver",
                f"image {_called(image)} has NVIDIA's proprietary driver, "
                f"which does not know {gpus}: Blackwell needs the open kernel modules",
                f"leave --image out, or give --image '{default_pattern(machine)}'",
            )
        ]
    if _PLAIN_SYSTEM.match(image.name):
        message = f"image {_called(image)} is a plain system without NVIDIA's driver"
    elif blackwell and image.driver and image.created and image.created < _BLACKWELL_SINCE:
        message = (
            f"image {_called(image)} is of {image.created[:10]}, "
            f"and {gpus} needs CUDA 12.8 or newer with its driver"
        )
    elif not _supports(image.description, machine.family):
        message = f"image {_called(image)} does not list {machine.family} among what it supports"
    else:
        return []
    hint = "leave --image out for the Deep Learning AMI that fits"
    return [Finding("image.driver", Severity.WARNING, message, hint=hint)]


def _supports(description: str, family: str) -> bool:
    """Whether a Deep Learning AMI's description has this family in its list, if it has a list."""
    listed = re.search(r"Supported EC2 instances: ([\w, ()-]+)\.", description, re.IGNORECASE)
    if not listed:
        return True
    names = re.split(r"[\s,]+", listed[1].lower())
    return family in {one for name in names for one in (name, *_FAMILIES.get(name, ()))}


def _age(image: Image, today: date) -> list[Finding]:
    if image.state != "available":
        return [
            _error(
                "image.state",
                f"image {_called(image)} is {image.state}",
                "wait until it is available, or choose another with --image",
            )
        ]
    # Timestamps in ISO 8601 sort as text.
    if not image.deprecated or image.deprecated[:10] > today.isoformat():
        return []
    return [
        Finding(
            "image.deprecated",
            Severity.INFO,
            f"image {_called(image)} is deprecated since {image.deprecated[:10]}",
            hint="its owner may withdraw it: copy it (aws ec2 copy-image), "
            "or choose another with --image",
        )
    ]


def _horovod(image: Image, machine: MachineType) -> list[Finding]:
    if not machine.gpus:
        return []
    if _BLACKWELL_FAMILY.match(machine.family):
        return [
            Finding(
                "image.horovod",
                Severity.WARNING,
                "no TensorFlow that Horovod works with has kernels for Blackwell GPUs",
                hint="for Horovod choose an older GPU: --instance-type p4d.24xlarge, or "
                "p5.48xlarge with `clusterctl env install NAME --tensorflow NEWEST`",
            )
        ]
    if not image.name.startswith(_DLAMI) or _HAS_FRAMEWORK.search(image.name):
        return []
    return [
        Finding(
            "image.horovod",
            Severity.INFO,
            "no supported Deep Learning AMI has TensorFlow or Horovod on it",
            hint="put them on the nodes before you train: clusterctl env install NAME",
        )
    ]


def _kernels(machine: MachineType) -> list[Finding]:
    """Compute capability 9.0, which the wheels of TensorFlow 2.15 do not know."""
    if not machine.gpus or not _HOPPER_FAMILY.match(machine.family):
        return []
    return [
        Finding(
            "type.kernels",
            Severity.INFO,
            f"TensorFlow 2.15 has no kernels for the {machine.gpu_name}: `env install` lets the "
            "driver compile them, for up to half an hour",
            hint="a newer one has them: clusterctl env install NAME --tensorflow NEWEST",
        )
    ]


def _called(image: Image) -> str:
    return f"{image.image_id} ({image.name})" if image.name else image.image_id


def _error(check_id: str, message: str, hint: str) -> Finding:
    return Finding(check_id, Severity.ERROR, message, hint=hint)
