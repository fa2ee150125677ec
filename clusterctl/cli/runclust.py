"""`runclust HOSTS COMMAND [verbose]`: the tutorial's function, for any hosts file."""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.cli.fanout_options import fanout_options, piped_stdin
from clusterctl.cli.main import run_program
from clusterctl.cli.params import Duration
from clusterctl.cli.run_on import QuotedCommand, run_on


@click.command(cls=QuotedCommand, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", type=click.Path(path_type=Path))
@click.argument("command")
@click.argument("verbose", required=False, type=click.Choice(["verbose"]))
@click.option("-b", "--gather", is_flag=True, help="Fold hosts with identical output together.")
@click.option("-u", "--user", help="Log in as this user.")
@click.option("-i", "--key", type=click.Path(path_type=Path), help="Log in with this key file.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give the command no standard input.")
@click.option("--connect-timeout", type=Duration(), default=10.0, help="Per host; default 10s.")
@fanout_options
def runclust(
    hosts: Path,
    command: str,
    verbose: str | None,
    gather: bool,
    user: str | None,
    key: Path | None,
    no_stdin: bool,
    connect_timeout: float,
    timeout_s: float | None,
    fanout: int,
    as_json: bool,
) -> int:
    """Run COMMAND on every host of the hosts file HOSTS, in parallel over SSH.

    \b
    runclust hosts 'nvidia-smi -L'
    runclust hosts uptime verbose
    runclust -b hosts 'df -h /'

    Each line of output has its host's name before it; -b shows hosts with the same output
    once. What is piped in goes to every host. The exit status is the highest of the hosts',
    or 255 if one could not be reached or did not end in time.
    """
    from clusterctl.config import home_folder
    from clusterctl.operations.hosts_access import open_hosts

    with open_hosts(
        hosts,
        user=user,
        key=key,
        home=home_folder(),
        connect_timeout_s=connect_timeout,
        at_once=fanout,
    ) as access:
        return run_on(
            access.connections,
            access.targets,
            command,
            stdin=piped_stdin(no_stdin),
            timeout_s=timeout_s,
            fanout=fanout,
            gather=gather,
            verbose=verbose is not None,
            as_json=as_json,
        )


def main() -> None:
    run_program(runclust)
