"""`clusterctl ssh`: the system's ssh, with the cluster's key and pinned host keys."""

from __future__ import annotations

from typing import Any

import click

from clusterctl.cli.foreground import run_in_foreground
from clusterctl.cli.params import Index
from clusterctl.cli.wiring import ClusterCommand, Wiring, account_options
from clusterctl.domain.errors import (
    ClusterctlError,
    HostKeyChanged,
    HostKeyUnknown,
    MissingTool,
    UsageError,
)

# What ssh ends with when it is not the command that has ended so.
UNREACHABLE = 255


class _RemoteCommand(ClusterCommand):
    """Keeps what follows `--` apart: `ssh demo -- 1` runs a command, `ssh demo 1` does not."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            position = args.index("--")
            ctx.meta["command"] = args[position + 1 :]
            args = args[:position]
        return super().parse_args(ctx, args)


@click.command(cls=_RemoteCommand, options_metavar="[OPTIONS]")
@click.argument("name")
@click.argument("index", type=Index("; a command comes after --"), default=0)
@account_options
@click.pass_context
def ssh(ctx: click.Context, wiring: Wiring, name: str, index: int) -> Any:
    """Log in to a node of cluster NAME, the head node unless INDEX (3 or NAME-3) says otherwise.

    What follows `--` runs there instead of a shell. The same with plain ssh:
    ssh -F ~/.clusterctl/NAME/ssh_config NAME-INDEX

    \b
    clusterctl ssh demo
    clusterctl ssh demo 3
    clusterctl ssh demo 3 -- nvidia-smi
    """
    folder = wiring.folder(name)
    if not folder.ssh_config.exists():
        raise MissingTool(
            f"this machine has no way into a cluster {name}: there is no {folder.ssh_config}",
            "run `clusterctl up` again, or copy the folder from the machine that ran it",
        )
    host = f"{name}-{index}"
    if f"Host {host} " not in folder.ssh_config.read_text(errors="replace"):
        raise UsageError(f"cluster {name} has no node {index}", f"see: clusterctl status {name}")
    argv = ["ssh", "-F", str(folder.ssh_config), host, *ctx.meta.get("command", ())]
    try:
        status = run_in_foreground(argv)
    except FileNotFoundError:
        raise MissingTool("there is no `ssh` here", "install OpenSSH's client") from None
    if status == UNREACHABLE:
        _explain(wiring, name, index)
    return status


def _explain(wiring: Wiring, name: str, index: int) -> None:
    """Raises HostKeyChanged, HostKeyUnknown where that is why; ssh says only that it is so."""
    try:
        with wiring.open(name) as access:
            access.connections.session(access.select((index,))[0])
    except (HostKeyChanged, HostKeyUnknown):
        raise
    except ClusterctlError:
        pass
