"""Translation of botocore's errors into AwsError, with hints; calls that are repeated or paged."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from clusterctl.domain.errors import AwsError
from clusterctl.domain.timeouts import Polling

Answer = TypeVar("Answer")


# Error code -> (message, hint). An empty message keeps EC2's own; `{message}` stands for it.
# A code that ends in "*" matches every code with that prefix. The first match counts.
TABLE: dict[str, tuple[str, str]] = {
    # Credentials and permissions
    "NoCredentialsError": (
        "there are no AWS credentials",
        "run `aws configure`, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "or choose --profile NAME; without an account: --lab",
    ),
    "PartialCredentialsError": ("", "set both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
    "NoRegionError": ("no AWS region is chosen", "give --region, for example --region us-east-1"),
    "InvalidRegionError": ("", "check --region, for example --region us-east-1"),
    "ProfileNotFound": ("", "see `aws configure list-profiles`"),
    "ExpiredToken*": ("the AWS session has expired", "log in again, for example `aws sso login`"),
    "RequestExpired": (
        "EC2 took the request for an old one",
        "log in again if your session is temporary, and check this machine's clock",
    ),
    "UnauthorizedSSOTokenError": ("the AWS login has expired", "log in again: aws sso login"),
    "SSOTokenLoadError": ("there is no AWS login", "log in: aws sso login"),
    "TokenRetrievalError": ("the AWS login has expired", "log in again: aws sso login"),
    "CredentialRetrievalError": ("", "check the profile's credential_process or login"),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": (
        "the account has no service-linked role for spot instances, and you may not create it",
        "ask whoever runs the account to do it once: "
        "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com",
    ),
    "AuthFailure*": (
        "EC2 does not accept these credentials in this region",
        "check the key, and that the region is enabled for your account",
    ),
    "InvalidClientTokenId": ("EC2 does not know this access key", "check the AWS credentials"),
    "SignatureDoesNotMatch": ("the secret key does not match", "check the AWS credentials"),
    "UnauthorizedOperation": (
        "not allowed: {message}",
        "ask for the permissions in docs/aws.md; `aws sts decode-authorization-message` "
        "shows the statement that refused",
    ),
    "OptInRequired": ("", "enable the service for your account, or take another region"),
    "PendingVerification": ("", "AWS is still checking the account; try again in some minutes"),
    # Errors in the request
    "VolumeModificationRateExceeded": (
        "EBS takes the next change of a volume six hours after the last one",
        "wait, or free room meanwhile: clusterctl clean-logs NAME --jobs",
    ),
    "IncorrectModificationState": (
        "the volume's last change is still going on",
        "wait until `aws ec2 describe-volumes-modifications` shows completed; EBS takes the next "
        "change six hours after that one",
    ),
    "InvalidInstanceType": (
        "EC2 has no such instance type here: {message}",
        "see `aws ec2 describe-instance-types`; EC2 no longer offers p2, p3 and g3",
    ),
    "Unsupported": ("", "choose another instance type or region"),
    "InvalidAMIID*": ("", "image ids are regional: check --image and --region"),
    "InvalidSubnetID*": ("", "subnet ids are regional: check --subnet and --region"),
    "InvalidSubnetId*": ("", "subnet ids are regional: check --subnet and --region"),
    "InvalidCapacityReservationState*": (
        "",
        "a node whose reservation has ended starts again once it is released from it: aws ec2 "
        "modify-instance-capacity-reservation-attributes --instance-id ID "
        "--capacity-reservation-specification CapacityReservationPreference=open",
    ),
    "InvalidVpcID*": ("", "VPC ids are regional: check --region"),
    "Gateway.NotAttached": (
        "",
        "attach an internet gateway to the VPC and route 0.0.0.0/0 to it, or launch in a network "
        "that has one: clusterctl network up NAME, and --network NAME",
    ),
    "InvalidKeyPair.Duplicate": (
        "",
        "a key pair of that name is not this cluster's: delete it, or choose another name",
    ),
    "InvalidGroup.Duplicate": (
        "",
        "a security group of that name is not this cluster's: delete it, or choose another name",
    ),
    "InvalidBlockDeviceMapping": ("", "the image needs a larger disk than clusterctl gives it"),
    "IdempotentParameterMismatch": (
        "the outcome of an earlier launch with other settings is unknown",
        "run the earlier `up` again, or remove the cluster: clusterctl down",
    ),
    "OperationNotPermitted": ("", "an instance may be protected against termination"),
    # IAM
    "NoSuchEntity": ("IAM has no such thing: {message}", "run the command again"),
    "EntityAlreadyExists": ("", "run the command again"),
    "DeleteConflict": ("", "something else still uses it"),
    "LimitExceeded": ("a quota of IAM is used up: {message}", "delete unused roles"),
    "AccessDenied*": (
        "not allowed: {message}",
        "ask whoever runs the account for the permission",
    ),
    # CloudFormation
    "AlreadyExistsException": ("", "run the command again: it goes on from what is there"),
    "InsufficientCapabilities*": ("", "the template that is there is not clusterctl's"),
    "LimitExceededException": ("", "ask for a larger quota under Service Quotas"),
    "ValidationError": (
        "AWS does not take the request: {message}",
        "check the names and values that were given",
    ),
    "DependencyViolation": ("", "something else still uses it; run `clusterctl down` again"),
    # Capacity, quotas and EC2's own failures
    "InsufficientInstanceCapacity": (
        "EC2 has not enough machines of this type now: {message}",
        "nothing was launched; try later, another zone or region, or a smaller type",
    ),
    "InsufficientVolumeCapacity": (
        "EC2 has not enough room for volumes here now: {message}",
        "nothing was launched; try later or another zone",
    ),
    "InsufficientFreeAddressesInSubnet": ("", "use a larger subnet"),
    "VcpuLimitExceeded": (
        "the account's vCPU quota is too small: {message}",
        "ask for more under Service Quotas, Amazon EC2 "
        "(P instances: L-417A185B; G and VT instances: L-DB2E81BA)",
    ),
    "AddressLimitExceeded": (
        "the account has no elastic address left in this region, and the head node needs one",
        "release an unused one (`aws ec2 describe-addresses`), or ask for more: "
        "aws service-quotas request-service-quota-increase --service-code ec2 "
        "--quota-code L-0263D0A3 --desired-value 10",
    ),
    "NetworkInterfaceLimitExceeded": (
        "the account has too few network interfaces left in this region: {message}",
        "ask for more: aws service-quotas request-service-quota-increase --service-code vpc "
        "--quota-code L-DF5E4CA3 --desired-value 10000",
    ),
    "InstanceLimitExceeded": ("", "ask for a larger quota under Service Quotas, Amazon EC2"),
    "RequestLimitExceeded": (
        "EC2 is throttling this account's requests",
        "wait a minute and run the command again",
    ),
    "EC2ThrottledException": (
        "EC2 is throttling this account's requests",
        "wait a minute and run the command again",
    ),
    "InternalError": ("EC2 had an internal error: {message}", "run the command again"),
    "InternalFailure": ("EC2 had an internal error: {message}", "run the command again"),
    "ServiceUnavailable": ("EC2 is not available now", "run the command again"),
    "Unavailable": ("EC2 is not available now", "run the command again"),
    # The connection
    "EndpointConnectionError": (
        "EC2 cannot be reached: {message}",
        "check the network, and that the region in --region exists",
    ),
    "ConnectTimeoutError": ("EC2 did not answer: {message}", "check the network and the proxy"),
    "ReadTimeoutError": ("EC2 did not answer in time: {message}", "run the command again"),
    "ConnectionClosedError": ("EC2 closed the connection: {message}", "run the command again"),
    "ProxyConnectionError": ("", "check HTTPS_PROXY"),
    "SSLError": ("", "check the clock, and AWS_CA_BUNDLE if there is a proxy in between"),
    # EC2's own message is left out: it would be a page of HTML, for example from a proxy.
    "ResponseParserError": (
        "what answered is not EC2",
        "run the command again; if it stays so, check the endpoint and the proxy",
    ),
    "HTTPClientError": ("EC2 cannot be reached: {message}", "check the network"),
}

# After these errors EC2 may have carried out the request all the same.
_OUTCOME_UNKNOWN = frozenset(
    (
        "ReadTimeoutError",
        "ConnectionClosedError",
        "HTTPClientError",
        "RequestTimeout",
        "ResponseParserError",
    )
)
# EC2 sends refusals for want of room with HTTP 500 or 503 too, under "Server error codes" in
# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html.
_REFUSED_WITH_5XX = re.compile(
    r"(Insufficient|Unfulfillable).*|.*(LimitExceeded|CapacityExceeded)|EC2ThrottledException"
)


def outcome_unknown(error: AwsError) -> bool:
    """Return whether EC2 may have carried out the request although it failed."""
    response = getattr(error.__cause__, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500:
        return not _REFUSED_WITH_5XX.fullmatch(error.code)
    return error.code in _OUTCOME_UNKNOWN


def throttled(error: AwsError) -> bool:
    """Return whether EC2 is throttling: the same request may succeed later."""
    return error.code in ("RequestLimitExceeded", "EC2ThrottledException", "Throttling")


@contextmanager
def translated() -> Iterator[None]:
    """Raise AwsError for any botocore exception inside the `with` block."""
    try:
        yield
    except Exception as error:
        failure = aws_error(error)
        if failure is None:
            raise
        raise failure from error


def retried(
    call: Callable[[], Answer],
    is_temporary: Callable[[AwsError], bool],
    polling: Polling,
    on_wait: Callable[[AwsError, float], object] = lambda error, left_s: None,
) -> Answer:
    """Return the answer to a call, which is repeated while its error is temporary.

    `on_wait` receives the error before each retry, and the seconds left. Raises AwsError.
    """
    while True:
        try:
            with translated():
                return call()
        except AwsError as error:
            if polling.left_s < 0 or not is_temporary(error):
                raise
            on_wait(error, polling.left_s)
        polling.wait()


def paged(client: Any, operation: str, key: str, **arguments: Any) -> list[Any]:
    """Return what a call lists under `key`, on all pages. Raises AwsError."""
    with translated():
        pages = client.get_paginator(operation).paginate(**arguments)
        return [one for page in pages for one in page[key]]


def aws_error(error: Exception) -> AwsError | None:
    """Return the AwsError for an exception of botocore; None for any other exception."""
    # By the classes' names: an import of botocore here would slow the start of every command.
    names = [kind.__name__ for kind in type(error).__mro__ if "botocore" in kind.__module__]
    if not names:
        return None
    response = getattr(error, "response", None)
    if isinstance(response, dict) and "Error" in response:
        details = response["Error"]
        code = str(details.get("Code") or "Unknown")
        return _worded(code, [code], str(details.get("Message") or "EC2 gave no reason"))
    return _worded(names[0], names, str(error))


def _worded(code: str, names: list[str], message: str) -> AwsError:
    for name in names:
        for pattern, (wording, hint) in TABLE.items():
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                # Not str.format: a message from EC2 may contain braces.
                text = wording.replace("{message}", message) or message
                return AwsError(code, f"{text} ({code})" if "." in code else text, hint)
    return AwsError(code, f"EC2 refused: {message} ({code})")
