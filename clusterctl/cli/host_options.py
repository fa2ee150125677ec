"""Options that name hosts without a cluster: --hosts, -w, --slurm, --local."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli.params import together
from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.operations.diagnose_hosts import HostSource

# The parameters of the options that name hosts.
SOURCES = ("hosts", "nodes", "slurm", "is_local")


# The options that name hosts, and those about the login there.
host_options = together(
    click.option(
        "--hosts",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Diagnose the hosts of a hosts file, as ssh reaches them.",
    ),
    click.option("-w", "nodes", metavar="NODES", help="Diagnose these hosts: node[1-9], @GROUP."),
    click.option("--slurm", metavar="JOBID", help="Diagnose the hosts of a Slurm job."),
    click.option("--local", "is_local", is_flag=True, help="Diagnose this machine only."),
    click.option("--sudo", "as_root", is_flag=True, help="On these hosts: jobs of all users."),
    click.option("-u", "--user", help="Log in to these hosts as this user."),
)


def host_source(
    hosts: Path | None,
    nodes: str | None,
    slurm: str | None,
    is_local: bool,
    as_root: bool,
    user: str | None,
) -> HostSource | None:
    """Return the hosts that the options name; None if they name none. Raise UsageError."""
    texts = {"--hosts": str(hosts) if hosts else None, "-w": nodes, "--slurm": slurm}
    given = [f"{name} {shlex.quote(value)}" for name, value in texts.items() if value is not None]
    given += ["--local"] * is_local
    if len(given) > 1:
        raise UsageError(f"hosts are named twice: {', '.join(given)}", "give one of these options")
    if not given:
        if as_root or user:
            raise UsageError(
                "--sudo and --user are for hosts without a cluster",
                "name them with --hosts, -w, --slurm or --local",
            )
        return None
    if is_local and user:
        raise UsageError("there is no login with --local", "leave out --user")
    from clusterctl.config import home_folder
    from clusterctl.operations.diagnose_hosts import HostSource, hosts_of_slurm, this_machine
    from clusterctl.operations.hosts_access import hosts_in, open_hosts, open_named
    from clusterctl.transport.local import LocalConnections

    options = [*given, *(["--sudo"] if as_root else []), *([f"-u {user}"] if user else [])]
    words = " ".join(options)
    if is_local:
        return HostSource(words, (this_machine(),), LocalConnections(), as_root=as_root)
    if hosts:
        access = open_hosts(hosts, user=user, home=home_folder())
    else:
        access = open_named(hosts_in(nodes or hosts_of_slurm(slurm or "")), user=user)
    return HostSource(words, access.targets, access.connections, slurm or "", as_root)
