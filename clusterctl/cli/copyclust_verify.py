"""`copyclust verify HOSTS DST`: do all hosts of a hosts file have the same?"""

from __future__ import annotations

from pathlib import Path

import click

from clusterctl.cli.verify_options import verify_options


@click.command("copyclust verify", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", type=click.Path(path_type=Path))
@click.argument("dst")
@click.option("-u", "--user", help="Log in as this user.")
@click.option("-i", "--key", type=click.Path(path_type=Path), help="Log in with this key file.")
@verify_options
def copyclust_verify(
    hosts: Path,
    dst: str,
    user: str | None,
    key: Path | None,
    content: bool,
    crc: bool,
    mtime: bool,
    timeout_s: float | None,
    as_json: bool,
) -> int:
    """Compare what the hosts of the hosts file HOSTS have at DST, a file or a folder.

    \b
    copyclust verify hosts '~/data/tf-imagenet'
    copyclust verify hosts --content --crc /data/tf-imagenet

    Names, kinds, sizes, modes, links, and of TFRecord files the number of records and whether they
    are whole. The exit status is 0 if all have the same, 1 if not or if a file is corrupt, 2 if
    there is nothing at DST anywhere, and 255 if a host could not be asked.
    """
    from clusterctl.cli.verify_report import checking, show
    from clusterctl.config import home_folder
    from clusterctl.operations.hosts_access import open_hosts
    from clusterctl.operations.verify import Depth, verify

    depth = Depth(content, crc, mtime)
    with open_hosts(hosts, user=user, key=key, home=home_folder()) as access, checking() as watch:
        report = verify(
            access.connections, access.targets, dst, depth, watch=watch, timeout_s=timeout_s
        )
    return show(report, depth, as_json)
