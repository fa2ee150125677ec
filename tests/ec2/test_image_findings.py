from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from clusterctl.domain.findings import Severity
from clusterctl.ec2.machines import Image, MachineType, driver_of, image_findings

TODAY = date(2026, 11, 21)
X86 = ("x86_64",)
OPEN = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261101"
PROPRIETARY = "Deep Learning Base Proprietary Nvidia Driver GPU AMI (Ubuntu 20.04) 20240429"
SUPPORTED = (
    "Supported EC2 instances: G4dn, G5, G6, Gr6(f), P4, P5, P6-B200. Release notes: https://x"
)


def machine(name: str, gpu: str = "", gpus: int = 8, architectures=X86) -> MachineType:
    return MachineType(name, gpus, 96, architectures, gpu_name=gpu)


def image(name: str = OPEN, **fields) -> Image:
    made = Image("ami-1", name, "/dev/sda1", 75, "x86_64", driver=driver_of(name))
    return replace(made, **{"created": "2026-11-01T00:00:00.000Z", **fields})


P4D = machine("p4d.24xlarge", "A100")
P3 = machine("p3.16xlarge", "V100")
B200 = machine("p6-b200.48xlarge", "B200")
OLD = {"created": "2025-02-05T00:00:00.000Z"}

# Image and machine, and the findings besides image.horovod, as check and severity.
CASES = [
    (image(), P4D, []),
    (image(), machine("c5.xlarge", gpus=0), []),
    (image(PROPRIETARY), P3, []),
    (image("golden-7"), P4D, []),
    (image("golden-7"), P3, []),
    (image(), B200, []),
    (image(description=SUPPORTED), P4D, []),
    (image(description=SUPPORTED), machine("gr6.4xlarge", "L4", 1), []),
    # Machine
    (image(), machine("trn1.32xlarge", gpus=0), ["type.accelerator error"]),
    (image(), machine("g4ad.xlarge", gpus=0), ["type.accelerator error"]),
    (image(), machine("g6f.large", "L4", 0), ["type.fractional warning"]),
    (image(), machine("gr6f.4xlarge", "L4", 0), ["type.fractional warning"]),
    # Image
    (None, P4D, ["image.none error"]),
    (None, machine("trn1.2xlarge", gpus=0), ["type.accelerator error", "image.none error"]),
    (image(platform="windows"), P4D, ["image.platform error"]),
    (image(architecture="arm64"), P4D, ["image.architecture error"]),
    (image(), machine("g5g.xlarge", "T4g", 1, ("arm64",)), ["image.architecture error"]),
    (image(architecture=""), P4D, []),
    (image(), machine("p9.huge", "X1", 8, ()), []),
    # Driver
    (image(), P3, ["image.driver error"]),
    (image(), machine("p2.xlarge", "K80", 1), ["image.driver error"]),
    (image(), machine("g3.4xlarge", "M60", 1), ["image.driver error"]),
    (image(PROPRIETARY), B200, ["image.driver error"]),
    (image(**OLD), B200, ["image.driver warning"]),
    (image(**OLD), machine("g7e.12xlarge", "RTX PRO Server 6000", 2), ["image.driver warning"]),
    (image(**OLD), P4D, []),
    (image("golden-7", **OLD), B200, []),
    (image("ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64"), P4D, ["image.driver warning"]),
    (image("al2023-ami-2023.6.20260303.0-kernel-6.1-x86_64"), P4D, ["image.driver warning"]),
    (
        image(description=SUPPORTED),
        machine("p5en.48xlarge", "H200"),
        ["image.driver warning", "type.kernels info"],
    ),
    # GPU kernels
    (image(), machine("p5.48xlarge", "H100"), ["type.kernels info"]),
    # Age
    (image(deprecated="2026-11-01T00:00:00.000Z"), P4D, ["image.deprecated info"]),
    (image(deprecated="2028-11-01T00:00:00.000Z"), P4D, []),
    (image(state="pending"), P4D, ["image.state error"]),
    (image(state="disabled", deprecated="2025-01-01"), P4D, ["image.state error"]),
]


@pytest.mark.parametrize(
    ("chosen", "on", "said"),
    CASES,
    ids=lambda value: value.name if isinstance(value, (Image, MachineType)) else None,
)
def test_what_is_said_of_an_image_on_a_machine(chosen, on, said):
    found = [
        finding
        for finding in image_findings(chosen, on, today=TODAY)
        if finding.check != "image.horovod"
    ]
    assert [f"{one.check} {one.severity.value}" for one in found] == said
    for one in found:
        assert one.hint
        names = (on.name, on.family, on.gpu_name or on.name, "ami-1")
        assert any(name in one.message for name in names)


@pytest.mark.parametrize(
    ("chosen", "on", "severity"),
    [
        (image(), P4D, Severity.INFO),
        (image(), B200, Severity.WARNING),
        (image("golden-7"), B200, Severity.WARNING),
        (image("golden-7"), P4D, None),
        (image("Deep Learning AMI (Ubuntu) Version 15.0"), P4D, None),
        (image("Deep Learning AMI GPU TensorFlow 2.12.0 (Ubuntu 20.04) 1"), P4D, None),
        (image(), machine("c5.xlarge", gpus=0), None),
    ],
)
def test_what_is_said_of_horovod(chosen, on, severity):
    found = [one for one in image_findings(chosen, on) if one.check == "image.horovod"]
    assert [one.severity for one in found] == ([severity] if severity else [])


def test_an_image_that_is_not_there_is_named():
    [found] = image_findings(None, P4D, "ami-0☃", TODAY)
    assert "'ami-0☃'" in found.message
