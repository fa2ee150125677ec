"""The files of signatures: the user's own, and what is wrong in them."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path

import pytest

import clusterctl
from clusterctl.cli.copy.text import failure_lines
from clusterctl.cli.main import cli, run_command
from clusterctl.copy import failures
from clusterctl.copy.report import NodeReport, TransferReport
from clusterctl.domain.errors import CommandFailed
from clusterctl.explain.catalogue import catalogue
from clusterctl.explain.engine import explain
from clusterctl.explain.signature import literals
from clusterctl.explain.table import table
from clusterctl.node.relay.destination import _lack
from clusterctl.node.relay.messages import Failed

OWN = """
[texts]
store = 'mystore: cannot write block'

[[signature]]
id = "mystore.full"
pattern = ['{store} (?P<block>\\d+) to (?P<path>/[\\w/]+)', 'mystore: quota of (?P<path2>/\\S+)']
cause = "the quota of {path} is used up"
remedy = { "old checkpoints" = "remove them from {path}", "too little for all" = "ask for more" }
source = "mystore 2.1"
"""


@pytest.fixture
def signatures(tmp_path, monkeypatch):
    """A folder for the user's signatures; the catalogue is read again before and after."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    folder = tmp_path / "signatures"
    folder.mkdir()
    for cached in (catalogue, table):
        cached.cache_clear()
    yield folder
    for cached in (catalogue, table):
        cached.cache_clear()


def test_the_users_own_signatures_come_first(signatures, tmp_path, capsys):
    (signatures / "mystore.toml").write_text(OWN)
    log = tmp_path / "log"
    log.write_text("mystore: cannot write block 17 to /data/ckpt: No space left on device\n")
    assert run_command(cli, ["explain", str(log)]) == 2
    shown = capsys.readouterr().out
    assert "error: mystore.full" in shown and "the quota of /data/ckpt is used up" in shown
    assert "do:     old checkpoints: remove them from /data/ckpt\n" in shown
    assert run_command(cli, ["explain", str(log), "--json"]) == 2
    lead = json.loads(capsys.readouterr().out)["lead"]
    assert lead["values"] == {"block": "17", "path": "/data/ckpt"}
    assert lead["remedies"][1] == {"if": "too little for all", "do": "ask for more"}


def test_a_value_that_no_text_uses_is_told_after_the_cause(signatures, tmp_path, capsys):
    own = OWN.replace("the quota of {path} is used up", "the store is full")
    (signatures / "mine.toml").write_text(own.replace(" from {path}", ""))
    log = tmp_path / "log"
    log.write_text("mystore: cannot write block 17 to /data/ckpt: quota exceeded\n")
    run_command(cli, ["explain", str(log), "--json"])
    assert "(block: 17; path: /data/ckpt)" in json.loads(capsys.readouterr().out)["lead"]["cause"]


def test_an_own_signature_replaces_the_shipped_one_with_its_id(signatures, tmp_path, capsys):
    (signatures / "mine.toml").write_text(OWN.replace("mystore.full", "system.no-space"))
    log = tmp_path / "log"
    log.write_text("tar: write error: No space left on device\n")
    run_command(cli, ["explain", str(log), "--json"])
    found = json.loads(capsys.readouterr().out)["findings"]
    assert "system.no-space" not in [one["signature"] for one in found]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (("[[signature]]", "[signature]"), "signature: must be an array"),
        (("source =", "sauce ="), "mystore.full: sauce: no such key"),
        (("source =", "role = 'cause'\nsource ="), "role: 'cause' is not one of root, symptom"),
        (('source = "mystore 2.1"', ""), "source: is missing"),
        (("'mystore: quota", "'(mystore: quota"), "pattern of mystore.full: missing )"),
        (("'mystore: quota of (?P<path2>/\\S+)'", "'x'"), "no plain text to search for in 'x'"),
        (("is used up", "{is} {0.x} up"), "cause of mystore.full"),
        (("is used up", "is {quto}"), "cause of mystore.full: the pattern has no group quto"),
        (("remove them from {path}", "remove {pth}"), "remedy of mystore.full: the pattern has no"),
        (("source =", "lines = 'two'\nsource ="), "lines: must be a number"),
        (("[texts]", "[texts\n"), "(at line 2, column 7)"),
        (
            ("[texts]", "[texts]\npath = 'x'"),
            "pattern: path is the name of a text of the file, too",
        ),
        (("source =", "hook = 'os.system'\nsource ="), "hook: 'os.system' is not one of"),
        (
            ("source =", "evidence = { quota = 'fact.snap' }\nsource ="),
            "evidence: the remedy has no alternative 'quota'",
        ),
    ],
)
def test_a_mistake_is_told_with_file_and_key(signatures, tmp_path, capsys, change, key):
    path = signatures / "mystore.toml"
    path.write_text(OWN.replace(*change))
    log = tmp_path / "log"
    log.write_text("nothing\n")
    assert run_command(cli, ["explain", str(log)]) == 3
    shown = capsys.readouterr().err
    assert str(path) in shown and key in shown and "Traceback" not in shown


@pytest.mark.parametrize("around", ["(?<!beforehand)", "(?<=beforehand)", "(?!beforehand)"])
def test_what_must_not_stand_there_is_no_text_to_search_for(around):
    assert literals(rf"{around}\d+(?:something|another thing)") == ("something", "another thing")


def test_a_group_is_searched_with_the_text_before_it():
    assert literals(r"E: (?P<error>(?:Unable to|Cannot)\b)") == ("E: Unable to", "E: Cannot")
    assert literals(r"[Cc]heck\.? (?:Exception|failure)") == (" Exception", " failure")


def test_a_file_that_is_no_text_is_told(signatures, tmp_path, capsys):
    (signatures / "a.toml").write_bytes(b"\xff\xfe\x00")
    (signatures / "b.toml").mkdir()
    log = tmp_path / "log"
    log.write_text("nothing\n")
    assert run_command(cli, ["explain", str(log)]) == 3
    assert str(signatures / "a.toml") in capsys.readouterr().err


# What the programs of a job print that is no failure, or only a part of a line.
NO_FAILURES = (
    "clusterctl: collected 2 files",
    "clusterctl: all of it is at s3://b/x",
    "EC2 had given notice for demo-1: stop at 12:00",
    "ended 2 processes that the job had left on demo-1",
    "the job's program was copied to demo-1, which lacked it",
    "+ python train.py",
    "draft: it is run by another process",  # before there is a log
)


def _printed():
    """Patterns of the lines that a job's programs print by themselves, read from their source."""
    node = Path(clusterctl.__file__).parent / "node"
    jobs = [node / "jobs" / f"{name}.py" for name in ("runner", "recovery", "supervisor")]
    for path in [*jobs, *(node / "scripts").glob("*.py")]:
        for statement in ast.walk(ast.parse(path.read_text())):
            if not isinstance(statement, (ast.Call, ast.Raise, ast.Assign)):
                continue
            source = ast.unparse(statement)
            prints = re.match(r".*(say|sys.exit)\(|raise OSError|(.*, )?why = ", source)
            todo = [statement]
            while todo:
                one = todo.pop()
                text = one.values if isinstance(one, ast.JoinedStr) else [one]
                words = [getattr(part, "value", None) for part in text]
                if isinstance(words[0], str) or isinstance(one, ast.JoinedStr):
                    plain = [
                        isinstance(word, str) and re.escape(word.strip("\n")) for word in words
                    ]
                    shape = "".join(word or ".+" for word in plain)
                    if (prints or "clusterctl:" in shape) and re.search("[a-z]{2}", shape):
                        yield path.name, shape
                else:
                    todo += ast.iter_child_nodes(one)


def test_every_failure_that_a_jobs_own_programs_print_is_in_the_catalogue():
    """Else a line that names the cause counts as nothing wrong, or a consequence as the first."""
    samples = [text for one in catalogue() for text in one.samples]
    shapes = set(_printed())
    assert len(shapes) > 20
    known = (*samples, *NO_FAILURES)
    assert not [one for one in shapes if not any(re.search(one[1], text) for text in known)]


HOST = "demo-1"


@pytest.mark.parametrize(
    "error",
    [
        *(failures.died(HOST), failures.source_died(HOST, None)),
        failures.not_responding_error(HOST, 15.0, listened=True),
        failures.not_responding_error(HOST, 60.0, listened=False),
        failures.no_data_error(HOST, 120.0, ""),
        failures.hung_error(HOST, "comparing", "/data/a", 120.0),
        *(failures.damaged_error(HOST, 3), failures.out_of_time(HOST, 60.0)),
        failures.ended_early(HOST, 1, "", spoke=True),
        failures.ended_early(HOST, 127, "sh: python3: not found", spoke=False),
        failures.unreachable_error(HOST, {"the source": "timed out"}),
        failures.named_twice(HOST, Failed("it is busy"), "demo-0"),
        CommandFailed(HOST, _lack(b"/data", 30, 5), "no"),
    ],
)
@pytest.mark.parametrize("more", [(), (NodeReport("demo-2"),)])
def test_why_a_copy_failed_is_found_in_its_log(error, more):
    """Else the log of a detached copy has nothing wrong, and `wait` no first error."""
    [line] = failure_lines(TransferReport(None, (NodeReport(HOST, error=error), *more), 1.0))
    found = explain([b"connecting: demo-[1-2]\n", f"{line}\n".encode()])
    assert error.message in (found.lead.cause if found.lead else found.failing[0].text)
    assert not found.lead or found.lead.remedy == error.hint
    assert not explain([f"warning: {line}\n".encode()]).lead
