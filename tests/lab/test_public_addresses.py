"""Public addresses: which instances have one, when, and that it answers."""

from __future__ import annotations

import contextlib
import ipaddress
import socket

import pytest
from botocore.exceptions import ClientError

from tests.lab.refusals import refused
from tests.lab.running import ssh, wait_until

pytestmark = pytest.mark.lab


def public_of(instances, one) -> str:
    return instances.see(one["InstanceId"]).get("PublicIpAddress", "")


def name_at(instances, address: str) -> str:
    """Return the name of the host that answers at an address, or "" if none does."""
    return ssh(instances.lab, instances.key, address, "hostname").stdout.strip()


def hostname(one) -> str:
    return "ip-" + one["PrivateIpAddress"].replace(".", "-")


def answers_as(instances, address: str, one) -> None:
    name = hostname(one)
    wait_until(lambda: name_at(instances, address) == name, f"{address} is {name}")


def connects(address: str, patience_s: float) -> bool:
    """Return False if nothing answers. Raise any other error."""
    try:
        socket.create_connection((address, 22), patience_s).close()
    except TimeoutError:
        return False
    return True


@pytest.fixture
def elastic(ec2):
    """Return a function that allocates elastic addresses. They are released at the end."""
    made = []

    def allocate(**options):
        made.append(ec2.allocate_address(Domain="vpc", **options))
        return made[-1]

    yield allocate
    there = {one["AllocationId"]: one for one in ec2.describe_addresses()["Addresses"]}
    for one in made:
        shown = there.get(one["AllocationId"], {})
        if shown.get("AssociationId"):
            ec2.disassociate_address(AssociationId=shown["AssociationId"])
        if shown:
            ec2.release_address(AllocationId=one["AllocationId"])


def test_it_answers_the_caller_and_the_other_hosts(instances, lab):
    first, second = instances.up(MinCount=2, MaxCount=2)
    addresses = [one["PublicIpAddress"] for one in (first, second)]
    assert len(set(addresses)) == 2
    assert all(
        ipaddress.ip_address(one) in ipaddress.ip_network(lab.public_network) for one in addresses
    )
    assert first["PublicDnsName"].startswith("ec2-" + addresses[0].replace(".", "-") + ".")
    answers_as(instances, addresses[0], first)
    # As with EC2's address translation, the host itself has only its private address.
    assert instances.run(first, "hostname -I") == first["PrivateIpAddress"]
    program = (
        f"import socket; there = socket.create_connection(('{addresses[1]}', 22)); "
        "print(there.getsockname()[0])"
    )
    assert instances.run(first, f'python3 -c "{program}"') == first["PrivateIpAddress"]


def test_a_reboot_keeps_it_and_a_stop_does_not(instances, ec2):
    one = instances.up()[0]
    id, before = one["InstanceId"], one["PublicIpAddress"]
    ec2.reboot_instances(InstanceIds=[id])
    instances.reachable(id)
    assert public_of(instances, one) == before
    answers_as(instances, before, one)
    ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    shown = instances.see(id)
    assert "PublicIpAddress" not in shown
    assert not shown.get("PublicDnsName")
    assert "Association" not in shown["NetworkInterfaces"][0]
    ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)
    after = public_of(instances, one)
    assert after not in ("", before)
    answers_as(instances, after, one)
    ec2.terminate_instances(InstanceIds=[id])
    instances.in_state(id, "terminated")
    assert public_of(instances, one) == ""


def test_a_host_that_is_cut_off_is_silent(instances, lab):
    if lab.mode != "root":
        pytest.skip("addresses do not answer from here")
    one = instances.up()[0]
    cut = "sudo -n sh -c 'sleep 1; ip link set eth0 down'"
    instances.run(one, f"setsid {cut} </dev/null >/dev/null 2>&1 &")
    wait_until(lambda: not connects(one["PublicIpAddress"], 1), "the link to be down")
    # Longer than the kernel's ARP lookup, after which it would report an unreachable host.
    assert not connects(one["PublicIpAddress"], 4)


def test_the_subnet_and_the_launch_decide(instances, ec2):
    zone = [{"Name": "availability-zone", "Values": ["us-east-1d"]}]
    subnet = ec2.describe_subnets(Filters=zone)["Subnets"][0]
    assert subnet["MapPublicIpOnLaunch"]
    where = {"SubnetId": subnet["SubnetId"]}
    launched = {}
    try:
        for in_subnet, asked, has in (
            (True, None, True),
            (True, False, False),
            (False, None, False),
            (False, True, True),
        ):
            ec2.modify_subnet_attribute(**where, MapPublicIpOnLaunch={"Value": in_subnet})
            nic = {} if asked is None else {"AssociatePublicIpAddress": asked}
            one = instances.request(NetworkInterfaces=[{"DeviceIndex": 0, **where, **nic}])[0]
            launched[one["InstanceId"]] = has
    finally:
        ec2.modify_subnet_attribute(**where, MapPublicIpOnLaunch={"Value": True})
    for id in launched:
        instances.reachable(id)
    found = {id: "PublicIpAddress" in instances.see(id) for id in launched}
    assert found == launched


@pytest.mark.all
def test_an_elastic_address_from_allocation_to_release(instances, ec2, elastic):
    one = instances.up()[0]
    id, own = one["InstanceId"], one["PublicIpAddress"]
    tags = [{"ResourceType": "elastic-ip", "Tags": [{"Key": "of", "Value": "this-test"}]}]
    made = elastic(TagSpecifications=tags)
    allocation, address = made["AllocationId"], made["PublicIp"]
    ec2.associate_address(InstanceId=id, AllocationId=allocation)
    assert public_of(instances, one) == address
    answers_as(instances, address, one)
    assert name_at(instances, own) == ""
    found = ec2.describe_addresses(Filters=[{"Name": "tag:of", "Values": ["this-test"]}])
    shown = found["Addresses"][0]
    assert (shown["InstanceId"], shown["PrivateIpAddress"]) == (id, one["PrivateIpAddress"])
    assert shown["Tags"] == [{"Key": "of", "Value": "this-test"}]
    assert refused(ec2.release_address, AllocationId=allocation)[0] == "InvalidIPAddress.InUse"
    ec2.stop_instances(InstanceIds=[id])
    instances.in_state(id, "stopped")
    assert public_of(instances, one) == address
    ec2.start_instances(InstanceIds=[id])
    instances.reachable(id)
    answers_as(instances, address, one)
    ec2.disassociate_address(AssociationId=shown["AssociationId"])
    wait_until(lambda: public_of(instances, one) not in ("", address, own), "an address of its own")
    answers_as(instances, public_of(instances, one), one)
    ec2.release_address(AllocationId=allocation)
    assert (
        refused(ec2.release_address, AllocationId=allocation)[0] == "InvalidAllocationID.NotFound"
    )


@pytest.mark.all
def test_an_elastic_address_moves_only_when_told_to(instances, ec2, elastic):
    first, second = instances.up(MinCount=2, MaxCount=2)
    made = elastic()
    allocation, address = made["AllocationId"], made["PublicIp"]
    ec2.associate_address(InstanceId=first["InstanceId"], AllocationId=allocation)
    answers_as(instances, address, first)
    there = {
        "NetworkInterfaceId": second["NetworkInterfaces"][0]["NetworkInterfaceId"],
        "AllocationId": allocation,
    }
    assert refused(ec2.associate_address, **there)[0] == "Resource.AlreadyAssociated"
    ec2.associate_address(**there, AllowReassociation=True)
    answers_as(instances, address, second)
    answers_as(instances, public_of(instances, first), first)
    ec2.terminate_instances(InstanceIds=[second["InstanceId"]])
    instances.in_state(second["InstanceId"], "terminated")
    shown = ec2.describe_addresses(AllocationIds=[allocation])["Addresses"][0]
    assert not shown.get("AssociationId")
    assert name_at(instances, address) == ""
    with contextlib.suppress(ClientError):
        for _ in range(5):
            elastic()
    assert refused(elastic)[0] == "AddressLimitExceeded"
    for id, given, code in (
        (second["InstanceId"], allocation, "InvalidInstanceID"),
        ("i-0123456789abcdef0", allocation, "InvalidInstanceID.NotFound"),
        (first["InstanceId"], "eipalloc-0123456789abcdef0", "InvalidAllocationID.NotFound"),
    ):
        assert refused(ec2.associate_address, InstanceId=id, AllocationId=given)[0] == code
