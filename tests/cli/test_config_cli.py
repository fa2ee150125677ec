"""`clusterctl config`, and how commands use the file."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import click
import pytest

from clusterctl.cli.app_context import account_options
from clusterctl.cli.launching import spec_options
from clusterctl.cli.main import run_command
from clusterctl.config import FILE_NAME
from clusterctl.configuration.options import OPTIONS
from tests.cli.running import CommandLine, Ran
from tests.programs import completed

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"
ENTRY = "clusters:\n  demo: {nodes: 4, instance-type: p4d.24xlarge, tag: {team: nlp}}\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder. No environment variable is an option of ours."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path / "home"))
    for option in OPTIONS.values():
        monkeypatch.delenv(option.variable, raising=False)
    monkeypatch.delenv("CLUSTERCTL_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def clusterctl(folder, capsys):
    return CommandLine(folder / "home", capsys, [])


@pytest.fixture
def launch(folder, capsys):
    """Return a command with all options of a launch. It prints the spec that it would launch."""

    @click.command()
    @click.argument("name")
    @account_options
    @spec_options
    def up(app, name, draft, waiting):
        found = draft.spec()
        click.echo(f"{found.nodes} x {found.instance_type} {dict(found.tags)}")
        click.echo(
            f"{found.limits.idle_minutes} {waiting.capacity_timeout_s:g} {waiting.timeout_s}"
        )
        click.echo(f"{app.settings.region} {app.settings.lab} {found.efa} {found.or_types}")

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        status = run_command(up, ["demo", *arguments])
        said = capsys.readouterr()
        return Ran(status, said.out, said.err)

    return run


def documented() -> str:
    """Return the example file in the documentation."""
    [block] = re.findall(r"^    # clusterctl\.yaml\n((?:    .*\n|\n)+)", PAGE.read_text(), re.M)
    return "# clusterctl.yaml\n" + textwrap.dedent(block)


def test_the_documented_file_is_in_order(folder, clusterctl):
    (folder / FILE_NAME).write_text(documented())
    missing = clusterctl("config", "check")
    assert missing.status == 1
    assert missing.out.count("cannot read the user data boot.sh") == 3
    (folder / "boot.sh").write_text("#!/bin/sh\n")
    checked = clusterctl("config", "check")
    assert (checked.status, checked.out) == (0, "clusterctl.yaml: 4 clusters, no problem\n")


def test_what_the_page_says_is_shown_is_shown(folder, clusterctl, monkeypatch):
    (folder / FILE_NAME).write_text(documented())
    monkeypatch.setenv("CLUSTERCTL_BUDGET", "2000")
    shown = clusterctl("config", "show", "try").out.splitlines()
    [table] = re.findall(r"^    SETTING.*\n(?:    .*\n)+", PAGE.read_text(), re.M)
    for line in textwrap.dedent(table).splitlines():
        assert line.split() in [one.split() for one in shown]


def test_the_page_lists_every_key(folder):
    rows = re.findall(r"^\| `([\w-]+)` \| (.*) \| (.*?) ?\|$", PAGE.read_text(), re.M)
    assert [tuple(cell.strip() for cell in row) for row in rows] == [
        (option.key, option.kind.value, option.builtin) for option in OPTIONS.values()
    ]


def test_show_has_the_value_that_counts(folder, clusterctl, monkeypatch):
    (folder / FILE_NAME).write_text(ENTRY + "defaults:\n  region: us-west-2\n")
    monkeypatch.setenv("CLUSTERCTL_NODES", "8")
    monkeypatch.setenv("CLUSTERCTL_TAG", "owner=me")
    monkeypatch.setenv("CLUSTERCTL_ZONE", "")
    lines = clusterctl("config", "show", "demo").err.splitlines()
    assert "read: clusterctl.yaml; its clusters: demo" in lines
    assert [one for one in lines if "environment" in one] == [
        "from the environment: CLUSTERCTL_NODES, CLUSTERCTL_TAG"
    ]
    data = clusterctl("config", "show", "demo", "--json").data
    assert data["environment"] == ["CLUSTERCTL_NODES", "CLUSTERCTL_TAG"]
    assert data["settings"]["tag.owner"] == "me"
    assert (data["file"], data["cluster"], data["clusters"]) == (FILE_NAME, "demo", ["demo"])
    settings = data["settings"]
    assert settings["nodes"] == 8
    assert settings["region"] == "us-west-2"
    assert settings["tag.team"] == "nlp"
    assert settings["zone"] is None


@pytest.mark.parametrize("command", ["show", "check"])
def test_a_broken_file(folder, clusterctl, command):
    (folder / FILE_NAME).write_text("defaults: {nodes: x}\nmore: 1\n")
    ran = clusterctl("config", command)
    assert ran.status == (2 if command == "show" else 1)
    assert re.findall(r"clusterctl.yaml:\d: [\w.]+", ran.out + ran.err) == [
        "clusterctl.yaml:1: defaults.nodes",
        "clusterctl.yaml:2: more",
    ]
    other = clusterctl("config", command, "--config", "/dev/null")
    assert other.status == (0 if command == "show" else 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--config", "no such ☃"], "cannot read no such ☃: No such file or directory"),
        (["--config", "."], ". is not a file"),
    ],
)
def test_no_file_to_check(clusterctl, arguments, said):
    clusterctl.ends(2, said, "config", "check", *arguments)


WARNED = "warning: CLUSTERCTL_NODS is no setting; did you mean CLUSTERCTL_NODES?\n"


def test_a_launch_warns_of_it_too(folder, launch, monkeypatch):
    (folder / FILE_NAME).write_text(ENTRY)
    monkeypatch.setenv("CLUSTERCTL_NODS", "3")
    ran = launch()
    assert ran.err == WARNED
    assert ran.out.startswith("4 x p4d.24xlarge")


# Options of a launch


def test_the_file_alone_is_enough(folder, launch):
    (folder / FILE_NAME).write_text(ENTRY + "defaults: {idle-stop: 30m, region: us-west-2}\n")
    assert launch().out.splitlines() == [
        "4 x p4d.24xlarge {'team': 'nlp'}",
        "30.0 0 None",
        "us-west-2 False None ()",
    ]


def test_flags_and_the_environment_beat_the_file(folder, launch, monkeypatch):
    (folder / FILE_NAME).write_text(ENTRY + "defaults: {or-type: g5.48xlarge, efa: true}\n")
    monkeypatch.setenv("CLUSTERCTL_NODES", "6")
    monkeypatch.setenv("CLUSTERCTL_INSTANCE_TYPE", "g6.xlarge")
    monkeypatch.setenv("CLUSTERCTL_REGION", "eu-west-1")
    ran = launch(
        *("--instance-type", "g5.xlarge", "--tag", "a=b", "--tag", "team=cv", "--no-efa"),
        *("--or-type", "g6.xlarge", "--or-type", "g6e.xlarge", "--idle-stop", "2h"),
        *("--timeout", "90s", "--capacity-timeout", "0", "--lab"),
    )
    assert ran.out.splitlines() == [
        "6 x g5.xlarge {'team': 'cv', 'a': 'b'}",
        "120.0 0 90.0",
        "eu-west-1 True False ('g6.xlarge', 'g6e.xlarge')",
    ]


def test_what_is_missing_is_named_as_flag_and_as_key(launch):
    ran = launch()
    assert ran.status == 2
    assert "a new cluster demo needs --nodes N and --instance-type TYPE" in ran.err
    assert "`nodes:` and `instance-type:` under `clusters: demo:` in clusterctl.yaml" in ran.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--nodes", "four"], "'--nodes': not a whole number, 1 to 999999999: 'four'"),
        (["--instance-type", "P4D"], "'--instance-type': not what instance-type takes: 'P4D'"),
        (["--or-type", "g5.xlarge", "--or-type", ""], "'--or-type': not what or-type takes: ''"),
        (["--tag", "novalue"], "'--tag': not KEY=VALUE: 'novalue'"),
        (["--budget", "-1"], "above 0 and below 1000000000: '-1'"),
        (["--idle-stop", "soon"], "'--idle-stop': not a duration"),
        (["--idle-stop", "30"], "30 has no unit; did you mean 30m?"),
        (["--timeout", "600"], "600 has no unit; did you mean 600s?"),
        (["--zone", "../.."], "'--zone': not what zone takes: '../..'"),
        (["--user", "$(id)"], "'--user': not what user takes: '$(id)'"),
        (["--image", "\x1b[2J"], "'--image': not text: '\\x1b[2J'"),
        (["--ssh-from", "everybody"], "'--ssh-from': not what ssh-from takes: 'everybody'"),
        (["--user-data", "nowhere.sh"], "cannot read the user data nowhere.sh"),
        (["--user-data", "."], "the user data is not a file: ."),
        (["--stopped-days", "3"], "needs an idle time that stops it"),
        (["--min-nodes", "9"], "at least 9 of 4 nodes makes no sense"),
        (["--subnet", "subnet-1", "--network", "x"], "--subnet and --network exclude each other"),
    ],
)
def test_bad_options(folder, launch, arguments, said):
    (folder / FILE_NAME).write_text(ENTRY)
    ran = launch(*arguments)
    assert ran.status == 2
    assert said in ran.err
    assert ran.out == ""


def test_user_data_of_the_file_lies_beside_it(folder, launch):
    (folder / "etc").mkdir()
    (folder / "etc" / "boot.sh").write_text("#!/bin/sh\n")
    (folder / "etc" / "team.yaml").write_text(ENTRY + "defaults: {user-data: boot.sh}\n")
    assert launch("--config", "etc/team.yaml").status == 0
    (folder / FILE_NAME).write_text(ENTRY + "defaults: {user-data: boot.sh}\n")
    assert "cannot read the user data boot.sh" in launch().err


def test_every_command_with_an_account_reads_the_file(folder, clusterctl):
    (folder / FILE_NAME).write_text("defaults: {nodes: x}\n")
    for command, *arguments in (["list"], ["status", "demo"], ["hosts", "demo"]):
        clusterctl.ends(2, "clusterctl.yaml:1: defaults.nodes", command, *arguments)


def test_the_region_of_the_file_counts(folder, clusterctl, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-2")
    (folder / FILE_NAME).write_text(
        "defaults: {profile: not-there}\nclusters: {demo: {profile: null, lab: true}}\n"
    )
    assert "not-there" in clusterctl("list").err
    # The cluster's entry in the file selects the lab, which does not run.
    assert "the local EC2 is not running" in clusterctl("status", "demo").err


def test_without_a_file_nothing_is_paid_for_one(folder):
    code = (
        "import sys; from clusterctl.config import load_settings; load_settings();"
        "from clusterctl.cli import cluster, launching, status;"
        "print([name for name in ('yaml', 'boto3', 'rich', 'paramiko') if name in sys.modules])"
    )
    ran = completed([sys.executable, "-c", code], cwd=folder, check=True)
    assert ran.stdout == "[]\n"
