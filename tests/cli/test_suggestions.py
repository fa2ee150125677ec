"""The commands that clusterctl tells a user to type: they exist, and mean what the user typed."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import click
import pytest

import clusterctl
from clusterctl.cli import output
from clusterctl.cli.main import cli, run_command

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
        # What is there already is not said twice; what a command does not take is not given.
        (
            "status demo --lab --region us-west-2",
            "clusterctl list --region us-east-1; clusterctl lab start; clusterctl config check",
            "clusterctl list --lab --region us-east-1; clusterctl lab start; "
            "clusterctl config check",
        ),
        ("status demo --no-lab", "clusterctl gc --delete", "clusterctl gc --no-lab --delete"),
        # Prose, paths and what is no command.
        (
            "status demo --lab",
            "the older clusterctl down there, ~/.clusterctl up, x/clusterctl up, clusterctl env",
            "the older clusterctl down --lab there, ~/.clusterctl up, x/clusterctl up, "
            "clusterctl env",
        ),
        # The cluster's name is known; a network's is not.
        (
            "status demo --lab",
            "clusterctl env install NAME --tensorflow NEWEST, clusterctl network up NAME, "
            "`clusterctl up`",
            "clusterctl env install demo --lab --tensorflow NEWEST, "
            "clusterctl network up --lab NAME, `clusterctl up demo --lab`",
        ),
        ("network status net", "clusterctl up NAME --nodes N", "clusterctl up NAME --nodes N"),
    ],
)
def test_what_was_typed_is_in_what_is_suggested(
    tmp_path, monkeypatch, typed, suggestion, completed
):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    run_command(cli, shlex.split(typed))
    assert output.suggested(suggestion) == completed


def _texts():
    """Every string of the package as `file:line` and its text; X stands for what is filled in."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text())
        parts = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in node.values
        }
        for node in ast.walk(tree):
            where = f"{path.relative_to(PACKAGE)}:{getattr(node, 'lineno', 0)}"
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


def _unknown(said):
    """What of `clusterctl SAID` there is not: the command's first word, or an option."""
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
        if word.startswith("-") and not value and word.rstrip(",.:") not in {*flags, "-h"}:
            unknown.append(word)
    return unknown


def test_every_command_option_and_page_that_is_named_exists():
    # In backticks, after a colon or in brackets, or as a line of help: elsewhere it is prose.
    command = re.compile(
        r"(?:`|: |\(|^ +)clusterctl ((?:(?!clusterctl |, )[^`;\n)])+)", re.MULTILINE
    )
    wrong = [
        f"{where}: docs/{page}"
        for where, text in _texts()
        for page in re.findall(r"docs/([\w-]+\.md)", text)
        if not (DOCS / page).exists()
    ]
    wrong += [
        f"{where}: clusterctl {said}: {unknown}"
        for where, text in _texts()
        for said in command.findall(re.sub("^#.*", "", text, flags=re.MULTILINE))
        for unknown in _unknown(said)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("run demo ls -la", "run demo 'ls -la'"),
        ("run demo echo 'it'\"'\"'s' -n /tmp", "run demo 'echo it'\"'\"'s -n /tmp'"),
        ("run demo ls /tmp", "run demo 'ls /tmp'"),
    ],
)
def test_a_command_without_quotes_is_quoted(capsys, typed, meant):
    assert run_command(cli, shlex.split(typed), prog_name="clusterctl") == 2
    assert f"quoted: clusterctl {meant}\n" in capsys.readouterr().err
