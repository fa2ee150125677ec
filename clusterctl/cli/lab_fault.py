"""`clusterctl lab fault`: faults of the local EC2, to rehearse with."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import click

from clusterctl.cli import output
from clusterctl.cli.params import (
    BitRate,
    Duration,
    FreeText,
    Group,
    Indices,
    NumberRange,
    SelectionOption,
    Size,
    json_option,
)
from clusterctl.config import load_settings
from clusterctl.domain.errors import LabError, UsageError
from clusterctl.lab.record import FAULTS_PAGE, INTERRUPTIONS_PAGE, LabRecord, read_record


class InstanceName(click.ParamType):
    """An instance of the lab: its id, its name (`demo-1`), or `all`.

    Raises UsageError for a name that no instance or several have, LabError if no lab runs.
    """

    name = "instance"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        from clusterctl.lab import lifecycle
        from clusterctl.lab.faults.hosts import ALL, INSTANCE_ID

        # The names of nodes of a cluster `i` begin as ids do.
        if value == ALL or INSTANCE_ID.fullmatch(value):
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
    from clusterctl.lab import lifecycle

    return lifecycle.request_page(running_lab(), FAULTS_PAGE + query, method, body)


def set_fault(kind: str, **fields: Any) -> None:
    """Set a fault, and print its id and description."""
    made = ask("POST", body={"kind": kind, **fields})
    output.line(f"{made['id']}: {made['text']}")
    note_problem(made)


def note_problem(fault: dict[str, Any]) -> None:
    """Print why a fault has not taken effect on its host, if so."""
    if fault["problem"]:
        output.note(f"{fault['id']}: not yet: {fault['problem']}")


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
@json_option("FaultsData")
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
@click.argument("which", metavar="[FAULT | INSTANCE]", required=False)
def clear(which: str | None) -> None:
    """Clear one fault by its id, those of an instance, or without an argument all of them.

    \b
    Example:
      clusterctl lab fault clear f3
      clusterctl lab fault clear demo-1
    """
    ids: list[str] | None = None
    if which and re.fullmatch(r"f\d+", which, re.ASCII):
        ids = [which]
    elif which is not None:
        ids = _faults_of(InstanceName().convert(which, None, None))
    _clear(ids, f" for {which}" if which else "")


def _faults_of(instance_id: str, kind: str = "") -> list[str]:
    """Return the ids of an instance's faults, of all kinds or of one."""
    listed = (one for one in ask("GET")["faults"] if one.get("instance_id") == instance_id)
    return [one["id"] for one in listed if not kind or one["kind"] == kind]


def _clear(ids: Sequence[str] | None, of: str) -> None:
    """Clear these faults, or all of them for None, and print them."""
    queries = [""] if ids is None else [f"?id={id}" for id in ids]
    cleared = [one for query in queries for one in ask("DELETE", query)["cleared"]]
    for one in cleared:
        output.line(f"{one['id']}: cleared ({one['text']})")
        note_problem(one)
    if not cleared:
        output.note(f"no fault was set{of}")


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
    from clusterctl.lab import lifecycle

    body = {"instance_id": instance, "seconds": after_s}
    report = lifecycle.request_page(running_lab(), INTERRUPTIONS_PAGE, "POST", body)
    output.line(f"{instance}: terminated at {report['ends_at']}")


def _option(name: str, text: str, kind: Any = None, **more: Any) -> click.Option:
    """Return an option; without a `kind` it is a flag."""
    return click.Option([*name.split()], type=kind, is_flag=kind is None, help=text, **more)


def _lag(name: str, text: str) -> click.Option:
    return _option(f"--{name} {name}_s", f"Until {text}.", Duration(none=True))


def _instance() -> click.Argument:
    return click.Argument(["instance_id"], type=InstanceName(), metavar="INSTANCE")


TIMES = _option(
    "--times",
    "How often it strikes; 0: until it is cleared.",
    click.IntRange(0),
    default=1,
    show_default=True,
)
SKIP = _option(
    "--skip", "Let so many requests pass first.", click.IntRange(0), default=0, show_default=True
)
ACTION, CODE = click.Argument(["action"]), click.Argument(["code"])


@dataclass(frozen=True)
class FaultCommand:
    """A command that sets a fault of `kind`. Its parameters are the fault's fields.

    `does` is its help, `examples` are the words after its name. `fields` changes the fields.
    """

    kind: str
    does: str
    examples: Sequence[str]
    parameters: Sequence[click.Parameter] = ()
    fields: Callable[..., dict[str, Any]] = dict

    def command(self) -> click.Command:
        examples = "".join(
            f"\n  clusterctl lab fault {self.kind} {words}".rstrip() for words in self.examples
        )
        return click.Command(
            self.kind,
            callback=lambda **options: set_fault(self.kind, **self.fields(**options)),
            params=[*self.parameters],
            help=f"{self.does}\n\n\b\nExample:{examples}",
        )


def _of_boot(dies: str | None, slow_s: float | None, nodes: Any, **more: Any) -> dict[str, Any]:
    if dies == "":
        raise UsageError("--dies needs a code", "for example Server.InternalError")
    return {"dies": dies or "", "slow_s": slow_s or 0, "nodes": nodes or (), **more}


def _rates(rate: int | None, down: int | None, up: int | None, **more: Any) -> dict[str, Any]:
    """Return the rate of each direction: its own, else the common one, else 0 for none."""
    return {"down": down or rate or 0, "up": up or rate or 0, **more}


COMMANDS = (
    FaultCommand(
        "capacity",
        "N machines of a type are left in a zone, besides those that run now.\n\n"
        "Instances that end or are stopped give theirs back. A launch for which too few are left "
        "is refused with InsufficientInstanceCapacity, in AWS's words.",
        ["p4d.24xlarge us-east-1a 0"],
        (
            click.Argument(["instance_type"], metavar="TYPE"),
            click.Argument(["zone"]),
            click.Argument(["left"], metavar="N", type=click.IntRange(0)),
        ),
    ),
    FaultCommand(
        "lag",
        "Make EC2 show later what there is. Without this, new instances are hidden for 0.3 s.",
        ["--visible 5s --console 30s", "--tags 4s --states 4s --reordered"],
        (
            _lag("visible", "a new instance is shown"),
            _lag("console", "a console shows what it has"),
            _lag("tags", "changed tags are shown"),
            _lag("states", "an instance's state is shown"),
            _lag("addresses", "elastic addresses, and who has them, are shown"),
            _lag("groups", "security groups and their rules are shown"),
            _lag("volumes", "volumes are shown as they are"),
            _lag("spot", "spot requests are shown"),
            _lag("places", "the free places of reservations are shown"),
            _option(
                "--reordered/--in-order",
                "Half of the reads show what there is at once: a response may be older than the "
                "last.",
                default=None,
            ),
        ),
    ),
    FaultCommand(
        "quota",
        "Set a service quota, such as the vCPUs of on-demand P instances (L-417A185B).",
        ["L-417A185B 128"],
        (CODE, click.Argument(["value"], type=NumberRange(0))),
    ),
    FaultCommand(
        "throttle",
        "Answer requests that come too fast with RequestLimitExceeded.\n\n"
        "ACTION is an API action, or '*': then each action has a bucket of its own.",
        ["DescribeInstances --rate 0.5 --burst 3"],
        (
            ACTION,
            _option("--rate", "Requests a second that come to it.", NumberRange(0), required=True),
            _option("--burst", "Requests it can hold.", click.IntRange(1), required=True),
        ),
    ),
    FaultCommand(
        "error",
        "Answer requests with an error.",
        ["RunInstances InternalError --after", "'*' RequestLimitExceeded --skip 4 --times 2"],
        (
            ACTION,
            CODE,
            _option(
                "--message", "The error's text; AWS's own for the code.", FreeText(), default=""
            ),
            _option("--status", "The HTTP status; AWS's own for the code.", int, default=0),
            _option("--after", "Carry the request out first."),
            TIMES,
            SKIP,
        ),
    ),
    FaultCommand(
        "lost",
        "Carry requests out and close the connection without a response.",
        ["RunInstances"],
        (ACTION, TIMES, SKIP),
    ),
    FaultCommand(
        "delay",
        "Let requests wait before they are carried out.",
        ["DescribeInstances 2s"],
        (ACTION, click.Argument(["seconds"], metavar="DURATION", type=Duration(none=True))),
    ),
    FaultCommand(
        "boot",
        "Have the next hosts boot late, without sshd, or not at all.",
        ["--slow 2m --times 4", "--dies Server.InsufficientInstanceCapacity --node 1"],
        (
            _option("--slow slow_s", "Stay pending that long.", Duration(none=True)),
            _option("--silent", "Run, but never start sshd nor print host keys."),
            _option("--dies", "Be terminated instead, with this StateReason.", str, metavar="CODE"),
            SelectionOption(
                ["--node", "nodes"],
                type=Indices(named=False),
                joins=True,
                help="Only these nodes: 3 or 0-2,5.",
            ),
            TIMES,
        ),
        _of_boot,
    ),
    FaultCommand(
        "event",
        "Show an event such as instance-retirement as scheduled for an instance.",
        ["demo-1 instance-retirement --in 72h"],
        (
            _instance(),
            CODE,
            _option("--in in_s", "How long until it begins.", Duration(none=True), default="0"),
        ),
    ),
    FaultCommand(
        "volumes",
        "Show that an instance does not reach its EBS volumes.",
        ["demo-1"],
        (_instance(),),
    ),
    FaultCommand("same-index", "Give all spot instances of a launch the AmiLaunchIndex 0.", [""]),
    # Faults of running hosts.
    FaultCommand(
        "freeze", "Stop all processes of a running host where they are.", ["demo-1"], (_instance(),)
    ),
    FaultCommand("cut", "Take a running host's network link down.", ["demo-1"], (_instance(),)),
    FaultCommand(
        "shape",
        "Give a running host's link a rate. The instance `all` is every host that runs or will "
        "run, and has no rate of its own.",
        ["all --rate 160mbit"],
        (
            _instance(),
            _option("--rate", "Both ways at once: 160mbit or 2.5gbit.", BitRate()),
            _option("--down", "To the host.", BitRate()),
            _option("--up", "From the host.", BitRate()),
        ),
        _rates,
    ),
    FaultCommand(
        "fill",
        "Have a running host's /data be full.",
        ["demo-1 --left 10MiB"],
        (
            _instance(),
            _option(
                "--left", "So much is left: 10MiB; default: none.", Size(most=2**50), default="0"
            ),
        ),
    ),
    FaultCommand(
        "readonly",
        "Make a running host's /data read-only, as a volume that failed is.",
        ["demo-1"],
        (_instance(),),
    ),
    FaultCommand(
        "gpu",
        "Break a GPU of a running host: nvidia-smi and the kernel say so. The kernel's line stays.",
        ["demo-1 --gpu 1 --xid 79 --lost"],
        (
            _instance(),
            _option("--gpu", "Which one.", click.IntRange(0), default=0),
            _option("--lost", "nvidia-smi does not list it."),
            _option("--ecc", "Bad memory reads.", click.IntRange(0), default=0),
            _option("--remap", "Of a memory row: pending or failed.", str, default=""),
            _option("--memory", "MiB never freed.", click.IntRange(0), default=0),
            _option("--xid", "The driver's number.", click.IntRange(0), default=0),
        ),
    ),
)


# Each clears one kind of fault of an instance: its name, the kind, and its help.
UNDOES = (
    ("thaw", "freeze", "Let a frozen host go on."),
    ("mend", "cut", "Reconnect a host that was cut off."),
    ("unshape", "shape", "Let a host's link be as fast as it can."),
    ("drain", "fill", "Give a host's /data its room back."),
    ("writable", "readonly", "Have a host's /data be written to again."),
    ("heal", "gpu", "Make the GPUs of a host whole again. The kernel's line stays."),
)


def _undo(name: str, kind: str, does: str) -> click.Command:
    def undo(instance_id: str) -> None:
        ids = _faults_of(instance_id, kind)
        if not ids:
            text = f"{instance_id!r:.80} has no fault of the kind {kind}"
            raise UsageError(text, "see `clusterctl lab fault list`")
        _clear(ids, "")

    help = f"{does}\n\n\b\nExample:\n  clusterctl lab fault {name} demo-1"
    return click.Command(name, callback=undo, params=[_instance()], help=help)


for _each in COMMANDS:
    fault.add_command(_each.command())
for _words in UNDOES:
    fault.add_command(_undo(*_words))
