"""`clusterctl config`: show the settings of a cluster, and check the file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import ClusterName, config_option
from clusterctl.cli.params import Group, JsonOption, json_option
from clusterctl.config import FILE_NAME, find_file, home_folder, load_spec_file, read_spec_file
from clusterctl.configuration.options import (
    ACCOUNT,
    OPTIONS,
    TAG,
    Option,
    SpecDraft,
    ValueKind,
    Values,
    environment_values,
    merged,
    misspelt,
    read_user_data,
    shown,
)
from clusterctl.domain.cluster import MOST_NODES
from clusterctl.domain.errors import UsageError, did_you_mean
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.configuration.specfile import SpecFile
    from clusterctl.configuration.yaml_tree import Problem


@click.group(cls=Group)
def config() -> None:
    """The settings in clusterctl.yaml and the environment.

    \b
    All commands that use an AWS account have these options:
      --lab / --no-lab    Use the local EC2 (or set CLUSTERCTL_LAB=1).
      --region REGION     AWS region.
      --profile NAME      AWS profile.
      --endpoint-url URL  Another EC2 endpoint.
      --config FILE       Settings to use in place of clusterctl.yaml.

    \b
    Example:
      clusterctl config check
      clusterctl config show demo
    """


@config.command()
@click.argument("name", required=False, type=ClusterName())
@config_option()
@json_option("SettingsData")
def show(name: str | None, config: Path | None, as_json: bool) -> None:
    """Show the settings of cluster NAME, or those of any cluster.

    \b
    Example:
      clusterctl config show demo
    """
    file = load_spec_file(config, os.environ)
    given = merged(
        file.values(name) if file else {},
        environment_values(os.environ, ACCOUNT),
        environment_values(os.environ),
    )
    variables = [one.variable for one in OPTIONS.values() if os.environ.get(one.variable)]
    _notes(file, name)
    if as_json:
        output.data(
            {
                "file": str(file.path) if file else None,
                "environment": variables,
                "cluster": name,
                "clusters": list(file.clusters) if file else [],
                "settings": _settings(given),
            }
        )
        return
    rows = [
        (key, _shown(OPTIONS[key.partition(".")[0]], value))
        for key, value in _settings(given).items()
    ]
    output.table(("SETTING", "VALUE"), rows)
    if file:
        clusters = f"; its clusters: {', '.join(file.clusters)}" if file.clusters else ""
        output.note(f"read: {file.path}{clusters}")
    if variables:
        output.note(f"from the environment: {', '.join(variables)}")


def _notes(file: SpecFile | None, name: str | None) -> None:
    """Print what is easily overlooked: a cluster that the file lacks, a misspelt variable."""
    if file and name and name not in file.clusters:
        near = did_you_mean(name, file.clusters)
        output.note(f"{file.path} has no cluster {name}: its defaults hold{near}")
    for text in misspelt(os.environ):
        output.note(f"warning: {text}")


def _settings(given: Values) -> Mapping[str, Any]:
    """Return the value of every setting, in the order of the table; None is the built-in one."""
    found: dict[str, Any] = {}
    for key, option in OPTIONS.items():
        tags = (
            [tag for tag in given if tag.startswith(TAG)] if option.kind is ValueKind.TAGS else []
        )
        found.update({one: given.get(one) for one in tags or [key]})
    return found


def _shown(option: Option, value: Any) -> str:
    return (option.builtin or "-") if value is None else shown(option, value)


@config.command()
@config_option()
@json_option("CheckedFile")
def check(config: Path | None, as_json: bool) -> int:
    """Check the file, and that each cluster in it can be launched as it is described.

    The exit status is 1 if anything is wrong.

    \b
    Example:
      clusterctl config check
      clusterctl config check --config team.yaml
    """
    path = find_file(config, os.environ)
    if path is None:
        raise UsageError(
            f"there is no {FILE_NAME} here and none in {home_folder()}",
            "write one (docs/configuration.md), or name it: --config FILE",
        )
    file, problems = read_spec_file(path)
    both = [*problems, *_cluster_problems(file)]
    problems = tuple(sorted(both, key=lambda problem: problem.line))
    for text in misspelt(os.environ):
        output.note(f"warning: {text}")
    if as_json:
        output.data({"file": str(path), "clusters": list(file.clusters), "problems": problems})
    elif problems:
        for problem in problems:
            output.line(problem.at(str(path)))
    else:
        output.line(f"{path}: {count(len(file.clusters), 'cluster')}, no problem")
    return 1 if problems else 0


def _cluster_problems(file: SpecFile) -> list[Problem]:
    """Return the problems that appear only when all of a cluster's settings are combined."""
    from clusterctl.configuration.yaml_tree import Problem

    return [
        Problem(entry.line, f"clusters.{name}", message)
        for name, entry in file.clusters.items()
        for message in _refusals(SpecDraft.of(name, file.values(name)))
    ]


def _refusals(draft: SpecDraft) -> Iterator[str]:
    """Yield why a launch would be refused. Settings that the file leaves open are no reason."""
    values = dict(draft.values)
    # Read apart from the rest, so that its error and another one are both reported.
    user_data = values.pop("user-data", None)
    try:
        # Stand-ins for what the command line may still give.
        SpecDraft(draft.name, values).spec(nodes=MOST_NODES, instance_type="g5.xlarge")
    except UsageError as error:
        yield error.message
    try:
        if user_data is not None:
            read_user_data(user_data)
    except UsageError as error:
        yield error.message


@config.command()
@click.argument("words", nargs=-1, metavar="[COMMAND]")
def schema(words: tuple[str, ...]) -> None:
    """Print the JSON Schema of clusterctl.yaml, or of what COMMAND prints with --json.

    \b
    Example:
      clusterctl config schema > clusterctl.schema.json
      clusterctl config schema jobs
      clusterctl config schema env status
    """
    from clusterctl.cli import json_schema

    if not words:
        output.data(json_schema.file_schema())
        return
    context = click.get_current_context()
    command: click.Command | None = context.find_root().command
    for word in words:
        command = command.get_command(context, word) if isinstance(command, click.Group) else None
    results = (
        [one.result for one in command.params if isinstance(one, JsonOption)] if command else []
    )
    if not results:
        hint = "see clusterctl --help"
        if isinstance(command, click.Group):
            hint = f"name one of its commands: {', '.join(sorted(command.commands))}"
        raise UsageError(f"no command with --json: {' '.join(words)}", hint)
    output.data(json_schema.result_schema(results[0]))
