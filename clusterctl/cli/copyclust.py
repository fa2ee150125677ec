"""`copyclust HOSTS SRC DST`: the tutorial's function, on any hosts file."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from clusterctl.cli.fanout_options import fanout_options
from clusterctl.cli.main import end_when_told, run_command


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", type=click.Path(path_type=Path))
@click.argument("src")
@click.argument("dst")
@click.option("-u", "--user", help="Log in as this user.")
@click.option("-i", "--key", type=click.Path(path_type=Path), help="Log in with this key file.")
@fanout_options(default_fanout=16)
def copyclust(
    hosts: Path,
    src: str,
    dst: str,
    user: str | None,
    key: Path | None,
    timeout_s: float | None,
    fanout: int,
    as_json: bool,
) -> int:
    """Copy SRC to DST on every host of the hosts file HOSTS, in parallel.

    \b
    copyclust hosts ~/data/tf-imagenet/ '~/data/tf-imagenet/'

    The paths mean what they mean to rsync: with a slash at its end, SRC stands for what is in
    the folder. Running it again copies what is missing. The exit status is the highest of
    rsync's, or 255 if a host could not be reached.
    """
    from clusterctl.cli.copy_report import copy_status, show_data, show_host
    from clusterctl.operations.copy import copy_to_hosts
    from clusterctl.operations.hosts_access import read_hosts_file

    result = copy_to_hosts(
        read_hosts_file(hosts).hosts,
        src,
        dst,
        user=user,
        key=key,
        max_workers=fanout,
        timeout_s=timeout_s,
        on_outcome=None if as_json else show_host,
    )
    if as_json:
        show_data(result)
    return copy_status(result)


def main() -> None:
    end_when_told()
    sys.exit(run_command(copyclust))
