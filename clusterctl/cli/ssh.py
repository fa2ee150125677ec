"""`clusterctl ssh`: the system's ssh, or one command, with the cluster's key and host keys."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.params import Index, note_node_path
from clusterctl.domain.errors import (
    ClusterctlError,
    HostError,
    HostKeyChanged,
    HostKeyUnknown,
    HostUnreachable,
    MissingTool,
    UsageError,
)

if TYPE_CHECKING:
    from clusterctl.transport.dial import Target


# Exit status of ssh if it could not log in; a command may also end with it.
UNREACHABLE = 255
# Seconds for a second login, which explains the failure: ssh has just waited for the node.
ONCE_MORE_S = 3.0
# Seconds between two looks at whether ssh has ended or was suspended.
POLL_S = 0.05


class _RemoteCommand(ClusterCommand):
    """Sets the words after `--` apart: `ssh demo -- 1` runs a command, `ssh demo 1` does not."""

    runs_rest = True

    def _with_name(self, ctx: click.Context, args: list[str], before: list[str]) -> list[str]:
        args = super()._with_name(ctx, args, before)
        if "--" in args:
            position = args.index("--")
            ctx.meta["command"] = args[position + 1 :]
            note_node_path(ctx, shlex.join(ctx.meta["command"]))
            args = args[:position]
        return args

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as wrong:
            message = wrong.format_message().rstrip(".")
            raise click.UsageError(f"{message}; a command comes after --", ctx) from None


@click.command(cls=_RemoteCommand, options_metavar="[OPTIONS]")
@click.argument("name")
@click.argument("index", type=Index("; a command comes after --"), default=0)
@account_options
@click.pass_context
def ssh(ctx: click.Context, app: AppContext, name: str, index: int) -> Any:
    """Log in to a node of cluster NAME, the head node unless INDEX is given (3 or NAME-3).

    What follows `--` runs there instead of a shell, without a terminal; Ctrl-C ends it there.
    The same with plain ssh: ssh -F ~/.clusterctl/NAME/ssh_config NAME-INDEX

    \b
    clusterctl ssh demo
    clusterctl ssh demo 3
    clusterctl ssh demo 3 -- nvidia-smi
    """
    folder = app.folder(name)
    if not folder.ssh_config.exists():
        raise MissingTool(
            f"this machine has no way into a cluster {name}: there is no {folder.ssh_config}",
            f"see whether there is one: clusterctl status {name}; then copy {folder.path} from the "
            "machine that launched it",
        )
    host = f"{name}-{index}"
    if host not in folder.node_names():
        raise UsageError(
            f"{folder.ssh_config} has no node {index} of cluster {name}",
            f"see: clusterctl status {name}; if the node is there: clusterctl up {name}",
        )
    command = ctx.meta.get("command")
    if command:
        return _reach(app, name, index, " ".join(command))
    shell = ["ssh", "-F", str(folder.ssh_config), host]
    status = run_in_foreground(shell)
    if status == UNREACHABLE and _has_moved(app, name):
        status = run_in_foreground(shell)
    if status == UNREACHABLE:
        # Log in again to raise an error that explains it. If that works, the shell ended with 255.
        _reach(app, name, index, connect_timeout_s=ONCE_MORE_S)
    return status


def _has_moved(app: AppContext, name: str) -> bool:
    """Return whether EC2 shows nodes at other addresses than the files had, which now have them."""
    before = app.folder(name).node_addresses()
    try:
        app.status(name)
    except ClusterctlError:
        return False
    return app.folder(name).node_addresses() != before


def _reach(
    app: AppContext, name: str, index: int, command: str = "", connect_timeout_s: float = 10.0
) -> int:
    """Run a command on a node, or only log in; return the exit status. Raises HostError.

    The cluster's folder has the node's address. EC2 is queried only if the node does not answer.
    """
    from clusterctl.operations.hosts_access import LoginOptions, open_nodes
    from clusterctl.operations.status import Ec2Explanation
    from clusterctl.transport.stdin import StdinStream

    def explain(target: Target, error: HostError) -> HostError:
        try:
            return Ec2Explanation(app.clients, name)(target, error)
        except ClusterctlError:
            return error

    folder, host = app.folder(name), f"{name}-{index}"
    login = LoginOptions(connect_timeout_s=connect_timeout_s)
    with open_nodes(folder, [host], login, explain=explain) as access:
        [target] = access.targets
        try:
            access.connections.session(target)
        except (HostKeyChanged, HostKeyUnknown, HostUnreachable) as failure:
            if _has_moved(app, name):
                return _reach(app, name, index, command, connect_timeout_s)
            if not isinstance(failure, HostUnreachable):
                # With EC2's instance ids the error can name the owner of the key (ClusterHostKeys).
                with app.open(name) as requested:
                    requested.connections.session(requested.select((index,))[0])
            raise
        if not command:
            return 0
        return access.connections.run(
            target,
            command,
            stdin=StdinStream(sys.stdin.fileno()),
            sink=lambda stream, chunk: output.raw(chunk, stream),
            as_user=True,
        ).exit_status


def run_in_foreground(argv: Sequence[str]) -> int:
    """Run a program as if it had replaced this one, and return its exit status.

    That is 128 + the number of a signal that killed it. Signals of the terminal (Ctrl-C) reach it
    directly; SIGTERM and SIGHUP to this process are passed on. When it is suspended, so is this
    process. Raises MissingTool if this machine lacks the program.
    """
    started: list[subprocess.Popen[bytes]] = []
    early: list[int] = []

    def pass_on(number: int, frame: Any) -> None:
        # The signal may come before Popen has returned: it is passed on below.
        if not started:
            early.append(number)
        for process in started:
            process.send_signal(number)

    # Functions, not SIG_IGN: a child inherits ignored signals, and Ctrl-C would not reach it.
    handlers = {
        **dict.fromkeys((signal.SIGTERM, signal.SIGHUP), pass_on),
        **dict.fromkeys((signal.SIGINT, signal.SIGQUIT), lambda number, frame: None),
    }
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        started.append(subprocess.Popen(argv))
        for number in early:
            started[0].send_signal(number)
        return _wait(started[0].pid)
    except FileNotFoundError:
        hint = "install OpenSSH's client" if argv[0] == "ssh" else ""
        raise MissingTool(f"there is no `{argv[0]}` here", hint) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(pid: int) -> int:
    """Wait for the end of a child, and suspend this process whenever the child is suspended."""
    # Python runs a handler between two of its instructions: a signal that comes just before an
    # endless wait would be handled only after it. Not sigtimedwait(), which macOS lacks.
    while True:
        ended, status = os.waitpid(pid, os.WUNTRACED | os.WNOHANG)
        if not ended:
            time.sleep(POLL_S)
        elif os.WIFSTOPPED(status):
            os.kill(os.getpid(), signal.SIGSTOP)
            # SIGCONT may have been sent to this process only (kill -CONT): pass it on.
            os.kill(pid, signal.SIGCONT)
        elif os.WIFSIGNALED(status):
            return 128 + os.WTERMSIG(status)
        else:
            return os.WEXITSTATUS(status)
