"""Run clusterctl's commands in this process, against a moto server or a lab."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.cli.main import cli, run_command


@dataclass
class Ran:
    """What one command came to."""

    status: int
    out: str
    err: str

    @property
    def data(self):
        return json.loads(self.out)


class CommandLine:
    """`clusterctl` with a home of its own."""

    def __init__(self, home: Path, capsys: pytest.CaptureFixture[str], account: list[str]) -> None:
        self.home = home
        self._capsys = capsys
        self._account = account

    @property
    def typed(self) -> str:
        """The options of the account, as they stand behind each command."""
        return " ".join(self._account)

    def __call__(self, command: str, *arguments: str) -> Ran:
        self._capsys.readouterr()
        status = run_command(cli, [command, *self._account, *arguments])
        said = self._capsys.readouterr()
        return Ran(status, said.out, said.err)
