"""Client tokens of RunInstances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError

from tests.lab.running import once_client

pytestmark = pytest.mark.lab


def ids_of(launched):
    return sorted(one["InstanceId"] for one in launched)


def code_of(call, **arguments):
    with pytest.raises(ClientError) as refused:
        call(**arguments)
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400
    return refused.value.response["Error"]["Code"]


@pytest.mark.parametrize(
    "changes",
    [
        {"MinCount": 1},
        {"InstanceType": "p3.8xlarge"},
        {"UserData": "#!/bin/sh\n"},
        {"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "k", "Value": "v"}]}]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_token_is_for_one_request(instances, changes):
    request = {"ClientToken": f"for-{next(iter(changes))}", "MinCount": 2, "MaxCount": 2}
    first = ids_of(instances.request(**request))
    refused = instances.wanted(**{**request, **changes})
    assert code_of(once_client(instances.lab).run_instances, **refused) == (
        "IdempotentParameterMismatch"
    )
    assert ids_of(instances.request(**request)) == first


def test_the_same_request_at_the_same_time_is_one_launch(instances):
    once = once_client(instances.lab)
    request = instances.wanted(ClientToken="at-once", MinCount=2, MaxCount=2)
    with ThreadPoolExecutor(8) as pool:
        launched = list(pool.map(lambda _: once.run_instances(**request), range(8)))
    assert len({one["ReservationId"] for one in launched}) == 1
    assert len({tuple(ids_of(one["Instances"])) for one in launched}) == 1
    instances.request(**request)


def test_a_token_whose_instances_have_ended_launches_nothing(instances):
    first = ids_of(instances.request(ClientToken="outlived"))
    instances.ec2.terminate_instances(InstanceIds=first)
    instances.in_state(first[0], "terminated")
    assert code_of(instances.request, ClientToken="outlived") == "IdempotentInstanceTerminated"


def test_a_refused_launch_uses_no_token_up(instances, faults):
    faults("capacity", instance_type="p3.16xlarge", zone="us-east-1b", left=0)
    zone = {"Placement": {"AvailabilityZone": "us-east-1b"}, "InstanceType": "p3.16xlarge"}
    request = instances.wanted(ClientToken="refused", **zone)
    with pytest.raises(ClientError):
        once_client(instances.lab).run_instances(**request)
    faults.clear()
    assert len(instances.request(**request)) == 1


def test_in_another_zone_the_same_token_is_another_launch(instances):
    by_zone = [
        ids_of(
            instances.request(
                ClientToken="zonal", Placement={"AvailabilityZone": f"us-east-1{one}"}
            )
        )
        for one in "aba"
    ]
    assert by_zone[0] == by_zone[2] != by_zone[1]


def test_a_dry_run_uses_no_token_up(instances):
    dry = instances.wanted(ClientToken="dry", DryRun=True)
    with pytest.raises(ClientError, match="DryRunOperation"):
        once_client(instances.lab).run_instances(**dry)
    assert len(instances.request(ClientToken="dry")) == 1
