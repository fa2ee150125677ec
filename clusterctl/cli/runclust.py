"""`runclust HOSTS COMMAND [verbose]`: the tutorial's function, for any hosts file."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import click

from clusterctl.cli.fanout_options import fanout_options, piped_stdin, stdin_is_piped
from clusterctl.cli.main import run_program
from clusterctl.cli.params import Duration
from clusterctl.cli.run_on import QuotedCommand, run_on

# The time of `--persist` without one.
PERSIST = "10m"


class _Runclust(QuotedCommand):
    """Accepts `--persist` with a duration and without."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        if "--persist" in args[:end]:
            at = args.index("--persist")
            following = "".join(args[at + 1 : at + 2])
            # A number is a time without its unit, which is refused, and no hosts file.
            if not re.match(r"\s*\d+(\.\d+)?\s*(ms|[smhd])?\s*$", following, re.ASCII):
                args = [*args[:at], f"--persist={PERSIST}", *args[at + 1 :]]
        return super().parse_args(ctx, args)


@click.command(cls=_Runclust, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("hosts", type=click.Path(path_type=Path))
@click.argument("command")
@click.argument("verbose", required=False, type=click.Choice(["verbose"]))
@click.option("-b", "--gather", is_flag=True, help="Fold hosts with identical output together.")
@click.option("-u", "--user", help="Log in as this user.")
@click.option("-i", "--key", type=click.Path(path_type=Path), help="Log in with this key file.")
@click.option("-n", "--no-stdin", is_flag=True, help="Give the command no standard input.")
@click.option("--connect-timeout", type=Duration(), default=10.0, help="Per host; default 10s.")
@click.option(
    "--persist",
    "persist_s",
    metavar="[TIME]",
    type=Duration(none=True),
    help=f"Keep the connections for a next call with it, so long after the last; {PERSIST}.",
)
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
    persist_s: float | None,
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

    run = partial(
        run_on,
        command=command,
        timeout_s=timeout_s,
        fanout=fanout,
        gather=gather,
        verbose=verbose is not None,
        as_json=as_json,
    )
    # A later call reaches the keeper by a socket: it does not need the SSH library.
    if persist_s is not None:
        from clusterctl.operations.persist import KeeperClient, login_of

        login = login_of(hosts, user, key, home_folder())
        stdin = 0 if stdin_is_piped(no_stdin) else None
        return run(KeeperClient(login, persist_s, connect_timeout, stdin), (), stdin=b"")

    from clusterctl.operations.hosts_access import open_hosts

    with open_hosts(
        hosts,
        user=user,
        key=key,
        home=home_folder(),
        connect_timeout_s=connect_timeout,
        at_once=fanout,
    ) as access:
        return run(access.connections, access.targets, stdin=piped_stdin(no_stdin))


def main() -> None:
    run_program(runclust)
