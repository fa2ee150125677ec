"""Orphans of every kind in two regions are found and removed. Resources of others stay."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from functools import partial
from time import sleep

import pytest
from botocore.exceptions import ClientError

from clusterctl.domain.cluster import NodeState
from clusterctl.domain.errors import UsageError
from clusterctl.domain.files import ClusterFolder
from clusterctl.ec2 import session
from clusterctl.ec2.gc import orphans as verdicts
from clusterctl.ec2.gc import removal
from clusterctl.ec2.gc.orphans import GcOptions, Rules, Verdict, without_stop_time
from clusterctl.ec2.instances import find_states
from clusterctl.ec2.resources import ResourceKind
from clusterctl.operations import gc as gc_module
from clusterctl.operations.costs import read_ended
from clusterctl.operations.gc import GarbageCollector
from clusterctl.operations.local_state import locked
from clusterctl.operations.site import keep_site, site_of
from tests.cli.running import CommandLine, at_moto
from tests.lab import running
from tests.moto_ec2 import KEY, DirectClients
from tests.operations.leaks import clear, everything, labels, launch, leave_behind

REGIONS = ("us-east-1", "us-west-2")
UNDATED = {"address", "network interface", "security group", "placement group"}
KINDS = {"volume", "key pair", *UNDATED}


@pytest.fixture(scope="module")
def both(moto_url):
    account = session.Account(region=REGIONS[0], endpoint_url=moto_url, **KEY)
    first = DirectClients(account)
    return {REGIONS[0]: first, REGIONS[1]: first.in_region(REGIONS[1])}


@pytest.fixture
def places(client, both):
    """Return two regions without any resources."""
    return both


@pytest.fixture
def later(monkeypatch):
    """Make all resources appear an hour old to the collector."""

    def rules(now, **others):
        return Rules(now=now + timedelta(hours=1), **others)

    monkeypatch.setattr(gc_module, "Rules", rules)


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(removal, "FREE_WITHIN_S", 0.0)
    monkeypatch.setattr(removal.time, "sleep", lambda seconds: sleep(min(seconds, 0.01)))


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


def ids(things) -> set[str]:
    return {one.name if one.kind is ResourceKind.PLACEMENT_GROUP else one.id for one in things}


def orphan_ids(sweep) -> set[str]:
    return ids(one.resource for one in sweep.orphans)


def test_every_kind_in_two_regions(places, home, later):
    before = {}
    leaks: set[str] = set()
    for region, clients in places.items():
        leave_behind(clients.ec2, None)
        before[region] = everything(clients.ec2)
        leaks |= set(leave_behind(clients.ec2, "demo").values())
    collector = GarbageCollector(places, home)
    found = collector.sweep()
    assert orphan_ids(found) == leaks
    assert {one.resource.kind.value for one in found.orphans} == KINDS
    removed = collector.remove(found.orphans)
    assert ids(removed.removed) == leaks
    assert (removed.left, removed.failures) == ((), ())
    assert {region: everything(one.ec2) for region, one in places.items()} == before
    # The same orphans again, as if another collector had removed them since this one's search.
    again = GarbageCollector(places, home).remove(found.orphans)
    assert (again.left, len(again.removed)) == ((), len(found.orphans))


def test_a_network_without_clusters_goes_when_asked_for(places, home, later):
    clients = places["us-east-1"]
    template = {
        "Resources": {"Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}}},
        "Outputs": {"VpcId": {"Value": {"Ref": "Vpc"}}},
    }
    for name, tagged in (
        ("clusterctl-network-big", {"clusterctl:network": "big"}),
        ("foreign", {"owner": "somebody"}),
    ):
        clients.cloudformation.create_stack(
            StackName=name,
            TemplateBody=json.dumps(template),
            Tags=[{"Key": key, "Value": value} for key, value in tagged.items()],
        )
    assert GarbageCollector(places, home).sweep().orphans == ()
    collector = GarbageCollector(places, home, GcOptions(networks=True))
    found = collector.sweep()
    assert orphan_ids(found) == {"clusterctl-network-big"}
    assert collector.remove(found.orphans).left == ()
    stacks = clients.cloudformation.describe_stacks()["Stacks"]
    assert [one["StackName"] for one in stacks] == ["foreign"]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../x",
        pytest.param("Großrechner ⚙; rm -rf ~", marks=pytest.mark.all),
        pytest.param("x" * 255, marks=pytest.mark.all),
    ],
)
def test_whatever_the_tag_says(places, home, later, name):
    ec2 = places["us-east-1"].ec2
    before = everything(ec2)
    leaks = set(leave_behind(ec2, name).values())
    (home / "x").mkdir(parents=True)
    collector = GarbageCollector(places, home, GcOptions(cluster=name))
    found = collector.sweep()
    assert orphan_ids(found) == leaks
    assert collector.remove(found.orphans).left == ()
    assert everything(ec2) == before


def test_a_cluster_by_name_with_its_instances_and_no_other(places, home):
    ec2 = places["us-east-1"].ec2
    kept = {launch(ec2, "other"), launch(ec2, None), *leave_behind(ec2, "other").values()}
    nodes = {launch(ec2, "demo"), launch(ec2, "demo")}
    gone = {*nodes, *leave_behind(ec2, "demo").values()}
    stop(ec2, min(nodes))
    collector = GarbageCollector(places, home, GcOptions(cluster="demo"))
    assert collector.remove(collector.sweep().orphans).left == ()
    assert everything(ec2) & (kept | gone) == kept
    [ended] = read_ended(home).rows
    told = (ended.name, ended.region, set(ended.usd))
    assert told == ("demo", "us-east-1", nodes), "the memory of costs"


def test_what_a_machine_cost_that_ended_by_itself_is_recorded(places, home):
    """EC2 forgets it within the hour, and afterwards nothing leads to `down`."""
    ec2 = places["us-east-1"].ec2
    folder = ClusterFolder(home / "demo")
    folder.path.mkdir(parents=True)
    folder.key.touch()
    folder.launch.touch()
    node = launch(ec2, "demo")
    ec2.terminate_instances(InstanceIds=[node])
    leave_behind(ec2, "demo")
    collector = GarbageCollector(places, home, GcOptions(cluster="demo"))
    assert collector.remove(collector.sweep().orphans).left == ()
    [ended] = read_ended(home).rows
    assert (ended.name, set(ended.usd)) == ("demo", {node})


def test_what_runs_is_a_colleagues_until_it_is_too_old(places, home, later):
    ec2 = places["us-east-1"].ec2
    running = launch(ec2, "demo")
    [shown] = GarbageCollector(places, home).sweep().classified
    assert (shown.resource.id, shown.verdict) == (running, Verdict.KEPT)
    old = GarbageCollector(places, home, GcOptions(older_than_s=1800.0)).sweep()
    assert orphan_ids(old) == {running}


def stop(ec2, node):
    """Stop an instance. EC2 stops only what runs, and a new one is pending first."""
    ec2.get_waiter("instance_running").wait(InstanceIds=[node], WaiterConfig={"Delay": 0.1})
    ec2.stop_instances(InstanceIds=[node])


def test_a_machine_that_stopped_itself_is_counted_from_the_first_look(places, home, monkeypatch):
    ec2 = places["us-east-1"].ec2
    node = launch(ec2, "demo")
    limit = [{"Key": "clusterctl:limits", "Value": "idle-minutes=30 stopped-days=3"}]
    ec2.create_tags(Resources=[node], Tags=limit)
    stop(ec2, node)
    # It is `stopping` first.
    running.wait_until(lambda: find_states(ec2, [node]) == {node: NodeState.STOPPED}, "it stopped")
    monkeypatch.setattr(verdicts, "stopped_since", lambda reason: None)
    collector = GarbageCollector(places, home)
    for _ in range(2):
        found = collector.sweep()
        assert found.orphans == ()
        collector.note_stops(found)
    [noted] = collector.sweep().classified
    since = verdicts.stopped_at(noted.resource)
    assert since is not None
    assert since <= datetime.now(timezone.utc)
    assert without_stop_time([noted]) == ()


def keep_folder(home, site, name="demo"):
    folder = ClusterFolder(home / name)
    keep_site(folder, site)
    return folder.path


@pytest.mark.parametrize(
    ("account", "verdict"), [("123456789012", Verdict.IN_USE), ("210987654321", Verdict.KEPT)]
)
def test_what_is_kept_here_is_in_use_here_only(places, home, later, account, verdict):
    for clients in places.values():
        launch(clients.ec2, "demo")
    keep_folder(home, replace(site_of(places["us-east-1"]), account=account))
    verdicts = {
        one.resource.region: one.verdict
        for one in GarbageCollector(places, home).sweep().classified
    }
    assert verdicts == {"us-east-1": verdict, "us-west-2": Verdict.KEPT}
    collector = GarbageCollector(places, home, GcOptions(cluster="demo"))
    if verdict is Verdict.IN_USE:
        assert len(collector.sweep().orphans) == len(places)
    else:
        with pytest.raises(UsageError, match=f"account {account}, not in account 123456789012"):
            collector.sweep()


@pytest.mark.parametrize("cluster", [pytest.param(None, marks=pytest.mark.all), "demo"])
def test_a_cluster_that_is_worked_on_is_left_alone(places, home, later, cluster):
    ec2 = places["us-east-1"].ec2
    leave_behind(ec2, "demo")
    folder = keep_folder(home, site_of(places["us-east-1"]))
    collector = GarbageCollector(places, home, GcOptions(cluster=cluster))
    before_lock = collector.sweep().orphans
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert collector.sweep().orphans == ()
        removed = collector.remove(before_lock)
        assert len(removed.left) == len(KINDS)
        assert "at work" in removed.left[0].error.message
    assert collector.remove(before_lock).left == ()


@pytest.mark.parametrize("cause", ["unreadable", "no locks"])
def test_a_cluster_whose_lock_cannot_be_tested_is_left_alone(
    places, home, later, monkeypatch, cause
):
    """Such as root's lock, or one on a file system that has none."""
    leave_behind(places["us-east-1"].ec2, "demo")
    lock = keep_folder(home, site_of(places["us-east-1"])) / "lock"
    if cause == "unreadable":
        lock.symlink_to(lock)  # root, too, cannot open it
    else:
        lock.touch()
        monkeypatch.setattr("fcntl.flock", no_locks)
    swept = GarbageCollector(places, home).sweep()
    assert swept.orphans == ()
    assert all("not known" in one.why and str(lock) in one.why for one in swept.classified)


def no_locks(*_):
    raise OSError(errno.ENOLCK, "No locks available")


def test_a_launch_whose_outcome_is_not_known_is_no_orphan(places, home, later):
    ec2 = places["us-east-1"].ec2
    leave_behind(ec2, "demo")
    folder = keep_folder(home, site_of(places["us-east-1"]))
    sent = {"request": {"ClientToken": "t"}, "sent_at": time.time()}
    (folder / "launch.json").write_text(json.dumps({"launches": [sent]}))
    found = GarbageCollector(places, home).sweep()
    assert found.orphans == ()
    assert all("no command is at work" in one.why for one in found.classified)


def test_what_got_a_use_since_the_look_stays(places, home, later, monkeypatch):
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")
    collector = GarbageCollector(places, home)
    found = collector.sweep().orphans
    node = launch(ec2, "demo")
    removed = collector.remove([one for one in found if one.resource.kind is ResourceKind.KEY_PAIR])
    assert [one.resource.id for one in removed.left if "no longer" in one.error.message] == [
        made["key pair"]
    ]
    assert {node, made["key pair"]} <= everything(ec2)


class Refusing:
    """Makes a client's calls of one operation fail before they are sent."""

    def __init__(self, ec2, operation: str, code: str) -> None:
        self._event = f"before-call.ec2.{operation}"
        self._error = ClientError({"Error": {"Code": code, "Message": "no"}}, operation)
        self._ec2 = ec2

    def __enter__(self):
        self._ec2.meta.events.register_first(self._event, self._refuse)

    def __exit__(self, *_):
        self._ec2.meta.events.unregister(self._event, self._refuse)

    def _refuse(self, **_):
        raise self._error


def test_a_kind_that_may_not_be_looked_at(places, home, later):
    ec2 = places["us-east-1"].ec2
    leave_behind(ec2, "demo")
    with Refusing(ec2, "DescribePlacementGroups", "UnauthorizedOperation"):
        found = GarbageCollector(places, home).sweep()
    assert {one.resource.kind.value for one in found.orphans} == KINDS - {"placement group"}
    [failure] = found.failures
    assert (failure.kind, failure.region) == (ResourceKind.PLACEMENT_GROUP, "us-east-1")


@pytest.mark.parametrize(
    ("operation", "code", "kind"),
    [
        ("DeleteVolume", "UnauthorizedOperation", "volume"),
        pytest.param("ReleaseAddress", "AuthFailure", "address", marks=pytest.mark.all),
        ("DeleteSecurityGroup", "DependencyViolation", "security group"),
        pytest.param("DeletePlacementGroup", "InvalidPlacementGroup.InUse", "placement group",
            marks=pytest.mark.all),
        pytest.param("DeleteNetworkInterface", "InvalidNetworkInterface.InUse", "network interface",
            marks=pytest.mark.all),
        pytest.param("DeleteKeyPair", "InternalError", "key pair", marks=pytest.mark.all),
    ],
)  # fmt: skip
def test_what_cannot_be_deleted_keeps_nothing_else(places, home, later, operation, code, kind):
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")
    collector = GarbageCollector(places, home)
    with Refusing(ec2, operation, code):
        removed = collector.remove(collector.sweep().orphans)
    [left] = removed.left
    assert ids([left.resource]) == {made[kind]}
    assert left.error.code == code
    assert ids(removed.removed) == set(made.values()) - {made[kind]}


@pytest.mark.parametrize(
    ("operation", "stays"),
    [
        ("DescribeVolumes", {"volume", *UNDATED}),
        pytest.param("DescribeKeyPairs", {"key pair", *UNDATED}, marks=pytest.mark.all),
        pytest.param("DescribeAddresses", {"address"}, marks=pytest.mark.all),
        pytest.param("DescribePlacementGroups", {"placement group"}, marks=pytest.mark.all),
        ("DescribeInstances", KINDS),
    ],
)
def test_what_cannot_be_looked_at_again_stays(places, home, later, operation, stays):
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")
    collector = GarbageCollector(places, home)
    found = collector.sweep().orphans
    assert len(found) == len(KINDS)
    with Refusing(ec2, operation, "UnauthorizedOperation"):
        removed = collector.remove(found)
    assert {one.resource.kind.value for one in removed.left} == stays
    assert len(removed.failures) == 1
    assert set(made.values()) & everything(ec2) == {made[kind] for kind in stays}


def test_the_command_removes_nothing_of_a_cluster_whose_instances_it_cannot_see(places, clusterctl):
    ec2 = places["us-east-1"].ec2
    made = {launch(ec2, "demo"), *leave_behind(ec2, "demo").values()}
    with Refusing(ec2, "DescribeInstances", "UnauthorizedOperation"):
        for words in ((), ("--cluster", "demo"), ("--older-than", "1s")):
            clusterctl.ends(1, "could not list instances", "gc", *words, "--delete", "--yes")
    assert made <= everything(ec2)


def test_what_has_no_date_is_an_orphan_once_it_was_seen_for_a_while(places, home):
    """The key pair of a lone group is gone already, so the group's age is unknown.

    Right after `up` was killed nothing is an orphan; a quarter of an hour later it is.
    """
    assert verdicts.YOUNG_S == 15 * 60
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")
    # Its own age is not known: the message names what is young.
    [why] = [
        one.why
        for one in GarbageCollector(places, home / "other").sweep().classified
        if one.resource.kind is ResourceKind.SECURITY_GROUP
    ]
    assert re.match(r"its cluster has no instance, but its cluster's (vol|key)-\w+ was made ", why)
    ec2.delete_key_pair(KeyName=made["placement group"])
    ec2.delete_volume(VolumeId=made["volume"])
    collector = GarbageCollector(places, home)
    assert {one.verdict for one in collector.sweep().classified} == {Verdict.KEPT}
    assert collector.sweep().orphans == ()
    seen = json.loads((home / "gc.json").read_text())["unused_since"]
    [entries] = seen.values()
    assert len(entries) == len(UNDATED)
    before = (datetime.now(timezone.utc) - timedelta(minutes=16)).isoformat()
    aged = {account: dict.fromkeys(entries, before) for account in seen}
    (home / "gc.json").write_text(json.dumps({"unused_since": aged}))
    # A failed search forgets nothing.
    with Refusing(ec2, "DescribeInstances", "InternalError"):
        assert collector.sweep().orphans == ()
    assert len(collector.sweep().orphans) == len(UNDATED)
    # A use in between resets the time.
    node = launch(ec2, "demo")
    collector.sweep()
    ec2.terminate_instances(InstanceIds=[node])
    shared = {ResourceKind.SECURITY_GROUP, ResourceKind.PLACEMENT_GROUP}
    assert not shared & {one.resource.kind for one in collector.sweep().orphans}


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"unused_since": {"x": []}}', '{"unused_since": {"x": {"y": 3}}}', "[" * 9999],
)
def test_a_damaged_record_of_what_is_unused_is_reported_and_deletes_nothing(places, home, text):
    home.mkdir()
    (home / "gc.json").write_text(text)
    ec2 = places["us-east-1"].ec2
    ec2.create_security_group(GroupName="x", Description="x", **labels("security-group", "demo"))
    found = GarbageCollector(places, home).sweep()
    assert found.orphans == ()
    assert found.record_error.message.startswith(f"cannot read {home / 'gc.json'}: ")
    assert "security group" in (home / "gc.json").read_text()
    assert GarbageCollector(places, home).sweep().record_error is None


@pytest.mark.parametrize(
    ("file", "content"), [("launch.json", '{"launches": ['), ("account", ""), ("account", "x")]
)
def test_nothing_of_a_cluster_with_a_damaged_record_is_deleted_and_others_are(
    places, home, later, file, content
):
    """A launch may have been sent a moment ago, or it is not known where: its group has to stay."""
    record = home / "demo" / file
    record.parent.mkdir(parents=True)
    record.write_text(content)
    ec2 = places["us-east-1"].ec2
    leave_behind(ec2, "demo")
    leave_behind(ec2, "other")
    classified = GarbageCollector(places, home).sweep().classified
    assert {one.resource.cluster for one in classified if one.verdict is Verdict.KEPT} == {"demo"}
    assert {one.resource.cluster for one in classified if one.verdict is Verdict.ORPHAN} == {
        "other"
    }
    if file == "account":
        kept = [one.why for one in classified if one.verdict is Verdict.KEPT]
        assert any(f"cannot read {record}: " in why for why in kept)
    record.unlink()
    orphans = GarbageCollector(places, home).sweep().orphans
    assert {one.resource.cluster for one in orphans} == {"demo", "other"}


def test_a_memory_that_cannot_be_written(places, home):
    home.write_text("not a folder")
    ec2 = places["us-east-1"].ec2
    ec2.create_security_group(GroupName="x", Description="x", **labels("security-group", "demo"))
    found = GarbageCollector(places, home).sweep()
    assert found.orphans == ()
    assert "gc.json" in found.record_error.message


def test_what_is_in_use_is_waited_for_aloud(places, home, later, monkeypatch):
    # On a busy machine, the steps before take some time as well.
    monkeypatch.setattr(removal, "FREE_WITHIN_S", 4.0)
    monkeypatch.setattr(removal.time, "sleep", sleep)
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")
    told = []
    collector = GarbageCollector(places, home, notify=told.append)
    with Refusing(ec2, "DeleteSecurityGroup", "DependencyViolation"):
        removed = collector.remove(collector.sweep().orphans)
    [left] = removed.left
    assert "still uses it" in left.error.message
    assert made["security group"] in left.error.hint
    assert [line for line in told if made["security group"] in line]
    assert len(told) == 1


def test_a_name_that_nothing_carries(places, clusterctl):
    leave_behind(places["us-east-1"].ec2, "demo")
    for name, *words in (["lab"], ["no-such", "--delete"], ["de mo", "--json"]):
        ran = clusterctl("gc", "--cluster", name, *words)
        assert ran.status == 0
        assert f"nothing in us-east-1 has the name '{name}'" in ran.err
        assert "no orphans" not in ran.err


def test_an_unknown_region_is_named(clusterctl):
    ran = clusterctl("gc", "--regions", "nowhere,us-west-2")
    assert ran.status == 2
    assert "not a region of this account: nowhere\n" in ran.err
    assert "us-west-2" in ran.err


def test_an_instance_that_is_protected(places, home):
    ec2 = places["us-east-1"].ec2
    ended, protected = launch(ec2, "demo"), launch(ec2, "demo")
    ec2.get_waiter("instance_running").wait(InstanceIds=[protected], WaiterConfig={"Delay": 0.1})
    ec2.modify_instance_attribute(InstanceId=protected, DisableApiTermination={"Value": True})
    collector = GarbageCollector(places, home, GcOptions(cluster="demo"))
    removed = collector.remove(collector.sweep().orphans)
    assert [
        one.resource.id for one in removed.left if one.resource.kind is ResourceKind.INSTANCE
    ] == [protected]
    assert ended not in everything(ec2)


@pytest.fixture
def clusterctl(places, home, moto_url, monkeypatch, capsys):
    monkeypatch.setattr(
        session, "Clients", lambda account: places.get(account.region, places["us-east-1"])
    )
    return at_moto(moto_url, home, monkeypatch, capsys)


def test_the_command_shows_and_removes_nothing_by_itself(places, clusterctl):
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo\u202e2J")
    young = clusterctl("gc")
    assert young.status == 0
    assert "nothing to remove" in young.err
    assert "kept" in young.out
    ran = clusterctl("gc", "--cluster", "demo\u202e2J", "--regions", "us-east-1,us-west-2")
    assert ran.status == 0
    assert "\u202e" not in ran.out
    assert all(one in ran.out for one in (made["volume"], "us-east-1", "$0.0548", "orphan"))
    assert "looking at 2 regions" in ran.err
    assert "6 orphans, $0.0598 an hour; --delete removes them" in ran.err
    assert set(made.values()) <= everything(ec2)


def test_the_command_deletes(places, clusterctl):
    ec2 = places["us-west-2"].ec2
    before = everything(ec2)
    made = leave_behind(ec2, "demo")
    words = ("--cluster", "demo", "--regions", "us-east-1,us-west-2", "--delete", "--yes")
    ran = clusterctl("gc", *words, "--json")
    assert ran.status == 0
    assert len(ran.data["removed"]) == len(made)
    assert (ran.data["left"], ran.data["failures"]) == ([], [])
    assert everything(ec2) == before
    clusterctl.ends(0, "nothing to remove", "gc", *words)


def test_the_command_says_what_is_left(places, clusterctl):
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")
    with Refusing(ec2, "DeleteVolume", "UnauthorizedOperation"):
        ran = clusterctl("gc", "--cluster", "demo", "--delete", "--yes")
    assert ran.status == 1
    assert f"volume {made['volume']} in us-east-1 is left: not allowed: no" in ran.err


def test_a_named_cluster_that_a_command_is_at_work_on_is_left(places, clusterctl, home):
    made = leave_behind(places["us-east-1"].ec2, "demo")
    folder = ClusterFolder(keep_folder(home, site_of(places["us-east-1"])))
    words = ("gc", "--cluster", "demo", "--delete", "--yes")
    with locked(folder):
        error = clusterctl.ends(1, f"volume {made['volume']} in us-east-1 is left: a clu", *words)
        assert "nothing to remove" not in error
        assert len(clusterctl(*words, "--json").data["left"]) == len(made)
        assert clusterctl("gc", "--cluster", "demo").status == 0
        down = ("down", "demo", "--yes", "--launched-elsewhere")
        # A folder is of one region. What is left in another one goes, and this stays.
        leave_behind(places["us-west-2"].ec2, "demo")
        report = clusterctl(*words, "--regions", "us-east-1,us-west-2", "--json")
        assert report.err.count(f"{made['volume']} in us-east-1 is left: a clu") == 1
        assert (report.status, len(report.data["removed"])) == (1, len(made))
        assert {one["resource"]["region"] for one in report.data["left"]} == {"us-east-1"}
        stopped = clusterctl.ends(1, "another clusterctl (process ", *down)
        assert f"if it stands still: ps -fp {os.getpid()}\n" in stopped
    assert clusterctl(*words).status == 0


def test_interrupted_it_says_what_is_left(places, clusterctl, monkeypatch):
    ec2 = places["us-east-1"].ec2
    made = leave_behind(ec2, "demo")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(GarbageCollector, "_list_again", interrupt)
    with Refusing(ec2, "DeleteVolume", "UnauthorizedOperation"):
        ran = clusterctl("gc", "--cluster", "demo", "--delete", "--yes")
    assert ran.status == 130
    assert "interrupted: 5 of 6 resources removed" in ran.err
    assert f"volume {made['volume']} in us-east-1" in ran.err


@pytest.mark.parametrize(
    "words",
    [
        ("--regions", "us-east-1", "--all-regions"),
        ("--regions", ""),
        ("--cluster", ""),
        ("--cluster", " "),
        ("--regions", "us-east-1,,us-west-2"),
        ("--older-than", "soon"),
        ("--older-than", "0"),
        ("--cluster", "demo", "--networks"),
        ("--cluster", "demo", "--older-than", "1d"),
    ],
)
def test_wishes_that_make_no_sense(clusterctl, words):
    ran = clusterctl("gc", *words)
    assert ran.status == 2
    assert ran.out == ""


def test_calls_do_not_grow_with_what_there_is(places, home):
    calls = []
    ec2 = places["us-east-1"].ec2
    for _ in range(5):
        launch(ec2, "demo")
    leave_behind(ec2, "demo")

    def note(model, **_):
        calls.append(model.name)

    ec2.meta.events.register("before-call.ec2", note)
    GarbageCollector({"us-east-1": places["us-east-1"]}, home).sweep()
    ec2.meta.events.unregister("before-call.ec2", note)
    assert sorted(calls) == sorted(set(calls))
    assert len(calls) == len(ResourceKind) - 3  # networks are listed by CloudFormation


@pytest.mark.lab
def test_leaks_of_every_kind_on_the_local_ec2(lab, capsys, monkeypatch):
    """It is as strict as EC2: groups are in use, and instances take time to terminate."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    monkeypatch.setenv("CLUSTERCTL_LAB", "1")
    clusterctl = CommandLine(lab.home, capsys, [])
    regions = {region: running.client(lab, region) for region in REGIONS}
    others, leaks = {}, {}
    try:
        for region, ec2 in regions.items():
            image = running.newest_image(ec2)
            others[region] = {launch(ec2, None, image), *leave_behind(ec2, None).values()}
            made = leave_behind(ec2, "leaky")
            node = launch(ec2, "leaky", image, SecurityGroupIds=[made["security group"]])
            leaks[region] = {node, *made.values()}
            # It is not shown at once, as in EC2.
            running.wait_until(partial(running.shown, ec2, [node]), f"{node} is shown")
        words = ("--cluster", "leaky", "--regions", ",".join(REGIONS))
        shown = clusterctl("gc", *words, "--json")
        assert shown.status == 0, shown.err
        assert shown.data["orphans"] >= sum(len(one) for one in leaks.values())
        removed = clusterctl("gc", *words, "--delete", "--yes")
        assert removed.status == 0, removed.err
        for region, ec2 in regions.items():
            there = everything(ec2)
            assert not leaks[region] & there
            assert others[region] <= there
    finally:
        for ec2 in regions.values():
            clear(ec2)
