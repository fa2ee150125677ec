"""`clusterctl kill NAME`: end what a crashed job left on the nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.node_options import nodes_option
from clusterctl.cli.process_table import saying_what_is_left, show_left, show_processes
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.operations.kill import KillReport


@click.command(cls=ClusterCommand)
@click.argument("name")
@nodes_option
@click.option(
    "--all-python", is_flag=True, help="Every Python process of the SSH user too (pkill -9 python)."
)
@click.option("--dry-run", is_flag=True, help="Show them, and end none.")
@click.option("--json", "as_json", is_flag=True, help="The processes as JSON.")
@account_options
def kill(
    app: AppContext,
    name: str,
    indices: tuple[int, ...] | None,
    all_python: bool,
    dry_run: bool,
    as_json: bool,
) -> int:
    """End what jobs left on the nodes of cluster NAME: ranks, mpirun, its daemons.

    \b
    clusterctl kill demo --dry-run
    clusterctl kill demo --nodes 1-3

    Shells, notebooks and other Python programs stay. TERM first, KILL after 5 s, then a second
    look that has to find nothing.
    """
    from clusterctl.diagnostics.processes import ProcessQuery
    from clusterctl.operations.kill import Outcomes
    from clusterctl.operations.kill import kill as kill_processes

    def found(outcomes: Outcomes) -> None:
        processes = [process for value in outcomes.values for process in value]
        if processes and not as_json:
            show_processes(processes)

    with app.open(name) as access, saying_what_is_left(name):
        query = ProcessQuery(all_python=all_python)
        report = kill_processes(access, query, indices, dry_run, found)
    if as_json:
        output.data([process.as_data() for process in report.ended or report.found])
    elif report.found or report.answered:
        output.line(how_they_ended(report, dry_run))
    show_left(report.left)
    hostlines.show_failures(report.failures)
    return report.exit_status


def how_they_ended(report: KillReport, dry_run: bool = False) -> str:
    """`ended 3 processes on demo-[0-1]; none left`."""
    if not report.found:
        # Nothing is known of a node that does not answer.
        return "nothing to end" + (f" on {fold_hosts(report.answered)}" if report.failures else "")
    hosts = fold_hosts([process.host for process in report.found])
    if dry_run:
        return f"would end {count(len(report.found), 'process')} on {hosts}"
    forced = sum(process.ended == "killed" for process in report.ended)
    by_force = f" ({forced} by force)" if forced else ""
    left = f"{len(report.left)} left" if report.left else "none left"
    ended = sum(bool(process.ended) for process in report.ended)
    return f"ended {count(ended, 'process')} on {hosts}{by_force}; {left}"
