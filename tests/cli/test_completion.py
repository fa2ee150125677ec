"""What real shells propose at a Tab, and what completion never does: ask AWS."""

from __future__ import annotations

import shutil
import socket
import sys
from pathlib import Path

import click
import pytest

from tests.cli.test_every_command import commands
from tests.programs import completed

BIN = Path(sys.executable).parent
# Prints what the shell's own completion proposes for the words of $@; the last may be empty.
BASH = """\
eval "$(clusterctl completion bash)"
compopt() { echo "a file"; }
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
words=($(complete -p "$1"))
"${words[-2]}" "$1"
printf '%s\\n' "${COMPREPLY[@]}"
"""
ZSH = """\
autoload -U compinit; compinit -D
eval "$(clusterctl completion zsh)"
compadd() { print -l -- $completions }
_describe() { print -l -- ${completions_with_descriptions%%:*} }
_path_files() { print "a file" }
words=("$@") CURRENT=$#
$_comps[$1]
"""
FISH = 'clusterctl completion fish | source; complete -C "$argv"'


def proposed(shell, home, *words):
    program = {"bash": BASH, "zsh": ZSH, "fish": FISH}[shell]
    options = {"bash": ("--norc", "-c"), "zsh": ("-f", "-c"), "fish": ("--no-config", "-c")}[shell]
    name = () if shell == "fish" else (shell,)  # $0
    done = completed(
        [shell, *options, program, *name, *words],
        env={"HOME": str(home), "PATH": f"{BIN}:/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
        cwd=home,
        check=True,
    )
    assert done.stderr == ""
    return [line.partition("\t")[0] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    "shell", ["bash", *(pytest.param(one, marks=pytest.mark.all) for one in ("zsh", "fish"))]
)
def test_what_a_shell_proposes(shell, tmp_path):
    if not shutil.which(shell):
        pytest.skip(f"there is no {shell}")
    for name in ("demo", "diana"):
        folder = tmp_path / ".clusterctl" / name
        folder.mkdir(parents=True)
        (folder / "launch.json").write_text("[]")
    (tmp_path / "data.tar").touch()
    assert proposed(shell, tmp_path, "cctl", "status", "d") == ["demo", "diana"]
    assert proposed(shell, tmp_path, "clusterctl", "sta") == ["start", "status"]
    twice = ("--slurm", "1", "--slurm", "2")  # an error later, and none at a Tab
    assert "--help" in proposed(shell, tmp_path, "cctl", "doctor", *twice, "--h")
    assert "--help" in proposed(shell, tmp_path, "runclust", "--h")
    assert proposed(shell, tmp_path, "copyclust", "hosts", "da") == (
        ["data.tar"] if shell == "fish" else ["a file"]
    )


def test_a_tab_asks_nobody_on_the_network(tmp_path, monkeypatch):
    """No argument and no option of any command: AWS would be asked through this endpoint."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with socket.create_server(("127.0.0.1", 0)) as endpoint:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{endpoint.getsockname()[1]}")
        endpoint.setblocking(False)
        for name, command in commands():
            context = click.Context(command, info_name=name)
            context.params = {"name": "demo", "region": "us-east-1"}
            for parameter in command.params:
                parameter.shell_complete(context, "")
        with pytest.raises(BlockingIOError):
            endpoint.accept()


def test_the_program_is_named_as_it_was_called(tmp_path):
    """Another program may be the first `clusterctl` of the PATH."""
    environ = {"PATH": "/usr/bin:/bin", "CLUSTERCTL_HOME": str(tmp_path)}

    def told(name, *words):
        done = completed([BIN / name, *words], env=environ)
        return done.stdout + done.stderr

    for name in ("clusterctl", "cctl"):
        assert f"hint: start it: {name} lab start\n" in told(name, "list", "--lab")
        assert f"  {name} explain train.log" in told(name, "explain", "-h")
        assert f'"hint": "start it: {name} lab start"' in told(name, "list", "--lab", "--json")
        assert f"hint: say its name: {name} status NAME --lab\n" in told(name, "status", "--lab")
    assert list(tmp_path.iterdir()) == []
