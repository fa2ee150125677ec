"""What commands that launch or start nodes share: the options, made from the table of settings
(configuration/options.py), the progress of nodes, the consent to the price, what a failure leaves.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext
from clusterctl.cli.params import completions, together
from clusterctl.configuration.options import (
    LAUNCH,
    OPTIONS,
    TAG,
    Option,
    SpecDraft,
    ValueKind,
    Values,
    environment_values,
    misspelt,
    parse_tag,
    parse_value,
)
from clusterctl.domain.errors import AwsError, UsageError
from clusterctl.domain.findings import Finding, Severity
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.units import count, format_duration
from clusterctl.ec2.money.costs import format_usd
from clusterctl.operations.launcher import Launcher, LineProgress, Stage, StepProgress

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from clusterctl.ec2.launch.plan import LaunchPlan
    from clusterctl.ec2.money.costs import RunningCost


class Setting(click.ParamType):
    """The value of a setting, checked as in clusterctl.yaml."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.kind.name.lower()

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            if self.option.kind is ValueKind.TAGS:
                return parse_tag(value)
            return parse_value(self.option, value)
        except UsageError as error:
            self.fail(error.message, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        if self.option.metavar == "TYPE":
            return completions(ctx, _types, incomplete)
        return super().shell_complete(ctx, param, incomplete)


def _types() -> list[str]:
    from clusterctl.ec2.money.prices import listed_types

    return listed_types()


class WaitingOptions(NamedTuple):
    """How long a launch waits, and whether it trusts host keys that only the nodes show."""

    timeout_s: float | None = None
    capacity_timeout_s: float = 0.0
    accept_new_host_keys: bool = False


# The settings of a launch that hold for every command that launches or starts nodes.
WAITING = (OPTIONS["timeout"], OPTIONS["capacity-timeout"])
_trust_option = click.option(
    "--accept-new-host-keys",
    is_flag=True,
    help="Trust the host key that a node shows where neither console nor Systems Manager has "
    "it. An attacker between you and the node could then impersonate it.",
)


def waiting_of(draft: SpecDraft, accept_new_host_keys: bool = False) -> WaitingOptions:
    """Return how long the launch of this draft waits."""
    timeout_s, capacity_s = (draft.values.get(option.key) for option in WAITING)
    return WaitingOptions(timeout_s, capacity_s or 0.0, accept_new_host_keys)


def spec_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a launch; pass `draft` and `waiting`.

    The decorator stands below `account_options`, because it needs `app`. The command has to have an
    argument `name`.
    """
    return _with_settings(LAUNCH, command, lambda draft: {"draft": draft})


def waiting_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of WAITING, and pass `waiting`: as spec_options, for what is no launch."""
    return _with_settings(WAITING, command, lambda draft: {})


def _with_settings(
    settings: Sequence[Option],
    command: Callable[..., Any],
    passed: Callable[[SpecDraft], dict[str, Any]],
) -> Callable[..., Any]:
    """Add options whose defaults the file and the environment give."""

    @functools.wraps(command)
    def drafted(
        *args: Any, app: AppContext, name: str, accept_new_host_keys: bool, **kwargs: Any
    ) -> Any:
        for text in misspelt(os.environ):
            output.note(f"warning: {text}")
        flags = flags_of({option: kwargs.pop(option.parameter) for option in settings})
        draft = SpecDraft.of(name, *layers(app, name), flags)
        waiting = waiting_of(draft, accept_new_host_keys)
        return command(*args, app=app, name=name, waiting=waiting, **passed(draft), **kwargs)

    return together(*map(click_option, settings), _trust_option)(drafted)


def layers(app: AppContext, name: str) -> Sequence[Values]:
    """Return the file's values for this cluster, and the environment's, which override them."""
    file = app.settings.file
    return (file.values(name) if file else {}, environment_values(os.environ))


def flags_of(given: dict[Option, Any]) -> Values:
    """Return the settings that options of the command line give."""
    found: dict[str, Any] = {}
    for option, value in given.items():
        if option.kind is ValueKind.TAGS:
            found.update({TAG + key: text for key, text in value})
        elif value not in (None, ()):
            found[option.key] = value
    return found


def click_option(option: Option) -> Callable[..., Any]:
    """Return the decorator that adds a setting's option."""
    text = option.help
    if option.builtin not in ("", "false"):
        text = f"{text.rstrip('.')}. Default: {option.builtin}."
    if option.kind is ValueKind.FLAG:
        names = f"{option.flag}/--no-{option.key}"
        return click.option(names, option.parameter, default=None, help=text)
    return click.option(
        option.flag,
        option.parameter,
        type=Setting(option),
        metavar=option.metavar,
        multiple=option.several,
        help=text,
    )


# Nodes that get a row each; more are grouped by stage, with folded names, to fit on a screen.
ROWS = 20


def printed_progress() -> StepProgress:
    """Return what prints one line per step, and per node and stage."""
    return LineProgress(output.note, lambda finding: output.findings([finding]))


class TableProgress(StepProgress):
    """A table of nodes that is redrawn in place. Steps and findings stay as lines above it.

    Drawing begins with the first nodes: before that a question may be open on the terminal.
    """

    def __init__(self, drawing: ExitStack) -> None:
        self._drawing = drawing
        self._lock = threading.Lock()
        self._shown: dict[str, tuple[Stage, str, float]] = {}

    def step(self, text: str) -> None:
        output.note(text)

    def finding(self, finding: Finding) -> None:
        output.findings([finding])

    def nodes(self, names: Sequence[str]) -> None:
        with self._lock:
            begins, self._shown = (
                not self._shown,
                dict.fromkeys(names, (Stage.PENDING, "", time.monotonic())),
            )
        if begins:
            # What a node has failed with may be long.
            self._drawing.enter_context(output.live(self._rows, wraps=1))

    def node(self, name: str, stage: Stage, detail: str = "") -> None:
        with self._lock:
            self._shown[name] = (stage, detail, time.monotonic())

    def _rows(self, width: int) -> Iterator[tuple[str, str, str]]:
        with self._lock:
            shown = dict(self._shown)
        if len(shown) <= ROWS:
            for name, (stage, detail, since) in shown.items():
                is_stable = stage in (Stage.READY, Stage.FAILED)
                after = "" if is_stable else format_duration(time.monotonic() - since)
                yield name, detail or stage.value, after
            return
        by_stage = grouped((stage, name) for name, (stage, _, _) in shown.items())
        for stage in Stage:
            if stage in by_stage:
                names = by_stage[stage]
                yield fold_hosts(names), stage.value, f"{len(names)} of {len(shown)}"


@contextmanager
def node_progress() -> Iterator[StepProgress]:
    """Yield the progress display; it is drawn until the block ends."""
    if not output.is_live():
        yield printed_progress()
        return
    with ExitStack() as drawing:
        yield TableProgress(drawing)


DEFAULT_WAITING = WaitingOptions()


@contextmanager
def launcher_of(
    app: AppContext,
    name: str,
    waiting: WaitingOptions = DEFAULT_WAITING,
    approve: Callable[[LaunchPlan], None] = lambda plan: None,
) -> Iterator[Launcher]:
    """Yield a launcher that shows its progress.

    After an interrupt it prints what exists, and the commands that continue or undo; after any
    failure what it has launched or started.
    """
    folder, clients = app.folder(name), app.clients
    launcher = None
    try:
        with node_progress() as progress:
            launcher = Launcher(
                *(clients, folder, progress, app.proxy_command, *waiting, approve, app.timeouts)
            )
            yield launcher
    except KeyboardInterrupt:
        if launcher and launcher.progress.done:
            output.note("all that was requested is done")
        else:
            output.note(_left_behind(app, name))
            output.note_resume_command()
        raise
    except Exception:  # any: also one that nothing has foreseen comes after a launch
        before = launcher.progress.awake_before if launcher else None
        runs = "" if before is None else _what_runs(app, name, before)
        if runs:
            output.note(runs)
        raise


def price_consent(app: AppContext, yes: bool) -> Callable[[LaunchPlan], None]:
    """Return a function that prints what a plan's cluster will cost and what an own role allows,
    and requires a confirmation.

    It does not ask with `yes` or in a script, and does nothing in the lab, which costs nothing.
    Answering no raises click.Abort. It raises UsageError on a terminal that would not show the
    question.
    """

    def approve(plan: LaunchPlan) -> None:
        from clusterctl.operations.costs import running_cost

        if app.settings.lab:
            return
        question = "Launch?" if plan.missing else "Start?" if plan.stopped else "Change the role?"
        if plan.missing or plan.stopped:
            cost = running_cost(app.clients, plan)
            output.note(f"price of {plan.spec.name}: {_running_words(cost)}")
        if plan.grants:
            output.note(
                f"role {plan.spec.instance_profile}: the nodes, and whoever logs in to them, "
                f"{plan.grants} (--data-bucket and --checkpoint-prefix choose)"
            )
        if output.will_ask(question, yes, scripts=True):
            # The plan's remarks, as with --dry-run: what the image lacks, when the budget ends it.
            output.findings([found for found in plan.findings if found.severity is Severity.INFO])
            output.confirm(question, yes, scripts=True)

    return approve


def _running_words(cost: RunningCost) -> str:
    """Return `4 nodes, $88.17 an hour, $2,116.08 a day, $2.76 per GPU-hour (SOURCE)`."""
    nodes, hourly = count(cost.nodes, "node"), cost.hourly_usd
    if hourly is None:
        return f"{nodes} (hourly price unknown)"
    per_gpu = f", {format_usd(hourly / cost.gpus)} per GPU-hour" if cost.gpus else ""
    source = f" ({cost.price_source})" if cost.price_source else ""
    daily = format_usd(hourly * 24)
    return f"{nodes}, {format_usd(hourly)} an hour, {daily} a day{per_gpu}{source}"


def _what_runs(app: AppContext, name: str, awake_before: frozenset[str]) -> str:
    """Return what a failed command has launched or started, and what the cluster's nodes cost now.

    Empty if nothing runs that did not run before.
    """
    from clusterctl.domain.cluster import AWAKE
    from clusterctl.ec2.instances import find_instances
    from clusterctl.operations.costs import spending_of

    try:
        there = [one for one in find_instances(app.ec2, name) if one.node.state in AWAKE]
    except AwsError:
        return f"whether nodes run, and cost money, is not known: clusterctl status {name}"
    new = {one.node.instance_id for one in there} - awake_before
    if not new:
        return ""
    hourly = spending_of(app.clients, there).hourly_usd
    cost = "money" if hourly is None else f"{format_usd(hourly)} an hour"
    if app.settings.lab:
        cost = "nothing, in the lab"
    all_of_it = "" if len(new) == len(there) else f", {len(there)} in all"
    text = (
        f"{count(len(new), 'node')} of {name} {'runs' if len(new) == 1 else 'run'} now{all_of_it}"
    )
    end = (
        f"clusterctl status {name} shows them"
        if awake_before
        else f"clusterctl stop {name} keeps their disks, clusterctl down {name} removes all"
    )
    return f"{text}: that costs {cost}. {end}"


def _left_behind(app: AppContext, name: str) -> str:
    """Return what exists after an interrupt, and the command that undoes what the command made."""
    from clusterctl.ec2.instances import find_instances, unfinished_of
    from clusterctl.ec2.resources import NOT_TERMINATED, find_addresses
    from clusterctl.operations.local_state import sent_launches

    command = str(click.get_current_context().info_name)
    back = {
        "up": f"to remove it all: clusterctl down {name}",
        "start": f"to stop it again: clusterctl stop {name}",
    }.get(command, "")
    try:
        there = find_instances(app.ec2, name, NOT_TERMINATED)
        if there:
            verbs = ("is", "costs") if len(there) == 1 else ("are", "cost")
            what = f"there {verbs[0]} {count(len(there), 'instance')}, which {verbs[1]} money"
        elif find_addresses(app.ec2, name):
            what = "there is no instance yet, but an elastic address, which costs money"
        else:
            what = "there is no instance yet"
        added = unfinished_of(there).add
        if command == "add" and added:
            indices = " ".join(map(str, added))
            back = f"to do without them: clusterctl remove {name} {indices}"
    except Exception:  # any: the interrupt may have cut an import short, and left boto3 unusable
        what = "there may be instances"
    if sent_launches(app.folder(name)):
        what += "; a launch is under way, more may appear"
    return f"{what}; {back}" if back else what
