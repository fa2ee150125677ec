"""`up --instance-profile`: a role of the cluster's own, other profiles, and nodes that exist."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from clusterctl.domain.cluster import ClusterSpec
from clusterctl.domain.errors import AwsError, ClusterctlError, UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2.errors import translated
from clusterctl.ec2.instances import find_instances
from clusterctl.ec2.launch.observe import fixed_request
from clusterctl.ec2.node_role import role_name
from clusterctl.lab.ec2 import options
from clusterctl.operations import down, members, up
from clusterctl.operations.gc import GarbageCollector
from clusterctl.operations.launcher import Launcher, StepProgress
from tests.moto_ec2 import REGION, clients_of
from tests.operations.commands import SHORT, shorten_timeouts
from tests.operations.leaks import everything
from tests.operations.world import an_hour_later

SPEC = ClusterSpec("demo", 2, "g5.xlarge", instance_profile="new")
PLAIN = replace(SPEC, instance_profile=None)
NAME = role_name("demo", REGION)
READ_ALL = "may read every bucket"


class Steps(StepProgress):
    def __init__(self) -> None:
        self.told: list[str] = []

    def step(self, text: str) -> None:
        self.told.append(text)
        if "until EC2 knows" in text:
            options.KNOWN_AFTER_S = 0.0


class Account:
    """An empty account, and the commands that are tested on it."""

    def __init__(self, clients, home) -> None:
        self.clients, self.iam, self.steps = clients, clients.iam, Steps()
        self.launcher = Launcher(clients, ClusterFolder(home / "demo"), self.steps, timeouts=SHORT)
        self.before = everything(clients.ec2, self.iam)

    def up(self, spec=SPEC):
        self.steps.told = []
        return up.up(self.launcher, fixed_request(spec))

    def plan(self, spec=SPEC):
        return up.plan_up(self.launcher, fixed_request(spec))

    def down(self, folder=None):
        folder = folder or self.launcher.folder
        others = down.find_removable(self.clients, folder, SHORT).others
        return down.down(self.clients, folder, timeouts=SHORT, agreed=others)

    @property
    def nodes(self):
        return find_instances(self.clients.ec2, "demo")

    @property
    def profiles(self) -> list[str]:
        return [one.instance_profile for one in self.nodes]

    @property
    def left(self) -> set[str]:
        return everything(self.clients.ec2, self.iam) - self.before

    def policy(self) -> str:
        found = self.iam.get_role_policy(RoleName=NAME, PolicyName="clusterctl")
        return json.dumps(found["PolicyDocument"])

    def profile(self, name: str) -> None:
        """Make a profile that is not clusterctl's."""
        self.iam.create_role(RoleName=name, AssumeRolePolicyDocument="{}")
        self.iam.create_instance_profile(InstanceProfileName=name)
        self.iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=name)


@pytest.fixture
def account(client, moto_url, tmp_path, monkeypatch):
    shorten_timeouts(monkeypatch.setattr)
    monkeypatch.setattr(options, "KNOWN_AFTER_S", 0.0)
    return Account(clients_of(moto_url), tmp_path)


def test_a_launch_waits_until_ec2_knows_the_new_profile(account):
    options.KNOWN_AFTER_S = 3600.0
    account.up()
    assert "waiting until EC2 knows the instance profile" in account.steps.told
    assert account.profiles == [NAME, NAME]
    assert account.plan().idle
    assert account.down().roles == (NAME,)
    assert account.left == set()


def test_a_profile_that_stays_unknown_is_named_with_what_to_do(account):
    account.launcher = replace(account.launcher, timeouts=replace(SHORT, known_s=0.1))
    with pytest.raises(AwsError, match="Invalid IAM Instance Profile name") as caught:
        account.up(replace(PLAIN, instance_profile="misspelt"))
    assert "aws iam list-instance-profiles" in caught.value.hint
    assert "--instance-profile new" in caught.value.hint


def test_running_nodes_get_a_profile_and_so_does_a_node_that_is_added(account):
    account.up(PLAIN)
    machines = {one.node.instance_id for one in account.nodes}
    assert account.profiles == ["", ""]
    asked = []
    account.launcher = replace(account.launcher, approve=lambda plan: asked.append(plan.grants))
    options.KNOWN_AFTER_S = 3600.0
    with pytest.raises(AwsError, match="Invalid IAM Instance Profile"):  # it stays unknown
        up.up(replace(account.launcher, timeouts=replace(SHORT, known_s=0.1)), fixed_request(SPEC))
    options.KNOWN_AFTER_S = 0.0
    account.up()
    assert (account.profiles, asked) == ([NAME, NAME], [READ_ALL])
    assert {one.node.instance_id for one in account.nodes} == machines
    members.add(account.launcher, 1)
    assert account.profiles == [NAME, NAME, NAME]
    account.down()
    assert account.left == set()


def test_another_profile_takes_the_place_of_the_one_that_nodes_have(account):
    account.profile("theirs")
    account.up()
    # An `up` that gave the head node the other profile and was cut off then.
    ec2 = account.clients.ec2
    first = account.plan(replace(SPEC, instance_profile="theirs")).steps[0]
    ec2.replace_iam_instance_profile_association(**first.arguments)
    assert account.profiles == ["theirs", NAME]
    account.up(replace(SPEC, instance_profile="theirs"))
    assert account.profiles == ["theirs", "theirs"]
    assert account.plan(PLAIN).idle
    assert account.down().roles == (NAME,)
    assert account.left == {"role:theirs", "profile:theirs"}


def test_a_role_allows_what_the_last_up_said(account):
    account.up(replace(SPEC, data_buckets=("data/x",), checkpoint_prefixes=("runs",)))
    assert "data/x/*" in account.policy()
    assert "PutObject" in account.policy()
    account.up(PLAIN)  # says nothing about it
    assert "data/x/*" in account.policy()
    account.up(replace(SPEC, data_buckets=("more",)))
    assert "more/*" in account.policy()
    assert "PutObject" not in account.policy()
    for spec in ({"data_buckets": ("data",)}, {"checkpoint_prefixes": ("runs",)}):
        with pytest.raises(UsageError, match="own role"):
            replace(PLAIN, **spec)


@pytest.mark.parametrize("inline", [False, True])
def test_what_others_have_added_to_the_role_keeps_it_and_is_named(account, inline):
    account.up()
    if inline:
        account.iam.put_role_policy(
            RoleName=NAME, PolicyName="of,us", PolicyDocument=account.policy()
        )
    else:
        made = account.iam.create_policy(PolicyName="theirs", PolicyDocument=account.policy())
        account.iam.attach_role_policy(RoleName=NAME, PolicyArn=made["Policy"]["Arn"])
    with pytest.raises(AwsError, match=f"the role {NAME} cannot be deleted") as caught:
        account.down()
    # Nothing that costs money is left, and `down` can be run again.
    assert {one.split("-")[0] for one in account.left} == {"key", "role:clusterctl"}
    assert account.launcher.folder.key.exists()
    command, again = caught.value.hint.split(" && ")
    assert again == "clusterctl down demo"
    if inline:
        assert command == f"aws iam delete-role-policy --role-name {NAME} --policy-name of,us"
        account.iam.delete_role_policy(RoleName=NAME, PolicyName="of,us")
    else:
        arn = re.fullmatch(
            rf"aws iam detach-role-policy --role-name {NAME} --policy-arn (\S+)", command
        )[1]
        account.iam.detach_role_policy(RoleName=NAME, PolicyArn=arn)
    assert account.down().roles == (NAME,)
    assert account.left == set()


def test_down_finds_the_role_without_instances_and_without_the_folder(account, tmp_path):
    account.up()
    ids = [one.node.instance_id for one in account.nodes]
    account.clients.ec2.terminate_instances(InstanceIds=ids)
    assert account.down(ClusterFolder(tmp_path / "elsewhere" / "demo")).roles == (NAME,)
    assert account.left == set()


def test_down_leaves_a_role_alone_that_another_machine_may_be_about_to_use(account, tmp_path):
    account.up()
    path = account.iam.get_role(RoleName=NAME)["Role"]["Path"]
    assert account.down().roles == (NAME,)
    trust = json.dumps({"Version": "2012-10-17", "Statement": []})
    account.iam.create_role(RoleName=NAME, Path=path, AssumeRolePolicyDocument=trust)
    elsewhere = ClusterFolder(tmp_path / "elsewhere" / "demo")
    assert account.down(elsewhere).nothing
    account.iam.delete_role(RoleName=NAME)


def test_gc_finds_a_role_without_a_cluster_and_says_what_keeps_it(account, tmp_path, monkeypatch):
    account.up()
    collector = GarbageCollector({REGION: account.clients}, tmp_path / "elsewhere", timeouts=SHORT)
    ids = [one.node.instance_id for one in account.nodes]
    account.clients.ec2.terminate_instances(InstanceIds=ids)
    ended = account.clients.ec2.get_waiter("instance_terminated")
    ended.wait(InstanceIds=ids, WaiterConfig={"Delay": 0.1})
    # The cluster of the same name in another region has another role.
    down.down(account.clients.in_region("us-west-2"), ClusterFolder(tmp_path / "x" / "demo"))
    made = account.iam.create_policy(PolicyName="theirs", PolicyDocument=account.policy())
    account.iam.attach_role_policy(RoleName=NAME, PolicyArn=made["Policy"]["Arn"])
    an_hour_later(monkeypatch)
    found = [one for one in collector.sweep().orphans if one.resource.name == NAME]
    assert [one.resource.kind.value for one in found] == ["instance profile", "role"]
    assert {one.resource.cluster for one in found} == {"demo"}
    [left] = [one for one in collector.remove(found).left if one.resource.name == NAME]
    command, again = left.error.hint.split(" && ")
    assert command.startswith("aws iam detach-role-policy")
    assert again == "clusterctl gc --cluster demo --delete"
    account.iam.detach_role_policy(RoleName=NAME, PolicyArn=made["Policy"]["Arn"])
    assert collector.remove(collector.sweep().orphans).left == ()
    assert not [one for one in account.left if NAME in one]
    account.down()


def test_a_role_of_that_name_that_is_not_the_clusters_is_left_alone(account):
    account.profile(NAME)
    with pytest.raises(AwsError, match="which is not the cluster's"):
        account.up()
    account.up(PLAIN)
    assert account.down().roles == ()
    assert account.left == {f"role:{NAME}", f"profile:{NAME}"}
    assert account.iam.list_role_policies(RoleName=NAME)["PolicyNames"] == []


def test_another_role_in_the_clusters_profile_is_named(account):
    account.up()
    account.profile("theirs")
    account.iam.remove_role_from_instance_profile(InstanceProfileName=NAME, RoleName=NAME)
    account.iam.add_role_to_instance_profile(InstanceProfileName=NAME, RoleName="theirs")
    with pytest.raises(AwsError, match="has another role: theirs") as caught:
        account.plan()
    assert "remove-role-from-instance-profile" in caught.value.hint
    account.down()
    assert account.left == {"role:theirs", "profile:theirs"}


def test_the_same_name_in_two_regions_has_two_roles(account, tmp_path):
    account.up()
    west = account.clients.in_region("us-west-2")
    other = Launcher(west, ClusterFolder(tmp_path / "west" / "demo"), timeouts=SHORT)
    up.up(other, fixed_request(SPEC))
    assert {one for one in account.left if "role:" in one} == {
        f"role:{NAME}",
        "role:clusterctl-demo-us-west-2",
    }
    account.down()
    assert {one.instance_profile for one in find_instances(west.ec2, "demo")} == {
        "clusterctl-demo-us-west-2"
    }
    assert down.down(west, other.folder, timeouts=SHORT).roles
    assert account.left == set()


def test_a_boundary_of_the_account_bounds_the_role(account):
    bound = account.iam.create_policy(
        PolicyName="clusterctl-nodes",
        PolicyDocument='{"Version": "2012-10-17", "Statement": {"Effect": "Allow", '
        '"Action": "s3:GetObject", "Resource": "*"}}',
    )["Policy"]["Arn"]
    assert any(f"bounded by {bound}" in step.describe() for step in account.plan().steps)
    account.up()
    made = account.iam.get_role(RoleName=NAME)["Role"]
    assert made["PermissionsBoundary"]["PermissionsBoundaryArn"] == bound
    account.down()


class Denied:
    """A client for IAM whose owner may do nothing."""

    def __getattr__(self, name):
        def refuse(**_):
            raise AwsError("AccessDenied", f"not authorized to perform {name}")

        return refuse


def test_without_rights_on_iam_plain_clusters_come_and_go(account, monkeypatch):
    monkeypatch.setitem(vars(account.clients), "iam", Denied())
    with pytest.raises(AwsError, match="get_role") as caught:
        account.up()
    assert "clusterctl iam-policy roles" in caught.value.hint
    account.up(PLAIN)
    assert account.down().roles == ()
    monkeypatch.setitem(vars(account.clients), "iam", account.iam)
    account.up()
    monkeypatch.setitem(vars(account.clients), "iam", Denied())
    with pytest.raises(ClusterctlError, match="not authorized"):
        account.down()
    assert account.nodes == ()
    monkeypatch.setitem(vars(account.clients), "iam", account.iam)
    account.down()
    assert account.left == set()


def test_the_lab_refuses_a_profile_without_a_role(account):
    account.iam.create_instance_profile(InstanceProfileName="empty")
    account.up(PLAIN)
    [head, _] = account.nodes
    with pytest.raises(AwsError, match="has no associated IAM Roles"), translated():
        account.clients.ec2.associate_iam_instance_profile(
            IamInstanceProfile={"Name": "empty"}, InstanceId=head.node.instance_id
        )
    account.down()
