"""Every error of botocore becomes an AwsError with a hint. Other errors are not changed."""

from __future__ import annotations

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import aws_error, codes, outcome_unknown, throttled, translated

URL = {"endpoint_url": "https://ec2.mars-1.amazonaws.com"}


def refused(code: str, message: str = "because", status: int = 400) -> ClientError:
    response = {
        "Error": {"Code": code, "Message": message},
        "ResponseMetadata": {"HTTPStatusCode": status},
    }
    return ClientError(response, "RunInstances")


def raised(error: Exception) -> AwsError:
    with pytest.raises(AwsError) as caught, translated():
        raise error
    return caught.value


@pytest.mark.parametrize(
    ("error", "message", "hint"),
    [
        (refused("InvalidInstanceType", "p9.big"), "p9.big", "describe"),
        (refused("InvalidAMIID.NotFound", "no ami-1"), "ami-1", "--region"),
        (refused("InvalidAMIID.Malformed", "bad id"), "bad id", "--image"),
        (refused("UnauthorizedOperation", "Encoded: x"), "x", "decode"),
        (refused("AuthFailure", "nope"), "does not accept", "region is enabled"),
        (refused("AuthFailure", "nope"), "does not accept", "clock"),
        (refused("SignatureDoesNotMatch", "Signature expired: 2026"), "clock", "date -u"),
        (refused("InvalidSignatureException", "Signature not yet current"), "clock", "date -u"),
        (
            refused("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided"),
            "no service-linked role for spot instances",
            "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
        ),
        (refused("ExpiredToken"), "expired", "aws sso login"),
        (refused("RequestExpired"), "old", "clock"),
        (refused("OptInRequired", "not subscribed"), "subscribed", "enable"),
        (refused("InsufficientInstanceCapacity", "try 1b", 500), "try 1b", "nothing was launched"),
        (refused("VcpuLimitExceeded", "limit 0"), "limit 0", "L-417A185B"),
        (refused("RequestLimitExceeded"), "throttling", "wait"),
        (refused("DependencyViolation", "in use"), "in use", "down"),
        # EC2's message is not used as a template.
        (refused("VcpuLimitExceeded", "{0} {message} {x %s"), "{0} {message} {x %s", "L-"),
        (refused("BrandNew.Thing", "the words"), "AWS refused: the words (BrandNew.Thing)", ""),
        (refused("NoSuchBucket", "The specified"), "there is no such bucket", "aws s3 ls"),
        (exceptions.NoCredentialsError(), "no AWS credentials", "--lab"),
        (exceptions.NoRegionError(), "no AWS region", "--region"),
        (exceptions.InvalidRegionError(region_name="mars one"), "mars one", "--region"),
        (exceptions.ProfileNotFound(profile="x"), "x", "list-profiles"),
        (exceptions.EndpointConnectionError(**URL), "mars-1", "--region"),
        (exceptions.ConnectTimeoutError(**URL), "https://e", "network"),
        (exceptions.ReadTimeoutError(**URL), "in time", "again"),
        (exceptions.SSLError(**URL, error="x"), "https://e", "clock"),
        (ResponseParserError("not XML"), "not AWS", "again"),
    ],
)
def test_errors_of_botocore_become_aws_errors(error, message, hint):
    failure = raised(error)
    answer = getattr(error, "response", None)
    assert failure.code == (answer["Error"]["Code"] if answer else type(error).__name__)
    assert message in failure.message
    assert hint in failure.hint
    assert failure.__cause__ is error


@pytest.mark.parametrize("error", [ValueError("x"), AwsError("a", "b"), KeyboardInterrupt()])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, translated():
        raise error
    assert caught.value is error
    assert aws_error(ValueError("x")) is None


def test_every_entry_says_what_to_do():
    assert [code for code, (_, hint) in codes()["errors"].items() if not hint] == []


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (refused("InternalError", status=500), True),
        (refused("SomethingNew", status=502), True),
        (refused("InsufficientInstanceCapacity", status=500), False),
        (refused("InsufficientVolumeCapacity", status=500), False),
        (refused("InsufficientAddressCapacity", status=503), False),
        (refused("InsufficientCapacityOnHost", status=500), False),
        (refused("BandwidthLimitExceeded", status=503), False),
        (refused("ReservationCapacityExceeded", status=500), False),
        (refused("ServiceUnavailable", status=503), True),
        (refused("RequestLimitExceeded", status=503), False),
        (refused("InvalidParameterValue"), False),
        (exceptions.ReadTimeoutError(**URL), True),
        (exceptions.ConnectionClosedError(**URL), True),
        (ResponseParserError("cut off"), True),
        (exceptions.EndpointConnectionError(**URL), False),
        (exceptions.NoCredentialsError(), False),
    ],
)
def test_whether_a_request_may_have_been_carried_out(error, unknown):
    failure = raised(error)
    assert outcome_unknown(failure) is unknown
    assert throttled(failure) is (failure.code == "RequestLimitExceeded")
