"""The `clusterctl` command line. A command's module is imported when it is called."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

import clusterctl
from clusterctl.cli import output
from clusterctl.cli.params import Group
from clusterctl.domain.errors import ClusterctlError, Interrupted, UsageError
from clusterctl.domain.findings import NOT_KNOWN
from clusterctl.domain.timeouts import Clock
from clusterctl.operations.interrupts import Interrupts

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# Section of the help -> command -> (module of clusterctl.cli, one line of help). The module has the
# command under its name with `_` for `-`; `list` is `list_`. Listing commands must not import it.
SECTIONS: dict[str, dict[str, tuple[str, str]]] = {
    "Clusters": {
        "up": ("cluster", "Launch a cluster and wait until it is ready."),
        "down": ("cluster", "Remove a cluster and all that was made for it."),
        "stop": ("cluster", "Stop all nodes; their disks are kept."),
        "start": ("cluster", "Start a stopped cluster."),
        "reboot": ("reboot", "Reboot nodes, and wait for them."),
        "add": ("cluster", "Launch more nodes."),
        "remove": ("cluster", "Terminate some nodes."),
        "replace": ("cluster", "Replace nodes with new machines."),
        "quarantine": ("quarantine", "Leave bad nodes out of commands and jobs."),
        "release": ("quarantine", "Take nodes out of quarantine."),
        "status": ("status", "Show the nodes of a cluster."),
        "list": ("status", "List the clusters of a region."),
        "ssh": ("ssh", "Log in to a node."),
        "hosts": ("status", "Print the hosts file of a cluster."),
    },
    "Commands and data on the nodes": {
        "run": ("run", "Run a command on the nodes, in parallel."),
        "copy": ("copy.command", "Copy files to the nodes, in parallel."),
        "s3sync": ("s3sync", "Copy data from S3 to the nodes, detached."),
        "data": ("data", "Check that all nodes have the same data."),
        "disk": ("disk", "Show how full the nodes' disks are."),
        "clean-logs": ("disk", "Remove logs and checkpoints."),
    },
    "Jobs": {
        "env": ("env", "Install TensorFlow and Horovod on the nodes."),
        "train": ("train", "Train on the cluster's GPUs, detached."),
        "jobs": ("jobs", "List the jobs: state, cost, last step."),
        "logs": ("jobs", "Show or follow the log of a job."),
        "wait": ("jobs", "Wait for a job's end."),
        "fetch": ("jobs", "Copy a job's model, files and logs here."),
        "cancel": ("kill", "End a job on all nodes."),
        "kill": ("kill", "End processes that jobs left on the nodes."),
    },
    "Results and models": {
        "results": ("results", "Show the results of a training; compare, plot."),
        "bench": ("bench", "Measure how training scales; report, compare."),
        "tuning": ("tuning", "Read Horovod's timeline and autotuner."),
        "serve": ("serve", "Serve a model over HTTP, through SSH."),
        "predict": ("serve", "Query a served model."),
    },
    "Diagnosis": {
        "diagnose": ("diagnose", "Find out why a job is stuck."),
        "explain": ("explain", "Find what failed first in a log."),
        "doctor": ("doctor", "Check that the nodes are alike, and healthy."),
        "watch": ("watch", "Watch nodes, ranks and the job, live."),
        "selftest": ("selftest", "Try everything on two machines, with a report."),
    },
    "The AWS account": {
        "costs": ("money", "Show what the clusters cost, and have cost."),
        "gc": ("gc", "Find and remove what clusters have left behind."),
        "network": ("network", "Make, show or remove a VPC for clusters."),
        "iam-policy": ("iam_policy", "Print the IAM policies that clusterctl needs."),
    },
    "This machine": {
        "config": ("config", "Show the settings, check the file."),
        "lab": ("lab", "Start and stop the local EC2; inject faults."),
        "completion": ("completion", "Print a shell's completion script."),
    },
}
COMMANDS = {name: entry for section in SECTIONS.values() for name, entry in section.items()}

# Commands that go on where they were interrupted if they are run again. Others print themselves
# which command continues, or change nothing.
CONTINUED = {
    *("cancel", "clean-logs", "copy", "copyclust", "data", "disk", "down", "env", "fetch", "gc"),
    *("logs", "quarantine", "release", "s3sync", "serve", "train", "wait"),
}

# Commands for monitoring: 1 and 2 are findings, a warning and an error. A failure of the command
# itself is 3.
MONITORING = {"diagnose", "doctor", "explain"}

# What Path.home() raises, for a container's user without HOME and without an entry in /etc/passwd.
NO_HOME = "Could not determine home directory."

# The hint of a failure that nothing has foreseen, and for commands that change what costs money:
# not even what was done is known.
BUG = "this is a fault of clusterctl: report it with the lines above"
MAY_COST = "; what the command has started may run on, and cost: see `clusterctl list`"
COSTING = {*SECTIONS["Clusters"], "gc", "network", "selftest"} - {
    *("quarantine", "release", "status", "list", "ssh", "hosts"),
}

# What helps after an OSError, by errno. Without a hint here, another run may go through.
OS_HINTS = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on the disk; then "),
    **dict.fromkeys((errno.EACCES, errno.EPERM), "see whose file it is, and its mode; then "),
    errno.EROFS: "name a place that is not mounted read-only; then ",
    errno.ENOENT: "see whether it is there; then ",
    errno.EMFILE: "allow more open files (ulimit -n 4096); then ",
}

# Python collects garbage whenever 700 more objects exist. A short command keeps what it creates,
# modules and EC2's descriptions: 140,000 objects. The collections took a tenth of its time.
GC_THRESHOLD = 200_000

# By these names other programs call a command.
ELSEWHERE = {
    "copy": ("upload", "put", "rsync"),
    "down": ("delete", "destroy", "terminate"),
    "fetch": ("get", "download", "scp"),
    "jobs": ("ps",),
    "list": ("ls",),
    "logs -f": ("attach",),
    "run": ("exec",),
    "status": ("stat",),
    "train": ("submit",),
    "up": ("create", "launch"),
    "watch": ("top",),
}


class LazyGroup(Group):
    """A group that imports a command's module only when that command is called."""

    elsewhere = {word: command for command, words in ELSEWHERE.items() for word in words}

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            typed = error.option_name
            if any(one.startswith(typed) for one in ("--help", "--version")):
                raise
            ctx.fail(f"A command's options come after it: {ctx.command_path} COMMAND {typed}")

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"clusterctl.cli.{COMMANDS[cmd_name][0]}")
            attribute = "list_" if cmd_name == "list" else cmd_name.replace("-", "_")
            self.commands[cmd_name] = getattr(module, attribute)
        return super().get_command(ctx, cmd_name)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        if incomplete.startswith("-"):
            return super().shell_complete(ctx, incomplete)
        return [
            CompletionItem(name, help=entry[1])
            for name, entry in COMMANDS.items()
            if name.startswith(incomplete)
        ]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:{width}}", one[1]) for name, one in commands.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(clusterctl.__version__, prog_name="clusterctl")
def cli() -> None:
    """Launch and run self-managed GPU clusters on EC2."""


def run_command(command: click.Command, argv: list[str] | None = None, **extra: Any) -> int:
    """Run `command`, and return its exit status (docs/exit-status.md).

    Every error becomes one message, and with --json an object as well.
    """
    words = sys.argv[1:] if argv is None else argv
    options = words[: words.index("--")] if "--" in words else words
    program = "clusterctl" if isinstance(command, click.Group) else str(command.name)
    is_monitoring = program == "clusterctl" and not MONITORING.isdisjoint(words[:1])
    output.begin(program, words, "--json" in options, NOT_KNOWN if is_monitoring else None)
    stdout = sys.stdout
    try:
        status = command.main(args=words, standalone_mode=False, **extra)
        status = status if isinstance(status, int) else 0
    except click.exceptions.Exit as ended:
        status = ended.exit_code
    except click.ClickException as refused:
        status = _refused(refused)
    except ClusterctlError as failure:
        status = _failed(failure)
    except OSError as failure:
        # After Ctrl-C Click prints a newline before it raises Abort: that write may fail.
        interrupted = isinstance(failure.__context__, KeyboardInterrupt)
        status = (
            _interrupted([program, *words]) if interrupted else _failed(_without_traceback(failure))
        )
    except (KeyboardInterrupt, click.Abort) as ended:
        # Click raises Abort from Ctrl-C, and without a cause at a question that was not agreed to.
        # Questions come before any work.
        cause = ended.__cause__ if isinstance(ended, click.Abort) else ended
        message = "nothing was done" if cause is None else ""
        message = str(cause) if isinstance(cause, Interrupted) else message
        status = _interrupted([program, *words], message)
    except Exception as bug:
        if str(bug) == NO_HOME:
            status = _failed(UsageError("this user has no home folder", "name one: HOME=DIR"))
        else:
            output.note(
                "".join(traceback.format_exception(type(bug), bug, bug.__traceback__)).rstrip()
            )
            may_cost = program == "clusterctl" and not COSTING.isdisjoint(words[:1])
            hint = BUG + MAY_COST * may_cost
            status = _failed(ClusterctlError(f"{type(bug).__name__}: {bug}", hint))
    except SystemExit:
        # On a broken pipe Click replaces sys.stdout, and exits with status 1.
        if sys.stdout is stdout:
            raise
        return output.BROKEN_PIPE_STATUS
    if status == output.INTERRUPTED:  # the command returned it: its JSON error was not printed
        _report_interrupt("interrupted")
    return status or output.lost_output_status()


def _failed(failure: ClusterctlError) -> int:
    output.error(failure)
    return output.error_object(output.error_data(failure))


def _refused(refused: click.ClickException) -> int:
    with output.writing_to("stderr"):
        refused.show()
    kind = UsageError if refused.exit_code == UsageError.exit_status else ClusterctlError
    return output.error_object(output.error_data(kind(refused.format_message())))


def _interrupted(words: Sequence[str], message: str = "") -> int:
    """Print what the interrupt has cut off. `message`: what the command knows of it."""
    output.note(message or "interrupted")
    if not message and CONTINUED & set(words[:2]):
        output.note_resume_command()
    _report_interrupt(message or "interrupted")
    return output.INTERRUPTED


def _report_interrupt(message: str) -> None:
    reason = {"error": "Interrupted", "message": message, "hint": ""}
    output.error_object({**reason, "exit_status": output.INTERRUPTED})


def _without_traceback(failure: OSError) -> ClusterctlError:
    """Return an OSError as an error with a hint: a full disk, no permission, a closed output."""
    if output.is_stdout_failure(failure) or failure.errno == errno.EBADF:
        why = "it is closed" if failure.errno == errno.EBADF else failure.strerror
        return ClusterctlError(
            f"cannot write the output: {why}",
            "the command may have done its work: check before you run it again",
        )
    where = f"{failure.filename}: " if failure.filename else ""
    hint = f"{OS_HINTS.get(failure.errno or 0, '')}run it again"
    return ClusterctlError(f"{where}{failure.strerror or failure}", hint)


def run_program(command: click.Command) -> NoReturn:
    """Run `command` as this process's program, and exit.

    SIGTERM and SIGHUP act like Ctrl-C, so that what the command runs on hosts is ended too. The
    signals of one press raise one KeyboardInterrupt: a second one would cut that ending off.
    """
    gc.set_threshold(GC_THRESHOLD)
    output.open_closed_streams()
    # As shells do: of a pipe that another program has set not to block, only a part would be read.
    os.set_blocking(sys.stdin.fileno(), True)
    interrupts = Interrupts(Clock())
    with interrupts.handled():
        status = interrupts.interruptible(lambda: output.close_streams(run_command(command)))
    # Spares the collection of all objects at exit, which takes a quarter of a second.
    gc.freeze()
    sys.exit(status)


def main() -> None:
    if Path(sys.argv[0]).name == "cctl":
        output.program = "cctl"
    elif Path(sys.argv[0]).name == "__main__.py":
        output.program = "python -m clusterctl"  # as click calls it
    run_program(cli)
