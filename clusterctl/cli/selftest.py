"""`clusterctl selftest`: a rehearsal on two machines, with a limit on its cost and one report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, account_options
from clusterctl.cli.params import NumberRange, OutputFile, dry_run_option, json_option, yes_option
from clusterctl.domain.errors import ClusterctlError
from clusterctl.domain.findings import Severity

if TYPE_CHECKING:
    from clusterctl.domain.cluster import ClusterSpec
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.selftest import Selftest
    from clusterctl.operations.selftest_report import SelftestReport, StepResult


@click.command()
@click.argument("name", default="selftest")
@click.option(
    "--max-cost",
    "max_cost_usd",
    type=NumberRange(0, min_open=True),
    metavar="USD",
    required=True,
    help="Launch nothing that may cost more. The nodes also end themselves at 90 % of it.",
)
@click.option(
    "--instance-type", metavar="TYPE", default="g5.xlarge", show_default=True, help="Of both nodes."
)
@click.option(
    "--file",
    "path",
    type=OutputFile(),
    metavar="FILE",
    help="Where the report is written; default: selftest-TIME.txt here.",
)
@yes_option
@dry_run_option
@json_option("Selftested", "Print the report as JSON, too.")
@account_options
def selftest(
    app: AppContext,
    name: str,
    max_cost_usd: float,
    instance_type: str,
    path: Path | None,
    yes: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """Try clusterctl on two small GPU machines, and write a report to send.

    \b
    clusterctl selftest --max-cost 5
    clusterctl selftest --max-cost 5 --dry-run
    clusterctl selftest --max-cost 5 --instance-type g6.xlarge --region us-west-2

    It launches cluster NAME (selftest), installs the training environment, trains 200 steps,
    measures the network and nccl-tests, stops one rank, checks that diagnose names it, removes
    everything and checks what EC2 still has. It needs a confirmation before it spends. Ctrl-C
    removes everything, too. The network, zone, image and market are those of NAME's entry in
    clusterctl.yaml.
    """
    from clusterctl.operations import selftest as story

    launcher, spec = _prepared(app, name, instance_type, max_cost_usd)
    plan, estimate = story.plan(launcher, spec, max_cost_usd)
    if dry_run:
        _show_plan(estimate, as_json)
        return 0
    # Warnings are printed again by the launch.
    output.findings([found for found in plan.findings if found.severity is Severity.INFO])
    left = story.left_by_guards(plan)
    _confirm(app, spec, estimate, left, yes)
    test = story.Selftest(
        launcher,
        spec,
        lambda: app.open(name),
        output.note,
        lambda chunk: output.raw(chunk, "stderr"),
        bool(app.settings.lab),
        estimate,
    )
    path = path or Path(f"selftest-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.txt")
    # Written before anything is launched: a folder that takes no file is found out now.
    _write(path, story.report_of(test))
    # A terminal that is closed must not leave the nodes to their guards.
    with test.interrupts.handled():
        results = story.run_steps(test, story.STEPS, lambda so_far: _keep(path, test, so_far))
    report = story.report_of(test, results)
    return _finish(path, test, report, left, as_json)


def _prepared(
    app: AppContext, name: str, instance_type: str, max_cost_usd: float
) -> tuple[Launcher, ClusterSpec]:
    """Return the launcher and the cluster to launch. Raises UsageError."""
    from clusterctl.cli.launching import layers, waiting_of
    from clusterctl.configuration.options import SpecDraft
    from clusterctl.operations.launcher import Launcher
    from clusterctl.operations.selftest import NODES, selftest_spec

    draft = SpecDraft.of(name, *layers(app, name))
    of_file = draft.spec(nodes=NODES, instance_type=instance_type)
    launcher = Launcher(
        app.clients,
        app.folder(name),
        proxy_command=app.proxy_command,
        timeouts=app.timeouts,
        **waiting_of(draft)._asdict(),
    )
    return launcher, selftest_spec(of_file, instance_type, max_cost_usd)


def _show_plan(estimate: str, as_json: bool) -> None:
    from clusterctl.operations.selftest import STEPS

    if as_json:
        output.data({"estimate": estimate, "steps": STEPS})
        return
    for number, step in enumerate(STEPS, start=1):
        output.line(f"{number}. {step.name}: {step.title}")
    output.line(estimate)
    output.note("nothing was done")


def _confirm(app: AppContext, spec: ClusterSpec, estimate: str, left: str, yes: bool) -> None:
    """Print the price, and ask. Answering no raises click.Abort."""
    from clusterctl.ec2.money.costs import format_usd

    output.note(estimate + ("; the local EC2 bills nothing" if app.settings.lab else ""))
    limits = spec.limits
    output.note(
        f"the nodes end themselves after {limits.max_hours:g} hours, or when they have cost "
        f"{format_usd(limits.budget_usd)}, also if this program is killed; then they leave {left}"
    )
    output.confirm(f"Launch {spec.name}?", yes or bool(app.settings.lab), scripts=True)


def _write(path: Path, report: SelftestReport) -> None:
    """Write the file. Raises ClusterctlError."""
    from clusterctl.domain.files import write_file
    from clusterctl.operations.selftest_report import render

    try:
        write_file(path.resolve(), render(report))
    except OSError as error:
        raise ClusterctlError(
            f"cannot write the report {path}: {error.strerror}", "name another: --file FILE"
        ) from None


def _keep(path: Path, test: Selftest, results: Sequence[StepResult]) -> None:
    """Write the results so far. An error is only printed: it must not end the self-test."""
    from clusterctl.operations.selftest import report_of

    try:
        _write(path, report_of(test, results))
    except ClusterctlError as error:
        output.note(f"warning: {error.message}")


def _finish(path: Path, test: Selftest, report: SelftestReport, left: str, as_json: bool) -> int:
    """Write the file, print a row for each step and what is left, and return the exit status.

    `left` is what nodes leave that end by their limits. Where the file cannot be written, its text
    is printed, and 0 becomes 1.
    """
    from clusterctl.operations.selftest_report import render, rows

    status = report.exit_status
    try:
        _write(path, report)
    except ClusterctlError as error:
        output.note(f"{error.message}; this is its text:\n{render(report)}")
        status = status or 1
    if as_json:
        output.data(replace(report, file=str(path)))
    else:
        output.table(("STEP", "VERDICT", "TIME", "FOUND"), rows(report.results))
        output.line(f"{report.summary}; cost: {report.spent}")
    if test.others:
        output.note(f"not removed, since this self-test did not make it: {', '.join(test.others)}")
    elif not report.is_removed:
        output.note(
            f"something may be left, and cost money: clusterctl down {test.name}. The nodes end "
            f"themselves by their limits, and leave {left}"
        )
    output.note(
        f"the report is {path}: steps, versions, figures, costs and the last lines of the logs, "
        "without keys, account numbers and addresses. Read it, then send it to clusterctl's authors"
    )
    return status
