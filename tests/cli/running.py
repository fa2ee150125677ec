"""Run clusterctl's commands in this process, against a moto server or a lab."""

from __future__ import annotations

import functools
import io
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.cli.main import cli, run_command
from clusterctl.domain.timeouts import Timeouts
from clusterctl.ec2 import session
from tests.moto_ec2 import REGION

make_clients = session.Clients
DEMO = ("demo", "--nodes", "2", "--instance-type", "p4d.24xlarge")


@dataclass
class Ran:
    """The result of one command."""

    status: int
    out: str
    err: str

    @property
    def data(self):
        return json.loads(self.out)


class CommandLine:
    """`clusterctl` with its own home. `timeouts` are those of the commands that are run."""

    def __init__(
        self,
        home: Path,
        capsys: pytest.CaptureFixture[str],
        account: list[str],
        timeouts: Timeouts = Timeouts(),
    ) -> None:
        self.home = home
        self.timeouts = timeouts
        self._capsys = capsys
        self._account = account

    @property
    def typed(self) -> str:
        """The options that select the account, which follow each command."""
        return " ".join(self._account)

    def anywhere(self) -> CommandLine:
        """Run a command without the options that select an account."""
        return CommandLine(self.home, self._capsys, [], self.timeouts)

    def __call__(self, command: str, *arguments: str) -> Ran:
        """Run a command. `command` is all before the options: `up`, `network up`."""
        self._capsys.readouterr()
        status = run_command(cli, [*command.split(), *self._account, *arguments], obj=self.timeouts)
        said = self._capsys.readouterr()
        return Ran(status, said.out, said.err)

    def ends(self, status: int, shown: str, command: str, *arguments: str) -> str:
        """Return stderr of a command, which has to end with this status and show this text."""
        ran = self(command, *arguments)
        assert (ran.status, shown in ran.err) == (status, True), ran
        return ran.err


@functools.lru_cache
def clients(account):
    """Share clients among tests with the same account: to make one takes longer than most tests."""
    return make_clients(account)


def launched(clusterctl: CommandLine, *more: str) -> Ran:
    """Launch a cluster whose nodes run but are never ready, since moto has no hosts."""
    ran = clusterctl("up", *DEMO, *more, "--timeout", "0.01s")
    assert ran.status == 1
    return ran


def type_on_terminal(monkeypatch, text: str, seen: bool = True) -> io.StringIO:
    """Let commands read this from a terminal. `seen`: whether it also shows their questions."""
    terminal = io.StringIO(text)
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stdin", terminal)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: seen)
    return terminal


def at_moto(url: str, home: Path, monkeypatch, capsys, timeouts=Timeouts()) -> CommandLine:
    """Return the command line for moto's EC2 at this address."""
    monkeypatch.setenv("CLUSTERCTL_HOME", str(home))
    monkeypatch.setenv("CLUSTERCTL_LAB", "0")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "test")
    return CommandLine(home, capsys, ["--endpoint-url", url, "--region", REGION], timeouts)


@pytest.fixture
def clusterctl(client, moto_url, tmp_path, monkeypatch, capsys) -> CommandLine:
    """Return the command line for moto's EC2, with its own home."""
    home = tmp_path / "home"
    monkeypatch.setattr(session, "Clients", clients)
    return at_moto(moto_url, home, monkeypatch, capsys)
