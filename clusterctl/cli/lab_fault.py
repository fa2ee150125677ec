"""`clusterctl lab fault`: faults of the local EC2, to rehearse with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from clusterctl.cli import output
from clusterctl.cli.params import BitRate, Duration, Group, Indices, Size
from clusterctl.config import load_settings
from clusterctl.domain.errors import LabError, UsageError
from clusterctl.lab.record import LabRecord, read_record

# Paths of the lab's own HTTP pages.
FAULTS_PAGE = "/_lab/faults"
INTERRUPTIONS_PAGE = "/_lab/interruptions"

TIMES = click.option(
    "--times",
    default=1,
    show_default=True,
    type=click.IntRange(0),
    help="How often it strikes; 0: until it is cleared.",
)
SKIP = click.option(
    "--skip",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Let so many requests pass first.",
)


class InstanceName(click.ParamType):
    """An instance of the lab: its id, its name (`demo-1`), or `all`.

    Raises UsageError for a name that no instance or several have, LabError if no lab runs.
    """

    name = "instance"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from clusterctl.lab import lifecycle

        if value == "all" or value.startswith("i-"):
            return value
        ids = [
            one["instance_id"]
            for one in lifecycle.instances(running_lab())
            if one["name"] == value and one["state"] != "terminated"
        ]
        if len(ids) > 1:
            raise UsageError(f"{', '.join(ids)} are called {value}", "name one of them by its id")
        if not ids:
            raise UsageError(f"no instance {value!r:.80}", "see `clusterctl lab status`")
        return ids[0]


def running_lab() -> LabRecord:
    """Return the record of the running lab. Raises LabError if none runs."""
    running = read_record(load_settings().home)
    if running is None:
        raise LabError("the lab is not running", "start it with `clusterctl lab start`")
    return running


def ask(method: str, query: str = "", body: object = None) -> Any:
    """Call the lab's page of faults and return its answer.

    Raises UsageError if the lab refuses, LabError if none runs.
    """
    from clusterctl.lab import pages

    return pages.ask(running_lab(), FAULTS_PAGE + query, method, body)


def set_fault(kind: str, **fields: Any) -> None:
    """Set a fault, and print its id and description."""
    made = ask("POST", body={"kind": kind, **fields})
    output.line(f"{made['id']}: {made['text']}")
    note_problem(made)


def note_problem(fault: dict[str, Any]) -> None:
    """Print why a fault has not taken effect on its host, if so."""
    if fault["problem"]:
        output.note(f"{fault['id']}: not yet: {fault['problem']}")


def clear_faults(id: str | None) -> None:
    """Clear one fault or all, and print them. Raises UsageError for an unknown id."""
    if id is not None and not (id.isascii() and id.isalnum()):
        raise UsageError(f"no fault {id!r:.80}", "see `clusterctl lab fault list`")
    cleared = ask("DELETE", f"?id={id}" if id is not None else "")["cleared"]
    for one in cleared:
        output.line(f"{one['id']}: cleared ({one['text']})")
        note_problem(one)
    if not cleared:
        output.note("no fault was set")


@click.group(cls=Group)
def fault() -> None:
    """Make the lab refuse, lose, lag and break as AWS does on a bad day.

    Faults hold until they are cleared, have struck as often as they are to, or the lab stops.

    \b
    Example:
      clusterctl lab fault capacity p4d.24xlarge us-east-1a 0
      clusterctl lab fault boot --dies Server.InternalError --node 3
      clusterctl lab fault list
      clusterctl lab fault clear
    """


@fault.command("list")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def list_(as_json: bool) -> None:
    """Show the faults that are set, and how late things are shown.

    \b
    Example:
      clusterctl lab fault list
    """
    found = ask("GET")
    if as_json:
        output.data(found)
        return
    rows = [
        (one["id"], one["kind"], one["times_left"] or "-", one["skip_left"] or "-", one["text"])
        for one in found["faults"]
    ]
    if rows:
        output.table(("FAULT", "KIND", "TIMES", "SKIP", "WHAT"), rows)
    else:
        output.line("no faults")
    for one in found["faults"]:
        note_problem(one)
    output.note(
        f"new instances are shown after {found['visibility_s']:g} s, "
        f"consoles after {found['console_delay_s']:g} s"
    )


@fault.command()
@click.argument("id", required=False)
def clear(id: str | None) -> None:
    """Clear one fault by its id, or all of them.

    \b
    Example:
      clusterctl lab fault clear f3
    """
    clear_faults(id)


@fault.command()
@click.argument("type", metavar="TYPE")
@click.argument("zone")
@click.argument("machines", metavar="N", type=click.IntRange(0))
def capacity(type: str, zone: str, machines: int) -> None:
    """N machines of a type are left in a zone, beside those that run now.

    Instances that end or are stopped give theirs back. A launch for which too few are left is
    refused with InsufficientInstanceCapacity, in AWS's words.

    \b
    Example:
      clusterctl lab fault capacity p4d.24xlarge us-east-1a 0
    """
    set_fault("capacity", instance_type=type, zone=zone, left=machines)


# Options of `lag`, with their help: "Until ... shown."
LATE = {
    "visible": "a new instance is",
    "console": "what a console has is",
    "tags": "changed tags are",
    "states": "an instance's state is",
    "addresses": "elastic addresses, and who has them, are",
    "groups": "security groups and their rules are",
    "volumes": "changed volumes are",
    "spot": "spot requests are",
    "places": "the free places of reservations are",
}


def late_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of LATE to a command."""
    for name, what in reversed(LATE.items()):
        kind = Duration(none=True)
        command = click.option(f"--{name}", f"{name}_s", type=kind, help=f"Until {what} shown.")(
            command
        )
    return command


@fault.command()
@late_options
@click.option(
    "--reordered/--in-order",
    default=None,
    help="Half of the reads show what there is at once: an answer may be older than the last.",
)
def lag(**late: float | bool | None) -> None:
    """Make EC2 show later what there is. Without this, new instances are hidden for 0.3 s.

    \b
    Example:
      clusterctl lab fault lag --visible 5s --console 30s
      clusterctl lab fault lag --tags 4s --states 4s --reordered
    """
    set_fault("lag", **late)


@fault.command()
@click.argument("code")
@click.argument("value", type=click.FloatRange(0))
def quota(code: str, value: float) -> None:
    """Set a service quota, such as the vCPUs of on-demand P instances (L-417A185B).

    \b
    Example:
      clusterctl lab fault quota L-417A185B 128
    """
    set_fault("quota", code=code, value=value)


@fault.command()
@click.argument("action")
@click.option("--rate", required=True, type=float, help="Requests a second that come to it.")
@click.option("--burst", required=True, type=click.IntRange(1), help="Requests it can hold.")
def throttle(action: str, rate: float, burst: int) -> None:
    """Answer requests that come too fast with RequestLimitExceeded.

    ACTION is an API action, or '*': then each action has a bucket of its own.

    \b
    Example:
      clusterctl lab fault throttle DescribeInstances --rate 0.5 --burst 3
    """
    set_fault("throttle", action=action, rate=rate, burst=burst)


@fault.command()
@click.argument("action")
@click.argument("code")
@click.option("--message", default="", help="The error's text; AWS's own for the code.")
@click.option("--status", default=0, type=int, help="The HTTP status; AWS's own for the code.")
@click.option("--after", is_flag=True, help="Carry the request out first.")
@TIMES
@SKIP
def error(action: str, code: str, **how: Any) -> None:
    """Answer requests with an error.

    \b
    Example:
      clusterctl lab fault error RunInstances InternalError --after
      clusterctl lab fault error '*' RequestLimitExceeded --skip 4 --times 2
    """
    set_fault("error", action=action, code=code, **how)


@fault.command()
@click.argument("action")
@TIMES
@SKIP
def lost(action: str, times: int, skip: int) -> None:
    """Carry requests out and close the connection without an answer.

    \b
    Example:
      clusterctl lab fault lost RunInstances
    """
    set_fault("lost", action=action, times=times, skip=skip)


@fault.command()
@click.argument("action")
@click.argument("seconds", metavar="DURATION", type=Duration(none=True))
def delay(action: str, seconds: float) -> None:
    """Let requests wait before they are carried out.

    \b
    Example:
      clusterctl lab fault delay DescribeInstances 2s
    """
    set_fault("delay", action=action, seconds=seconds)


@fault.command()
@click.option("--slow", "slow_s", type=Duration(none=True), help="Stay pending that long.")
@click.option("--silent", is_flag=True, help="Run, but never start sshd nor print host keys.")
@click.option("--dies", metavar="CODE", help="Be terminated instead, with this StateReason.")
@click.option("--node", "nodes", type=Indices(named=False), help="Only these nodes: 3 or 0-2,5.")
@TIMES
def boot(
    slow_s: float | None, silent: bool, dies: str | None, nodes: tuple[int, ...] | None, times: int
) -> None:
    """Have the next hosts boot late, without sshd, or not at all.

    \b
    Example:
      clusterctl lab fault boot --slow 2m --times 4
      clusterctl lab fault boot --dies Server.InsufficientInstanceCapacity --node 1
    """
    if dies == "":
        raise UsageError("--dies needs a code", "for example Server.InternalError")
    set_fault(
        "boot", slow_s=slow_s or 0, silent=silent, dies=dies or "", nodes=nodes or (), times=times
    )


@fault.command()
@click.argument("instance", type=InstanceName())
@click.option(
    "--in",
    "after_s",
    type=Duration(none=True),
    default="2m",
    show_default=True,
    help="How long after the notice it ends.",
)
def interrupt(instance: str, after_s: float) -> None:
    """Give a spot instance notice in its metadata, and terminate it when the time has come.

    A Capacity Block that the instance is in ends, and all its instances with it.

    \b
    Example:
      clusterctl lab fault interrupt demo-1 --in 30s
    """
    from clusterctl.lab import pages

    body = {"instance_id": instance, "seconds": after_s}
    said = pages.ask(running_lab(), INTERRUPTIONS_PAGE, "POST", body)
    output.line(f"{instance}: terminated at {said['ends_at']}")


@fault.command()
@click.argument("instance", type=InstanceName())
@click.argument("code")
@click.option(
    "--in", "in_s", type=Duration(none=True), default="0", help="How long until it begins."
)
def event(instance: str, code: str, in_s: float) -> None:
    """Show an event such as instance-retirement as scheduled for an instance.

    \b
    Example:
      clusterctl lab fault event demo-1 instance-retirement --in 72h
    """
    set_fault("event", instance_id=instance, code=code, in_s=in_s or 0.0)


@fault.command()
@click.argument("instance", type=InstanceName())
def volumes(instance: str) -> None:
    """Show that an instance does not reach its EBS volumes.

    \b
    Example:
      clusterctl lab fault volumes demo-1
    """
    set_fault("volumes", instance_id=instance)


@fault.command("same-index")
def same_index() -> None:
    """Give all spot instances of a launch the AmiLaunchIndex 0.

    \b
    Example:
      clusterctl lab fault same-index
    """
    set_fault("same-index")


# The instance in examples.
SOME_NODE = "demo-1"


def _as_given(**options: Any) -> dict[str, Any]:
    return options


def _rates(rate: int | None, down: int | None, up: int | None) -> dict[str, int]:
    """Return the rate of each direction: its own, else the common one, else 0 for none."""
    return {"down": down or rate or 0, "up": up or rate or 0}


@dataclass(frozen=True)
class FaultCommands:
    """Two commands: `kind` sets a fault of a running host, `undo` clears it.

    `does` and `undoes` are their help. `otherwise` ends the error for a host without that fault.
    `fields` makes the fault's fields from the options; `example` has the words of an example.
    """

    kind: str
    does: str
    undo: str
    undoes: str
    otherwise: str
    options: Sequence[click.Option] = ()
    fields: Callable[..., dict[str, Any]] = _as_given
    example: str = SOME_NODE


PAIRS = (
    FaultCommands(
        "freeze",
        "Stop all processes of a running host where they are, until `thaw`.",
        "thaw",
        "Let a frozen host go on.",
        "is not frozen",
    ),
    FaultCommands(
        "cut",
        "Take a running host's network link down, until `mend`.",
        "mend",
        "Reconnect a host that was cut off.",
        "is not cut off",
    ),
    FaultCommands(
        "shape",
        "Give a running host's link a rate, until `unshape`. The instance `all` is every host that "
        "runs or will run, and has no rate of its own.",
        "unshape",
        "Let a host's link be as fast as it can.",
        "is not shaped",
        (
            click.Option(["--rate"], type=BitRate(), help="Both ways at once: 160mbit or 2.5gbit."),
            click.Option(["--down"], type=BitRate(), help="To the host."),
            click.Option(["--up"], type=BitRate(), help="From the host."),
        ),
        _rates,
        "all --rate 160mbit",
    ),
    FaultCommands(
        "fill",
        "Have a running host's /data be full, until `drain`.",
        "drain",
        "Give a host's /data its room back.",
        "is not filled",
        (
            click.Option(
                ["--left"],
                type=Size(most=2**50),
                default="0",
                help="So much is left: 10MiB; default: none.",
            ),
        ),
        example=f"{SOME_NODE} --left 10MiB",
    ),
    FaultCommands(
        "readonly",
        "Make a running host's /data read-only, as a volume that failed is, until `writable`.",
        "writable",
        "Have a host's /data be written to again.",
        "is not read-only",
    ),
    FaultCommands(
        "gpu",
        "Break a GPU of a running host, until `heal`: nvidia-smi and the kernel say so.",
        "heal",
        "Make the GPUs of a host whole again. The kernel's line stays.",
        "has no broken GPU",
        (
            click.Option(["--gpu"], type=click.IntRange(0), default=0, help="Which one."),
            click.Option(["--lost"], is_flag=True, help="nvidia-smi does not list it."),
            click.Option(["--ecc"], type=click.IntRange(0), default=0, help="Bad memory reads."),
            click.Option(["--remap"], default="", help="Of a memory row: pending or failed."),
            click.Option(["--memory"], type=click.IntRange(0), default=0, help="MiB never freed."),
            click.Option(["--xid"], type=click.IntRange(0), default=0, help="The driver's number."),
        ),
        example=f"{SOME_NODE} --gpu 1 --xid 79 --lost",
    ),
)


def _commands(pair: FaultCommands) -> tuple[click.Command, click.Command]:
    def inflict(instance: str, **options: Any) -> None:
        set_fault(pair.kind, instance_id=instance, **pair.fields(**options))

    def undo(instance: str) -> None:
        for one in ask("GET")["faults"]:
            if one["kind"] == pair.kind and one["instance_id"] == instance:
                clear_faults(one["id"])
                return
        raise UsageError(f"{instance!r:.80} {pair.otherwise}", "see `clusterctl lab fault list`")

    undo_example = pair.example.partition(" ")[0]
    return (
        _command(pair.kind, inflict, _help(pair.does, f"{pair.kind} {pair.example}"), pair.options),
        _command(pair.undo, undo, _help(pair.undoes, f"{pair.undo} {undo_example}")),
    )


def _command(
    name: str, run: Callable[..., None], help: str, options: Sequence[click.Option] = ()
) -> click.Command:
    instance = click.Argument(["instance"], type=InstanceName())
    return click.Command(name, callback=run, params=[instance, *options], help=help)


def _help(does: str, example: str) -> str:
    return f"{does}\n\n\b\nExample:\n  clusterctl lab fault {example}"


for _pair in PAIRS:
    for _made in _commands(_pair):
        fault.add_command(_made)
