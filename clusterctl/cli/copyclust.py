"""`copyclust HOSTS SRC... DST`: the tutorial's function, for any hosts file."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli.copy.options import CopyOptions, CopyWords, copy_options, request_of, url_access
from clusterctl.cli.host_options import HostsCommand, hosts_argument
from clusterctl.cli.main import run_program
from clusterctl.cli.params import OutputFile, SelectionOption, complete_file
from clusterctl.domain.errors import MissingTool, UsageError

if TYPE_CHECKING:
    from clusterctl.ec2.session import Clients


class CopyCommand(CopyWords, HostsCommand):
    """Runs `copyclust verify ...` as another command; a hosts file named verify is `./verify`."""

    def main(self, *args: Any, **extra: Any) -> Any:
        words = args[0] if args else extra.pop("args", None)
        given = list(sys.argv[1:] if words is None else words)
        if given[:1] != ["verify"]:
            return super().main(given, *args[1:], **extra)
        from clusterctl.cli.verify import copyclust_verify

        return copyclust_verify.main(given[1:], **{**extra, "prog_name": "copyclust verify"})


@click.command(cls=CopyCommand, context_settings={"help_option_names": ["-h", "--help"]})
@hosts_argument
@click.argument("src", nargs=-1, required=True, shell_complete=complete_file)
@click.argument("dst")
@click.option(
    "--from",
    "from_host",
    metavar="HOST",
    cls=SelectionOption,
    help="SRC is there; or its place, from 0.",
)
@click.option(
    "--state-file",
    type=OutputFile(),
    hidden=True,
    help="Keep there how far each host is, as `copy --detach` does.",
)
@copy_options
def copyclust(
    hosts: Path | list[str],
    src: tuple[str, ...],
    dst: str,
    user: str | None,
    key: Path | None,
    from_host: str | None,
    state_file: Path | None,
    options: CopyOptions,
) -> int:
    """Copy SRC to DST on every host of the hosts file HOSTS, in the time of one copy.

    \b
    copyclust hosts ~/data/tf-imagenet/ '~/data/tf-imagenet/'
    copyclust hosts --from 0 '~/data/' '~/data/'
    copyclust hosts s3://bucket/tf-imagenet/ '~/data/tf-imagenet/'
    copyclust -w @gpu ~/train.py '~/'
    copyclust verify hosts '~/data/tf-imagenet/'

    SRC is a file, a folder, a glob or a URL, and may be several. With a slash at its end it
    stands for what is in the folder. Running it again copies what is missing. The exit status is
    0, 1 if a host has not got all, or 255 if one could not be reached.
    """
    from clusterctl.cli.copy.view import showing
    from clusterctl.config import home_folder
    from clusterctl.copy.report import StateFile
    from clusterctl.operations.copy import CopyTerms, copy_to_hosts
    from clusterctl.operations.hosts_access import LoginOptions, open_hosts

    with showing(options) as shown:
        state = StateFile(state_file, shown.watch) if state_file else None
        with open_hosts(hosts, LoginOptions(user, key), home=home_folder()) as access:
            names = [one.host for one in access.targets]
            from_node = None if from_host is None else place_of(from_host, names)
            request = request_of(options, src, dst, from_node)
            urls = url_access(options, src, _clients, home_folder())
            terms = CopyTerms(urls, options.fanout, options.timeout_s)
            watch = state.watch if state else shown.watch
            report = copy_to_hosts(access, request, watch=watch, terms=terms)
        if state:
            state.finish(report)
    return shown.finish(report)


def _clients() -> Clients:
    try:
        from clusterctl.ec2.session import Account, Clients
    except ImportError:
        # A head node has no boto3 (bootstrap/head_programs.py).
        raise MissingTool(
            "boto3 is not on this machine, so it has no AWS credentials to send",
            "let the nodes use their own (--credentials profile), or run `clusterctl copy` on the "
            "machine that ran `up`",
        ) from None

    return Clients(Account())


def place_of(word: str, hosts: Sequence[str]) -> int:
    """Return the index of a host, given its name or its place in the file, from 0.

    Raises UsageError.
    """
    if word in hosts:
        return list(hosts).index(word)
    if re.fullmatch("[0-9]{1,9}", word) and int(word) < len(hosts):
        return int(word)
    raise UsageError(
        f"--from {word}: the hosts file has no such host",
        f"name one of its hosts, or its place, 0 to {len(hosts) - 1}",
    )


def main() -> None:
    run_program(copyclust)
