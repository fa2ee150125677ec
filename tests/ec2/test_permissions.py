"""The policies allow exactly the calls that the code makes. The documentation lists the same."""

from __future__ import annotations

import ast
import fnmatch
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from clusterctl.domain.errors import UsageError
from clusterctl.ec2.launch.plan import grants
from clusterctl.ec2.node_role import role_name, role_path
from clusterctl.ec2.policy import (
    Bounds,
    actions_by_cloudformation,
    actions_of,
    needed_actions,
    network_policy,
    node_policy,
    operator_policy,
    reading_policy,
    roles_policy,
)
from clusterctl.ec2.session import Clients
from tests.cli.running import CommandLine, at_moto

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("ec2", "operations", "cli", "bootstrap", "copy", "transport", "jobs")
    for path in sorted((ROOT / "clusterctl" / folder).rglob("*.py"))
    if "shipped-examples" not in path.parts
]
# The names of services in policies. GetCallerIdentity and sessions need no permission.
PREFIXES = {
    "ec2": "ec2",
    "ssm": "ssm",
    "service-quotas": "servicequotas",
    "cloudformation": "cloudformation",
    "cloudwatch": "cloudwatch",
    "pricing": "pricing",
    "sts": "sts",
    "iam": "iam",
}
ALWAYS_ALLOWED = {"sts:GetCallerIdentity", "sts:GetSessionToken"}
ACCOUNT = "123456789012"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/nodes"
NEEDED = {who: needed_actions(who) for who in ("operator", "roles", "network")}
ALLOWED = {name for needed in NEEDED.values() for one in needed for name in one.actions}
# The code does not call these actions. AWS checks them when it carries out other calls.
IMPLIED = {
    *("iam:CreateServiceLinkedRole", "iam:PassRole", "iam:TagRole", "iam:TagInstanceProfile"),
    *("cloudformation:TagResource", *actions_of("operator", "KEY")),
}
BY_CLOUDFORMATION = actions_by_cloudformation()


@pytest.fixture(scope="module")
def methods() -> dict[str, set[str]]:
    """Return {boto3's method: its possible actions} for the services that have clients."""
    import botocore.session
    from botocore import xform_name

    session = botocore.session.get_session()
    known: dict[str, set[str]] = {}
    for service, prefix in PREFIXES.items():
        for operation in session.get_service_model(service).operation_names:
            known.setdefault(xform_name(operation), set()).add(f"{prefix}:{operation}")
    return known


def names_in(tree: ast.AST, methods: dict[str, set[str]]) -> Iterator[str]:
    """Return boto3's methods that are called, named in a string, or composed of strings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in methods:
            # `self.list_commands(...)` belongs to click: a client is never called `self`.
            if not (isinstance(node.value, ast.Name) and node.value.id == "self"):
                yield node.attr
        elif isinstance(node, ast.Constant) and node.value in methods:
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            texts = [getattr(part, "value", None) for part in node.values]
            if isinstance(texts[0], str) and re.match(r"[a-z]+_[a-z_]+", texts[0]):
                pattern = "".join(
                    re.escape(text) if isinstance(text, str) else ".+" for text in texts
                )
                yield from (name for name in methods if re.fullmatch(pattern, name))


def test_clients_are_made_of_these_services_only():
    source = (ROOT / "clusterctl" / "ec2" / "session.py").read_text()
    # S3 is for a notebook's data (clusterctl/sagemaker.py), with the permissions of its user.
    assert set(re.findall(r'_make\(\s*"([a-z0-9-]+)"', source)) == {*PREFIXES, "s3"}


def test_every_call_in_the_source_is_in_the_table_and_no_other(methods):
    called: dict[str, set[str]] = {}
    for path in SOURCES:
        for name in names_in(ast.parse(path.read_text()), methods):
            called.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    known = ALLOWED | ALWAYS_ALLOWED
    missing = {
        f"{' or '.join(sorted(methods[name]))} (called in {', '.join(sorted(where))})"
        for name, where in called.items()
        if not methods[name] & known
    }
    assert missing == set(), "add them to clusterctl/ec2/policies.toml"
    stands_for = set().union(*(methods[name] for name in called))
    assert ALLOWED - IMPLIED - stands_for == set(), "nothing calls these: take them out"


def test_the_docs_name_the_same_actions():
    section = (ROOT / "docs" / "aws.md").read_text().partition("## Tags")[0]
    rows = "\n".join(line for line in section.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`([a-z0-9]+:[A-Z]\w+)`", rows)) == ALLOWED | IMPLIED


def test_the_docs_name_every_tag():
    sources = "".join(path.read_text() for path in SOURCES)
    tags = set(re.findall(r'^[A-Z_]+ = "(clusterctl:[a-z-]+)"$', sources, re.MULTILINE))
    section = (ROOT / "docs" / "aws.md").read_text().partition("## Tags")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(clusterctl:[a-z-]+)`", section, re.MULTILINE)) == tags


# The actions of each resource type's handlers (create, read, update, delete), from its schema in
# CloudFormation's registry. Actions for tags, and for properties that the template lacks, are left
# out.
PUBLISHED = {
    "AWS::EC2::VPC": "CreateVpc DeleteVpc DescribeNetworkAcls DescribeSecurityGroups "
    "DescribeVpcAttribute DescribeVpcEncryptionControls DescribeVpcs ModifyVpcAttribute",
    "AWS::EC2::InternetGateway": "CreateInternetGateway DeleteInternetGateway "
    "DescribeInternetGateways",
    "AWS::EC2::RouteTable": "CreateRouteTable DeleteRouteTable DescribeRouteTables",
    "AWS::EC2::Route": "CreateRoute DeleteRoute DescribeRouteTables ReplaceRoute",
    "AWS::EC2::Subnet": "CreateSubnet DeleteSubnet DescribeNetworkAcls DescribeSubnets "
    "ModifySubnetAttribute",
    "AWS::EC2::SubnetRouteTableAssociation": "AssociateRouteTable DescribeRouteTables "
    "DescribeSubnets DisassociateRouteTable ReplaceRouteTableAssociation",
    "AWS::EC2::VPCEndpoint": "CreateVpcEndpoint DeleteVpcEndpoints DescribeVpcEndpoints "
    "ModifyVpcEndpoint",
    "AWS::EC2::SecurityGroup": "AuthorizeSecurityGroupEgress AuthorizeSecurityGroupIngress "
    "CreateSecurityGroup DeleteSecurityGroup DescribeInstances DescribeSecurityGroups "
    "RevokeSecurityGroupEgress RevokeSecurityGroupIngress",
    "AWS::EC2::SecurityGroupIngress": "AuthorizeSecurityGroupIngress DescribeSecurityGroupRules "
    "DescribeSecurityGroups RevokeSecurityGroupIngress UpdateSecurityGroupRuleDescriptionsIngress",
    "AWS::EC2::SecurityGroupEgress": "AuthorizeSecurityGroupEgress DescribeSecurityGroupRules "
    "RevokeSecurityGroupEgress UpdateSecurityGroupRuleDescriptionsEgress",
}


def test_cloudformation_may_make_what_the_template_has():
    template = (ROOT / "clusterctl" / "ec2" / "network" / "network.yaml").read_text()
    kinds = set(re.findall(r"Type: (AWS::[\w:]+)", template))
    assert kinds - {"AWS::EC2::AvailabilityZone::Name"} == set(BY_CLOUDFORMATION)
    asked = {kind: set(PUBLISHED[kind].split()) for kind in kinds & set(PUBLISHED)}
    missing = {kind: asked[kind] - set(BY_CLOUDFORMATION[kind]) for kind in asked}
    assert not any(missing.values()), missing


def test_every_action_exists(methods):
    """An unknown name in a policy would have no effect."""
    existing = set().union(*methods.values())
    by_stack = {f"ec2:{name}" for names in BY_CLOUDFORMATION.values() for name in names}
    assert (ALLOWED | by_stack) - existing - IMPLIED == set()


POLICIES = {
    "operator": operator_policy(
        Bounds("us-gov-west-1", ACCOUNT), ROLE.replace("aws:", "aws-us-gov:", 1)
    ),  # fmt: skip
    "anywhere": operator_policy(Bounds()),
    "an owner's": operator_policy(
        Bounds("us-gov-west-1", ACCOUNT),
        ROLE.replace("aws:", "aws-us-gov:", 1),
        ("owner", "${aws:username}"),
    ),
    "roles": roles_policy(Bounds("us-gov-west-1", ACCOUNT), ("owner", "${aws:username}")),
    "network": network_policy(Bounds("ap-southeast-1", ACCOUNT)),
    "node": node_policy(Bounds(), ["data/imagenet"], ["s3://runs/checkpoints/"], ssm=True),
    "lent": reading_policy("aws", ["data", "runs"]),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_a_policy_is_one_that_iam_takes(policy):
    assert json.loads(json.dumps(policy)) == policy
    assert policy["Version"] == "2012-10-17"
    assert len(json.dumps(policy, separators=(",", ":"))) <= 6144, (
        "IAM's limit, without white space"
    )
    sids = [statement["Sid"] for statement in policy["Statement"]]
    assert len(set(sids)) == len(sids)
    assert all(re.fullmatch(r"[A-Za-z0-9]+", sid) for sid in sids)
    for statement in policy["Statement"]:
        assert set(statement) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        assert statement["Effect"] == "Allow"
        assert statement["Action"] and statement["Resource"]  # noqa: PT018
        assert not any("*" in action for action in statement["Action"])
        for resource in statement["Resource"]:
            assert resource == "*" or re.fullmatch(r"arn:aws[a-z-]*:[a-z0-9]+:.*:.*:.+", resource)


def test_the_operator_may_do_the_table_and_no_more():
    table = {name for one in NEEDED["operator"] for name in one.actions}
    for role, more in ((ROLE, {"iam:PassRole"}), (None, set())):
        policy = operator_policy(Bounds(), role)
        allowed = {action for statement in policy["Statement"] for action in statement["Action"]}
        assert allowed == table | more


def statements(policy, action):
    return [one for one in policy["Statement"] if action in one["Action"]]


def test_whatever_changes_things_is_limited_to_the_tag():
    policy = operator_policy(Bounds("us-east-1", ACCOUNT), ROLE)
    for action in actions_of("operator", "OWN"):
        [statement] = statements(policy, action)
        assert statement["Condition"] == {"Null": {"aws:ResourceTag/clusterctl:cluster": "false"}}
    for statement in statements(policy, "ec2:CreateTags"):
        assert statement["Condition"]
    created = {"StringLike": {"aws:RequestTag/clusterctl:cluster": "?*"}}
    for action in actions_of("operator", "CREATE"):
        assert statements(policy, action)[0]["Condition"] == created
    launches = statements(policy, "ec2:RunInstances")
    resources = {one for statement in launches for one in statement["Resource"]}
    assert not {"*"} & resources
    assert "arn:aws:ec2:us-east-1::image/*" in resources
    [own] = [one for one in launches if "Condition" in one]
    assert own["Resource"] == [
        f"arn:aws:ec2:us-east-1:{ACCOUNT}:instance/*",
        f"arn:aws:ec2:us-east-1:{ACCOUNT}:volume/*",
        f"arn:aws:ec2:us-east-1:{ACCOUNT}:spot-instances-request/*",
    ]
    wide = [one for one in policy["Statement"] if one["Resource"] == ["*"]]
    assert [one["Sid"] for one in wide] == ["Look", "SendMetrics"]
    assert wide[1]["Action"] == ["cloudwatch:PutMetricData"]  # which supports no other resource
    assert all(re.match(r"\w+:(Describe|Get|List)", action) for action in wide[0]["Action"])


def test_an_owners_policy_is_for_what_carries_the_owners_tag():
    """Each statement about resources with the cluster's tag requires the owner's tag as well."""
    plain, owned = (
        [
            *operator_policy(Bounds(), ROLE, owner_tag=tag)["Statement"],
            *roles_policy(Bounds(), owner_tag=tag)["Statement"],
        ]
        for tag in (None, ("owner", "alice"))
    )
    changed = []
    for before, after in zip(plain, owned):
        tagged = [way for way in ("Request", "Resource") if f"aws:{way}Tag/" in json.dumps(before)]
        for way in tagged:
            given = {"StringEquals": {f"aws:{way}Tag/owner": "alice"}}
            assert after == {**before, "Condition": {**before["Condition"], **given}}
            changed.append(after["Sid"])
        if not tagged:
            assert after == before
    assert {"LaunchOwn", "CreateOwn", "TagOwn", "ManageOwn", "MoveOwnAddress"} <= set(changed)
    assert {"MakeRole", "GrantToRole", "MakeProfile", "ManageRole"} <= set(changed)


def test_whoever_makes_roles_can_grant_no_more_than_the_boundary():
    """With PutRolePolicy alone, a user could give a node, and so themselves, every right."""
    policy = roles_policy(Bounds("us-west-2", ACCOUNT))
    bound = {"iam:PermissionsBoundary": f"arn:aws:iam::{ACCOUNT}:policy/clusterctl-nodes"}
    for action in ("iam:CreateRole", "iam:PutRolePolicy"):
        [only] = statements(policy, action)
        assert bound.items() <= only["Condition"]["StringLike"].items()
    granted = {action for one in policy["Statement"] for action in one["Action"]}
    assert granted == {name for one in NEEDED["roles"] for name in one.actions} | {"iam:PassRole"}
    changing = r"iam:(Attach|Update|PutRolePermissions|DeleteRolePermissions|.*PolicyVersion).*"
    assert not [name for name in granted if re.fullmatch(changing, name)]
    kinds = ("role", "instance-profile")
    read = {f"arn:aws:iam::{ACCOUNT}:{kind}/clusterctl*-us-west-2" for kind in kinds}
    own = {f"arn:aws:iam::{ACCOUNT}:{kind}/clusterctl/us-west-2/*" for kind in kinds}
    [only] = statements(policy, "iam:GetRole")
    assert set(only["Resource"]) == read
    changed = [one for one in policy["Statement"] if one is not only]
    others = {f"arn:aws:iam::{ACCOUNT}:policy/clusterctl-nodes"}
    assert {arn for one in changed for arn in one["Resource"]} == own | others
    for name in (role_name("demo", "us-west-2"), role_name("d" * 40, "us-west-2")):
        path = role_path("us-west-2", "demo")
        for arn in (f"role/{name}", f"role{path}{name}"):
            assert fnmatch.fnmatch(f"arn:aws:iam::{ACCOUNT}:{arn}", max(read))
        assert fnmatch.fnmatch(f"arn:aws:iam::{ACCOUNT}:role{path}{name}", max(own))


@pytest.mark.parametrize("region", ["us-east-1", "ap-southeast-1"])
def test_a_roles_name_is_one_clusters(region):
    """IAM has one namespace for all regions, and 64 characters for a name."""
    names = ["demo", "demo-us", "d" * 40, "d" * 39 + "e", "demo-us-east-1"]
    made = {role_name(name, one) for name in names for one in (region, "us-west-2")}
    assert len(made) == 2 * len(names)
    assert all(re.fullmatch(r"[\w+=,.@-]{1,64}", one, re.ASCII) for one in made)


def test_networks_are_changed_through_cloudformation_only():
    [*_, through] = network_policy(Bounds())["Statement"]
    called = {"aws:CalledVia": ["cloudformation.amazonaws.com"]}
    assert through["Condition"] == {"ForAnyValue:StringEquals": called}


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("*", "aws"),
        ("eu-central-1", "aws"),
        ("cn-north-1", "aws-cn"),
        ("us-gov-west-1", "aws-us-gov"),
        ("eusc-de-east-1", "aws-eusc"),
    ],
)
def test_partitions(region, partition):
    bounds = Bounds(region)
    role = ROLE.replace("arn:aws:", f"arn:{partition}:")
    policies = (
        operator_policy(bounds, role),
        network_policy(bounds),
        node_policy(bounds, ["data"], ["runs"]),
    )
    arns = re.findall(r"arn:[^\"]+", json.dumps(policies))
    assert {arn.split(":")[1] for arn in arns} == {partition}
    # In China, EC2 has another service name.
    [passing] = statements(policies[0], "iam:PassRole")
    assert ("ec2.amazonaws.com.cn" in json.dumps(passing)) == (partition == "aws-cn")


def test_what_a_node_may_do():
    policy = node_policy(Bounds(), ["data/imagenet"], ["s3://runs/checkpoints/"])
    assert [
        (one["Action"], one["Resource"], one.get("Condition")) for one in policy["Statement"]
    ] == [
        (
            ["s3:ListBucket"],
            ["arn:aws:s3:::data"],
            {"StringLike": {"s3:prefix": ["imagenet/*", "imagenet"]}},
        ),
        (["s3:GetObject"], ["arn:aws:s3:::data/imagenet/*"], None),
        (
            ["s3:ListBucket"],
            ["arn:aws:s3:::runs"],
            {"StringLike": {"s3:prefix": ["checkpoints/*", "checkpoints"]}},
        ),
        (
            ["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
            ["arn:aws:s3:::runs/checkpoints/*"],
            None,
        ),
    ]
    [listing, reading] = node_policy(Bounds(), data=["s3://data"])["Statement"]
    assert "Condition" not in listing
    assert reading["Resource"] == ["arn:aws:s3:::data/*"]
    several = node_policy(Bounds(), ["a-data", "b-data/x", "a-data"], ["runs"])
    assert grants(several) == "may read s3://a-data/ and s3://b-data/x/; may write s3://runs/"
    everywhere = node_policy(Bounds(), ["*"])
    assert grants(everywhere) == "may read every bucket"
    assert "s3:PutObject" not in json.dumps(everywhere)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Bounds('us-east-1:*"'),
        lambda: Bounds(account="12345"),
        lambda: Bounds(account="١٢٣٤٥٦٧٨٩٠١٢"),
        lambda: node_policy(Bounds()),
        lambda: node_policy(Bounds(), ["data/*"]),
        lambda: node_policy(Bounds(), ["*/data"]),
        lambda: node_policy(Bounds(), [], ["*"]),
        lambda: node_policy(Bounds(), ["data/${aws:username}"]),
        lambda: node_policy(Bounds(), ["arn:aws:s3:::data"]),
        lambda: operator_policy(Bounds(), owner_tag=("clusterctl:cluster", "demo")),
        lambda: operator_policy(Bounds(), owner_tag=("owner", "${aws:PrincipalTag/x}")),
        lambda: operator_policy(Bounds(), "nodes"),
        lambda: operator_policy(Bounds(), "arn:aws:iam::123456789012:role/*"),
        lambda: operator_policy(Bounds("cn-north-1"), ROLE),
        lambda: operator_policy(Bounds(account="999999999999"), ROLE),
    ],
)
def test_bounds_that_make_no_sense(wrong):
    with pytest.raises(UsageError):
        wrong()


class Calls:
    """Records every request of every client that is made from now on."""

    def __init__(self, monkeypatch) -> None:
        self.made: list[tuple[str, dict]] = []
        make = Clients._make

        def making(clients, service, *args, **kwargs):
            client = make(clients, service, *args, **kwargs)

            def note(model, params, **_):
                body = params.get("body")
                body = body if isinstance(body, dict) else {}
                self.made.append((f"{PREFIXES[service]}:{model.name}", body))

            client.meta.events.register("before-call", note)
            return client

        monkeypatch.setattr(Clients, "_make", making)

    @property
    def actions(self) -> set[str]:
        return {action for action, _ in self.made}

    def check(self, *keys: str) -> None:
        """Assert that all calls are allowed, and that new resources have tags with these keys."""
        assert self.actions - ALLOWED - ALWAYS_ALLOWED == set()
        given = {**dict.fromkeys(actions_of("operator", "CREATE"), 1), "ec2:RunInstances": 2}
        for action, body in self.made:
            if action in given:
                tagged = {kind for kind, made in tags_of(body) if made >= {*keys}}
                assert len(tagged) >= given[action], f"{action} without the tags: {body}"


def tags_of(body: dict) -> Iterator[tuple[str, set[str]]]:
    """Return resource type and tag keys of each TagSpecification in a request's parameters."""
    for number in itertools.count(1):
        prefix = f"TagSpecification.{number}."
        if f"{prefix}ResourceType" not in body:
            return
        keys = {
            value
            for name, value in body.items()
            if name.startswith(prefix) and name.endswith(".Key")
        }
        yield body[f"{prefix}ResourceType"], keys


def test_what_is_really_called_is_allowed(client, moto_url, tmp_path, monkeypatch, capsys):
    calls = Calls(monkeypatch)
    clusterctl = at_moto(moto_url, tmp_path, monkeypatch, capsys)
    up = ("up", "demo", "--nodes", "2", "--instance-type", "p4d.24xlarge", "--tag", "owner=alice")
    up = (*up, "--instance-profile", "new")
    assert clusterctl(*up, "--dry-run").status == 0
    clusterctl(*up, "--timeout", "0.01s")  # moto has no hosts that could get ready
    assert clusterctl("status", "demo").status == 0
    assert clusterctl("list").status == 0
    assert clusterctl("gc", "--all").status == 0
    assert clusterctl("down", "demo", "--yes").status == 0
    calls.check("clusterctl:cluster", "owner")
    assert {"ec2:RunInstances", "ec2:TerminateInstances", "iam:DeleteRole"} <= calls.actions
    for action in ("iam:CreateRole", "iam:CreateInstanceProfile"):
        [body] = [body for name, body in calls.made if name == action]
        keys = {value for name, value in body.items() if re.fullmatch(r"Tags.*\.Key", name)}
        assert {"clusterctl:cluster", "owner"} <= keys


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("operator", "--node-role", ROLE), 0),
        (("roles", "--owner-tag", "owner=alice"), 0),
        (("roles", "--node-role", ROLE), 2),
        (("roles", "--data-bucket", "data"), 2),
        (("node", "--data-bucket", "data", "--data-bucket", "more"), 0),
        (("network", "--region", "us-east-1", "--account", ACCOUNT), 0),
        (("node", "--data-bucket", "data"), 0),
        (("--json", "--ssm"), 0),
        (("somebody",), 2),
        (("operator", "--data-bucket", "data"), 2),
        (("node", "--ssm", "--node-role", ROLE), 2),
        (("operator", "--owner-tag", "owner=alice"), 0),
        (("operator", "--owner-tag", "owner"), 2),
        (("network", "--owner-tag", "owner=alice"), 2),
        (("operator", "--node-role", ""), 2),
        (("operator", "--account", "me"), 2),
    ],
)
def test_the_command(words, status, tmp_path, capsys):
    ran = CommandLine(tmp_path, capsys, [])("iam-policy", *words)
    assert ran.status == status
    if status == 0:
        printed = ran.data.values() if words[0] == "--json" else [ran.data]
        assert all(policy["Version"] == "2012-10-17" for policy in printed)
    else:
        assert ran.out == ""
    listed = CommandLine(tmp_path, capsys, [])("iam-policy").out.splitlines()[1:]
    assert {line.split()[0] for line in listed} == ALLOWED
