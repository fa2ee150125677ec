"""The documentation is true: its commands run, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.cli.main import COMMANDS, cli
from clusterctl.explain.catalogue import catalogue
from tests.changes import CHECKOUT, changed_files
from tests.cli.forks import run_one
from tests.lab.running import once_client
from tests.programs import completed

PAGES = sorted([*CHECKOUT.glob("*.md"), *(CHECKOUT / "docs").glob("*.md")])
BIN = Path(sys.executable).parent

# Commands that another test runs, or that run here in another form, and why.
ELSEWHERE = {
    "./scripts/demo": "tests/test_demo.py runs it",
    "./scripts/test": "it is what runs this",
    "./scripts/lint": "./scripts/test runs it",
    "~/clusterctl-venv/bin/pip install '.[lab]'": "./scripts/demo installs the same",
    "copyclust hosts big/ /data/big/": "docs/copy.md runs it, with another folder",
    "clusterctl explain docs/train.log": "test_the_readme_shows_what_explain_says runs it",
}
JOB = "mkdir one; echo 'print(1)' > one/one.py; clusterctl train demo 2 {}--script one/one.py"
# The shortest possible timeline. In tests/operations/test_train.py, Horovod writes a real one.
TRACED = """\
mkdir two; echo 'import json, os
times = (("B", 1, {"name": "ALLREDUCE"}), ("E", 2, {"args": {"dtype": "float32", "shape": "[9]"}}))
events = [{"pid": 1, "ph": kind, "ts": at, **more} for kind, at, more in times]
json.dump(events, open(os.environ["HOROVOD_TIMELINE"], "w"))' > two/two.py
clusterctl train demo 1 --timeline --fusion-threshold 32MiB --cycle-time 5ms --script two/two.py"""
FORWARDED = (
    "ssh -t -F ~/.clusterctl/demo/ssh_config -L 6006:localhost:6006 demo-0 "
    "/opt/clusterctl/training/bin/tensorboard"
)
INSTEAD = {
    "clusterctl train demo 32 --detach --watchdog 5m --watchdog-cancel": "clusterctl train demo 2 "
    "--synthetic --dry-run --watchdog 5m --watchdog-cancel",
    "clusterctl train demo 32": "clusterctl train demo 32 --synthetic --dry-run",  # 32 GPUs
    "clusterctl logs demo | clusterctl explain": "echo step 1 | clusterctl explain",  # no job ran
    # The lab updates no stack.
    "clusterctl network up training --ssh-from 203.0.113.0/24": "clusterctl network up training "
    "--ssh-from 203.0.113.0/24 --dry-run",
    # Of a job of clusterctl that has ended, hosts without a cluster have no trace: 3.
    "clusterctl diagnose --hosts hosts": "clusterctl diagnose --hosts hosts || test $? = 3",
    # It runs until Ctrl-C.
    f"{FORWARDED} --logdir examples/horovod/tensorflow/imagenet_resnet": FORWARDED.replace(
        "demo-0", "demo-0 test -x"
    ),
    "clusterctl fetch demo": "clusterctl fetch --help",  # tests/operations/test_losses.py fetches
    # tests/operations runs all these trainings; here, any job is enough.
    "clusterctl train demo 2 --synthetic -- --model resnet18 --num_batches 3": JOB.format(""),
    "clusterctl train demo 2 --synthetic --detach -- --model resnet18 --num_batches 3": JOB.format(
        "--detach "
    ),
    "clusterctl train demo 2 --synthetic --trace-steps 2:4 -- --model resnet18 --image_size 32"
    " --num_batches 5": "clusterctl train demo 2 --synthetic --trace-steps 2:4 --dry-run",
    "clusterctl train demo 2 --synthetic --timeline --fusion-threshold 32MiB --cycle-time 5ms --"
    " --model resnet18 --image_size 32 --num_batches 5": TRACED,
    "clusterctl bench demo --network --out bench-demo": "clusterctl bench demo --network "
    "--seconds 0.3 --out bench-demo",
    # tests/test_demo.py runs it completely
    "clusterctl train demo 2 --synthetic": "clusterctl train demo 2 --synthetic --dry-run",
}
# What a page needs, whichever pages were run before.
BEFORE = {"diagnose.md": (JOB.format(""),)}
# Small images in small batches: with the page's own, a training takes half a minute of CPU time.
SMALL = ("--num_batches", "-b 2 --image_size 32 --num_batches")


def commands_of(page: Path) -> list[str]:
    """Return the lines after `$ ` in the page's console blocks."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def files_of(page: Path) -> list[tuple[str, str]]:
    """Return path and text of the Python files that the page shows, by their first line."""
    return re.findall(r"^```python\n# (\S+\.py)\n(.*?)^```", page.read_text(), re.M | re.DOTALL)


# The commands of all pages share one cluster. clusters.md ends it, so it comes after the others,
# then the pages that launch their own. capacity.md only plans, where no cluster is.
OWN = ("README.md", "first-program.md")
FIRST, LAST = ("capacity.md",), ("clusters.md", *OWN)
UP = "clusterctl up demo --nodes 2 --instance-type p3.2xlarge"
DOWN = "clusterctl down demo --yes --discard-results"


@pytest.fixture(scope="module")
def home(lab, tmp_path_factory):
    """Return a user's home on a machine where the lab runs."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    (home / ".ssh" / "config").touch()
    (home / ".clusterctl").symlink_to(lab.home)
    data = home / "data" / "tf-imagenet"
    data.mkdir(parents=True)
    (data / "train-00000-of-00001").write_bytes(b"x" * 1000)
    # OpenSSH finds the home folder in the password file and ignores HOME.
    ssh = home / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f'#!/bin/sh\ncase "$*" in *-F*) exec {shutil.which("ssh")} "$@";; esac\n'
        f'exec {shutil.which("ssh")} -F {home}/.ssh/config "$@"\n'
    )
    ssh.chmod(0o755)
    return home


@pytest.fixture(scope="module")
def shell(home, lab):
    """Return a function that runs a command in the user's shell. The command has to succeed."""
    environ = {
        **os.environ,
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{BIN}:{os.environ['PATH']}",
        "CLUSTERCTL_HOME": str(lab.home),
        "CLUSTERCTL_LAB": "1",
    }

    def run(command: str, **more: str) -> None:
        program, *words = shlex.split(command)
        # Most commands need no shell. They are forked, which saves starting an interpreter.
        if program == "clusterctl" and not set("|&;<>$`*") & set(command) and " ~" not in command:
            status, out, err = run_one(words, {**environ, **more}, home)
        else:
            done = completed(
                ["bash", "-c", command],
                cwd=home,
                env={**environ, **more},
                stdin=subprocess.DEVNULL,
                timeout=600,
            )
            status, out, err = done.returncode, done.stdout, done.stderr
        assert status == 0, f"{command}\n{out}\n{err}"

    return run


@pytest.fixture(scope="module")
def cluster(shell):
    """Launch the cluster that pages use without launching one."""
    shell(UP)
    yield
    shell(f"{DOWN} || true")  # clusters.md has ended it


def show(page: Path, home: Path, shell) -> None:
    """Run the page's commands in order, then delete the files that they made."""
    before = set(home.iterdir())
    for name, text in files_of(page):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(text)
    for command in (*BEFORE.get(page.name, ()), *commands_of(page)):
        if command not in ELSEWHERE:
            if "hosts" in command.split():
                shell("clusterctl hosts demo > hosts")
            shell(INSTEAD.get(command, command).replace(*SMALL))
    for path in {*home.iterdir()} - before:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_the_site_has_every_page():
    named = set(re.findall(r"(\S+\.md)$", (CHECKOUT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert named == {"index.md", *(page.name for page in PAGES)} - {"README.md"}


def in_order(page: Path) -> int:
    return (*FIRST, "", *LAST).index(page.name if page.name in (*FIRST, *LAST) else "")


def pages():
    """Return the pages with commands. README.md and pages that have changed run without --all."""
    for page in sorted(filter(commands_of, PAGES), key=in_order):
        usual = page.name == "README.md" or str(page.relative_to(CHECKOUT)) in changed_files()
        if page.name != "lab.md":
            marks = () if usual else pytest.mark.all
            yield pytest.param(page, id=page.name, marks=marks)


@pytest.mark.train
@pytest.mark.parametrize("page", [*pages()])
def test_every_command_shown_works(page, home, shell, request, lab):
    if page.name not in (*FIRST, *OWN):
        request.getfixturevalue("cluster")
    before = left_in(lab)  # of other tests' clusters
    show(page, home, shell)
    if page.name in OWN:
        assert [one for one in left_in(lab) if one not in before] == []


def left_in(lab) -> list[str]:
    """Return what is left of the page's cluster, in the local EC2 and on this machine."""
    ec2 = once_client(lab)
    instances = [one for r in ec2.describe_instances()["Reservations"] for one in r["Instances"]]
    running = [one["InstanceId"] for one in instances if one["State"]["Name"] != "terminated"]
    named = [
        *(one["GroupName"] for one in ec2.describe_security_groups()["SecurityGroups"]),
        *(one["GroupName"] for one in ec2.describe_placement_groups()["PlacementGroups"]),
        *(one["KeyName"] for one in ec2.describe_key_pairs()["KeyPairs"]),
    ]
    disks = [one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]]
    addresses = [one["PublicIp"] for one in ec2.describe_addresses()["Addresses"]]
    made = [name for name in named if name.startswith("clusterctl-demo")]
    folder = [str(one) for one in [lab.home / "demo"] if one.exists()]
    return [*running, *disks, *addresses, *made, *folder]


def test_the_readme_shows_what_explain_says():
    status, out, _ = run_one(["explain", "docs/train.log"], {**os.environ}, CHECKOUT)
    assert status == 2
    shown = f"$ clusterctl explain docs/train.log\n```\n\n```\n{out}```\n"
    assert shown in (CHECKOUT / "README.md").read_text()
    assert "error: tf.data-loss, line 22, 2 times, rank 1\n" in out, "mpirun names rank 3"


def test_numbers_that_can_be_counted_are_right():
    readme, pages = (CHECKOUT / "README.md").read_text(), CHECKOUT / "docs"
    for text in (readme, (pages / "explain.md").read_text()):
        [lines] = re.findall(r"over ([\d,]+) (?:kinds of )?lines", text)
        assert 0 <= len(catalogue()) - int(lines.replace(",", "")) < 300
    _, _, faults = (pages / "diagnose.md").read_text().partition("## Tested faults\n")
    seconds = re.findall(r"^\| .* \| ([\d.]+) \|$", faults.partition("\n## ")[0], re.MULTILINE)
    first, *_, last = sorted(seconds, key=float)
    assert f"{len(seconds)} faults, up to 4 ranks on 3 hosts, in {first} to {last} s" in readme
    log = (pages / "train.log").read_text().splitlines()
    assert re.search(rf"`docs/train.log` is the log of .*, {len(log)}\s+lines", readme)


@pytest.mark.all
def test_every_command_of_the_labs_page(home, shell, tmp_path):
    """The page starts and stops its own lab."""

    def elsewhere(command: str) -> None:
        shell(f"unset CLUSTERCTL_LAB; {command}", CLUSTERCTL_HOME=str(tmp_path / "other home"))

    try:
        show(CHECKOUT / "docs" / "lab.md", home, elsewhere)
    finally:
        elsewhere("clusterctl lab stop")


def anchors_of(page: Path) -> set[str]:
    """The anchors of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for link, anchor in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)[^)]*\)", page.read_text()):
        if "://" not in link:
            to = page.parent / link if link else page
            assert to.exists(), link
            # The site has these pages and pictures alone (scripts/lib/site.py).
            assert to.resolve().parent in (CHECKOUT, CHECKOUT / "docs"), link
            assert not anchor or anchor in anchors_of(to), f"{link}#{anchor}"


def rows_of_the_map() -> list[str]:
    lines = (CHECKOUT / "docs" / "map.md").read_text().splitlines()
    return [line for line in lines if line.startswith("| ") and "the step |" not in line]


@pytest.mark.parametrize("row", rows_of_the_map())
def test_a_row_of_the_map_names_what_there_is(row):
    """Its commands can be typed as they are, and its page describes them by name."""
    import click

    _, _, here, page, _ = row.split("|")
    [linked] = re.findall(r"\]\(([a-z0-9-]+\.md)", page)
    text = (CHECKOUT / "docs" / linked).read_text()
    for typed in re.findall(r"`clusterctl ([^`]+)`", here):
        name, *words = shlex.split(typed)
        command, context = cli.get_command(click.Context(cli), name), click.Context(cli)
        while isinstance(command, click.Group):
            name, *words = words
            command = command.get_command(context, name)
        assert command is not None, typed
        # With the names that it has: a command keeps the first help option that was made for it.
        context = click.Context(command, help_option_names=["-h", "--help"])
        command.make_parser(context).parse_args(list(words))
        assert f"clusterctl {typed.split()[0]}" in text, f"{linked} does not speak of {typed}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_an_example_and_a_place_in_the_docs(name):
    import click

    assert any(f"clusterctl {name}" in page.read_text() for page in PAGES), name
    found = {name: cli.get_command(click.Context(cli), name)}
    while found:
        name, command = found.popitem()
        assert command is not None and command.help, name
        if isinstance(command, click.Group):
            found |= {f"{name} {word}": one for word, one in command.commands.items()}
        else:
            assert re.search(rf"clusterctl {name}\b", command.help), "show an example"
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, f"{name} {parameter.name}"


def test_the_list_of_modules_is_as_they_are():
    listed = subprocess.run(
        [sys.executable, CHECKOUT / "scripts/lib/modules.py"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout
    assert (CHECKOUT / "docs/modules.md").read_text() == listed, (
        "write it again: python scripts/lib/modules.py >docs/modules.md"
    )
