"""Every finding, as a user sees it: each place in the source that makes one is reached here."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

import clusterctl
from clusterctl.cli import output
from clusterctl.domain import findings
from clusterctl.domain.findings import Finding, Severity
from tests.cli.test_every_command import commands
from tests.cli.test_suggestions import COMMAND, unknown_words
from tests.every_finding import every_finding

PACKAGE = Path(clusterctl.__file__).parent


CALL = re.compile(r"\bFinding(\.(error|warning|info))?\)?\(")


def _makes_finding(call: ast.Call) -> bool:
    """Whether it is a call of Finding, Finding.error, or one of several of these."""
    return any(isinstance(part, ast.Name) and part.id == "Finding" for part in ast.walk(call.func))


def places() -> set[tuple[str, int]]:
    """Return file and line of each call that makes a finding.

    A function that is given the check's id makes findings for its callers: each call of it counts.
    """
    calls = set()
    makers = set()
    for path in PACKAGE.rglob("*.py"):
        source = path.read_text()
        if not CALL.search(source) or path == Path(findings.__file__):
            continue
        for function in ast.walk(ast.parse(source)):
            if not isinstance(function, ast.FunctionDef):
                continue
            arguments = {one.arg for one in function.args.args}
            for call in ast.walk(function):
                if isinstance(call, ast.Call):
                    calls.add((str(path), call))
                    if _makes_finding(call) and getattr(call.args[0], "id", "") in arguments:
                        makers.add(function.name)
    return {
        (path, call.lineno)
        for path, call in calls
        if _makes_finding(call) or getattr(call.func, "id", "") in makers
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return every finding, and the lines of clusterctl that took part in making one."""
    reached: set[tuple[str, int]] = set()
    make = Finding.__init__

    def noted(self, *args, **fields):
        frame = sys._getframe(1)
        while frame:
            reached.add((frame.f_code.co_filename, frame.f_lineno))
            frame = frame.f_back
        make(self, *args, **fields)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Finding, "__init__", noted)
        return every_finding(tmp_path_factory.mktemp("code")), reached


def test_every_finding_as_it_is_printed(made, capsys, snapshot):
    output.findings(made[0])
    assert capsys.readouterr().err == snapshot


def test_every_place_that_makes_a_finding_is_reached(made):
    missing = sorted(places() - made[1])
    assert not missing, "\n".join(f"{Path(path).name}:{line}" for path, line in missing)


# Warnings and errors that need no hint, and why.
WITHOUT_HINT = {
    **dict.fromkeys(("disk.copies", "disk.unknown", "fact.unknown"), "the message has the reason"),
    **dict.fromkeys(("launch.permitted", "node.unreachable"), "it is that of the error"),
    **dict.fromkeys(("results.metric", "results.rows"), "what the values above lack"),
    **dict.fromkeys(("tuning.autotune", "tuning.timeline"), "what the values above lack"),
}


def test_every_finding_says_what_to_do_or_need_not(made):
    bare = {one.check for one in made[0] if one.severity is not Severity.INFO and not one.hint}
    assert bare == set(WITHOUT_HINT)


# Options of the trainer, and of utils/preprocess_imagenet.py.
OF_PROGRAMS = {
    *("--batch_size", "--epochs", "--eval_interval", "--help", "--log_dir", "--lr"),
    *("--save_checkpoints_steps", "--train_shards"),
}


def test_every_command_and_option_that_a_finding_names_exists(made):
    known = {
        option
        for _, command in commands()
        for one in command.params
        for option in (*one.opts, *one.secondary_opts)
    }
    for one in made[0]:
        text = re.sub(r"\baws [^;`]+", "", f"{one.message}; {one.hint}")
        assert {*re.findall(r"(?<![\w-])--[\w-]+", text)} <= known | OF_PROGRAMS, one
        wrong = [
            words for said in COMMAND.findall(f": {one.hint}") for words in unknown_words(said)
        ]
        assert not wrong, one
