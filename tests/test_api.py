"""The documented Python program runs on a cluster of the local EC2."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


@pytest.mark.lab
def test_the_program_of_the_page(lab, tmp_path, monkeypatch, capsys):
    from clusterctl.cli.main import cli

    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    monkeypatch.setenv("CLUSTERCTL_LAB", "1")
    monkeypatch.setattr("sys.stdin", io.StringIO())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.json").write_text("{}\n")
    [program] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    runner = CliRunner()
    words = ["up", "demo", "--nodes", "2", "--instance-type", "p3.2xlarge"]
    assert runner.invoke(cli, words, catch_exceptions=False).exit_code == 0
    try:
        capsys.readouterr()
        exec(compile(program, str(PAGE), "exec"), {})
        hostname, addresses = capsys.readouterr().out.splitlines()
        assert hostname.startswith("ip-10-")
        assert len(re.findall(r"\d+\.\d+\.\d+\.\d+", addresses)) == 2
        done = runner.invoke(cli, ["run", "demo", "-n", "--nodes", "1", "cat settings.json"])
        assert done.exit_code == 0, done.output
    finally:
        runner.invoke(cli, ["down", "demo", "--yes"], catch_exceptions=False)
