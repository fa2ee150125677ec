from __future__ import annotations

import pytest

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.images import find_image, newest_image
from clusterctl.ec2.machines import find_machine_type
from tests.moto_ec2 import ARM_IMAGE, DLAMI, NEW_DATE, NEW_IMAGE, OLD_IMAGE


def test_the_newest_deep_learning_image(client):
    image = find_image(client)
    assert (image.image_id, image.name) == (NEW_IMAGE, DLAMI.format(NEW_DATE))
    assert (image.root_device, image.architecture) == ("/dev/sda1", "x86_64")


def test_a_chosen_image(client):
    assert find_image(client, OLD_IMAGE).image_id == OLD_IMAGE
    assert find_image(client, ARM_IMAGE).architecture == "arm64"


def test_an_image_that_is_not_there(client):
    assert find_image(client, "ami-0123456789abcdef0") is None


def test_the_root_device_is_the_images_own():
    image = newest_image(
        [
            {
                "ImageId": "ami-1",
                "CreationDate": "2026-01-01T00:00:00.000Z",
                "RootDeviceName": "/dev/xvda",
                "BlockDeviceMappings": [
                    {"DeviceName": "/dev/xvdb", "VirtualName": "ephemeral0"},
                    {"DeviceName": "/dev/xvdc", "Ebs": {"VolumeSize": 900}},
                    {"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 75}},
                ],
            },
            {"ImageId": "ami-2", "CreationDate": "2025-12-31T23:59:59.000Z"},
        ]
    )
    assert (image.image_id, image.root_device, image.root_gib) == ("ami-1", "/dev/xvda", 75)


@pytest.mark.parametrize(
    ("name", "gpus", "vcpus"),
    [
        ("p4d.24xlarge", 8, 96),
        ("g5.12xlarge", 4, 48),
        ("c5.xlarge", 0, 4),
        ("trn1.2xlarge", 0, 8),
    ],
)
def test_machine_types(client, name, gpus, vcpus):
    machine = find_machine_type(client, name)
    assert (machine.gpus, machine.vcpus) == (gpus, vcpus)
    assert machine.architectures


def test_gpus_that_run_no_cuda_do_not_count(client):
    class Amd:
        def describe_instance_types(self, **_):
            gpus = [{"Manufacturer": "AMD", "Count": 2}, {"Manufacturer": "NVIDIA", "Count": 1}]
            return {"InstanceTypes": [{"GpuInfo": {"Gpus": gpus}}]}

    assert find_machine_type(Amd(), "g9.mixed").gpus == 1


def test_a_type_that_ec2_does_not_have(client):
    with pytest.raises(AwsError) as caught:
        find_machine_type(client, "p9.huge")
    assert "p9.huge" in caught.value.message
