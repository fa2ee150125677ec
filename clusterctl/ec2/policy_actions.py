"""The table of all AWS actions that clusterctl calls or causes, each with its purpose and scope."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class Scope(Enum):
    """The resources that a permission is limited to. Each is a statement in policy.py."""

    READ = "on everything: these have no narrower form"
    LAUNCH = "instances and volumes with the tag, in any subnet, from any image"
    CREATE = "only with the tag"
    TAG = "while creating, and what has the tag already"
    UNTAG = "clusterctl's tags, on what has the tag"
    ADDRESS = "own addresses, on any interface"
    OWN = "only what has the tag"
    COMMAND = "AWS's document for shell commands, on what has the tag"
    PARAMETER = "the parameters of the Deep Learning AMIs"
    STACK = "the stacks clusterctl-network-*"
    ENDPOINT = "endpoints for S3, in any VPC"
    KEY = "through EC2, for volumes"
    METRICS = "namespaces that are not AWS's own"
    SESSION = "sessions named clusterctl"
    SPOT_ROLE = "the role of spot requests"
    NAMED = "roles and instance profiles named clusterctl-*"
    BOUNDARY = "the policy clusterctl-nodes"
    BOUND = "only with the tag, and within the boundary clusterctl-nodes"
    BOUND_OWN = "what has the tag, and the boundary clusterctl-nodes"


# The actions for launching, listing, changing and removing clusters: purpose, scope, actions.
OPERATOR: tuple[tuple[str, Scope, tuple[str, ...]], ...] = (
    ("finding everything by tag", Scope.READ, ("ec2:DescribeInstances",)),
    ("why a node does not answer", Scope.READ, ("ec2:DescribeInstanceStatus",)),
    (
        "planning a launch",
        Scope.READ,
        (
            "ec2:DescribeInstanceTypes",
            "ec2:DescribeInstanceTypeOfferings",
            "ec2:DescribeImages",
            "ec2:DescribeVpcs",
            "ec2:DescribeSubnets",
            "ec2:DescribeCapacityReservations",
            "ec2:DescribeRouteTables",
            "ec2:DescribeVpcEndpoints",
        ),
    ),
    ("the Deep Learning AMI of the day", Scope.PARAMETER, ("ssm:GetParameter",)),
    (
        "quotas",
        Scope.READ,
        ("servicequotas:GetServiceQuota", "servicequotas:GetAWSDefaultServiceQuota"),
    ),
    ("prices", Scope.READ, ("pricing:GetProducts", "ec2:DescribeSpotPriceHistory")),
    ("the cluster's key pair", Scope.READ, ("ec2:DescribeKeyPairs",)),
    ("the cluster's key pair", Scope.CREATE, ("ec2:ImportKeyPair",)),
    ("the cluster's key pair", Scope.OWN, ("ec2:DeleteKeyPair",)),
    ("the cluster's security group", Scope.READ, ("ec2:DescribeSecurityGroups",)),
    ("the cluster's security group", Scope.CREATE, ("ec2:CreateSecurityGroup",)),
    (
        "the cluster's security group",
        Scope.OWN,
        (
            "ec2:AuthorizeSecurityGroupIngress",
            "ec2:AuthorizeSecurityGroupEgress",
            "ec2:RevokeSecurityGroupIngress",
            "ec2:DeleteSecurityGroup",
        ),
    ),
    ("the cluster's placement group", Scope.READ, ("ec2:DescribePlacementGroups",)),
    ("the cluster's placement group", Scope.CREATE, ("ec2:CreatePlacementGroup",)),
    ("the cluster's placement group", Scope.OWN, ("ec2:DeletePlacementGroup",)),
    ("the head node's elastic address", Scope.READ, ("ec2:DescribeAddresses",)),
    ("the head node's elastic address", Scope.CREATE, ("ec2:AllocateAddress",)),
    (
        "the head node's elastic address",
        Scope.ADDRESS,
        ("ec2:AssociateAddress", "ec2:DisassociateAddress"),
    ),
    ("the head node's elastic address", Scope.OWN, ("ec2:ReleaseAddress",)),
    ("launching", Scope.LAUNCH, ("ec2:RunInstances",)),
    (
        "volumes encrypted with a key of your own",
        Scope.KEY,
        (
            "kms:CreateGrant",
            "kms:Decrypt",
            "kms:DescribeKey",
            "kms:GenerateDataKeyWithoutPlaintext",
            "kms:ReEncryptFrom",
            "kms:ReEncryptTo",
        ),
    ),
    ("a training's rows in CloudWatch", Scope.METRICS, ("cloudwatch:PutMetricData",)),
    ("keys that nodes read buckets with", Scope.SESSION, ("sts:GetFederationToken",)),
    ("tags", Scope.TAG, ("ec2:CreateTags",)),
    ("tags", Scope.UNTAG, ("ec2:DeleteTags",)),
    ("the nodes' host keys", Scope.OWN, ("ec2:GetConsoleOutput",)),
    (
        "host keys that no console shows",
        Scope.READ,
        ("ssm:DescribeInstanceInformation", "ssm:ListCommandInvocations"),
    ),
    ("host keys that no console shows", Scope.COMMAND, ("ssm:SendCommand",)),
    ("stopping and starting nodes", Scope.OWN, ("ec2:StopInstances", "ec2:StartInstances")),
    ("what a node's user data are", Scope.OWN, ("ec2:DescribeInstanceAttribute",)),
    ("whether a power-off stops or terminates", Scope.OWN, ("ec2:ModifyInstanceAttribute",)),
    ("larger disks", Scope.READ, ("ec2:DescribeVolumesModifications",)),
    ("larger disks", Scope.OWN, ("ec2:ModifyVolume",)),
    ("removing nodes", Scope.OWN, ("ec2:TerminateInstances",)),
    (
        "what was left behind",
        Scope.READ,
        (
            "ec2:DescribeRegions",
            "ec2:DescribeVolumes",
            "ec2:DescribeNetworkInterfaces",
            "cloudformation:DescribeStacks",
        ),
    ),
    ("what was left behind", Scope.OWN, ("ec2:DeleteVolume", "ec2:DeleteNetworkInterface")),
    ("what was left behind", Scope.READ, ("iam:ListRoles", "iam:ListInstanceProfiles")),
    ("an instance profile for nodes", Scope.READ, ("ec2:DescribeIamInstanceProfileAssociations",)),
    (
        "an instance profile for nodes",
        Scope.OWN,
        ("ec2:AssociateIamInstanceProfile", "ec2:ReplaceIamInstanceProfileAssociation"),
    ),
    ("the first spot launch of an account", Scope.SPOT_ROLE, ("iam:CreateServiceLinkedRole",)),
)

# The actions that `up --instance-profile new` needs besides those, and `down` and `gc` afterwards.
ROLES: tuple[tuple[str, Scope, tuple[str, ...]], ...] = (
    ("a role for the nodes", Scope.NAMED, ("iam:GetRole", "iam:GetInstanceProfile")),
    ("a role for the nodes", Scope.BOUNDARY, ("iam:GetPolicy",)),
    ("a role for the nodes", Scope.BOUND, ("iam:CreateRole",)),
    ("a role for the nodes", Scope.BOUND_OWN, ("iam:PutRolePolicy",)),
    (
        "a role for the nodes",
        Scope.CREATE,
        ("iam:CreateInstanceProfile", "iam:TagRole", "iam:TagInstanceProfile"),
    ),
    (
        "a role for the nodes",
        Scope.OWN,
        (
            "iam:GetRolePolicy",
            "iam:ListRolePolicies",
            "iam:ListAttachedRolePolicies",
            "iam:ListInstanceProfilesForRole",
            "iam:AddRoleToInstanceProfile",
            "iam:RemoveRoleFromInstanceProfile",
            "iam:DeleteInstanceProfile",
            "iam:DeleteRolePolicy",
            "iam:DeleteRole",
        ),
    ),
)

# The actions that `clusterctl network` needs besides those.
NETWORK: tuple[tuple[str, Scope, tuple[str, ...]], ...] = (
    ("the zones of a network", Scope.READ, ("ec2:DescribeAvailabilityZones",)),
    ("an endpoint for S3", Scope.ENDPOINT, ("ec2:CreateVpcEndpoint",)),
    (
        "networks",
        Scope.STACK,
        (
            "cloudformation:CreateStack",
            "cloudformation:UpdateStack",
            "cloudformation:DeleteStack",
            "cloudformation:DescribeStackEvents",
            "cloudformation:TagResource",
        ),
    ),
)

# The code does not call these actions. AWS checks them when it carries out other calls.
IMPLIED = frozenset(
    (
        *("iam:CreateServiceLinkedRole", "iam:PassRole", "iam:TagRole", "iam:TagInstanceProfile"),
        "cloudformation:TagResource",
    )
) | frozenset(name for _, scope, names in OPERATOR if scope is Scope.KEY for name in names)

# The EC2 actions that CloudFormation calls with the caller's rights, for each resource type in
# network.yaml. They are from the handlers in the type's published schema, without those for
# properties that the template does not set.
_RULES = (
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "RevokeSecurityGroupIngress",
    "RevokeSecurityGroupEgress",
    "UpdateSecurityGroupRuleDescriptionsIngress",
    "UpdateSecurityGroupRuleDescriptionsEgress",
    "DescribeSecurityGroups",
    "DescribeSecurityGroupRules",
)
BY_CLOUDFORMATION: Mapping[str, tuple[str, ...]] = {
    "AWS::EC2::VPC": (
        "CreateVpc",
        "DeleteVpc",
        "DescribeVpcs",
        "DescribeVpcAttribute",
        "DescribeVpcEncryptionControls",
        "DescribeNetworkAcls",
        "DescribeSecurityGroups",
        "ModifyVpcAttribute",
    ),
    "AWS::EC2::InternetGateway": (
        "CreateInternetGateway",
        "DeleteInternetGateway",
        "DescribeInternetGateways",
    ),
    "AWS::EC2::VPCGatewayAttachment": (
        "AttachInternetGateway",
        "DetachInternetGateway",
        "DescribeInternetGateways",
        "DescribeVpnGateways",
    ),
    "AWS::EC2::RouteTable": ("CreateRouteTable", "DeleteRouteTable", "DescribeRouteTables"),
    "AWS::EC2::Route": ("CreateRoute", "ReplaceRoute", "DeleteRoute", "DescribeRouteTables"),
    "AWS::EC2::Subnet": (
        "CreateSubnet",
        "DeleteSubnet",
        "DescribeSubnets",
        "ModifySubnetAttribute",
        "DescribeNetworkAcls",
        "DescribeAvailabilityZones",
    ),
    "AWS::EC2::SubnetRouteTableAssociation": (
        "AssociateRouteTable",
        "DisassociateRouteTable",
        "ReplaceRouteTableAssociation",
        "DescribeRouteTables",
        "DescribeSubnets",
    ),
    "AWS::EC2::VPCEndpoint": (
        "CreateVpcEndpoint",
        "ModifyVpcEndpoint",
        "DeleteVpcEndpoints",
        "DescribeVpcEndpoints",
    ),
    "AWS::EC2::SecurityGroup": (
        "CreateSecurityGroup",
        "DeleteSecurityGroup",
        "DescribeInstances",
        *_RULES,
    ),
    "AWS::EC2::SecurityGroupIngress": _RULES,
    "AWS::EC2::SecurityGroupEgress": _RULES,
}
TAGGING_BY_CLOUDFORMATION = ("CreateTags", "DeleteTags")


def actions_of(table: tuple[tuple[str, Scope, tuple[str, ...]], ...], scope: Scope) -> list[str]:
    """Return the table's actions of one scope, sorted."""
    return sorted({name for _, one, names in table for name in names if one is scope})
