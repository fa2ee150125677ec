"""The cluster's NAME if it is left out, and the shell's completion."""

from __future__ import annotations

import socket
import time

import click
import pytest
from click.shell_completion import ShellComplete

from clusterctl.cli.copyclust import copyclust
from clusterctl.cli.main import cli, run_command
from clusterctl.cli.runclust import runclust
from clusterctl.domain.errors import UsageError
from clusterctl.domain.timeouts import Timeouts

LAB = "us-east-1 at a local EC2, account 123456789012\n"
WEST = "us-west-2 at https://ec2.us-west-2.amazonaws.com, account 123456789012\n"
SSH_CONFIG = """\
Host demo-0 10.0.0.1
    HostName 127.0.0.1
    Port {port}
Host demo-2 10.0.0.3
    HostName 127.0.0.1
Host demo-0 10.0.0.1 demo-2 10.0.0.3
    ConnectTimeout 10
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Return a function that makes the folder of a cluster launched from here, with its place."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.delenv("CLUSTERCTL_LAB", raising=False)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    monkeypatch.chdir(tmp_path)

    def launch(name, site=WEST, port=22):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "ssh_config").write_text(SSH_CONFIG.format(port=port))
        if site:
            (folder / "account").write_text(site)

    (tmp_path / "lab").mkdir()
    (tmp_path / "never-launched").mkdir()
    return launch


def parsed(line):
    """Parse the words of a command. Return the parameters that were given."""
    name, *words = line.split()
    root = click.Context(cli, **cli.context_settings)
    command = cli.get_command(root, name)
    if isinstance(command, click.Group):
        command, words = command.commands[words[0]], words[1:]
    context = command.make_context(name, words, root)
    arguments = [one.name for one in command.params if isinstance(one, click.Argument)]
    given = {key: context.params[key] for key in arguments}
    return {key: value for key, value in given.items() if value not in (None, ())}


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("run demo --nodes 0 --nodes 2-3 true", (0, 2, 3)),
        ("run demo --nodes demo-0 --nodes demo-1 true", (0, 1)),
        ("doctor -w n0 -w n[1-2]", "n0,n[1-2]"),
        ("runclust -w n0 -w n1 true", "n0,n1"),
        ("copyclust -w n0 -w n1 a ~/", "n0,n1"),
        ("gc --regions us-east-1 --regions us-west-2", "us-east-1,us-west-2"),
        ("kill --hosts a --hosts b", None),
        ("kill -w n0 --launcher 1 --launcher 2", None),
        ("copy demo --from 0 --from 1 a ~/", None),
        ("copyclust hosts --from 0 --from 1 a ~/", None),
    ],
)
def test_a_selection_that_is_given_twice_is_joined_or_refused(words, value):
    """The last one alone would leave out hosts, with exit status 0."""
    name, *words = words.split()
    programs = {"runclust": runclust, "copyclust": copyclust}
    root = click.Context(cli, **cli.context_settings)
    command = programs.get(name) or cli.get_command(root, name)
    if value is None:
        with pytest.raises(UsageError, match="is given twice"):
            command.make_context(name, words, root)
        return
    assert value in command.make_context(name, words, root).params.values()


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("status", {"name": "demo"}),
        ("status demo", {"name": "demo"}),
        ("status other", {"name": "other"}),
        ("status No!", {"name": "No!"}),
        ("status --json", {"name": "demo"}),
        ("run hostname", {"name": "demo", "command": "hostname"}),
        ("run -b --nodes 0 hostname", {"name": "demo", "command": "hostname"}),
        ("run ls -la", "run 'ls -la'"),
        ("run demo ls -la", "run demo 'ls -la'"),
        ("run other hostname", {"name": "other", "command": "hostname"}),
        ("run demo hostname", {"name": "demo", "command": "hostname"}),
        ("run demo", "Missing argument 'COMMAND'"),
        ("run", "Missing argument 'COMMAND'"),
        ("train 8 --synthetic", {"name": "demo", "gpus": 8}),
        ("train demo 8", {"name": "demo", "gpus": 8}),
        ("train 8 -- -b 1", {"name": "demo", "gpus": 8, "arguments": ("-b", "1")}),
        ("train other 8 -- -b 1", {"name": "other", "gpus": 8, "arguments": ("-b", "1")}),
        ("add 2", {"name": "demo", "number": 2}),
        ("add other 2", {"name": "other", "number": 2}),
        ("add demo", "Missing argument 'N'"),
        ("ssh", {"name": "demo", "index": 0}),
        ("ssh demo-1", {"name": "demo", "index": 1}),
        ("status demo-1", {"name": "demo-1"}),
        ("ssh 1", {"name": "demo", "index": 1}),
        ("ssh other", {"name": "other", "index": 0}),
        ("ssh other 1", {"name": "other", "index": 1}),
        ("ssh -- hostname", {"name": "demo", "index": 0}),
        ("ssh 1 -- hostname", {"name": "demo", "index": 1}),
        ("reboot 1 2-3", {"name": "demo", "chosen": (1, 2, 3)}),
        ("reboot", {"name": "demo"}),
        ("reboot other 1", {"name": "other", "chosen": (1,)}),
        ("copy data ~/data", {"name": "demo", "src": ("data",), "dst": "~/data"}),
        ("copy demo data ~/data", {"name": "demo", "src": ("data",), "dst": "~/data"}),
        ("copy demo data", "DST is missing"),
        ("copy ./a b c", {"name": "demo", "src": ("./a", "b"), "dst": "c"}),
        ("copy other a b", {"name": "other", "src": ("a",), "dst": "b"}),
        ("s3sync", {"name": "demo"}),
        ("s3sync s3://b/x ~/x", {"name": "demo", "places": ("s3://b/x", "~/x")}),
        ("s3sync other s3://b/x ~/x", {"name": "other", "places": ("s3://b/x", "~/x")}),
        ("data verify ~/data", {"name": "demo", "path": "~/data"}),
        ("env install", {"name": "demo"}),
        ("logs -f", {"name": "demo"}),
        ("kill", {"name": "demo"}),
        ("results", {"name": "demo"}),
        ("results 20261120-154501-3f2a", {"name": "demo", "job": "20261120-154501-3f2a"}),
        ("results other", {"name": "other"}),
        ("results other 20261120-154501-3f2a", {"name": "other", "job": "20261120-154501-3f2a"}),
        ("results --log a.log", {}),
        ("results --log a.log b.log", {"name": "b.log"}),
        # Commands that launch, end or delete print the name of their cluster.
        ("up --nodes 2", "here is demo"),
        ("down --yes", "here is demo"),
        ("stop", "here is demo"),
        ("remove 2-3 5", "here is demo"),
        ("replace 1", "here is demo"),
        ("clean-logs", "here is demo"),
        ("remove demo 1", {"name": "demo", "indices": (1,)}),
        ("down other", {"name": "other"}),
        ("up other", {"name": "other"}),
        ("up -- other", {"name": "other"}),
        ("remove -- demo 1", {"name": "demo", "indices": (1,)}),
    ],
)
def test_a_name_that_was_left_out(line, meant, launched):
    launched("demo")
    try:
        assert parsed(line) == meant
    except Exception as refused:  # noqa: BLE001
        assert isinstance(meant, str), refused
        assert meant in getattr(refused, "format_message", refused.__str__)()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["run", "ls -l"],
            "which cluster? here are old, west\n  hint: say its name: cli run NAME 'ls -l'",
        ),
        (["ssh", "1", "--", "ls", "-l x"], "say its name: cli ssh NAME 1 -- ls '-l x'"),
        (["run", "ls", "--region", "us-west-2"], "here are old, west"),
        (["status", "--lab"], "here are demo, old"),
        (["stop", "--lab", "--region", "us-west-2"], "here is old"),
        (["down", "--region", "eu-west-1", "-y"], "cli down old --region eu-west-1 -y"),
    ],
)
def test_which_clusters_are_here(words, said, launched, capsys):
    launched("west")
    launched("demo", LAB)
    launched("old", site="")
    assert run_command(cli, words, prog_name="cli") == 2
    assert said in capsys.readouterr().err


def test_the_only_cluster_is_in_another_place(launched, capsys):
    launched("demo", LAB)
    assert run_command(cli, ["status"]) == 2
    assert (
        "none on this machine but on the local EC2, with --lab: demo\n" in capsys.readouterr().err
    )


def test_no_cluster_is_here(launched, capsys):
    assert run_command(cli, ["run", "hostname"], prog_name="cli") == 2
    assert capsys.readouterr().err == (
        "error: which cluster? there is none on this machine\n"
        "  hint: say its name: cli run NAME hostname\n"
    )
    assert run_command(cli, ["run", "--help"], prog_name="cli") == 0


def completed(line, within_s=60.0):
    """Return what the shell proposes for the last word. A machine that is busy is slow."""
    *words, last = line.split(" ")
    timeouts = Timeouts(completion_s=within_s)
    complete = ShellComplete(cli, {"obj": timeouts}, "clusterctl", "_CLUSTERCTL_COMPLETE")
    return [item.value for item in complete.get_completions(words, last)]


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("sta", ["start", "status"]),
        ("status ", ["demo", "west"]),
        ("costs w", ["west"]),
        ("env install d", ["demo"]),
        ("remove demo ", ["0", "2"]),
        ("ssh demo 2", ["2"]),
        ("run demo --nodes 0,", ["0,0", "0,2"]),
        ("run nowhere --nodes ", []),
        ("up new --instance-type p3.1", ["p3.16xlarge"]),
        ("up new --or-type p4d.", ["p4d.24xlarge"]),
    ],
)
def test_what_is_completed(line, proposed, launched):
    launched("demo")
    launched("west")
    assert completed(line) == proposed


def test_a_head_node_that_says_nothing_is_not_waited_for(launched):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        launched("demo", port=silent.getsockname()[1])
        began = time.monotonic()
        assert completed("logs demo ", within_s=1.0) == []
        assert time.monotonic() - began < 60


@pytest.mark.lab
def test_jobs_are_completed_by_the_head_node(pair, monkeypatch):
    monkeypatch.setenv("CLUSTERCTL_HOME", str(pair.lab.home))
    monkeypatch.setenv("CLUSTERCTL_LAB", "1")
    job = "20200101-000000-abcd"
    pair.on(0, f"mkdir -p .clusterctl/jobs/{job} .clusterctl/jobs/2020")
    try:
        assert completed("logs pair 2020") == [job]
    finally:
        pair.on(0, f"rm -r .clusterctl/jobs/{job} .clusterctl/jobs/2020")
