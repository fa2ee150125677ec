"""The IAM policies for clusterctl's users and nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.domain.cluster import is_free_tag
from clusterctl.domain.errors import UsageError
from clusterctl.ec2 import tags
from clusterctl.ec2.policy_actions import (
    BY_CLOUDFORMATION,
    NETWORK,
    OPERATOR,
    ROLES,
    TAGGING_BY_CLOUDFORMATION,
    Scope,
    actions_of,
)

# Prefix of a region's name -> its partition, which is the second part of an ARN.
PARTITIONS = {
    "cn-": "aws-cn",
    "us-gov-": "aws-us-gov",
    "eusc-": "aws-eusc",
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

    def arn(self, service: str, resource: str, account: str | None = None) -> str:
        """Return the ARN of a regional resource. `account` is "" for resources that AWS owns."""
        owner = self.account if account is None else account
        return f"arn:{self.partition}:{service}:{self.region}:{owner}:{resource}"

    def ec2(self, *kinds: str) -> list[str]:
        """Return ARNs for all EC2 resources of these kinds, such as `instance`."""
        return [self.arn("ec2", f"{kind}/*") for kind in kinds]

    def iam(self, resource: str) -> str:
        """Return the ARN of a resource of IAM, which has no regions."""
        return f"arn:{self.partition}:iam::{self.account}:{resource}"

    def own_iam(self, *kinds: str) -> list[str]:
        """Return ARNs for clusters' own roles (`role`) or profiles (`instance-profile`).

        Each is for the whole ARN, with the path (ec2/node_role.py), and for the bare name: IAM
        checks a request about what does not exist by its name.
        """
        last = "" if self.region == "*" else f"-{self.region}"
        return [self.iam(f"{kind}/clusterctl*{last}") for kind in kinds]


# The managed policy that, where an account has it, bounds the roles that users of clusterctl make.
BOUNDARY = "clusterctl-nodes"
# In place of a bucket.
EVERY_BUCKET = "*"
# IAM's limit for a managed policy; white space does not count.
MOST_CHARACTERS = 6144

# The operations that may set tags on what they create.
_TAGGED_BY = (
    "RunInstances",
    "CreateSecurityGroup",
    "ImportKeyPair",
    "CreatePlacementGroup",
    "AllocateAddress",
)
# RunInstances is authorized for each resource involved. These it creates, with the cluster's tag.
_LAUNCHED = ("instance", "volume", "spot-instances-request")
# These it uses.
_LAUNCHED_WITH = (
    "subnet",
    "network-interface",
    "security-group",
    "key-pair",
    "placement-group",
    "capacity-reservation",
)
_CREATED = ("security-group", "key-pair", "placement-group", "elastic-ip")
# What SSM's agent needs on a node for Session Manager and Run Command: a part of AWS's policy
# AmazonSSMManagedInstanceCore.
_SSM_AGENT = (
    "ec2messages:AcknowledgeMessage",
    "ec2messages:DeleteMessage",
    "ec2messages:FailMessage",
    "ec2messages:GetEndpoint",
    "ec2messages:GetMessages",
    "ec2messages:SendReply",
    "ssm:UpdateInstanceInformation",
    "ssmmessages:CreateControlChannel",
    "ssmmessages:CreateDataChannel",
    "ssmmessages:OpenControlChannel",
    "ssmmessages:OpenDataChannel",
)

Policy = Mapping[str, Any]


def operator_policy(
    bounds: Bounds, node_role: str | None = None, owner_tag: tuple[str, str] | None = None
) -> Policy:
    """Return the policy for users who launch clusters.

    `node_role` is the ARN of the role that they may give to nodes; None allows no role. With
    `owner_tag` (key, value) they may create and change only resources that carry this tag too: one
    owner's clusters instead of all clusters. Raises UsageError for an invalid ARN, one of another
    partition or account, and a tag that is reserved or has characters that a policy cannot hold.
    """
    has_tag, gives_tag = _conditions(owner_tag)
    statements = [
        _allow("Look", actions_of(OPERATOR, Scope.READ), ["*"]),
        _allow(
            "FindImage",
            actions_of(OPERATOR, Scope.PARAMETER),
            [bounds.arn("ssm", "parameter/aws/service/deeplearning/*", account="")],
        ),
        _allow(
            "LaunchOwn",
            actions_of(OPERATOR, Scope.LAUNCH),
            bounds.ec2(*_LAUNCHED),
            gives_tag,
        ),
        _allow(
            "LaunchWith",
            actions_of(OPERATOR, Scope.LAUNCH),
            [bounds.arn("ec2", "image/*", account=""), *bounds.ec2(*_LAUNCHED_WITH)],
        ),
        _allow("CreateOwn", actions_of(OPERATOR, Scope.CREATE), bounds.ec2(*_CREATED), gives_tag),
        _allow("CreateGroupIn", ["ec2:CreateSecurityGroup"], bounds.ec2("vpc")),
        _allow(
            "TagWhileCreating",
            actions_of(OPERATOR, Scope.TAG),
            [bounds.arn("ec2", "*/*")],
            {"StringEquals": {"ec2:CreateAction": list(_TAGGED_BY)}},
        ),
        _allow(
            "TagOwn",
            [*actions_of(OPERATOR, Scope.TAG), *actions_of(OPERATOR, Scope.UNTAG)],
            [bounds.arn("ec2", "*/*")],
            {**has_tag, "ForAllValues:StringLike": {"aws:TagKeys": ["clusterctl:*", "Name"]}},
        ),
        _allow("ManageOwn", actions_of(OPERATOR, Scope.OWN), [bounds.arn("ec2", "*/*")], has_tag),
        _allow(
            "ReadHostKeys",
            actions_of(OPERATOR, Scope.COMMAND),
            [bounds.arn("ssm", "document/AWS-RunShellScript", account="")],
        ),
        _allow(
            "ReadHostKeysOfOwn",
            actions_of(OPERATOR, Scope.COMMAND),
            bounds.ec2("instance"),
            has_tag,
        ),
        _allow(
            "MoveOwnAddress",
            actions_of(OPERATOR, Scope.ADDRESS),
            bounds.ec2("elastic-ip"),
            has_tag,
        ),
        _allow(
            "MoveAddressTo",
            actions_of(OPERATOR, Scope.ADDRESS),
            bounds.ec2("instance", "network-interface"),
        ),
        _allow(
            "SendMetrics",
            actions_of(OPERATOR, Scope.METRICS),
            ["*"],
            {"StringNotLike": {"cloudwatch:namespace": ["AWS/*"]}},
        ),
        _allow(
            "LendToNodes",
            actions_of(OPERATOR, Scope.SESSION),
            [f"arn:{bounds.partition}:sts::{bounds.account}:federated-user/clusterctl"],
        ),
        _allow(
            "EncryptDisks",
            actions_of(OPERATOR, Scope.KEY),
            [bounds.arn("kms", "key/*")],
            {
                # The asterisk at the end stands for the .cn of China's domain.
                "StringLike": {"kms:ViaService": f"ec2.{bounds.region}.amazonaws.com*"},
                "BoolIfExists": {"kms:GrantIsForAWSResource": "true"},
            },
        ),
        _allow(
            "FirstSpotLaunch",
            actions_of(OPERATOR, Scope.SPOT_ROLE),
            [bounds.iam("role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot")],
            {"StringEquals": {"iam:AWSServiceName": "spot.amazonaws.com"}},
        ),
    ]
    if node_role is not None:
        statements.append(_pass_role(bounds, node_role))
    return _policy(statements)


def roles_policy(bounds: Bounds, owner_tag: tuple[str, str] | None = None) -> Policy:
    """Return the policy that users need besides the operator's to make a role for each cluster.

    What they make has the boundary BOUNDARY: without one, whoever makes roles could give nodes, and
    so themselves, every right in the account. `owner_tag` is as for the operator's policy.
    """
    has_tag, gives_tag = _conditions(owner_tag)
    boundary = {"iam:PermissionsBoundary": bounds.iam(f"policy/{BOUNDARY}")}
    # By their path (ec2/node_role.py): an account may have other roles whose names begin so.
    roles, profiles = (
        [bounds.iam(f"{kind}/clusterctl/{bounds.region}/*")]
        for kind in ("role", "instance-profile")
    )
    gives_both = {**gives_tag, "StringLike": {**gives_tag["StringLike"], **boundary}}
    statements = [
        _allow(
            "FindOwn",
            actions_of(ROLES, Scope.NAMED),
            bounds.own_iam("role", "instance-profile"),
        ),
        _allow(
            "ReadBoundary",
            actions_of(ROLES, Scope.BOUNDARY),
            [bounds.iam(f"policy/{BOUNDARY}")],
        ),
        _allow("MakeRole", actions_of(ROLES, Scope.BOUND), roles, gives_both),
        _allow(
            "GrantToRole",
            actions_of(ROLES, Scope.BOUND_OWN),
            roles,
            {**has_tag, "StringLike": boundary},
        ),
        _allow(
            "MakeProfile",
            actions_of(ROLES, Scope.CREATE),
            [*roles, *profiles],
            gives_tag,
        ),
        _allow("ManageRole", actions_of(ROLES, Scope.OWN), [*roles, *profiles], has_tag),
        _give_role(bounds, roles),
    ]
    return _policy(statements)


def network_policy(bounds: Bounds) -> Policy:
    """Return the policy that users need besides the operator's to create networks.

    It allows all changes only through CloudFormation, except for S3 endpoints, which clusterctl
    creates itself in any VPC.
    """
    by_stack = {name for names in BY_CLOUDFORMATION.values() for name in names}
    actions = sorted(f"ec2:{name}" for name in by_stack | set(TAGGING_BY_CLOUDFORMATION))
    through = {"ForAnyValue:StringEquals": {"aws:CalledVia": ["cloudformation.amazonaws.com"]}}
    stacks = [bounds.arn("cloudformation", "stack/clusterctl-network-*/*")]
    return _policy(
        [
            _allow("Look", actions_of(NETWORK, Scope.READ), ["*"]),
            _allow("Networks", actions_of(NETWORK, Scope.STACK), stacks),
            _allow(
                "EndpointForS3",
                actions_of(NETWORK, Scope.ENDPOINT),
                bounds.ec2("vpc-endpoint"),
                {"StringLike": {"ec2:VpceServiceName": "com.amazonaws.*.s3"}},
            ),
            _allow(
                "EndpointIn", actions_of(NETWORK, Scope.ENDPOINT), bounds.ec2("vpc", "route-table")
            ),
            _allow(
                "NameEndpoint",
                ["ec2:CreateTags"],
                bounds.ec2("vpc-endpoint"),
                {"StringEquals": {"ec2:CreateAction": "CreateVpcEndpoint"}},
            ),
            _allow("ThroughCloudFormation", actions, ["*"], through),
        ]
    )


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
        statements.append(_allow("SystemsManager", list(_SSM_AGENT), ["*"]))
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


def _conditions(owner_tag: tuple[str, str] | None) -> tuple[Policy, Policy]:
    """Return two conditions: a resource has the tags already, and a request sets them.

    The tags are the cluster's, with any value, and the owner's if there is one.
    """
    # `Null` with "false" means that the tag exists. "?*" is any value but the empty one.
    has_tag = {"Null": {f"aws:ResourceTag/{tags.CLUSTER}": "false"}}
    gives_tag = {"StringLike": {f"aws:RequestTag/{tags.CLUSTER}": "?*"}}
    if owner_tag is None:
        return has_tag, gives_tag
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
    return (
        {**has_tag, "StringEquals": {f"aws:ResourceTag/{key}": value}},
        {**gives_tag, "StringEquals": {f"aws:RequestTag/{key}": value}},
    )


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
