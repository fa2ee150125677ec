from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterctl.config import find_file, load_settings, read_spec_file
from clusterctl.configuration.options import (
    LAUNCH,
    OPTIONS,
    SpecDraft,
    ValueKind,
    environment_values,
    merged,
    misspelt,
    shown,
    values_of,
)
from clusterctl.configuration.specfile import parse_spec_file
from clusterctl.domain.cluster import ClusterSpec, Disk, Limits, Market
from clusterctl.domain.errors import UsageError

FILE = Path("clusterctl.yaml")
BASE = "defaults:\n  instance-type: p4d.24xlarge\n"


def read(text: str):
    file, wrong = parse_spec_file(text.encode(), FILE)
    assert wrong == ()
    return file


def spec(text: str, name: str = "demo", **known) -> ClusterSpec:
    return SpecDraft.of(name, read(text).values(name)).spec(**known)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with a home beside it."""
    here = tmp_path / "a folder; with 'signs'"
    here.mkdir()
    monkeypatch.chdir(here)
    return here


def environ_of(folder: Path, **more: str) -> dict[str, str]:
    return {"CLUSTERCTL_HOME": str(folder.parent / "home"), **more}


def test_where_the_file_is_looked_for(folder):
    environ = environ_of(folder)
    assert find_file(None, environ) is None
    at_home = folder.parent / "home" / "clusterctl.yaml"
    at_home.parent.mkdir()
    at_home.write_text(BASE)
    assert find_file(None, environ) == at_home
    (folder / "clusterctl.yaml").write_text(BASE)
    assert find_file(None, environ) == Path("clusterctl.yaml")
    chosen = {**environ, "CLUSTERCTL_CONFIG": "/elsewhere.yaml"}
    assert find_file(None, chosen) == Path("/elsewhere.yaml")
    assert find_file(Path("mine.yaml"), chosen) == Path("mine.yaml")
    assert find_file(Path("/dev/null"), chosen) is None
    assert find_file(None, {**environ, "CLUSTERCTL_CONFIG": "/dev/null"}) is None
    assert find_file(None, {**environ, "CLUSTERCTL_CONFIG": ""}) == Path("clusterctl.yaml")


def refused(*arguments, **keywords) -> str:
    with pytest.raises(UsageError) as caught:
        load_settings(*arguments, **keywords)
    assert caught.value.exit_status == 2
    return caught.value.message


@pytest.mark.parametrize(
    ("how", "message"),
    [
        *((how, "cannot read {}: ") for how in ("nothing", "link", "circle", "mode")),
        *((how, "{} is not a file") for how in ("folder", "pipe")),
    ],
)
def test_a_file_that_cannot_be_read(folder, how, message):
    path = folder / "clusterctl.yaml"
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.symlink_to("nowhere")
    elif how == "circle":
        path.symlink_to(path)
    elif how == "mode":
        if os.geteuid() == 0:
            pytest.skip("root reads everything")
        path.write_text(BASE)
        path.chmod(0)
    told = refused(environ_of(folder), config=path if how == "nothing" else None)
    assert told.startswith(message.format(path if how == "nothing" else path.name)), told


def test_a_link_to_a_file_is_followed_and_paths_begin_where_the_link_is(folder):
    (folder / "real").mkdir()
    (folder / "real" / "team.yaml").write_text("defaults: {user-data: boot.sh, region: eu-west-1}")
    (folder / "clusterctl.yaml").symlink_to("real/team.yaml")
    settings = load_settings(environ_of(folder))
    assert settings.region == "eu-west-1"
    assert settings.file.values(None)["user-data"] == Path("boot.sh")


def test_all_problems_in_one_message(folder):
    (folder / "clusterctl.yaml").write_text("defaults: {nodes: x, spott: 1}\n")
    assert refused(environ_of(folder)) == (
        "clusterctl.yaml has 2 problems:\n"
        "  clusterctl.yaml:1: defaults.nodes: not a whole number, 1 to 999999999: 'x'\n"
        "  clusterctl.yaml:1: defaults.spott: no such key; did you mean spot?"
    )


# Precedence

LAYERS = ("defaults", "base", "demo", "environment", "flag")


@given(st.sets(st.sampled_from(LAYERS)))
def test_the_nearest_layer_takes_precedence(said):
    by = [layer for layer in LAYERS if layer in said]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "clusterctl.yaml")
        file.write_text(
            f"defaults:\n  {_region('defaults', by)}\n"
            f"clusters:\n  base:\n    {_region('base', by)}\n"
            f"  demo:\n    extends: base\n    {_region('demo', by)}\n"
        )
        environ = {"CLUSTERCTL_CONFIG": str(file), "CLUSTERCTL_HOME": folder}
        if "environment" in by:
            environ["CLUSTERCTL_REGION"] = "xx-environment-1"
        flag = "xx-flag-1" if "flag" in by else None
        settings = load_settings(environ, region=flag, cluster="demo")
    assert settings.region == (f"xx-{by[-1]}-1" if by else None)


def _region(layer: str, by: list[str]) -> str:
    return f"region: xx-{layer}-1" if layer in by else "timeout: 10m"


def test_a_clusters_entry_is_no_other_clusters(folder):
    (folder / "clusterctl.yaml").write_text(
        "defaults: {profile: team, lab: true}\nclusters: {demo: {region: us-west-2, lab: false}}\n"
    )
    demo, other, none = (
        load_settings(environ_of(folder), cluster=name) for name in ("demo", "other", None)
    )
    assert (demo.region, demo.profile, demo.lab) == ("us-west-2", "team", False)
    assert (other.region, other.profile, other.lab) == (None, "team", True)
    assert none == other


@pytest.mark.parametrize(
    ("flag", "variable", "lab"),
    [
        (None, None, True),
        (None, "0", False),
        (None, "", True),
        (None, "1", True),
        (False, "1", False),
        (False, None, False),
        (True, "0", True),
    ],
)
def test_lab_can_be_said_and_unsaid(folder, flag, variable, lab):
    (folder / "clusterctl.yaml").write_text("defaults: {lab: true}\n")
    environ = environ_of(folder)
    if variable is not None:
        environ["CLUSTERCTL_LAB"] = variable
    assert load_settings(environ, lab=flag).lab is lab


@pytest.mark.parametrize("option", ["profile", "endpoint_url"])
def test_an_account_on_aws_that_is_named_with_the_local_ec2_is_not_ignored(folder, option):
    """Who forgot CLUSTERCTL_LAB would take "there are no orphans" for a fact about the account."""
    environ = {**environ_of(folder), "CLUSTERCTL_LAB": "1"}
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} it cannot be used"):
        load_settings(environ, **{option: "it"})
    assert getattr(load_settings(environ, lab=False, **{option: "it"}), option) == "it"
    # What is not typed is for the commands on AWS.
    (folder / "clusterctl.yaml").write_text("defaults: {profile: mine}\n")
    assert load_settings(environ).lab


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CLUSTERCTL_REGION", "nowhere", "CLUSTERCTL_REGION: not what region takes: 'nowhere'"),
        ("CLUSTERCTL_LAB", "perhaps", "CLUSTERCTL_LAB: not true or false: 'perhaps'"),
    ],
)
def test_the_environment_is_checked_too(folder, variable, value, message):
    assert refused(environ_of(folder, **{variable: value})).startswith(message)


def test_a_variable_that_is_nearly_one_of_ours():
    for typed, meant in (
        ("CLUSTERCTL_NODS", "CLUSTERCTL_NODES"),
        ("CLUSTERCTL_nodes", "CLUSTERCTL_NODES"),
        ("CLUSTERCTL_INSTANCETYPE", "CLUSTERCTL_INSTANCE_TYPE"),
        ("CLUSTERCTL_TAGS", "CLUSTERCTL_TAG"),
        ("CLUSTERCTL_HOMES", "CLUSTERCTL_HOME"),
        ("CLUSTERCTL_CONFG", "CLUSTERCTL_CONFIG"),
    ):
        said = f"{typed} is no setting; did you mean {meant}?"
        assert misspelt({typed: "x", "PATH": "/bin"}) == (said,)
    right = [option.variable for option in OPTIONS.values()]
    others = ["JOB", "GUARD", "COMPLETE", "HOME", "", "NODS\n\x1b[2J", "NODES" * 1000]
    for name in (*right, "NODS", *(f"CLUSTERCTL_{one}" for one in others)):
        assert misspelt({name: "x"}) == ()


def test_every_option_has_a_variable():
    environ = {
        "CLUSTERCTL_NODES": "4",
        "CLUSTERCTL_OR_TYPE": "p4d.24xlarge g5.48xlarge",
        "CLUSTERCTL_TAG": "a=b c=d=e",
        "CLUSTERCTL_SPOT": "yes",
        "CLUSTERCTL_IDLE_STOP": "30m",
        "CLUSTERCTL_ZONE": "",
    }
    found = environment_values(environ)
    assert found == {
        "nodes": 4,
        "or-type": ("p4d.24xlarge", "g5.48xlarge"),
        "tag.a": "b",
        "tag.c": "d=e",
        "spot": True,
        "idle-stop": 1800.0,
    }
    with pytest.raises(UsageError, match=r"CLUSTERCTL_TAG: not KEY=VALUE: 'a'"):
        environment_values({"CLUSTERCTL_TAG": "a"})


def test_null_goes_back_to_what_is_built_in():
    text = """
defaults: {instance-type: p4d.24xlarge, nodes: 2, tag: {team: nlp, cost: '12'}}
clusters:
  base: {subnet: subnet-1, spot: true}
  demo: {extends: base, subnet: null, network: research, spot: null, tag: {team: null}}
  bare: {extends: base, tag: null}
  late: {extends: bare, tag: {x: y}}
"""
    demo = spec(text)
    assert (demo.subnet_id, demo.network, demo.market) == (None, "research", Market.ON_DEMAND)
    assert demo.tags == (("cost", "12"),)
    assert spec(text, "bare").tags == ()
    assert spec(text, "late").tags == (("x", "y"),)


def test_tags_are_inherited_one_by_one():
    text = BASE + "  tag: {team: nlp, keep: a}\nclusters:\n  demo: {nodes: 1, tag: {team: cv}}\n"
    flags = values_of(OPTIONS["tag"], ["keep=b", "new=c"])
    values = merged(read(text).values("demo"), flags)
    found = dict(SpecDraft.of("demo", values).spec().tags)
    assert found == {"team": "cv", "keep": "b", "new": "c"}


def test_text_is_text_whatever_yaml_takes_it_for():
    text = BASE + "  tag: {yes: no, 1: 2026-11-01, empty: , null: 0x1f}\n  image: 2026-11-01\n"
    found = spec(text, nodes=1)
    assert found.image == "2026-11-01"
    assert dict(found.tags) == {"yes": "no", "1": "2026-11-01", "empty": "", "null": "0x1f"}


def test_everything_that_can_be_said_reaches_the_spec(tmp_path):
    (tmp_path / "boot.sh").write_bytes(b"#!/bin/sh\n\xff")
    text = """
defaults: &all
  nodes: 4
  instance-type: p4d.24xlarge
  or-type: p4de.24xlarge
  min-nodes: 2
  spot: true
  capacity-reservation: cr-0123
  placement-group: false
  efa: true
  zone: us-east-1a
  subnet: subnet-0a
  private: true
  image: /aws/service/some/ami
  user: ubuntu
  ssh-from: 203.0.113.0/24
  user-data: boot.sh
  instance-profile: new
  data-bucket: [my-data/imagenet, s3://other]
  checkpoint-prefix: [my-runs/checkpoints]
  disk-gib: 500
  disk-iops: 6000
  disk-throughput: 500
  disk-load: 0
  kms-key: alias/mine
  tag: {a: b}
  max-hours: 8
  budget: 99.5
  max-hourly: 90
  idle-stop: 30m
  idle-stop-erases-store: true
  stopped-days: 3
  capacity-timeout: 2h
  timeout: 90s
  region: us-east-1
  profile: team
  lab: true
clusters: {demo: {<<: *all}}
"""
    path = tmp_path / "clusterctl.yaml"
    path.write_text(text)
    file, wrong = read_spec_file(path)
    assert wrong == ()
    said = {key for key in file.defaults if not key.startswith("tag.")} | {"tag", "network"}
    assert said == set(OPTIONS)
    draft = SpecDraft.of("demo", file.values("demo"))
    assert draft.spec() == ClusterSpec(
        name="demo",
        nodes=4,
        instance_type="p4d.24xlarge",
        or_types=("p4de.24xlarge",),
        min_nodes=2,
        market=Market.SPOT,
        capacity_reservation="cr-0123",
        placement_group=False,
        efa=True,
        zone="us-east-1a",
        subnet_id="subnet-0a",
        private=True,
        image="/aws/service/some/ami",
        ssh_user="ubuntu",
        ssh_from="203.0.113.0/24",
        user_data=b"#!/bin/sh\n\xff",
        instance_profile="new",
        data_buckets=("my-data/imagenet", "s3://other"),
        checkpoint_prefixes=("my-runs/checkpoints",),
        disk=Disk(500, 6000, 500, "alias/mine", 0),
        tags=(("a", "b"),),
        limits=Limits(8.0, 99.5, 90.0, 30.0, 3.0, True),
    )
    assert draft.values["capacity-timeout"] == 7200
    assert draft.values["timeout"] == 90


@pytest.mark.parametrize(
    ("text", "known", "message"),
    [
        ("{}", {}, "a new cluster demo needs --nodes N and --instance-type TYPE"),
        ("{nodes: 4}", {}, "a new cluster demo needs --instance-type TYPE"),
        ("{instance-type: g5.xlarge}", {}, "a new cluster demo needs --nodes N"),
        ("{instance-type: g5.xlarge}", {"nodes": 3}, None),
        ("{}", {"nodes": 3, "instance_type": "g5.xlarge"}, None),
        ("{nodes: 3, instance-type: g5.xlarge}", {"nodes": 9, "instance_type": "x.y"}, None),
    ],
)
def test_what_a_new_cluster_needs(text, known, message):
    document = "clusters: {demo: " + text + "}"
    if message is None:
        found = spec(document, **known)
        assert (found.nodes, found.instance_type) == (3, "g5.xlarge")
        return
    with pytest.raises(UsageError) as caught:
        spec(document, **known)
    assert caught.value.message == message
    flag = message.split()[5]
    assert flag in caught.value.hint
    assert f"`{flag[2:]}:`" in caught.value.hint


@pytest.mark.parametrize("what", ["nothing", "folder", "pipe"])
def test_user_data_that_cannot_be_read(tmp_path, what):
    path = tmp_path / "boot ☃.sh"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    draft = SpecDraft("demo", {"nodes": 1, "instance-type": "g5.xlarge", "user-data": path})
    with pytest.raises(UsageError) as caught:
        draft.spec()
    assert str(path) in caught.value.message


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("spot", True, "true"),
        ("or-type", ("a.b", "c.d"), "a.b c.d"),
        ("idle-stop", 1800.0, "30m"),
        ("idle-stop", 7200.0, "2h"),
        ("idle-stop", 172800.0, "2d"),
        ("idle-stop", 90.5, "90.5s"),
        ("capacity-timeout", 0.0, "0s"),
        ("budget", 99.5, "99.5"),
        ("max-hours", 8.0, "8"),
        ("nodes", 4, "4"),
        ("user-data", Path("a/b"), "a/b"),
    ],
)
def test_values_are_shown_as_they_are_written(key, value, text):
    assert shown(OPTIONS[key], value) == text


def test_the_table_fits_the_spec():
    groups = {"disk": Disk, "limits": Limits}
    for option in LAUNCH:
        group, dot, name = option.field.partition(".")
        known = groups[group].__dataclass_fields__ if dot else ClusterSpec.__dataclass_fields__
        assert (name if dot else group) in known or option.key in (
            "spot",
            "timeout",
            "capacity-timeout",
        )
        assert option.kind in (ValueKind.FLAG,) or option.metavar
        assert option.form is None or re.fullmatch(option.form.pattern, option.form.example)
    unreachable = set(ClusterSpec.__dataclass_fields__) - {
        option.field.partition(".")[0] for option in LAUNCH
    }
    assert unreachable == {"name", "market", "by_add"}  # `add` says so itself
