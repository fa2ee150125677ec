"""The documented Python programs run on a cluster of the local EC2."""

from __future__ import annotations

import inspect
import io
import math
import re
from contextlib import nullcontext
from dataclasses import make_dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Optional

import click
import pytest
from click.testing import CliRunner

from clusterctl.cli.main import cli
from clusterctl.cli.params import Duration
from clusterctl.config import settings_of
from clusterctl.domain.errors import UsageError
from clusterctl.jobs.horovod import HorovodTuning
from clusterctl.jobs.plan import check_request

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
        # A file's name as os.listdir reads it is sent as its bytes.
        [sent] = api.run("demo", "od -An -tx1", nodes=0, stdin="\udcff").values
        assert sent.stdout.split() == ["ff"]
        removed = api.down("demo", discard_results=True)
        assert removed.nodes == ("demo-0", "demo-1")
    finally:
        CliRunner().invoke(cli, ["down", "demo", "--yes", "--discard-results"])


def test_an_argument_of_a_wrong_type_is_refused_by_name(monkeypatch, tmp_path):
    """No function goes on with one: a string is not taken apart, and nothing hangs."""
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    def needed_by(function):
        parameters = inspect.signature(function).parameters.values()
        return [one.name for one in parameters if one.default is one.empty and one.kind != 4]

    functions = [getattr(api, name) for name in api.__all__]
    functions = [function for function in functions if inspect.isfunction(function)]
    assert len(functions) == 12
    right = {"name": "demo", "command": "true", "sources": [], "destination": "~/"}
    right |= {"settings": {}, "request": None, "folder": "runs", "sizes": [1]}
    refused = {}
    for function in functions:
        parameters = inspect.signature(function).parameters.values()
        for name in [*(one.name for one in parameters if one.kind != 4), "lab", "region"]:
            given = {other: right[other] for other in needed_by(function)} | {name: object()}
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
    for function in functions:
        with pytest.raises(TypeError, match=rf"^{function.__name__}\(\) got .* argument 'node'"):
            function(**{name: right[name] for name in needed_by(function)}, node=0)
    with pytest.raises(UsageError, match="timeout_s: .*: this machine waits for 290 years"):
        api.run("demo", "true", timeout_s=1e12)
    with pytest.raises(UsageError, match="nothing at 'settings.json'"):
        api.copy("demo", "settings.json", "~/")
    with pytest.raises(UsageError, match="from_node: not a node's index or name: '0-1'"):
        api.copy("demo", Path("a"), "~/", from_node="0-1")


def refusal(function, *args, **given):
    with pytest.raises(UsageError) as refused:
        function(*args, **given)
    return refused.value.message


def test_a_field_of_a_wrong_type_is_refused_by_name(monkeypatch, tmp_path):
    """A string is not taken apart, and no node is asked."""
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))

    def of_job(**wrong):
        return refusal(api.train, "demo", api.JobRequest(**{"ranks": 2, **wrong}))

    # The class may be derived from: its own fields are its own.
    own = [("tag", Optional[str], None)]
    derived = make_dataclass("Mine", own, bases=(api.JobRequest,), frozen=True)
    assert refusal(api.train, "demo", derived(2, script=3)).startswith("train: request.script is")
    words, variables = "train: request.arguments is tuple[str, ...], not ", "tuple[Variable, ...]"
    assert of_job(script=Path("f")).startswith("train: request.script is str | None, not ")
    assert of_job(arguments="00") == f"{words}'00'"
    assert of_job(arguments=(0, 3)) == f"{words}(0, 3)"
    assert of_job(ranks="2") == "train: request.ranks is int, not '2'"
    assert of_job(ranks=2.0) == "train: request.ranks is int, not 2.0"
    assert of_job(variables=("A=1",)) == f"train: request.variables is {variables}, not ('A=1',)"
    wrong = (api.Variable("A", 1),)
    assert of_job(variables=wrong) == "train: request.variables[0].value is str, not 1"
    tuning = HorovodTuning(autotune="yes")
    assert of_job(tuning=tuning) == "train: request.tuning.autotune is bool, not 'yes'"
    for wrong in ({"streams": "4"}, {"files_from": ["x"]}, {"link_rate": math.nan}):
        [(name, value)] = wrong.items()
        message = refusal(api.copy, "demo", "a", "~/", options=api.CopyOptions(**wrong))
        kind = api.CopyOptions.__annotations__[name]
        assert message == f"copy: options.{name} is {kind}, not {value!r}"
    assert refusal(api.run, "demo", "cat", stdin="\ud800").startswith("run: stdin is ")
    assert refusal(api.run, "demo", "a\0b").startswith("run: command has a zero byte")
    assert of_job(arguments=("a\0b",)).startswith("train: request.arguments has a zero byte")
    assert "has a zero byte" in refusal(api.fetch, "demo", Path("a\0b"))


def test_an_empty_word_and_an_empty_selection_are_refused(monkeypatch, tmp_path):
    """They would mean the folder here, the latest job, or no node at all."""
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    assert refusal(api.run, "demo", "true", nodes=[]) == "run: nodes is empty"
    assert refusal(api.run, "demo", " ") == "run: command is empty"
    assert refusal(api.copy, "demo", [], "~/") == "copy: sources is empty"
    assert refusal(api.fetch, "demo", "") == "fetch: folder is empty"
    for function in (api.wait, api.logs, api.diagnose):
        assert refusal(function, "demo", "") == f"{function.__name__}: job_id is empty"
    assert refusal(api.wait, "demo", "x") == "not the id of a job: 'x'"
    request = api.JobRequest(ranks=2, script="")
    assert refusal(api.train, "demo", request) == "train: request.script is empty"
    assert refusal(api.bench, api.BenchSettings("demo"), [], "runs") == "bench: sizes is empty"
    nothing = api.BenchSettings("demo", synthetic=False)
    assert refusal(api.bench, nothing, [1], "runs").startswith("bench trains on noise")
    assert refusal(api.bench, api.BenchSettings("demo"), [0], "runs").startswith("not numbers of")


def test_a_zero_byte_is_refused_wherever_a_text_may_be(monkeypatch, tmp_path):
    """No command, path or name can have one: it would end what the nodes get, or a connection."""
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    end = " has a zero byte, which no command, path or name can have"
    assert refusal(api.run, "demo", "echo a\0b") == f"run: command{end}"
    assert refusal(api.fetch, "demo", "a\0b") == f"fetch: folder{end}"
    assert refusal(api.fetch, "demo", Path("a\0b")) == f"fetch: folder{end}"
    assert refusal(api.copy, "demo", ["a", "b\0"], "~/") == f"copy: sources{end}"
    assert refusal(api.up, "demo", {"user": "a\0b"}) == f"up: settings{end}"
    assert refusal(api.jobs, "demo", region="eu\0") == f"jobs: region{end}"
    request = api.JobRequest(ranks=2, script="f.py", arguments=("a\0b",))
    assert refusal(api.train, "demo", request) == f"train: request.arguments{end}"
    request = api.JobRequest(ranks=2, variables=(api.Variable("A", "\0"),))
    assert refusal(api.train, "demo", request) == f"train: request.variables[0].value{end}"
    # What a program reads may have one: the next argument is the one that is refused.
    assert "zero" not in refusal(api.run, "demo", "cat", stdin="a\0b", nodes="other-1")


# Options of a command that a function lacks.
LACKING = {
    "run": {"fanout"},
    "train": {"launcher", "input_mode", "credentials", "watchdog_s"},
    "bench": {"streams"},
}


@pytest.mark.parametrize("name", ["run", "copy", "train", "wait", "logs", "diagnose", "bench"])
def test_what_an_option_refuses_the_function_refuses(monkeypatch, tmp_path, name):
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    function = getattr(api, name)
    given = {"name": "demo", "command": "true", "sources": "a", "destination": "~/"}
    given |= {"request": api.JobRequest(ranks=2), "settings": api.BenchSettings("demo")}
    given |= {"options": api.CopyOptions(), "sizes": [1], "folder": "runs"}
    known = inspect.signature(function).parameters
    given = {one: value for one, value in given.items() if one in known}
    lacking = set()
    for option in cli.get_command(click.Context(cli), name).params:
        kind = option.type
        if isinstance(kind, click.IntRange):
            wrong = kind.min - 1
        elif isinstance(kind, click.Choice):
            wrong = "bogus"
        elif isinstance(kind, Duration):
            wrong = -1.0
        else:
            continue
        values = {option.name: wrong}
        if option.name not in known:
            for one, whole in given.items():
                if hasattr(whole, option.name):
                    values = {one: replace(whole, **values)}
                elif hasattr(getattr(whole, "tuning", None), option.name):
                    values = {one: replace(whole, tuning=replace(whole.tuning, **values))}
        if {*values} <= {*known}:
            message = refusal(function, **{**given, **values})
            assert re.match(rf"{name}: ([\w.]+\.)?{option.name}: ", message), message
        else:
            lacking.add(option.name)
    assert lacking == LACKING.get(name, set())


def test_bench_sends_the_variables_of_its_settings(monkeypatch):
    from clusterctl import api

    planned = []

    def plan(clients, status, access, request, place):
        planned.append(request)
        raise UsageError("planned")

    app = SimpleNamespace(
        clients=None,
        status=lambda name: SimpleNamespace(cluster=None),
        access=lambda cluster: nullcontext(),
    )
    monkeypatch.setattr(api, "_app", lambda name, account: app)
    monkeypatch.setattr(api.benchmarks, "plan_benchmark", plan)
    settings = api.BenchSettings("demo", variables=("NCCL_DEBUG=INFO",))
    assert refusal(api.bench, settings, [8, 1, 8], "runs") == "planned"
    assert planned[0].variables == (api.Variable("NCCL_DEBUG", "INFO"),)
    assert planned[0].sizes == (1, 8)


def test_what_options_refuse_together_the_functions_refuse(monkeypatch, tmp_path):
    from clusterctl import api

    monkeypatch.setenv("CLUSTERCTL_HOME", str(tmp_path))
    for given, says in (
        ({"min_gpus": 1}, "--min-gpus is for --retries"),
        ({"min_gpus": 3, "retries": 1}, "--min-gpus 3 is more than GPUS"),
    ):
        assert refusal(api.train, "demo", api.JobRequest(ranks=2), **given).startswith(says)
    assert "not the name of a variable" in refusal(api.Variable, "A B", "1")
    own = replace(api.JobRequest(ranks=2), mpi_arguments=("-np", "4"))
    with pytest.raises(UsageError, match="--mpi-arg -np: "):
        check_request(own, 2, "")


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


@pytest.mark.parametrize(
    "value", [object(), {"a": {1, object()}}, 10**5000], ids=["object", "set", "huge"]
)
def test_a_setting_that_is_no_value_of_yaml_is_refused(value):
    with pytest.raises(UsageError, match="^nodes: no clusterctl.yaml can have this value, of t"):
        settings_of({"nodes": value})


def test_the_path_of_a_file_may_be_a_path():
    assert settings_of({"user-data": Path("boot.sh")}) == settings_of({"user-data": "boot.sh"})
