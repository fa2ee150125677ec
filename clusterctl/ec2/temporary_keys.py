"""AWS keys that nodes borrow from this machine, limited to some hours and buckets if possible."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from clusterctl.domain.errors import AwsError
from clusterctl.domain.findings import Finding
from clusterctl.ec2.errors import translated
from clusterctl.ec2.policy import reading_policy
from clusterctl.ec2.session import Clients

VALID_S = 12 * 3600
# The session's name. The operator's policy allows exactly this one (`LendToNodes` in policy.py).
SESSION = "clusterctl"
USER = "use an IAM user's keys here, which AWS exchanges for some that may read those buckets only"


@dataclass(frozen=True)
class TemporaryKeys:
    """Access key, secret key and session token; the token is empty for long-lived keys.

    `finding` is a warning for keys that may do more than read the buckets.
    """

    keys: tuple[str, str, str]
    finding: Finding | None = None


def temporary_keys(clients: Clients, buckets: Sequence[str]) -> TemporaryKeys:
    """Return AWS keys with which nodes can read these buckets. Raises AwsError without credentials.

    Exchanges long-lived keys for those of a session that may only read the buckets. Temporary keys
    are returned unchanged: STS does not exchange those.
    """
    keys = clients.frozen_keys()
    if keys[2]:
        return TemporaryKeys(keys, _warning("your session's own keys, until it ends", USER))
    policy = reading_policy(clients.sts.meta.partition, buckets)
    try:
        with translated():
            given = clients.sts.get_federation_token(
                Name=SESSION,
                Policy=json.dumps(policy, separators=(",", ":")),
                DurationSeconds=VALID_S,
            )["Credentials"]
        return TemporaryKeys(
            (given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"])
        )
    except AwsError as error:
        instead = f"have sts:GetFederationToken allowed, which was refused: {error.message}"
    try:
        with translated():
            given = clients.sts.get_session_token(DurationSeconds=VALID_S)["Credentials"]
    except AwsError:
        # These are keys for another S3 service, or those of the account's root user.
        return TemporaryKeys(keys, _warning("your long-lived keys", instead))
    keys = given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]
    return TemporaryKeys(keys, _warning("keys of 12 hours with all your rights", instead))


def _warning(what: str, instead: str) -> Finding:
    return Finding.warning(
        "s3.temporary_keys",
        f"the nodes get {what}: root on each of them may do all that you may",
        "let the nodes read by a role of their own: clusterctl up NAME --instance-profile new; "
        f"or {instead}",
    )
