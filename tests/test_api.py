"""The documented Python programs run on a cluster of the local EC2."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from clusterctl.config import settings_of
from clusterctl.domain.errors import UsageError

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def run_program(text: str, capsys) -> list[str]:
    """Run a program of the page. Return the lines that it prints."""
    capsys.readouterr()
    exec(compile(text, str(PAGE), "exec"), {})
    lines: list[str] = capsys.readouterr().out.splitlines()
    return lines


@pytest.mark.lab
def test_the_programs_of_the_page(lab, tmp_path, monkeypatch, capsys):
    from clusterctl import api
    from clusterctl.cli.main import cli

    monkeypatch.setenv("CLUSTERCTL_HOME", str(lab.home))
    monkeypatch.setenv("CLUSTERCTL_LAB", "1")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())  # fabric reads it
    (tmp_path / "settings.json").write_text("{}\n")
    (tmp_path / "train.py").write_text("print('trained')\n")
    verbs, connections = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    # The connections are to the cluster that the other program makes.
    kept, last = verbs.rsplit("\n", 2)[:2]
    assert last == 'api.down("demo", discard_results=True)'
    launch, work = kept.split("\nreport = ")
    imports = launch.partition("\n\n")[0] + "\n"
    try:
        [addresses] = run_program(launch, capsys)
        assert len(re.findall(r"\d+\.\d+\.\d+\.\d+", addresses)) == 2
        lines = run_program(f"{imports}report = {work}", capsys)
        assert lines[:4] == [
            "demo-0 has the file",
            "demo-1 has the file",
            "demo-0 0 3",
            "demo-1 0 3",
        ]
        ended, *log = lines[4:-2]
        assert ended.startswith("succeeded 0 ")
        assert log[:2] == ["trained", "trained"]
        assert (tmp_path / "runs" / "first" / "record.json").exists()
        assert lines[-2] == "['succeeded']"
        assert "ended well" in lines[-1]
        hostname, again = run_program(connections, capsys)
        assert hostname.startswith("ip-10-")
        assert again == addresses
        removed = api.down("demo", discard_results=True)
        assert removed.nodes == ("demo-0", "demo-1")
    finally:
        CliRunner().invoke(cli, ["down", "demo", "--yes", "--discard-results"])


def test_settings_are_checked_as_those_of_the_file():
    assert settings_of({"nodes": 2, "tag": {"team": "vision"}}) == {
        "nodes": 2,
        "tag.team": "vision",
    }
    with pytest.raises(UsageError) as refused:
        settings_of({"node": 2, "spot": "often"})
    assert refused.value.message == (
        "node: no such key; did you mean nodes?; spot: not true or false: 'often'"
    )
