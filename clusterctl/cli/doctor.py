"""`clusterctl doctor [NAME]`: how the nodes differ, and what is wrong with each."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from clusterctl.cli import output
from clusterctl.cli.app_context import AppContext, cluster_command, nodes_option
from clusterctl.cli.host_options import SOURCES, for_clusters, host_options, one_of
from clusterctl.cli.params import json_option
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count

if TYPE_CHECKING:
    from clusterctl.cli.json_types import Checked, CheckedFacts
    from clusterctl.diagnosis.drift import NodeComparison
    from clusterctl.operations.doctor import DoctorReport
    from clusterctl.operations.hosts_access import HostSource


@cluster_command(required=False, instead=SOURCES)
@nodes_option
@click.option("--all", "all_columns", is_flag=True, help="Also the columns that are all the same.")
@click.option("--all-to-all", is_flag=True, help="Does each node reach each other one, too?")
@click.option("--data-dir", metavar="DIR", default="", help="Where the training data are.")
@click.option("--fix", is_flag=True, help="End leftover ranks, restore hostnames; check again.")
@json_option("Checked")
@host_options()
def doctor(
    app: AppContext,
    name: str | None,
    indices: tuple[int, ...] | None,
    all_columns: bool,
    all_to_all: bool,
    data_dir: str,
    fix: bool,
    as_json: bool,
    source: HostSource | None,
) -> int:
    """Check every node of cluster NAME: what differs from the others, and what is wrong.

    \b
    clusterctl doctor demo
    clusterctl doctor demo --all
    clusterctl doctor demo --fix
    clusterctl doctor --hosts hosts

    One row a node, with the columns that are not the same on all; a value that few nodes have is
    marked with *. Of hosts without a cluster, named by --hosts, -w, --slurm or --local, what needs
    EC2 is left out. Exit status 0: all is well, 1: warnings, 2: errors,
    3: no error, and something could not be checked.
    """
    from clusterctl.diagnosis.drift import measures
    from clusterctl.operations.doctor import doctor_of_hosts

    one_of(name, source)
    for_clusters(source, fix=fix, nodes=indices)
    if source:
        report = doctor_of_hosts(source, data_dir, all_to_all)
    else:
        report = _of_cluster(app, name or "", indices, data_dir, all_to_all, fix)
    if as_json:
        output.data(_as_data(report))
        return report.exit_status
    if report.nodes:
        _show(report.table, all_columns)
    output.findings(report.findings)
    if not report.exit_status:
        hosts = fold_hosts([node.host for node in report.nodes])
        output.line(f"nothing is wrong with {hosts}: {measures(report.nodes)}")
    return report.exit_status


def _of_cluster(
    app: AppContext,
    name: str,
    indices: tuple[int, ...] | None,
    data_dir: str,
    all_to_all: bool,
    fix: bool,
) -> DoctorReport:
    from clusterctl.domain.errors import HostError
    from clusterctl.ec2.health import health_findings
    from clusterctl.jobs.detached import JobRunning
    from clusterctl.operations.doctor import doctor as inspect
    from clusterctl.operations.doctor import repair
    from clusterctl.operations.logs import refuse_while_training

    found = app.status(name)
    with app.access(found.cluster) as access:
        if fix:
            try:
                # No repair disturbs a served model.
                refuse_while_training(access, "what it uses would be changed", ())
            except JobRunning as refusal:
                refusal.hint = f"end it: clusterctl cancel {name}; or run it without --fix"
                raise
            except HostError as silence:
                silence.hint = "run it without --fix"
                raise
        chosen = [one for one in found.instances if not indices or one.node.index in indices]
        gone = [] if indices else found.findings
        health = [*gone, *health_findings(app.clients.ec2, chosen)]
        request = (found.instances, indices, data_dir, all_to_all, health)
        report = inspect(access, *request)
        if fix and repair(access, report, output.note):
            report = inspect(access, *request)
    return report


def _show(table: NodeComparison, all_columns: bool) -> None:
    headings = tuple(table.cells) if all_columns else table.differing
    hosts = [one.host for one in table.nodes]
    rows = []
    for row, host in enumerate(hosts):
        cells = (
            (table.cells[name][row] or "-") + ("*" if table.is_odd(name, row) else "")
            for name in headings
        )
        rows.append((host, *cells))
    if headings:
        output.table(("NODE", *headings), rows)
    same = [f"{name} {norm}" for name, norm in table.norms.items() if name not in headings and norm]
    if same:
        is_single = len(hosts) == 1
        where = f"on {hosts[0]}" if is_single else f"the same on all {count(len(hosts), 'node')}"
        output.line(f"{where}: {', '.join(same)}")


def _as_data(report: DoctorReport) -> Checked:
    table = report.table
    return {
        "nodes": [
            {
                "host": one.host,
                "values": {name: cells[row] for name, cells in table.cells.items()},
                "odd": [name for name in table.cells if table.is_odd(name, row)],
                "clock_offset_s": round(one.report.clock_offset_s, 4),
                "clock_error_s": round(one.report.clock_error_s, 4),
                "facts": cast("CheckedFacts", one.report.as_data()),
            }
            for row, one in enumerate(table.nodes)
        ],
        "norms": table.norms,
        "findings": report.findings,
        "failures": report.failures,
    }
