"""Arguments and options that name hosts without a cluster: HOSTS, --hosts, -w, --slurm, --local."""

from __future__ import annotations

import contextlib
import functools
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clusterctl.cli import output
from clusterctl.cli.params import LocalPath, SelectionOption, refuse_blank_texts, together
from clusterctl.domain.errors import UsageError

if TYPE_CHECKING:
    from clusterctl.operations.hosts_access import HostSource
    from clusterctl.transport.call import HostConnections
    from clusterctl.transport.dial import Target

# The parameters of the options that name hosts.
SOURCES = ("hosts", "nodes", "slurm", "is_local")
_nodes_option = click.option(
    "-w",
    "nodes",
    metavar="NODES",
    cls=SelectionOption,
    joins=True,
    help="Hosts as ClusterShell has them: node[1-9], @GROUP.",
)


_hosts_arguments = together(
    click.argument("hosts", type=LocalPath()),
    _nodes_option,
    click.option("-u", "--user", help="Log in as this user."),
    click.option("-i", "--key", type=LocalPath(), help="Log in with this key file."),
)


class HostsCommand(click.Command):
    """A command with `hosts_argument`, whose first word is HOSTS unless there is -w."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        refuse_blank_texts(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        options = [one for one in self.params if not isinstance(one, click.Argument)]
        parser = click.Command(None, params=options).make_parser(ctx)
        nodes = None
        with contextlib.suppress(click.UsageError):  # which the next line raises again
            nodes = parser.parse_args([*args])[0].get("nodes")
        return super().parse_args(ctx, [",".join(nodes), *args] if nodes else args)


def hosts_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add HOSTS, -w in its place, --user and --key; pass `hosts`, a path or names of hosts."""

    @functools.wraps(command)
    def wired(*args: Any, hosts: Path, nodes: str | None, **kwargs: Any) -> Any:
        from clusterctl.operations.hosts_access import hosts_in

        return command(*args, hosts=hosts if nodes is None else hosts_in(nodes), **kwargs)

    return _hosts_arguments(wired)


_options = {
    "hosts": click.option(
        "--hosts",
        type=LocalPath(),
        metavar="FILE",
        cls=SelectionOption,
        help="The hosts of a hosts file, as ssh reaches them.",
    ),
    "nodes": _nodes_option,
    "slurm": click.option(
        "--slurm", metavar="JOBID", cls=SelectionOption, help="The hosts of a job of Slurm."
    ),
    "is_local": click.option("--local", "is_local", is_flag=True, help="This machine only."),
    "as_root": click.option(
        "--sudo", "as_root", is_flag=True, help="On these hosts: jobs of all users."
    ),
    "user": click.option("-u", "--user", help="Log in to these hosts as this user."),
    "key": click.option(
        "-i", "--key", type=LocalPath(), help="Log in to these hosts with this key file."
    ),
}


def host_options(
    *left_out: str, ask_again: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that adds the options that name hosts, and those about the login there,
    but for the parameters that are left out; pass `source`, a HostSource or None, and close its
    connections at the end. With `ask_again` a host that was not reached is tried again."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def wired(*args: Any, **kwargs: Any) -> Any:
            options = HostOptions(*(kwargs.pop(name, None) for name in _options))
            source = host_source(options, ask_again)
            try:
                return command(*args, source=source, **kwargs)
            finally:
                if source:
                    source.connections.close()

        return together(*(one for name, one in _options.items() if name not in left_out))(wired)

    return decorate


launcher_option = click.option(
    "--launcher",
    metavar="PID|JOB",
    cls=SelectionOption,
    help="On these hosts: only the job that this mpirun, srun or torchrun has started.",
)


def check_launcher(
    launcher: str | None,
    source: HostSource | None,
    hint: str = "name them with --hosts, -w or --local",
) -> None:
    """Raise UsageError if --launcher names a process, and no option names its hosts."""
    if launcher and not source:
        raise UsageError("--launcher is for hosts without a cluster", hint)


class HostOptions(NamedTuple):
    """The values of `_options`."""

    hosts: Path | None
    nodes: str | None
    slurm: str | None
    is_local: bool | None
    as_root: bool | None
    user: str | None
    key: Path | None


def host_source(options: HostOptions, ask_again: bool = False) -> HostSource | None:
    """Return the hosts that the options name; None if they name none. Raise UsageError."""
    hosts, nodes, slurm, is_local, as_root, user, key = options
    texts = {"--hosts": str(hosts) if hosts else None, "-w": nodes, "--slurm": slurm}
    given = [f"{name} {shlex.quote(value)}" for name, value in texts.items() if value is not None]
    given += ["--local"] * bool(is_local)
    if len(given) > 1:
        raise UsageError(f"hosts are named twice: {', '.join(given)}", "give one of these options")
    if not given:
        if as_root or user or key:
            raise UsageError(
                "--sudo, --user and --key are for hosts without a cluster",
                "name them with --hosts, -w or --local",
            )
        return None
    if is_local and (user or key):
        raise UsageError("there is no login with --local", "leave out --user and --key")
    from clusterctl.operations.hosts_access import AsRoot, HostSource

    connections, targets = _reach(options, ask_again)
    words = [*given, *["--sudo"] * bool(as_root), *([f"-u {shlex.quote(user)}"] if user else [])]
    words += [f"-i {shlex.quote(str(key))}"] if key else []
    return HostSource(
        " ".join(words),
        targets,
        AsRoot(connections) if as_root else connections,
        user or "",
        slurm or "",
    )


def _reach(options: HostOptions, ask_again: bool) -> tuple[HostConnections, tuple[Target, ...]]:
    """Return the hosts, each once, and the connections to them. Raise UsageError."""
    from clusterctl.config import home_folder
    from clusterctl.operations.diagnose import CONNECT_WITHIN_S
    from clusterctl.operations.hosts_access import (
        LoginOptions,
        hosts_in,
        hosts_of_slurm,
        open_hosts,
        same_machines,
        this_machine,
    )
    from clusterctl.transport.local import LocalConnections

    if options.is_local:
        return LocalConnections(), (this_machine(),)
    named, state = options.nodes, ""
    if options.slurm is not None:
        named, state = hosts_of_slurm(options.slurm)
    if state:
        output.note(f"job {options.slurm} of Slurm is {state}, as squeue reports it")
    login = LoginOptions(options.user, options.key, CONNECT_WITHIN_S)
    access = open_hosts(options.hosts or hosts_in(named or ""), login, home=home_folder())
    # What follows would wait once more for each host that does not answer here.
    access.connections.ask_again = ask_again
    twice = same_machines(access.connections, access.targets)
    for host, other in twice.items():
        output.note(f"{host} is the same machine as {other}: it counts once")
    return access.connections, tuple(one for one in access.targets if one.host not in twice)


def for_clusters(source: HostSource | None, **given: object) -> None:
    """Raise UsageError for an option that is given with hosts of no cluster, and needs one."""
    for option in (name for name, value in given.items() if source and value):
        raise UsageError(f"--{option} is for nodes of a cluster", "leave it out")


def one_of(name: str | None, source: HostSource | None, *more: str) -> None:
    """Raise UsageError if both a cluster and hosts are named, or `more` options in their place."""
    named = [f"cluster {name}"] * bool(name) + [*more]
    named += [source.options] if source else []
    if len(named) > 1:
        raise UsageError(f"two are named: {' and '.join(named)}", "leave one of them out")
