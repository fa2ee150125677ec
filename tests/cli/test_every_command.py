"""Every command, with outputs and homes that cannot be written (forks.py)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import click
import pytest

from clusterctl.cli.copyclust import copyclust
from clusterctl.cli.jobs import job_and_folder
from clusterctl.cli.main import cli, run_command
from clusterctl.cli.params import Indices, NodePath, SelectionOption
from clusterctl.cli.runclust import runclust
from clusterctl.cli.verify import copyclust_verify
from clusterctl.domain.errors import UsageError
from clusterctl.lab import lifecycle
from tests.cli import forks
from tests.lab.running import client

pytestmark = pytest.mark.lab

# Arguments with which commands run far without changing anything. For other commands, required
# arguments are generated.
WORDS = {
    "up": "pair --nodes 2 --instance-type p3.2xlarge",
    "down": "nothing --yes",
    "stop": "nothing",
    "start": "nothing",
    "add": "nothing 1",
    "ssh": "pair -- true",
    "run": "pair hostname",
    "copy": "pair /etc/hostname /tmp/copied",
    "data verify": "pair /etc/hostname",
    "env install": "nothing",
    "train": "pair 2 --synthetic --dry-run",
    "serve": "pair --status",
    "watch": "nothing",  # or else it runs forever
    "results": "--log /etc/hostname",
    "clean-logs": "pair --dry-run",
    "reboot": "pair 7",
    "network up": "net --dry-run",
    "network s3": "--dry-run",
    "selftest": "pair --max-cost 5",  # it is there, and not its own
    "lab fault boot": "--help",
    "lab fault lag": "--help",
}
# The system's ssh ignores errors of its output.
FOREIGN = {"ssh"}
DOCUMENTED = {0, 1, 2, 3, 130, 141, 255}


def commands(group=cli, path=()):
    """Return every command that is not a group, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


def made_up(command):
    for parameter in command.params:
        if isinstance(parameter, click.Argument) and parameter.required:
            number = parameter.type.name in ("integer", "integer range", "float range", "indices")
            yield "pair" if parameter.name == "name" else "7" if number else "1s"


def argv_of(name, command):
    return [*name.split(), *(WORDS[name].split() if name in WORDS else made_up(command))]


def takes_json(command):
    return any("--json" in one.opts for one in command.params)


@pytest.fixture
def ran(pair, tmp_path):
    """Return a function that runs (key, case) pairs, by default with a copy of the lab's home.

    It returns the result of each key.
    """
    home = tmp_path / "home"
    shutil.copytree(pair.lab.home / "pair", home / "pair")
    (home / "lab").mkdir()
    shutil.copy(pair.lab.home / "lab" / "lab.json", home / "lab")
    environ = {**pair.environ, "CLUSTERCTL_HOME": str(home)}

    def run(cases):
        for _, case in cases:
            # `lab stop` must not stop the tests' lab.
            if case["argv"][:2] == ["lab", "stop"]:
                case["environ"] = {"CLUSTERCTL_HOME": str(tmp_path / "nothing")}
        found = forks.run_all([case for _, case in cases], environ, tmp_path)
        results = dict(zip((key for key, _ in cases), found))
        for key, came in results.items():
            said = f"{key}: {came}"
            assert "Traceback" not in came["err"], said
            assert "Exception" not in came["err"], said
            assert came["status"] in DOCUMENTED, said
        return results

    yield run
    # Other tests share the lab.
    lifecycle.request_page(pair.lab, "/_lab/faults", "DELETE")


@pytest.mark.all
def test_outputs_that_take_nothing_and_json_that_is_whole(ran):
    ways = ("full", "closed", "gone")
    cases = []
    for number, (name, command) in enumerate(commands()):
        argv = argv_of(name, command) + ["--json"] * takes_json(command)
        more = {"argv": argv, "unbuffered": "1" if number % 2 else ""}
        cases.append(((name, "out"), {"stdout": ways[number % 3], **more}))
        cases.append(((name, "err"), {"stderr": ways[(number + 1) % 3], **more}))
    found = ran(cases)
    for number, (name, command) in enumerate(commands()):
        whole, without = found[name, "err"], found[name, "out"]
        if takes_json(command):
            # Each event of a copy is a line of JSON.
            texts = whole["out"].splitlines() if name == "copy" else [whole["out"]]
            told = [json.loads(text) for text in texts]
            assert whole["status"] == 0 or told, whole
        if name == "lab fault clear":
            continue  # of two at the same time, one finds no fault, which it says on stderr
        if whole["out"] and name not in FOREIGN:
            assert without["status"] != 0, (name, without)
        if without["err"].partition("error:")[0] and ways[(number + 1) % 3] != "closed":
            assert whole["status"] != 0, (name, whole)


@pytest.mark.parametrize("turn", range(3))
@pytest.mark.all
def test_homes_that_cannot_be_written(ran, pair, tmp_path, turn):
    """Each turn tries each command with another one of three homes."""
    nowhere = {
        "cwd": "deleted",
        "unset": ["HOME", "TERM", "LANG"],
        "environ": {"CLUSTERCTL_HOME": "/etc/hostname", "LC_ALL": "C"},
    }
    fresh = ["up", "fresh", "--nodes", "1", "--instance-type", "p3.2xlarge"]
    places = ("readonly", "full")
    homes = {place: {"environ": {"CLUSTERCTL_HOME": str(tmp_path / place)}} for place in places}
    cases = [((place, "up fresh"), {"argv": fresh, **homes[place]}) for place in places]
    ways = (*homes.values(), nowhere)
    for number, (name, command) in enumerate(commands()):
        argv = argv_of(name, command)
        cases.append((name, {"argv": argv, **ways[(number + turn) % 3]}))
    found = ran(cases)
    for place in places:
        came = found[place, "up fresh"]
        assert came["status"] == 1, came
        assert str(tmp_path / place) in came["err"], came
    mine = [{"Name": "tag:clusterctl:cluster", "Values": ["fresh"]}]
    found = client(pair.lab).describe_instances(Filters=mine)
    assert found["Reservations"] == [], "nothing is launched that could not be recorded"


@pytest.mark.parametrize("words", [name for name, command in commands() if takes_json(command)])
def test_a_request_that_makes_no_sense_is_an_object(words, capsys):
    usage = 3 if words in ("diagnose", "doctor", "explain") else 2  # docs/exit-status.md
    assert run_command(cli, [*words.split(), "--json", "--no-such-option"]) == usage
    told = json.loads(capsys.readouterr().out)
    assert (told["error"], told["exit_status"]) == ("UsageError", usage)
    assert "--no-such-option" in told["message"]


def test_no_path_here_may_be_empty_as_an_unset_variable_leaves_it():
    paths = [one for _, command in commands() for one in command.params]
    paths = [one for one in paths if isinstance(one.type, click.Path)]
    assert len(paths) > 10
    for one in paths:
        with pytest.raises(click.BadParameter, match="is a variable of your shell unset"):
            one.type.convert("", one, None)
    with pytest.raises(UsageError, match="a word is empty"):
        job_and_folder(["20261120-154501-3f2a", ""])


def test_no_path_of_the_nodes_may_be_empty_either():
    """But an argument of a program may, and a default."""
    paths = [one for _, command in commands() for one in command.params]
    paths = [one for one in [*paths, *copyclust_verify.params] if isinstance(one.type, NodePath)]
    single = [one for one in paths if one.nargs == 1]
    assert len(single) > 10
    assert {one.name for one in paths if one not in single} == {"arguments"}
    for one in single:
        with pytest.raises(click.BadParameter, match="is a variable of your shell unset"):
            one.type.convert(" ", one, None)
        if one.default == "":
            assert one.type.convert("", one, None) == ""


def test_no_text_of_an_option_may_be_empty():
    """It would count as an option that was not typed: `gc --cluster "$NAME"` would look at all."""
    texts = 0
    alone = [runclust, copyclust, copyclust_verify]
    for command in [*(command for _, command in commands()), *alone]:
        for one in command.params:
            if isinstance(one.type, click.types.StringParamType) and one.opts[0].startswith("-"):
                texts += 1
                typed = click.Context(command)
                typed.set_parameter_source(one.name, click.core.ParameterSource.COMMANDLINE)
                with pytest.raises(click.BadParameter, match="is a variable of your shell unset"):
                    one.type_cast_value(typed, [""] if one.multiple else "")
    assert texts > 50


def test_no_option_that_selects_nodes_forgets_what_was_given_before():
    every = [*(command for _, command in commands()), runclust, copyclust]
    options = [one for command in every for one in command.params if one.opts[0].startswith("-")]
    of_nodes = [one for one in options if isinstance(one.type, Indices) or "-w" in one.opts]
    assert len(of_nodes) > 10
    assert [one.opts for one in of_nodes if not isinstance(one, SelectionOption)] == []


def test_a_word_that_begins_as_a_job_id_and_is_none_is_no_folder():
    folder = Path("20261120-154501-3f2aa")
    shortened = ("20261120-", "20261120-1", "20261120-154501", "20261120-154501-")
    for word in (str(folder), *shortened, "20261120-154501-run"):
        with pytest.raises(UsageError, match="not the id of a job") as refused:
            job_and_folder([word])
        assert refused.value.hint == f"if it is a folder: ./{word}"
    assert job_and_folder([f"./{folder}", "20261120-154501-3f2a"]) == (
        "20261120-154501-3f2a",
        folder,
    )
