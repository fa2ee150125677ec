"""`runclust HOSTS COMMAND [verbose]`: the tutorial's function, for any hosts file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from clusterctl.cli.host_options import HostsCommand, hosts_argument
from clusterctl.cli.main import run_program
from clusterctl.cli.params import CommandText, Duration
from clusterctl.cli.run_on import FanoutOptions, QuotedCommand, fanout_options, run_on


class RunclustCommand(QuotedCommand, HostsCommand):
    """COMMAND is the second word, or with -w the first."""

    def before_command(self, words: list[str], given: Mapping[str, Any]) -> int:
        return 0 if given.get("nodes") else 1


@click.command(cls=RunclustCommand, context_settings={"help_option_names": ["-h", "--help"]})
@hosts_argument
@click.argument("command", type=CommandText())
@click.argument("verbose", required=False, type=click.Choice(["verbose"]))
@click.option("--connect-timeout", type=Duration(), default=10.0, help="Per host; default 10s.")
@fanout_options
def runclust(
    hosts: Path | list[str],
    command: str,
    verbose: str | None,
    user: str | None,
    key: Path | None,
    connect_timeout: float,
    options: FanoutOptions,
) -> int:
    """Run COMMAND on every host of the hosts file HOSTS, in parallel over SSH.

    \b
    runclust hosts 'nvidia-smi -L'
    runclust hosts uptime verbose
    runclust -b hosts 'df -h /'
    runclust -w 'node[1-9]' uptime

    Each line of output has its host's name before it; -b shows hosts with the same output
    once. What is piped in goes to every host. The exit status is the highest of the hosts',
    or 255 if one could not be reached or did not end in time.
    """
    from clusterctl.config import home_folder
    from clusterctl.operations.hosts_access import LoginOptions, open_hosts

    login = LoginOptions(user, key, connect_timeout)
    with open_hosts(hosts, login, home=home_folder(), at_once=options.fanout) as access:
        return run_on(access.connections, access.targets, command, options, verbose is not None)


def main() -> None:
    run_program(runclust)
