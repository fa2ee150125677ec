"""The quota of a type, its use, and the finding if it is too small."""

from dataclasses import replace

import pytest
from botocore.stub import Stubber
from moto.ec2.models.instance_types import INSTANCE_TYPES

from clusterctl.domain.cluster import ClusterSpec, Market
from clusterctl.domain.findings import Severity
from clusterctl.ec2.launch.capacity import (
    QuotaUse,
    bucket_of,
    find_interface_use,
    find_quota,
    find_quota_uses,
    quota_code,
    quota_finding,
    used_vcpus,
)
from clusterctl.ec2.launch.observe import fixed_request, observe
from clusterctl.ec2.launch.plan import plan_launch
from clusterctl.ec2.machines import MachineType
from clusterctl.ec2.session import Account, Clients
from clusterctl.ec2.tags import Creations
from clusterctl.lab.ec2.quotas import quota_of
from tests.moto_ec2 import NEW_IMAGE, clients_of

ON_DEMAND, SPOT, BLOCK = Market.ON_DEMAND, Market.SPOT, Market.CAPACITY_BLOCK


@pytest.mark.parametrize(
    ("instance_type", "on_demand", "spot"),
    [
        ("p4d.24xlarge", "L-417A185B", "L-7212CCBC"),
        ("p5.48xlarge", "L-417A185B", "L-C4BD4855"),
        # AWS's list of spot quotas has no type after P5.
        ("p6-b200.48xlarge", "L-417A185B", None),
        ("g5.12xlarge", "L-DB2E81BA", "L-3819A6DF"),
        ("dl1.24xlarge", "L-6E869C2A", "L-85EED4F7"),
        ("d3en.xlarge", "L-1216C47A", "L-34B43A08"),
        ("trn2.48xlarge", "L-2C3B7624", "L-6B0D517C"),
        ("t3.micro", "L-1216C47A", "L-34B43A08"),
        ("inf2.xlarge", "L-1945791B", "L-B5D1601B"),
        ("x2gd.medium", "L-7295265B", "L-E3A00192"),
        ("hpc7g.4xlarge", "L-F7808C92", None),
        ("u7i-12tb.224xlarge", "L-43DA4232", None),
        # Types that are counted in hosts, or that are unknown.
        ("mac2.metal", None, None),
        ("quantum1.large", None, None),
        ("4you.large", None, None),
    ],
)
def test_the_quota_of_a_type(instance_type, on_demand, spot):
    assert quota_code(instance_type, ON_DEMAND) == on_demand
    assert quota_code(instance_type, SPOT) == spot
    assert quota_code(instance_type, BLOCK) is None


def test_the_lab_counts_in_the_same_quotas():
    for name in INSTANCE_TYPES:
        for spot in (False, True):
            of_lab = quota_of(name, spot=spot)
            code = quota_code(name, SPOT if spot else ON_DEMAND)
            assert (of_lab and of_lab.code) == code, name


def machine(instance_type, cores=48, state="running", **more):
    options = {"CpuOptions": {"CoreCount": cores, "ThreadsPerCore": 2}} if cores else {}
    return {"InstanceType": instance_type, "State": {"Name": state}, **options, **more}


@pytest.mark.parametrize(
    ("instance_type", "market", "vcpus"),
    # Capacity Blocks have a separate quota, and do not count in the others.
    [
        ("p4d.24xlarge", ON_DEMAND, 96 + 64),
        ("p5.48xlarge", ON_DEMAND, 96 + 64),
        ("p4d.24xlarge", SPOT, 96),
        ("p5.48xlarge", SPOT, 16),
    ],
)
def test_what_is_in_use_is_counted_by_family_market_and_state(instance_type, market, vcpus):
    described = [
        machine("p4d.24xlarge"),
        machine("p3.16xlarge", 32, "pending"),
        machine("p4d.24xlarge", state="stopped"),
        machine("p4d.24xlarge", state="stopping"),
        machine("p4d.24xlarge", state="shutting-down"),
        machine("g5.48xlarge"),
        machine("p5.4xlarge", 8, InstanceLifecycle="spot"),
        machine("p4d.24xlarge", InstanceLifecycle="spot"),
        machine("p5.48xlarge", 96, InstanceLifecycle="capacity-block"),
        machine("p5.48xlarge", 96, InstanceLifecycle="scheduled"),
    ]
    assert used_vcpus(described, bucket_of(instance_type, market), market) == vcpus


def test_an_instance_that_does_not_say_counts_as_its_type():
    described = [machine("p4d.24xlarge", None), machine("p5.48xlarge", None)]
    assert used_vcpus(described, bucket_of("p4d.24xlarge"), ON_DEMAND, {"p4d.24xlarge": 96}) == 96


def test_all_instances_of_the_region_count_whoever_launched_them(client, moto_url):
    client.run_instances(ImageId=NEW_IMAGE, InstanceType="c5.xlarge", MinCount=7, MaxCount=7)
    client.run_instances(ImageId=NEW_IMAGE, InstanceType="g5.xlarge", MinCount=1, MaxCount=1)
    types = [
        MachineType(name, gpus=0, vcpus=4, architectures=("x86_64",))
        for name in ("c5.xlarge", "m5.xlarge", "g5.xlarge", "quantum1.large")
    ]
    found = find_quota_uses(clients_of(moto_url), types, ON_DEMAND)
    # Standard families share one quota.
    assert {name: (use.code, use.used) for name, use in found.items()} == {
        "c5.xlarge": ("L-1216C47A", 28),
        "m5.xlarge": ("L-1216C47A", 28),
        "g5.xlarge": ("L-DB2E81BA", 4),
        "quantum1.large": ("", 0),
    }
    assert [name for name, use in found.items() if use.limit is None] == ["quantum1.large"]
    assert find_quota_uses(clients_of(moto_url), types, BLOCK) == {}


def test_capacity_that_is_reserved_and_unused_counts(client, moto_url):
    """EC2 counts it, whether instances run in it or not."""
    c5 = MachineType("c5.xlarge", gpus=0, vcpus=4, architectures=("x86_64",))

    def use():
        found = find_quota_uses(clients_of(moto_url), [c5], ON_DEMAND)["c5.xlarge"]
        return found.used, found.reserved

    used, reserved = use()
    made = [
        client.create_capacity_reservation(
            InstanceType=name,
            InstancePlatform="Linux/UNIX",
            AvailabilityZone="us-east-1a",
            InstanceCount=3,
            InstanceMatchCriteria="targeted",
        )["CapacityReservation"]["CapacityReservationId"]
        for name in ("c5.xlarge", "m5.2xlarge", "g5.xlarge")
    ]
    assert use() == (used, reserved + 3 * 4 + 3 * 8)
    target = {"CapacityReservationTarget": {"CapacityReservationId": made[0]}}
    client.run_instances(
        ImageId=NEW_IMAGE,
        InstanceType="c5.xlarge",
        MinCount=1,
        MaxCount=1,
        CapacityReservationSpecification=target,
        Placement={"AvailabilityZone": "us-east-1a"},
    )
    assert use() == (used + 4, reserved + 2 * 4 + 3 * 8), "it counts once"
    for id in made:
        client.cancel_capacity_reservation(CapacityReservationId=id)
    assert use() == (used + 4, reserved)


def test_reserved_capacity_alone_refuses_nothing():
    """It may be another account's, or an open reservation that the nodes will be in."""
    tight = replace(use_of(96, 480), reserved=192)
    assert quota_finding(tight, P4D, 2, "us-west-2") is None
    found = quota_finding(tight, P4D, 3, "us-west-2")
    assert (found.severity, "192 are reserved and unused" in found.message) == (
        Severity.WARNING,
        True,
    )
    assert quota_finding(tight, P4D, 5, "us-west-2").severity is Severity.ERROR


P4D = MachineType("p4d.24xlarge", gpus=8, vcpus=96, architectures=("x86_64",))


def use_of(used, limit):
    return QuotaUse("Running On-Demand P instances", "L-417A185B", used, limit)


@pytest.mark.parametrize(
    ("nodes", "used", "limit", "severity"),
    [
        (4, 0, 384.0, None),
        (4, 0, 383.0, Severity.ERROR),
        (4, 96, 384.0, Severity.ERROR),
        (4, 0, 0.0, Severity.ERROR),
        (4, 0, None, Severity.INFO),
        # Nothing is launched: a full quota is no reason to refuse.
        (0, 400, 384.0, None),
    ],
)
def test_whether_it_fits(nodes, used, limit, severity):
    found = quota_finding(use_of(used, limit), P4D, nodes, "us-east-1")
    assert (found and found.severity) == severity


def test_interfaces_are_counted_where_a_launch_takes_many(client, moto_url, tmp_path):
    """32 p5en take 544 of 5,000 interfaces, which is a quota of VPC."""
    clients = clients_of(moto_url)
    client.run_instances(ImageId=NEW_IMAGE, InstanceType="c5.xlarge", MinCount=3, MaxCount=3)
    assert find_interface_use(clients) == QuotaUse(
        "Network interfaces per Region", "L-DF5E4CA3", 3, 5000.0, "vpc"
    )
    few, many = (
        observe(clients, "demo", fixed_request(asked), *(tmp_path / "a", Creations(tmp_path / "c")))
        for asked in (ClusterSpec("demo", nodes, "p5en.48xlarge") for nodes in (2, 400))
    )
    assert few.catalogue.interfaces is None
    [found] = [
        one for one in plan_launch(many, "key", "id").findings if one.check == "quota.interfaces"
    ]
    assert found.message == (
        "400 more nodes (p5en.48xlarge) need 6800 network interfaces, 3 are in use, and the quota "
        "Network interfaces per Region (L-DF5E4CA3) is 5000 in us-east-1"
    )
    assert "--service-code vpc --quota-code L-DF5E4CA3 --desired-value 6803" in found.hint


QUOTA = {"ServiceCode": "ec2", "QuotaCode": "L-417A185B"}


@pytest.fixture(scope="module")
def made():
    return Clients(Account(region="us-east-1", access_key="test", secret_key="test"))


@pytest.fixture
def quotas(made):
    with Stubber(made.quotas) as stub:
        yield stub


@pytest.mark.parametrize(
    ("own", "default", "found"),
    [
        ({"Quota": {**QUOTA, "Value": 768.0}}, None, 768.0),
        # An account without its own value has the default.
        ("NoSuchResourceException", {"Quota": {**QUOTA, "Value": 0.0}}, 0.0),
        # Without the permission to read it, the quota is unknown.
        ("NoSuchResourceException", "AccessDeniedException", None),
        ("AccessDeniedException", "AccessDeniedException", None),
        # The answers have no number.
        ({}, None, None),
        ({"Quota": {}}, None, None),
        ({"Quota": {"Value": float("inf")}}, None, None),
    ],
)
def test_the_accounts_own_quota_or_the_default(made, quotas, own, default, found):
    answers = {"get_service_quota": own, "get_aws_default_service_quota": default}
    for operation, answer in answers.items():
        if isinstance(answer, str):
            quotas.add_client_error(operation, answer, "no", 400)
        elif answer is not None:
            quotas.add_response(operation, answer, QUOTA)
    assert find_quota(made, "L-417A185B") == found
