"""Commands that clusterctl suggests exist, and repeat the options that the user typed."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import click
import pytest

import clusterctl
from clusterctl.cli import output
from clusterctl.cli.main import cli, run_command
from tests.cli.forks import run_one
from tests.lab.running import LabHome

PACKAGE = Path(clusterctl.__file__).parent
DOCS = PACKAGE.parent / "docs"


@pytest.mark.parametrize(
    ("typed", "suggestion", "completed"),
    [
        ("status demo", "see `clusterctl list`", "see `clusterctl list`"),
        ("status demo --lab", "see `clusterctl list`", "see `clusterctl list --lab`"),
        (
            "status demo --region us-west-2 --profile 'two words' --lab",
            "replace it (clusterctl replace demo 0), or: clusterctl down demo; or wait",
            "replace it (clusterctl replace demo --lab --region us-west-2 --profile 'two words' 0)"
            ", or: clusterctl down demo --lab --region us-west-2 --profile 'two words'; or wait",
        ),
        # Options that the suggestion has already, or that its command does not take, are not added.
        (
            "status demo --lab --region us-west-2",
            "clusterctl list --region us-east-1; clusterctl lab start; clusterctl config check",
            "clusterctl list --lab --region us-east-1; clusterctl lab start; "
            "clusterctl config check",
        ),
        ("status demo --no-lab", "clusterctl gc --delete", "clusterctl gc --no-lab --delete"),
        # The environment that was looked at, and not the default.
        ("env status demo --prefix /opt/x --lab",
         "clusterctl env install demo; clusterctl train demo 2",
         "clusterctl env install demo --prefix /opt/x --lab; clusterctl train demo --lab 2"),
        # Prose, paths and other text that is not a command.
        (
            "status demo --lab",
            "the older clusterctl down there, ~/.clusterctl up, x/clusterctl up, clusterctl env",
            "the older clusterctl down --lab there, ~/.clusterctl up, x/clusterctl up, "
            "clusterctl env",
        ),
        # The cluster's name is known; that of a network is not.
        (
            "status demo --lab",
            "clusterctl env install NAME --tensorflow NEWEST, clusterctl network up NAME, "
            "`clusterctl up`",
            "clusterctl env install demo --lab --tensorflow NEWEST, "
            "clusterctl network up --lab NAME, `clusterctl up demo --lab`",
        ),
        # Behind an option that takes the cluster's place, the word is a folder.
        ("bench --compare kept other", "clusterctl bench NAME --gpus 1,8",
         "clusterctl bench NAME --gpus 1,8"),
        ("network status net", "clusterctl up NAME --nodes N", "clusterctl up NAME --nodes N"),
        # With --from a diagnosis has no cluster.
        ("status demo --lab", "clusterctl diagnose --from stuck.gz shows it: `clusterctl diagnose`",
         "clusterctl diagnose --lab --from stuck.gz shows it: `clusterctl diagnose demo --lab`"),
    ],
)  # fmt: skip
def test_what_was_typed_is_in_what_is_suggested(
    tmp_path, monkeypatch, capsys, typed, suggestion, completed
):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    run_command(cli, shlex.split(typed))
    capsys.readouterr()
    output.note(suggestion)
    # In JSON, hints are completed; output of commands is not changed.
    output.data([{"found": {"hint": suggestion}, "stdout": suggestion}])
    said = capsys.readouterr()
    assert said.err == completed + "\n"
    assert json.loads(said.out) == [{"found": {"hint": completed}, "stdout": suggestion}]


def _texts():
    """Yield `file:line` and text of every string in the package. X replaces filled-in values."""
    for path in sorted(PACKAGE.rglob("*.py")):
        source = path.read_text()
        if "clusterctl " not in source and "docs/" not in source:
            continue
        tree, name = ast.parse(source), path.relative_to(PACKAGE)
        parts = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            where = f"{name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield (
                    where,
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "X"
                        for part in node.values
                    ),
                )
            elif isinstance(getattr(node, "value", 0), str) and id(node) not in parts:
                yield where, node.value


# In backticks, after a colon, in brackets, or a line of help. Elsewhere it is prose.
COMMAND = re.compile(r"(?:`|: |\(|^ +)clusterctl ((?:(?!clusterctl |, )[^`;\n)])+)", re.MULTILINE)


def unknown_words(said):
    """Return the words of `clusterctl SAID` that do not exist: its first word, or options."""
    command, words = cli, re.sub("'[^']*'", "X", said).split()
    while isinstance(command, click.Group) and words and "X" not in words[0]:
        inner = command.get_command(click.Context(command), words[0].rstrip(",.:"))
        if inner is None:
            return words[:1]
        command, words = inner, words[1:]
    flags = {flag: one for one in command.params for flag in (*one.opts, *one.secondary_opts)}
    unknown = []
    for before, word in zip(["", *words], words):
        if word == "--":
            break
        value = before in flags and not flags[before].is_flag
        if word.startswith("-") and not value and word.rstrip(",.:X") not in {*flags, "-h"}:
            unknown.append(word)
    return unknown


def test_every_command_option_and_page_that_is_named_exists():
    texts = [(where, text) for where, text in _texts() if "clusterctl " in text or "docs/" in text]
    wrong = [
        f"{where}: docs/{page}"
        for where, text in texts
        for page in re.findall(r"docs/([\w-]+\.md)", text)
        if not (DOCS / page).exists()
    ]
    wrong += [
        f"{where}: clusterctl {said}: {unknown}"
        for where, text in texts
        for said in COMMAND.findall(re.sub("^#.*", "", text, flags=re.MULTILINE))
        for unknown in unknown_words(said)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run demo echo 'it'\"'\"'s' -n /tmp", "run demo 'echo it'\"'\"'s -n /tmp'"),
        ("run --lab --nodes 1 demo ls -la", "run --lab --nodes 1 demo 'ls -la'"),
        ("run demo --nodes 1 --lab ls -la /", "run demo --nodes 1 --lab 'ls -la /'"),
        # Options that clusterctl has, too.
        ("run demo uname -n", "run demo 'uname -n'"),
        ("run demo uname -n --", "run demo 'uname -n --'"),
        ("run -b demo cat -bn /etc/hosts --json", "run -b demo 'cat -bn /etc/hosts --json'"),
    ],
)
def test_a_command_without_quotes_is_quoted(capsys, typed, meant):
    assert run_command(cli, shlex.split(typed), prog_name="clusterctl") == 2
    assert f"quoted: clusterctl {meant}\n" in capsys.readouterr().err


@pytest.fixture(scope="module")
def typed(pair):
    """Return a function that runs a command line with --lab: (exit status, stdout, stderr)."""
    environ = {key: value for key, value in pair.environ.items() if key != "CLUSTERCTL_LAB"}

    def run(line):
        return run_one(shlex.split(line)[1:], environ)

    return run


@pytest.fixture
def data_on_the_second(pair):
    pair.on(0, "rm -rf data/tf-imagenet")
    pair.on(1, "mkdir -p data/tf-imagenet; touch data/tf-imagenet/train-00000-of-00001")
    yield
    for node in (0, 1):
        pair.on(node, "rm -rf data/tf-imagenet")


@pytest.mark.lab
@pytest.mark.usefixtures("data_on_the_second")
@pytest.mark.parametrize(
    ("line", "suggested"),
    [
        ("up pair --nodes 2 --lab --yes", "clusterctl ssh pair --lab"),
        ("logs pair 20200101-000000-aaaa --lab", "clusterctl jobs pair --lab"),
        ("train pair 9 --synthetic --lab", "clusterctl up pair --lab --nodes 9"),
        (
            "train pair 1 --lab",
            "clusterctl copy pair --lab --from 1 '~/data/tf-imagenet/' '~/data/tf-imagenet/'",
        ),
        ("remove pair 0 --lab --yes", "clusterctl replace pair --lab 0"),
    ],
)
def test_what_is_pasted_works(typed, line, suggested):
    _, _, err = typed(f"clusterctl {line}")
    assert suggested in err
    said = suggested.replace("ssh pair --lab", "ssh pair --lab -- hostname")
    # With --help: otherwise these would launch and replace.
    ran = typed(said + (" --help" if re.search(" up | replace ", said) else ""))
    assert ran[0] == 0, ran


@pytest.mark.lab
def test_a_node_goes_by_its_name(pair, tmp_path):
    second = pair.on(1, "hostname").strip()
    assert pair.ctl("ssh", "pair-1", "--", "hostname")[1].strip() == second
    assert pair.ctl("run", "--nodes", "pair-1", "hostname")[1] == f"pair-1: {second}\n"
    assert pair.ctl("run", "--nodes", "pair-[0-1]", "-b", "true")[0] == 0
    for fault in ("shape pair-1 --rate 1gbit", "clear pair-1"):
        assert LabHome(pair.lab.home).run("fault", *fault.split()) == 0
    assert pair.ctl("copy", "--from", "pair-1", "/etc/hostname", "named/")[0] == 0
    assert pair.on(0, "cat named/hostname").strip() == second
    pair.ends(2, "nodes of other are named, and the cluster is pair", "ssh", "other-1")
    pair.ends(2, "a command comes after --", "ssh", "hostname")


@pytest.mark.lab
def test_a_tilde_without_quotes_is_explained(pair, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/srv/alice")
    (tmp_path / "file").write_text("x")
    status, _, err = pair.ctl("copy", str(tmp_path / "file"), "/srv/alice/data/")
    assert (status, "quote the ~, so that the nodes' is meant: '~/data/'" in err) == (1, True), err
    (tmp_path / "a.py").write_text("")
    monkeypatch.chdir(tmp_path)
    for failing, word in (
        (("data verify", "/srv/alice/data"), "'~/data'"),
        (("run", "ls -d /srv/alice/data /srv/alice2"), "'ls -d ~/data /srv/alice2'"),
        (("results", "--log-dir", "/srv/alice"), "--log-dir '~'"),
        (("train", "1", "--script", "a.py", "--env", "/srv/alice/env"), "--env '~/env'"),
        (("train", "1", "--script", "a.py", "--channel", "x=/srv/alice/d"), "--channel 'x=~/d'"),
    ):
        status, _, err = pair.ctl(*failing)
        hint = f"quote the ~, so that the nodes' is meant: {word}"
        assert (status > 0, err.count(hint)) == (True, 1), err
    # What fails for another reason says nothing of it.
    _, _, err = pair.ctl("run", "false")
    assert "quote" not in err


@pytest.mark.parametrize("typed", ["--lab list", "--region us-east-1 up demo --nodes 2"])
def test_an_option_before_its_command_is_explained(typed, capsys):
    assert run_command(cli, shlex.split(typed), prog_name="clusterctl") == 2
    told = f"Error: A command's options come after it: clusterctl COMMAND {typed.split()[0]}\n"
    assert capsys.readouterr().err.endswith(told)


def test_a_home_that_cannot_be_written_is_shown_by_the_command_that_is_named(tmp_path, capsys):
    (tmp_path / "file").touch()
    environ = {"CLUSTERCTL_HOME": str(tmp_path / "file" / "clusters"), "CLUSTERCTL_LAB": "0"}
    status, _, err = run_one(["up", "demo"], {**os.environ, **environ}, tmp_path)
    assert (status, "cannot write to" in err) == (1, True), err
    command = re.search(r"full: (ls -ld \S+);", err)[1]
    assert subprocess.run(shlex.split(command), capture_output=True, check=False).returncode == 0
