"""The catalogue of images, and the public parameters that lead to them."""

from __future__ import annotations

import pytest

from clusterctl.lab.addresses import REGIONS
from tests.lab.refusals import refused, service
from tests.lab.running import DLAMI_OWNER

pytestmark = pytest.mark.lab

ROOT = "/aws/service/deeplearning/ami"
BASE = "Deep Learning Base OSS Nvidia Driver GPU AMI"


@pytest.fixture(scope="module")
def ssm(lab):
    return service(lab, "ssm")


def images(lab, region, pattern="*"):
    return service(lab, "ec2", region).describe_images(
        Owners=[DLAMI_OWNER], Filters=[{"Name": "name", "Values": [pattern]}]
    )["Images"]


@pytest.mark.parametrize(
    ("pattern", "count", "root", "gib", "architecture"),
    [
        (f"{BASE} (Ubuntu 22.04) *", 2, "/dev/sda1", 75, "x86_64"),
        (f"{BASE} (Ubuntu 24.04) *", 2, "/dev/sda1", 75, "x86_64"),
        (f"{BASE} (Amazon Linux 2023) *", 1, "/dev/xvda", 75, "x86_64"),
        ("Deep Learning Base Proprietary Nvidia Driver *", 1, "/dev/sda1", 75, "x86_64"),
        ("Deep Learning OSS Nvidia Driver AMI GPU PyTorch *", 1, "/dev/sda1", 105, "x86_64"),
        ("Deep Learning ARM64 Base OSS *", 1, "/dev/sda1", 75, "arm64"),
    ],
)
def test_families_of_images(lab, pattern, count, root, gib, architecture):
    found = images(lab, lab.region, pattern)
    assert len(found) == count
    for one in found:
        disk = one["BlockDeviceMappings"][0]
        assert (one["RootDeviceName"], disk["DeviceName"]) == (root, root)
        assert (disk["Ebs"]["VolumeSize"], one["Architecture"]) == (gib, architecture)
        assert one["PlatformDetails"] == "Linux/UNIX"
        assert one["Description"].startswith("Supported EC2 instances: ")


@pytest.mark.parametrize("region", REGIONS)
def test_a_parameter_names_the_newest_image_of_its_region(lab, region):
    name = f"{ROOT}/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id"
    found = service(lab, "ssm", region).get_parameter(Name=name)["Parameter"]
    newest = max(
        images(lab, region, f"{BASE} (Ubuntu 22.04) *"), key=lambda one: one["CreationDate"]
    )
    assert (found["Value"], found["Type"]) == (newest["ImageId"], "String")


def test_parameters_by_name_and_by_path(ssm):
    wanted = [f"{ROOT}/arm64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id", f"{ROOT}/no"]
    answer = ssm.get_parameters(Names=wanted)
    assert [one["Name"] for one in answer["Parameters"]] == wanted[:1]
    assert answer["InvalidParameters"] == wanted[1:]
    below = ssm.get_parameters_by_path(Path=f"{ROOT}/x86_64", Recursive=True)["Parameters"]
    assert {one["Name"].split("/")[-3] for one in below} == {
        "base-oss-nvidia-driver-gpu-ubuntu-22.04",
        "base-oss-nvidia-driver-gpu-ubuntu-24.04",
        "base-oss-nvidia-driver-gpu-amazon-linux-2023",
        "base-proprietary-nvidia-driver-gpu-ubuntu-22.04",
        "oss-nvidia-driver-gpu-pytorch-2.10-ubuntu-24.04",
    }


@pytest.mark.parametrize(
    "name",
    [
        f"{ROOT}/x86_64/oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
        f"{ROOT}/x86_64",
        "/aws/service/deeplearning",
    ],
)
def test_other_parameters_are_not_there(ssm, name):
    code, _, status = refused(ssm.get_parameter, Name=name)
    assert (code, status) == ("ParameterNotFound", 400)
