from __future__ import annotations

from types import SimpleNamespace

import pytest
from botocore.stub import Stubber

from clusterctl.domain.errors import AwsError
from clusterctl.ec2 import machines
from clusterctl.ec2.machines import (
    PARAMETER,
    Image,
    MachineType,
    architecture_of,
    default_pattern,
    driver_of,
    find_image,
    find_machine_type,
    image_findings,
    login_user,
    newest_image,
)
from clusterctl.ec2.session import Clients
from tests.lab.running import account_of
from tests.moto_ec2 import ARM_IMAGE, DLAMI, NEW_DATE, NEW_IMAGE, OLD_IMAGE, clients_of

P4D = MachineType("p4d.24xlarge", 8, 96, ("x86_64",), gpu_name="A100")
P3 = MachineType("p3.16xlarge", 8, 64, ("x86_64",), gpu_name="V100")
G5G = MachineType("g5g.xlarge", 1, 4, ("arm64",), gpu_name="T4g")
C5 = MachineType("c5.xlarge", 0, 4, ("x86_64",))
LATEST = PARAMETER.format(architecture="x86_64", ubuntu="22.04")


@pytest.fixture(scope="module")
def ssm(moto_url):
    return clients_of(moto_url).ssm


@pytest.fixture
def account(client, ssm):
    """Return the clients. SSM has the answers that `stub` receives."""
    with Stubber(ssm) as stub:
        yield SimpleNamespace(ec2=client, ssm=ssm, stub=stub)


def tells(account, name: str, image_id: str) -> None:
    answer = {"Parameter": {"Name": name, "Value": image_id}}
    account.stub.add_response("get_parameter", answer, {"Name": name})


@pytest.fixture
def asked(client):
    """Return the names of the calls to EC2."""
    observed: list[str] = []

    def record(model, **_):
        observed.append(model.name)

    client.meta.events.register("before-call.ec2", record)
    yield observed
    client.meta.events.unregister("before-call.ec2", record)


def test_the_parameter_tells_the_latest_image(account, asked):
    tells(account, LATEST, OLD_IMAGE)
    assert find_image(account, None, P4D).image_id == OLD_IMAGE
    assert asked == ["DescribeImages"]


@pytest.mark.parametrize("code", ["AccessDeniedException", "ParameterNotFound"])
def test_without_the_parameter_the_newest_by_name(account, code):
    account.stub.add_client_error("get_parameter", code)
    image = find_image(account, None, P4D)
    assert (image.image_id, image.name) == (NEW_IMAGE, DLAMI.format(NEW_DATE))
    assert (image.root_device, image.architecture) == ("/dev/sda1", "x86_64")
    assert (image.user, image.driver, image.state) == ("ubuntu", "oss", "available")
    assert image.created.startswith("2026-11-01")


def test_a_parameter_that_leads_nowhere_and_none_that_is_asked_for_in_vain(account):
    tells(account, LATEST, "ami-0123456789abcdef0")
    assert find_image(account, None, P4D).image_id == NEW_IMAGE
    # There is no parameter for a V100's image, and an image's id needs none.
    assert find_image(account, None, P3) is None
    assert find_image(account, OLD_IMAGE, P3).image_id == OLD_IMAGE
    assert find_image(account, ARM_IMAGE, P4D).architecture == "arm64"


def test_a_parameter_of_the_users_own(account):
    tells(account, "/team/golden-image", OLD_IMAGE)
    assert find_image(account, "/team/golden-image", P4D).image_id == OLD_IMAGE
    account.stub.add_client_error("get_parameter", "ParameterNotFound")
    assert find_image(account, "/team/none", P4D) is None
    tells(account, "/team/text", "no image at all")
    assert find_image(account, "/team/text", P4D) is None
    account.stub.add_client_error("get_parameter", "AccessDeniedException", "no")
    with pytest.raises(AwsError, match="no"):
        find_image(account, "/team/golden-image", P4D)


@pytest.mark.parametrize(
    ("wanted", "machine", "found"),
    [
        ("Deep Learning*", P4D, NEW_IMAGE),
        ("Deep Learning*20260703", P4D, OLD_IMAGE),
        ("*", G5G, ARM_IMAGE),
        ("An ARM64 image", P4D, None),
        ("nothing of that name", P4D, None),
        ("  ", P4D, None),
        ("ami-0123456789abcdef0", P4D, None),
        ("bild-äöü-☃", P4D, None),
    ],
)
def test_a_chosen_image(account, wanted, machine, found):
    image = find_image(account, wanted, machine)
    assert (image.image_id if image else None) == found


@pytest.mark.parametrize("name", ["horovod", "ami-horovod"])
def test_an_image_of_ones_own(account, name):
    [reservation] = [account.ec2.run_instances(ImageId=NEW_IMAGE, MinCount=1, MaxCount=1)]
    made = account.ec2.create_image(
        InstanceId=reservation["Instances"][0]["InstanceId"], Name=f"{name}-ubuntu-1"
    )["ImageId"]
    image = find_image(account, f"{name}-*", P4D)
    assert (image.image_id, image.user, image.driver) == (made, "ubuntu", "")


@pytest.mark.parametrize(
    ("machine", "architecture", "pattern"),
    [
        (C5, "x86_64", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"),
        (G5G, "arm64", "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) *"),
        (P3, "x86_64", "Deep Learning Base Proprietary Nvidia Driver *"),
    ],
)
def test_the_image_for_a_type(machine, architecture, pattern):
    assert (architecture_of(machine), default_pattern(machine)) == (architecture, pattern)


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
    # An image with few fields.
    image = newest_image([{"ImageId": "ami-1"}])
    assert (image, image.user) == (Image("ami-1", "", "/dev/sda1", 0, ""), None)


@pytest.mark.parametrize(
    ("name", "user", "driver"),
    [
        ("Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20260703", "ubuntu", "oss"),
        ("Deep Learning Base OSS Nvidia Driver AMI (Amazon Linux 2023) 1", "ec2-user", "oss"),
        ("Deep Learning Base AMI with Single CUDA (Ubuntu 24.04) 20260714", "ubuntu", "oss"),
        ("Deep Learning Base Proprietary Nvidia Driver AMI (Ubuntu 20)", "ubuntu", "proprietary"),
        ("Deep Learning AMI GPU TensorFlow 2.12.0 (Ubuntu 20.04) 1", "ubuntu", "proprietary"),
        ("Deep Learning AMI (Ubuntu) Version 15.0", "ubuntu", "proprietary"),
        ("Deep Learning AMI (Amazon Linux) Version 15.0", "ec2-user", "proprietary"),
        ("Deep Learning AMI Neuron (Ubuntu 22.04) 20260101", "ubuntu", ""),
        ("ubuntu/images/hvm-ssd-gp3/ubuntu-noble-24.04-amd64-server-20260423", "ubuntu", ""),
        ("al2023-ami-2023.6.20260303.0-kernel-6.1-x86_64", "ec2-user", ""),
        ("RHEL-9.4.0_HVM-20260101-x86_64-0-Hourly2-GP3", "ec2-user", ""),
        ("suse-sles-15-sp6", "ec2-user", ""),
        ("debian-12-amd64-20260101", "admin", ""),
        ("Rocky-9-EC2-Base-9.4", "rocky", ""),
        ("CentOS Stream 9 x86_64", "ec2-user", ""),
        ("CentOS Linux 7 x86_64", "centos", ""),
        ("my golden image 7", None, ""),
        ("", None, ""),
    ],
)
def test_what_an_images_name_tells(name, user, driver):
    assert login_user("", name) == user
    assert driver_of(name) == driver


@pytest.mark.parametrize(
    ("platform", "name", "description", "user"),
    [
        ("windows", "Ubuntu on WSL", "", None),
        ("", "golden-7", "made from Ubuntu 22.04", "ubuntu"),
        ("", "golden-ubuntu", "not Amazon Linux", "ubuntu"),
    ],
)
def test_the_platform_counts_before_the_name_and_that_before_the_description(
    platform, name, description, user
):
    assert login_user(platform, name, description) == user


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


@pytest.mark.lab
@pytest.mark.parametrize(
    ("name", "image"),
    [
        ("p4d.24xlarge", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261101"),
        ("c5.xlarge", "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 20261101"),
        ("g5g.xlarge", "Deep Learning ARM64 Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) "),
        ("p3.16xlarge", "Deep Learning Base Proprietary Nvidia Driver GPU AMI "),
    ],
)
def test_the_lab_has_the_image_for_a_type_and_nothing_speaks_against_it(lab, name, image):
    clients = Clients(account_of(lab))
    machine = find_machine_type(clients.ec2, name)
    found = find_image(clients, None, machine)
    assert found.name.startswith(image)
    findings = image_findings(found, machine)
    assert [one for one in findings if one.check != "image.horovod"] == []


def test_a_family_that_only_the_second_system_lists_gets_that_image(monkeypatch):
    """AWS brings new types to the images of a newer Ubuntu first."""
    listed = {"22.04": "P5, P5e", "24.04": "P5, P5e, P9"}
    asked = []

    def latest(clients, machine, ubuntu):
        asked.append(ubuntu)
        text = f"Supported EC2 instances: {listed[ubuntu]}. Release notes: x"
        return Image(f"ami-{ubuntu}", "x", "/dev/sda1", 75, "x86_64", description=text)

    monkeypatch.setattr(machines, "_latest", latest)
    new = MachineType("p9.48xlarge", 8, 192, ("x86_64",), gpu_name="X1")
    assert find_image(SimpleNamespace(ec2=None), None, new).image_id == "ami-24.04"
    assert asked == ["22.04", "24.04"]
    # The first is as good for what it lists, for what none lists, and for a machine without GPUs.
    p5 = MachineType("p5.48xlarge", 8, 192, ("x86_64",), gpu_name="H100")
    other = MachineType("z1.48xlarge", 8, 192, ("x86_64",), gpu_name="Z")
    for machine in (p5, other, C5):
        assert find_image(SimpleNamespace(ec2=None), None, machine).image_id == "ami-22.04"
    unlisted = find_image(SimpleNamespace(ec2=None), None, other)
    [found] = [one for one in image_findings(unlisted, other) if one.check == "image.driver"]
    assert "leave --image out" not in found.hint, "it is left out"
