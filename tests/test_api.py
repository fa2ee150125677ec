"""The documented Python programs run on a cluster of the local EC2."""

from __future__ import annotations

import inspect
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
        # Without Open MPI's harmless warning about a race for a group.
        ended, *log = [line for line in lines[4:-2] if "plm:ssh: Warning: setpgid" not in line]
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


def test_an_argument_of_a_wrong_type_is_refused_by_name(monkeypatch, tmp_path):
    """No function goes on with one: a string is not taken apart, and nothing hangs."""
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    functions = [getattr(api, name) for name in api.__all__]
    functions = [function for function in functions if inspect.isfunction(function)]
    assert len(functions) == 12
    right = {"name": "demo", "command": "true", "sources": [], "destination": "~/"}
    right |= {"settings": {}, "request": None, "folder": "runs", "sizes": [1]}
    refused = {}
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        needed = [one.name for one in parameters if one.default is one.empty and one.kind != 4]
        for name in [*(one.name for one in parameters if one.kind != 4), "lab", "region"]:
            given = {other: right[other] for other in needed} | {name: object()}
            with pytest.raises(UsageError) as error:
                function(**given)
            refused[function.__name__, name] = error.value.message
    assert all(text.startswith(f"{name}: ") for (name, _), text in refused.items()), refused
    for function, wrong in (
        (api.run, {"command": ["true"]}),
        (api.run, {"command": "true", "nodes": [True]}),
        (api.run, {"command": "true", "nodes": [0.5]}),
        (api.run, {"command": "true", "stdin": io.BytesIO()}),
        (api.run, {"command": "true", "timeout_s": "5"}),
        (api.bench, {"settings": None, "sizes": "12", "folder": "runs"}),
        (api.copy, {"sources": [b"a"], "destination": "~/"}),
        (api.fetch, {"folder": "runs", "verify": 1}),
        (api.logs, {"lab": "yes"}),
    ):
        names = {} if function is api.bench else {"name": "demo"}
        with pytest.raises(UsageError, match=rf"^{function.__name__}: \w+ is .*, not "):
            function(**names, **wrong)
    with pytest.raises(UsageError, match="no SRC: there is nothing to copy"):
        api.copy("demo", [], "~/")
    with pytest.raises(UsageError, match="nothing at 'settings.json'"):
        api.copy("demo", "settings.json", "~/")
    with pytest.raises(UsageError, match="SRC is on one node, not on 0-1"):
        api.copy("demo", Path("a"), "~/", from_node="0-1")


@pytest.mark.parametrize(
    ("nodes", "indices"),
    [
        (None, None),
        (1, (1,)),
        ("0-2,5", (0, 1, 2, 5)),
        ("demo-[1,3]", (1, 3)),
        (["demo-9", 0, "9"], (9, 0)),
        ((), ()),
    ],
)
def test_nodes_are_what_the_option_takes_or_a_list_of_that(nodes, indices):
    from clusterctl import api

    assert api._indices("demo", nodes) == indices
    with pytest.raises(UsageError, match="nodes of other are named, and the cluster is demo"):
        api._indices("demo", ["other-1"])


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
