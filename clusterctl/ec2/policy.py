"""The IAM policies for clusterctl's users and nodes, of what policies.toml has; and AWS keys that
nodes borrow from this machine, limited by such a policy and to some hours if possible.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from clusterctl.domain.cluster import is_free_tag
from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.domain.findings import Finding
from clusterctl.ec2 import tags
from clusterctl.ec2.errors import translated
from clusterctl.ec2.session import Clients

# Prefix of a region's name -> its partition, which is the second part of an ARN.
PARTITIONS = {"cn-": "aws-cn", "us-gov-": "aws-us-gov", "eusc-": "aws-eusc"}
# The managed policy that, where an account has it, bounds the roles that users of clusterctl make.
BOUNDARY = "clusterctl-nodes"
# In place of a bucket.
EVERY_BUCKET = "*"

Policy = Mapping[str, Any]


class NeededActions(NamedTuple):
    """Actions with one purpose and one scope, a key of `scopes` in policies.toml."""

    purpose: str
    scope: str
    actions: tuple[str, ...]


@functools.cache
def policy_data() -> dict[str, Any]:
    """Return the content of policies.toml."""
    # Imported here: `up` imports this module, and seldom needs a policy.
    from clusterctl.toml_file import read_toml

    return read_toml(Path(__file__).with_name("policies.toml"))


def needed_actions(who: str) -> list[NeededActions]:
    """Return the actions that clusterctl calls or causes, of the operator, roles or network."""
    found = policy_data()["actions"][who]
    return [NeededActions(why, scope, tuple(names.split())) for why, scope, names in found]


def actions_of(who: str, *scopes: str) -> list[str]:
    """Return the actions of these scopes, in the order of the scopes, each scope's sorted."""
    return [
        name
        for scope in scopes
        for name in sorted(
            {name for one in needed_actions(who) if one.scope == scope for name in one.actions}
        )
    ]


def actions_by_cloudformation() -> dict[str, list[str]]:
    """Return the EC2 actions that CloudFormation calls for each resource type of a network."""
    data = policy_data()
    rules = data["cloudformation"]["rules"].split()
    return {
        kind: names.split() + rules * kind.startswith("AWS::EC2::SecurityGroup")
        for kind, names in data["by_cloudformation"].items()
    }


@dataclass(frozen=True)
class Bounds:
    """The region and account that a policy is for; "*" means any.

    Raises UsageError for a text that is no region's name or no account's number.
    """

    region: str = "*"
    account: str = "*"

    def __post_init__(self) -> None:
        if self.region != "*" and not re.fullmatch(
            r"[a-z]{2,4}(-[a-z]+)+-\d{1,2}", self.region, re.ASCII
        ):
            raise UsageError(f"not a region: {self.region!r}", "for example us-east-1")
        if self.account != "*" and not re.fullmatch(r"\d{12}", self.account, re.ASCII):
            raise UsageError(f"not an account: {self.account!r}", "its number has 12 digits")

    @property
    def partition(self) -> str:
        """The AWS partition of the region, such as `aws-cn`; `aws` for any region."""
        for prefix, name in PARTITIONS.items():
            if self.region.startswith(prefix):
                return name
        return "aws"

    @property
    def fields(self) -> dict[str, str]:
        """The values of the placeholders in policies.toml."""
        of_region = "" if self.region == "*" else f"-{self.region}"
        return {**vars(self), "partition": self.partition, "of_region": of_region}

    def iam(self, resource: str) -> str:
        """Return the ARN of a resource of IAM, which has no regions."""
        return f"arn:{self.partition}:iam::{self.account}:{resource}"


def _statements(
    who: str, bounds: Bounds, owner_tag: tuple[str, str] | None = None
) -> list[dict[str, Any]]:
    """Return the statements of policies.toml. `owner_tag`: see `operator_policy`."""
    required = _conditions(owner_tag)

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: filled(one) for key, one in value.items()}
        if isinstance(value, list):
            return [filled(one) for one in value]
        return value.format(**bounds.fields)

    found = []
    for one in policy_data()[who]:
        kinds = [
            f"arn:{{partition}}:ec2:{{region}}:{{account}}:{kind}/*" for kind in one.get("ec2", ())
        ]
        resources = filled([*one.get("resources", ()), *kinds])
        actions = one.get("actions") or actions_of(who, *one["scopes"])
        condition = {key: dict(value) for key, value in required[one.get("tag", "")].items()}
        for operator, keys in filled(one.get("condition", {})).items():
            condition.setdefault(operator, {}).update(keys)
        found.append(_allow(one["sid"], actions, resources, condition))
    return found


def operator_policy(
    bounds: Bounds, node_role: str | None = None, owner_tag: tuple[str, str] | None = None
) -> Policy:
    """Return the policy for users who launch clusters.

    `node_role` is the ARN of the role that they may give to nodes; None allows no role. With
    `owner_tag` (key, value) they may create and change only resources that carry this tag too: one
    owner's clusters instead of all clusters. Raises UsageError for an invalid ARN, one of another
    partition or account, and a tag that is reserved or has characters that a policy cannot hold.
    """
    statements = _statements("operator", bounds, owner_tag)
    if node_role is not None:
        statements.append(_pass_role(bounds, node_role))
    return _policy(statements)


def roles_policy(bounds: Bounds, owner_tag: tuple[str, str] | None = None) -> Policy:
    """Return the policy that users need besides the operator's to make a role for each cluster.

    What they make has the boundary BOUNDARY: without one, whoever makes roles could give nodes, and
    so themselves, every right in the account. `owner_tag` is as for the operator's policy.
    """
    roles = bounds.iam(f"role/clusterctl/{bounds.region}/*")
    return _policy([*_statements("roles", bounds, owner_tag), _give_role(bounds, [roles])])


def network_policy(bounds: Bounds) -> Policy:
    """Return the policy that users need besides the operator's to create networks.

    It allows all changes only through CloudFormation, except for S3 endpoints, which clusterctl
    creates itself in any VPC.
    """
    by_stack = {name for names in actions_by_cloudformation().values() for name in names}
    by_stack.update(policy_data()["cloudformation"]["tags"].split())
    actions = sorted(f"ec2:{name}" for name in by_stack)
    through = {"ForAnyValue:StringEquals": {"aws:CalledVia": ["cloudformation.amazonaws.com"]}}
    changes = _allow("ThroughCloudFormation", actions, ["*"], through)
    return _policy([*_statements("network", bounds), changes])


def node_policy(
    bounds: Bounds, data: Sequence[str] = (), checkpoints: Sequence[str] = (), ssm: bool = False
) -> Policy:
    """Return the policy for the nodes' role.

    Nodes may read `data`, and read and write `checkpoints`; each is BUCKET or BUCKET/PREFIX, and
    data also EVERY_BUCKET. `ssm` allows Systems Manager's agent. Raises UsageError for an invalid
    place, and if nothing would be allowed.
    """
    statements = []
    for number, place in enumerate(dict.fromkeys(data)):
        statements += _on_s3(bounds, f"Data{number or ''}", place, ["s3:GetObject"])
    for number, place in enumerate(dict.fromkeys(checkpoints)):
        calls = ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"]
        if place == EVERY_BUCKET:
            raise UsageError("nodes may not write into every bucket", "name one: BUCKET/PREFIX")
        statements += _on_s3(bounds, f"Checkpoints{number or ''}", place, calls)
    if ssm:
        statements.append(_allow("SystemsManager", policy_data()["nodes"]["ssm"].split(), ["*"]))
    if not statements:
        raise UsageError(
            "without S3 and Systems Manager the nodes need no policy, and no role",
            "say what they may do: --data-bucket, --checkpoint-prefix, --ssm",
        )
    return _policy(statements)


def reading_policy(partition: str, buckets: Sequence[str]) -> Policy:
    """Return the policy of a session for nodes, which limits its owner's rights to these buckets.

    The nodes may list and read them, and nothing else.
    """
    arns = [f"arn:{partition}:s3:::{bucket}" for bucket in dict.fromkeys(buckets)]
    by_s3 = {"StringLike": {"kms:ViaService": "s3.*.amazonaws.com*"}}
    return _policy(
        [
            _allow("List", ["s3:ListBucket"], arns),
            _allow("Read", ["s3:GetObject"], [f"{arn}/*" for arn in arns]),
            # For objects that are encrypted with a KMS key.
            _allow("Decrypt", ["kms:Decrypt"], ["*"], by_s3),
        ]
    )


def _on_s3(bounds: Bounds, sid: str, place: str, calls: list[str]) -> list[dict[str, Any]]:
    bucket, _, prefix = place[5:].partition("/") if place[:5] == "s3://" else place.partition("/")
    if place != EVERY_BUCKET and not re.fullmatch(
        r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", bucket, re.ASCII
    ):
        raise UsageError(f"not a bucket: {place!r}", "write it as BUCKET or BUCKET/PREFIX")
    if not re.fullmatch(r"[A-Za-z0-9!_.'()/=@:+-]*", prefix, re.ASCII):
        raise UsageError(
            f"not a prefix that a policy can hold: {place!r}", "without blanks, * and ?"
        )
    prefix = f"{prefix.rstrip('/')}/" if prefix.strip("/") else ""
    root = f"arn:{bounds.partition}:s3:::{bucket}"
    inside = {"StringLike": {"s3:prefix": [f"{prefix}*", prefix[:-1]]}} if prefix else None
    return [
        _allow(f"{sid}List", ["s3:ListBucket"], [root], inside),
        _allow(f"{sid}Objects", calls, [f"{root}/{prefix}*"]),
    ]


def _conditions(owner_tag: tuple[str, str] | None) -> Mapping[str, Policy]:
    """Return the conditions by `tag` of policies.toml: a resource has the tags already (`had`), or
    a request sets them (`given`).

    The tags are the cluster's, with any value, and the owner's if there is one.
    """
    # `Null` with "false" means that the tag exists. "?*" is any value but the empty one.
    has_tag = {"Null": {f"aws:ResourceTag/{tags.CLUSTER}": "false"}}
    gives_tag = {"StringLike": {f"aws:RequestTag/{tags.CLUSTER}": "?*"}}
    if owner_tag is None:
        return {"": {}, "had": has_tag, "given": gives_tag}
    key, value = owner_tag
    # Of a policy's variables only the two that name the caller are allowed. With them one policy
    # serves several users. AWS sets their values, so a user cannot change them by tagging.
    if not (
        is_free_tag(key)
        and re.fullmatch(r"[\w .:=+@-]{1,128}", key, re.ASCII)
        and re.fullmatch(r"[\w .:/=+@-]{1,256}|\$\{aws:(username|userid)\}", value, re.ASCII)
    ):
        raise UsageError(
            f"not an owner's tag: {key}={value}",
            "for example owner=alice, or owner=${aws:username}, and give it to up, too: --tag",
        )
    return {
        "": {},
        "had": {**has_tag, "StringEquals": {f"aws:ResourceTag/{key}": value}},
        "given": {**gives_tag, "StringEquals": {f"aws:RequestTag/{key}": value}},
    }


def _pass_role(bounds: Bounds, arn: str) -> dict[str, Any]:
    match = re.fullmatch(r"arn:([a-z-]+):iam::(\d{12}):role/[\w+=,.@/-]{1,576}", arn, re.ASCII)
    if not match:
        raise UsageError(
            f"not the ARN of a role: {arn!r}", "for example arn:aws:iam::123456789012:role/nodes"
        )
    if match[1] != bounds.partition:
        raise UsageError(
            f"the role is in the partition {match[1]}, the region in {bounds.partition}",
            "give --region too",
        )
    if bounds.account not in ("*", match[2]):
        raise UsageError(f"the role is in account {match[2]}, not in {bounds.account}")
    return _give_role(bounds, [arn])


def _give_role(bounds: Bounds, roles: Sequence[str]) -> dict[str, Any]:
    services = ["ec2.amazonaws.com"]
    if bounds.partition == "aws-cn":
        services.append("ec2.amazonaws.com.cn")
    passed_to = {"StringEquals": {"iam:PassedToService": services}}
    return _allow("GiveNodesTheirRole", ["iam:PassRole"], roles, passed_to)


def _allow(
    sid: str,
    actions: Sequence[str],
    resources: Sequence[str],
    condition: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    statement = {
        "Sid": sid,
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": list(resources),
    }
    return {**statement, "Condition": dict(condition)} if condition else statement


def _policy(statements: Sequence[Mapping[str, Any]]) -> Policy:
    return {"Version": "2012-10-17", "Statement": list(statements)}


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
