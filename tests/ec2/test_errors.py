"""Whatever botocore raises becomes one AwsError with a way out; anything else is left alone."""

from __future__ import annotations

import pytest
from botocore import exceptions
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError

from clusterctl.domain.errors import AwsError
from clusterctl.ec2.errors import TABLE, aws_error, outcome_unknown, throttled, translated


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
    ("error", "code", "message", "hint"),
    [
        (refused("InvalidInstanceType", "p9.big"), "InvalidInstanceType", "p9.big", "describe"),
        (
            refused("InvalidAMIID.NotFound", "no ami-1"),
            "InvalidAMIID.NotFound",
            "ami-1",
            "--region",
        ),
        (
            refused("InvalidAMIID.Malformed", "bad id"),
            "InvalidAMIID.Malformed",
            "bad id",
            "--image",
        ),
        (refused("UnauthorizedOperation", "Encoded: x"), "UnauthorizedOperation", "x", "decode"),
        (refused("AuthFailure", "nope"), "AuthFailure", "does not accept", "region is enabled"),
        (refused("ExpiredToken"), "ExpiredToken", "expired", "aws sso login"),
        (refused("ExpiredTokenException"), "ExpiredTokenException", "expired", "aws sso login"),
        (refused("RequestExpired"), "RequestExpired", "old", "clock"),
        (refused("OptInRequired", "not subscribed"), "OptInRequired", "subscribed", "enable"),
        (
            refused("InsufficientInstanceCapacity", "try us-east-1b", 500),
            "InsufficientInstanceCapacity",
            "try us-east-1b",
            "nothing was launched",
        ),
        (refused("VcpuLimitExceeded", "limit 0"), "VcpuLimitExceeded", "limit 0", "L-417A185B"),
        (refused("RequestLimitExceeded"), "RequestLimitExceeded", "throttling", "wait"),
        (refused("DependencyViolation", "in use"), "DependencyViolation", "in use", "down"),
        (exceptions.NoCredentialsError(), "NoCredentialsError", "no AWS credentials", "--lab"),
        (exceptions.NoRegionError(), "NoRegionError", "no AWS region", "--region"),
        (
            exceptions.InvalidRegionError(region_name="mars one"),
            "InvalidRegionError",
            "mars one",
            "--region",
        ),
        (exceptions.ProfileNotFound(profile="x"), "ProfileNotFound", "x", "list-profiles"),
        (
            exceptions.EndpointConnectionError(endpoint_url="https://ec2.mars-1.amazonaws.com"),
            "EndpointConnectionError",
            "mars-1",
            "--region",
        ),
        (
            exceptions.ConnectTimeoutError(endpoint_url="https://e"),
            "ConnectTimeoutError",
            "https://e",
            "network",
        ),
        (
            exceptions.ReadTimeoutError(endpoint_url="https://e"),
            "ReadTimeoutError",
            "in time",
            "again",
        ),
        (
            exceptions.SSLError(endpoint_url="https://e", error="x"),
            "SSLError",
            "https://e",
            "clock",
        ),
        (ResponseParserError("not XML"), "ResponseParserError", "not EC2", "again"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_foreign_errors(error, code, message, hint):
    failure = raised(error)
    assert failure.code == code
    assert message in failure.message
    assert hint in failure.hint
    assert failure.__cause__ is error


def test_a_code_nobody_foresaw_keeps_ec2s_words():
    failure = raised(refused("BrandNew.Thing", "the message"))
    assert failure.message == "EC2 refused: the message (BrandNew.Thing)"


@pytest.mark.parametrize(
    "message", ["{0}", "{message}", "{unclosed", "\N{SNOWMAN}\n\x1b[31m", "%s"]
)
def test_ec2s_words_are_never_a_template(message):
    assert message in raised(refused("VcpuLimitExceeded", message)).message


@pytest.mark.parametrize("error", [ValueError("x"), KeyError("x"), AwsError("a", "b")])
def test_other_errors_pass(error):
    with pytest.raises(type(error)) as caught, translated():
        raise error
    assert caught.value is error


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt), translated():
        raise KeyboardInterrupt


def test_every_entry_says_what_to_do():
    assert [code for code, (_, hint) in TABLE.items() if not hint] == []


@pytest.mark.parametrize(
    ("error", "unknown"),
    [
        (refused("InternalError", status=500), True),
        (refused("Unavailable", status=503), True),
        (refused("SomethingNew", status=502), True),
        (refused("InsufficientInstanceCapacity", status=500), False),
        (refused("RequestLimitExceeded", status=503), False),
        (refused("InvalidParameterValue"), False),
        (exceptions.ReadTimeoutError(endpoint_url="https://e"), True),
        (exceptions.ConnectionClosedError(endpoint_url="https://e"), True),
        (ResponseParserError("cut off"), True),
        (exceptions.EndpointConnectionError(endpoint_url="https://e"), False),
        (exceptions.NoCredentialsError(), False),
    ],
)
def test_whether_a_request_may_have_been_carried_out(error, unknown):
    assert outcome_unknown(raised(error)) is unknown


def test_throttling_is_only_a_matter_of_patience():
    assert throttled(raised(refused("RequestLimitExceeded", status=503)))
    assert not throttled(raised(refused("InsufficientInstanceCapacity", status=500)))


def test_not_of_botocore():
    assert aws_error(RuntimeError("x")) is None
