"""STS sessions: keys that the lab accepts, and a check of each request against its key's policy.

moto's STS returns the same example keys to everybody, and moto checks only the policies of users
and roles.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.exceptions import AccessDeniedError, JsonRESTError
from moto.core.responses import ActionResult
from moto.iam.access_control import IAMPolicy, PermissionResult, S3IAMRequest
from moto.iam.models import iam_backends
from moto.s3.exceptions import S3AccessDeniedError
from moto.sts.responses import TokenResponse

from clusterctl.lab.accounts import KEYS, TemporaryKey
from clusterctl.lab.ec2.completion import around, guard, override
from clusterctl.lab.gate import KEY_HEADER

# The policy of a federated session that names none: such a session may do nothing.
NOTHING = '{"Version": "2012-10-17", "Statement": []}'
# AWS's default lifetimes of sessions and of assumed roles.
LASTS_S, ROLE_LASTS_S = 43_200, 3_600
# moto's name of an action -> the name that IAM policies use.
ACTIONS = {"s3:HeadBucket": "s3:ListBucket"}


@guard(ActionAuthenticatorMixin)
def _authenticate_and_authorize_action(
    response: Any, iam_request_cls: type, resource: str = "*"
) -> None:
    """Check the session's policy before moto's own authorization."""
    _check(response, resource, iam_request_cls is S3IAMRequest)


@override(TokenResponse)
def get_session_token(response: Any) -> ActionResult:
    _refuse_sessions(response, "GetSessionToken")
    return ActionResult({"Credentials": _credentials(response, "")})


@around(TokenResponse)
def get_federation_token(federate: Any, response: Any) -> ActionResult:
    _refuse_sessions(response, "GetFederationToken")
    # moto checks the policy's length, and makes the rest of the answer.
    known: Any = federate(response).result
    policy = response._get_param("Policy") or NOTHING
    return ActionResult({**known, "Credentials": _credentials(response, policy)})


@around(TokenResponse)
def assume_role(assume: Any, response: Any) -> ActionResult:
    """Assume a role of the caller's own account. Its trust policy is not checked."""
    arn = response._get_param("RoleArn")
    roles = iam_backends[response.current_account][response.partition].roles.values()
    if not any(role.arn == arn for role in roles):
        raise AccessDeniedError(f"arn:aws:iam::{response.current_account}:user", "sts:AssumeRole")
    known: Any = assume(response).result
    policy = response._get_param("Policy") or ""
    return ActionResult({**known, "Credentials": _credentials(response, policy, ROLE_LASTS_S)})


@override(TokenResponse)
def get_caller_identity(response: Any) -> ActionResult:
    """Name the key's holder: the user `lab`, or a session of the role `lab`."""
    account = response.current_account
    if isinstance(KEYS.find(response.headers.get(KEY_HEADER, "")), TemporaryKey):
        arn, id = f"arn:aws:sts::{account}:assumed-role/lab/session", "AROALAB:session"
    else:
        arn, id = f"arn:aws:iam::{account}:user/lab", f"AIDALAB{account}"
    return ActionResult({"UserId": id, "Account": account, "Arn": arn})


def permits(key: str, action: str, resource: str = "*") -> bool:
    """Return whether the key with this id may perform an action such as `s3:GetObject`.

    Only a session with a policy is limited. Every other key may do everything.
    """
    session = KEYS.find(key)
    if not isinstance(session, TemporaryKey) or not session.policy:
        return True
    policy = IAMPolicy(session.policy)
    return policy.is_action_permitted(action, resource) == PermissionResult.PERMITTED


def _check(response: Any, resource: str, is_s3: bool) -> None:
    """Raise AccessDenied if the key's policy does not allow the request.

    The error has the format of the called service: S3's, JSON's, or that of the others.
    """
    action = response.data.get("Action") if is_s3 else response._get_action()
    action = action[0] if isinstance(action, list) else action
    called = f"{'s3' if is_s3 else response.service_name}:{action}"
    called = ACTIONS.get(called, called)
    key = response.headers.get(KEY_HEADER, "")
    # AWS allows GetCallerIdentity to every key, whatever its policy.
    if called == "sts:GetCallerIdentity" or permits(key, called, resource):
        return
    if is_s3:
        raise S3AccessDeniedError
    who = f"arn:aws:sts::{response.current_account}:federated-user"
    if "X-Amz-Target" in response.headers:
        text = f"User: {who} is not authorized to perform: {called}"
        raise JsonRESTError("AccessDeniedException", text)
    raise AccessDeniedError(who, called)


def _refuse_sessions(response: Any, action: str) -> None:
    """Raise AccessDenied for a temporary key: STS gives these sessions to long-lived keys only."""
    if isinstance(KEYS.find(response.headers.get(KEY_HEADER, "")), TemporaryKey):
        raise AccessDeniedError(
            f"arn:aws:sts::{response.current_account}:session",
            f"sts:{action} with session credentials",
        )


def _credentials(response: Any, policy: str, lasts_s: int = LASTS_S) -> dict[str, Any]:
    """Open a session and return its credentials. `lasts_s` holds if the request names no time."""
    lasts = timedelta(seconds=response._get_int_param("DurationSeconds", lasts_s))
    key = KEYS.open_session(response.current_account, lasts, policy)
    return {
        "AccessKeyId": key.id,
        "SecretAccessKey": key.secret,
        "SessionToken": key.token,
        "Expiration": key.expires,
    }
