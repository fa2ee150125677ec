"""`config schema`: the JSON Schema of each command's --json, and of clusterctl.yaml."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

import jsonschema
import pytest
import yaml

from clusterctl.cli import json_schema
from clusterctl.cli.main import cli, run_command
from clusterctl.cli.params import JsonOption
from clusterctl.config import FILE_NAME
from clusterctl.configuration.options import OPTIONS, ValueKind
from clusterctl.configuration.specfile import parse_spec_file
from tests.cli.test_every_command import commands, takes_json

COMMANDS = dict(commands())
# A record of a command's output: `$ LINE`, stdout, `--`.
RECORD = re.compile(r"^  \$ (?P<line>.*--json.*)\n(?P<out>(?:  .*\n)*?)  --$", re.MULTILINE)
SNAPSHOTS = Path(__file__).parent / "__snapshots__"
# The commands that these programs stand for.
PROGRAMS = {"runclust": "run", "copyclust": "copy", "copyclust verify": "data verify"}


def result_of(name):
    [result] = [one.result for one in COMMANDS[name].params if isinstance(one, JsonOption)]
    return result


def command_in(line):
    words = line.removeprefix("clusterctl ").split()
    known = {**PROGRAMS, **{name: name for name in COMMANDS}}
    return next(
        known[one] for one in (" ".join(words[:3]), " ".join(words[:2]), words[0]) if one in known
    )


def records():
    for file in ("test_goldens.ambr", "test_goldens_life.ambr"):
        for found in RECORD.finditer((SNAPSHOTS / file).read_text()):
            values, text, decoder = [], found["out"].strip(), json.JSONDecoder()
            while text:
                value, end = decoder.raw_decode(text)
                values.append(value)
                text = text[end:].lstrip()
            for value in values:
                if not (isinstance(value, dict) and "error" in value and "exit_status" in value):
                    yield found["line"], command_in(found["line"]), value


def tolerant(schema):
    """Return the schema with masks in place of values: a text, the names of a subtree, or one item
    in place of several."""
    if isinstance(schema, list):
        return [tolerant(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: tolerant(one) for key, one in schema.items() if key != "minItems"}
    return {"anyOf": [inner, {"const": "N"}]} if isinstance(schema.get("type"), str) else inner


def test_each_command_with_json_has_a_schema():
    for name, command in COMMANDS.items():
        if takes_json(command):
            jsonschema.Draft202012Validator.check_schema(json_schema.result_schema(result_of(name)))


def objects_in(schema, below=""):
    """Yield each object of a schema, and the key that it is below."""
    if "properties" in schema:
        yield below, schema
    for key, inner in schema.get("properties", {}).items():
        yield from objects_in(inner, key)
    of_all = [schema.get(name) for name in ("items", "additionalProperties")]
    for inner in (*of_all, *schema.get("anyOf", ()), *schema.get("prefixItems", ())):
        if isinstance(inner, dict):
            yield from objects_in(inner, below)


# Names for what `duration_s`, `zone`, `host`, `hourly_usd` and `message` are.
SYNONYMS = {"took_s", "wall_s", "availability_zone", "node", "usd_per_hour", "why"}


def test_one_thing_has_one_name_and_hosts_without_a_result_are_apart():
    for name in (one for one in COMMANDS if takes_json(COMMANDS[one])):
        for below, one in objects_in(json_schema.result_schema(result_of(name))):
            assert not SYNONYMS & one["properties"].keys(), name
            is_host = {"host", "error"} <= one["properties"].keys()
            # A watched node keeps its last report beside the error.
            assert below == "failures" or not is_host or name == "watch", name
            kind = one["properties"].get("failures", {"type": "array"})
            assert kind.get("type") == "array", name


def test_python_3_9_can_evaluate_the_types(monkeypatch):
    """It knows no `X | None`."""
    shown = set()
    plain = json_schema.hints_of

    def noted(described):
        shown.add(described)
        return plain(described)

    monkeypatch.setattr(json_schema, "hints_of", noted)
    for command in filter(takes_json, COMMANDS.values()):
        json_schema.result_schema(next(p.result for p in command.params if hasattr(p, "result")))
    newer = []
    for one in shown:
        kinds = one.__annotations__
        printed = ("return",) if "return" in kinds else getattr(one, "json_names", kinds)
        newer += [(one, name) for name in printed if " | " in str(kinds.get(name, ""))]
    assert newer == []
    assert len(shown) > 50


def test_what_was_recorded_is_as_the_schemas_describe():
    checked = set()
    for line, name, value in records():
        schema = tolerant(json_schema.result_schema(result_of(name)))
        best = jsonschema.exceptions.best_match(
            jsonschema.Draft202012Validator(schema).iter_errors(value)
        )
        assert best is None, f"{line}: {best.json_path}: {best.message[:300]}"
        checked.add(name)
    assert len(checked) >= 40, sorted({*COMMANDS} - checked)


def settings_of(page):
    """Return the files that the page shows, as indented blocks."""
    blocks = re.findall(r"^    # clusterctl\.yaml\n(?:    .*\n|\n)+", page, re.MULTILINE)
    return [textwrap.dedent(block) for block in blocks]


def examples():
    page = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
    yield from settings_of(page)
    kinds = {
        ValueKind.FLAG: (True, False),
        ValueKind.WHOLE: (1, 4),
        ValueKind.LOAD: (0, 100, 300),
        ValueKind.NUMBER: (8, 0.5),
        ValueKind.DURATION: ("30m", "2h", " 1.5 h "),
        ValueKind.TAGS: ({}, {"team": "vision", "old": None, "cost-center": 1234, "empty": ""}),
    }
    for option in OPTIONS.values():
        values = kinds.get(option.kind, (option.form.example if option.form else "text",))
        values += ("0", 0, "0s") if option.zero else ()
        for value in (*values, *([[values[0]]] if option.kind is ValueKind.LIST else []), None):
            yield yaml.safe_dump({"defaults": {option.key: value}})
            yield yaml.safe_dump({"clusters": {"demo": {option.key: value, "extends": "base"}}})


TEXTS = ("image", "profile", "user-data", "network", "instance-profile", "or-type")


def errors_of(text):
    found = jsonschema.Draft202012Validator(json_schema.file_schema()).iter_errors(
        yaml.safe_load(text)
    )
    return [error.message for error in found]


def problems_of(text):
    """Return the problems that the loader finds, but for what no schema sees."""
    _, problems = parse_spec_file(text.encode(), Path(FILE_NAME))
    return [one for one in problems if "there is no cluster" not in one.message]


def test_the_schema_of_the_file_takes_what_the_loader_takes():
    texts = list(examples())
    assert len(texts) > 2 * len(OPTIONS)
    for text in texts:
        assert (problems_of(text), errors_of(text)) == ([], []), text


@pytest.mark.parametrize(
    "text",
    [
        "default: {}",
        "nodes: 4",
        "defaults: {spott: true}",
        "defaults: {extends: base}",
        "defaults: {nodes: four}",
        "defaults: {nodes: 0}",
        "defaults: {spot: maybe}",
        "defaults: {budget: 0}",
        "defaults: {instance-type: p4d}",
        "clusters: {demo: 4}",
        *(f"defaults: {{idle-stop: {value}}}" for value in ("x", "'30'", "1h30m", "2H", "0", "0s")),
        *(f"defaults: {{capacity-timeout: {value}}}" for value in ("x", "100", "'1'", "1.5")),
        *(f"defaults: {{disk-load: {value}}}" for value in (1, 99, 301)),
        *(f"defaults: {{{key}: {value}}}" for key in TEXTS for value in ("''", "1", "true")),
        "defaults: {tag: {team: [1]}}",
    ],
)
def test_the_schema_of_the_file_refuses_what_the_loader_refuses(text):
    assert problems_of(text)
    assert errors_of(text)


def test_schemas_on_the_command_line(capsys):
    def schema(*words):
        status = run_command(cli, ["config", "schema", *words])
        return status, json.loads(capsys.readouterr().out or "null")

    assert schema() == (0, json_schema.file_schema())
    for command in ("jobs", "env status"):
        assert schema(*command.split()) == (0, json_schema.result_schema(result_of(command)))
    assert schema("env") == (2, None)
    run_command(cli, ["config", "schema", "data"])
    assert "name one of its commands: verify" in capsys.readouterr().err


def test_the_stacks_of_a_diagnosis_are_described_to_their_leaves():
    schema = json_schema.result_schema(result_of("diagnose"))["properties"]["tree"]
    leaf = {"call": "step train.py:7", "ranks": "0", "moved": "", "children": []}

    def errors(deep):
        tree = {**leaf, "children": [leaf, {**leaf, "children": [deep]}]}
        return [one.json_path for one in jsonschema.Draft202012Validator(schema).iter_errors(tree)]

    assert errors(leaf) == []
    assert errors({**leaf, "ranks": 0}) == ["$.children[1].children[0].ranks"]
