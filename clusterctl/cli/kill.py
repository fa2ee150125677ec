"""`clusterctl kill [NAME]`: end what a crashed job left. `cancel NAME`: end a job on all nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command, nodes_option
from clusterctl.cli.following import how_it_ended
from clusterctl.cli.host_options import (
    SOURCES,
    check_launcher,
    for_clusters,
    host_options,
    launcher_option,
    one_of,
)
from clusterctl.cli.params import dry_run_option, job_argument, json_option
from clusterctl.domain.errors import HostError, UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.units import count, format_duration
from clusterctl.node.record import to_data

if TYPE_CHECKING:
    from clusterctl.cli.json_types import Killed
    from clusterctl.jobs.processes import Processes
    from clusterctl.node.jobs.processes import NodeProcess
    from clusterctl.operations.hosts_access import HostSource
    from clusterctl.operations.kill import HeldMemory, KillReport


def show_processes(processes: Sequence[NodeProcess]) -> None:
    output.table(
        ("NODE", "PID", "RANK", "AGE", "WHAT", "COMMAND"),
        [
            (
                process.host,
                process.pid,
                "-" if process.rank is None else process.rank,
                format_duration(process.age_s),
                process.role,
                process.short_command,
            )
            for process in processes
        ],
    )


def jobs_of(processes: Sequence[NodeProcess]) -> str:
    """Return the line with the jobs of these processes, as a queued one has one, too; empty if no
    job has any."""
    named = dict.fromkeys(output.one_line(one.job_id) for one in processes if one.job_id)
    others = "" if all(one.job_id for one in processes) else ", and processes of no job"
    return f"of these jobs: {', '.join(named)}{others}" if named else ""


def show_left(processes: Sequence[NodeProcess], name: str | None) -> None:
    """Print an error for each process that could not be ended, and a hint. `name` is the cluster's;
    None for other hosts."""
    for process in processes:
        what = f": {process.short_command}" if process.argv else ", which the job has left"
        output.note(f"error: {process.host}: process {process.pid} is still there{what}")
    if processes:
        # While a job or a launcher lives, it counts as running: `reboot` then needs --force.
        runs = any(process.role in ("job", "launcher") for process in processes)
        output.note(
            "  hint: a process that survives KILL waits for a device or a disk: "
            f"{_reboot(name, processes)}{' --force' if name and runs else ''}"
        )


def _reboot(name: str | None, found: Sequence[NodeProcess | HeldMemory]) -> str:
    hosts = list(dict.fromkeys(one.host for one in found))
    if name is None:
        return f"reboot {fold_hosts(hosts)}"
    return f"clusterctl reboot {name} {' '.join(host.rpartition('-')[2] for host in hosts)}"


@contextlib.contextmanager
def hint_after_interrupt(where: str) -> Iterator[None]:
    """After Ctrl-C, print the command that shows what is left: some processes have ended."""
    try:
        yield
    except KeyboardInterrupt:
        output.note(f"see what is left: clusterctl kill {where} --dry-run")
        raise


@cluster_command(required=False, instead=SOURCES)
@job_argument
@nodes_option
@click.option(
    "--all-python", is_flag=True, help="Every Python process of the SSH user too (pkill -9 python)."
)
@dry_run_option
@json_option("Killed")
@host_options("slurm")
@launcher_option
def kill(
    app: AppContext,
    name: str | None,
    job_id: str | None,
    indices: tuple[int, ...] | None,
    all_python: bool,
    dry_run: bool,
    as_json: bool,
    source: HostSource | None,
    launcher: str | None,
) -> int:
    """End what jobs left on the nodes of cluster NAME: ranks, mpirun, its daemons; with JOB, only
    that job's.

    \b
    clusterctl kill demo --dry-run
    clusterctl kill demo --nodes 1-3
    clusterctl kill demo 20261120-154501-3f2a --dry-run
    clusterctl kill --hosts hosts --dry-run

    Shells, notebooks and other Python programs stay. Processes get TERM, and KILL after 5 s. Then a
    second check has to find none of them, and the GPUs' memory free. On hosts of no cluster, named
    by --hosts, -w or --local, all jobs of the login end, of any launcher, or the one of --launcher.
    """
    from clusterctl.jobs.detached import find_job
    from clusterctl.jobs.processes import hidden_on, hidden_users_text
    from clusterctl.node.jobs.processes import ProcessQuery
    from clusterctl.operations.kill import kill as kill_processes
    from clusterctl.operations.kill import query_for

    def found(outcomes: Processes) -> None:
        processes = [process for value in outcomes.values for process in value]
        if processes and not as_json:
            show_processes(processes)

    one_of(name, source)
    for_clusters(source, nodes=indices)
    query = ProcessQuery(job_id, all_python, any_launcher=source is not None)
    check_launcher(launcher, source)
    if launcher and source:
        if all_python:
            raise UsageError(
                "--launcher names one job, and --all-python every Python program",
                "give one of them",
            )
        query = query_for(source, launcher)
    with hint_after_interrupt(source.options if source else name or ""):
        if source:
            report = kill_processes(source.connections, source.targets, query, dry_run, found)
        else:
            with app.open(name or "") as access:
                chosen = access.select(indices)
                report = kill_processes(access.connections, chosen, query, dry_run, found)
                if job_id and not (report.found or report.failures):
                    # A head node that was not chosen need not answer.
                    with contextlib.suppress(HostError):
                        find_job(access.connections, access.head, job_id, access.cluster.name)
    if as_json:
        output.data(_report_data(report))
    elif report.found or report.answered:
        output.line(how_they_ended(report, dry_run))
        if not job_id and (jobs := jobs_of(report.found)):
            output.line(jobs)
    answered = [one for one in source.targets if one.host in report.answered] if source else []
    if source and not report.found and (hidden := hidden_on(source.connections, answered)):
        everyone = f"clusterctl kill {source.options} --sudo --dry-run"
        output.note(f"warning: {hidden_users_text(hidden)}")
        output.note(f"  hint: see the jobs of all users: {everyone}")
    show_left(report.left, name)
    show_held(report.held or (), name)
    hostlines.show_failures(report.failures)
    return report.exit_status


def _report_data(report: KillReport) -> Killed:
    return {
        "processes": [_process_data(one) for one in report.ended or report.found],
        "left": [_process_data(one) for one in report.left],
        "gpu_memory_held": report.held,
        "failures": report.failures,
    }


def _process_data(process: NodeProcess) -> Any:
    data = to_data(process)
    del data["session"], data["group"], data["parent"]  # only the node knows what they mean
    return {**data, "ended": process.ended or None}


def show_held(held: Sequence[HeldMemory], name: str | None) -> None:
    """Print an error for each GPU whose memory is not free, with a hint, and a warning for each of
    which that is not known."""
    for one in held:
        if one.mib is None:
            output.note(
                f"warning: {one.host}: whether the memory of GPU {one.gpu} is free is not known: "
                "nvidia-smi reports N/A"
            )
    held = [one for one in held if one.mib is not None]
    for one in held:
        who = f"process {', '.join(map(str, one.pids))}" if one.pids else "no process that is there"
        output.note(f"error: {one.host}: GPU {one.gpu} still holds {one.mib} MiB, of {who}")
    if held:
        output.note(
            "  hint: run `nvidia-smi` there again: a driver may need a minute. Then end the "
            "processes that it shows. If it shows none, the driver does not free the memory: "
            f"{_reboot(name, held)}"
        )


def how_they_ended(report: KillReport, dry_run: bool = False) -> str:
    """Return `ended 3 processes on demo-[0-1]; none left`."""
    if not report.found:
        # A node that did not answer may have some: name those that did.
        return "nothing to end" + (f" on {fold_hosts(report.answered)}" if report.failures else "")
    hosts = fold_hosts([process.host for process in report.found])
    if dry_run:
        return f"would end {count(len(report.found), 'process')} on {hosts}"
    forced = sum(process.ended == "killed" for process in report.ended)
    by_force = f" ({forced} by force)" if forced else ""
    left = f"{len(report.left)} left" if report.left else "none left"
    if report.held == ():
        left += ", GPU memory is free"
    ended = sum(bool(process.ended) for process in report.ended)
    return f"ended {count(ended, 'process')} on {hosts}{by_force}; {left}"


@cluster_command()
@job_argument
@json_option("CancelledData")
def cancel(app: AppContext, name: str, job_id: str | None, as_json: bool) -> int:
    """End JOB of cluster NAME, or all that runs there: jobs, an mpirun started by hand, what either
    left anywhere.

    \b
    clusterctl cancel demo
    clusterctl cancel demo 20261120-154501-3f2a

    mpirun is stopped first, and ends its ranks. What is left then on any node is ended as by
    `clusterctl kill`, with the same second check. It is a success if nothing runs, and a failure if
    a node does not answer (exit status 255).
    """
    from clusterctl.operations.kill import cancel as cancel_job

    with hint_after_interrupt(name), app.open(name) as access:
        cancelled = cancel_job(access, job_id)
    others = cancelled.others
    if as_json:
        jobs = [job.report() for _, job in cancelled.jobs]
        output.data({"jobs": jobs, **_report_data(others)})
    else:
        for before, job in cancelled.jobs:
            output.line(("" if before.is_active else "already ended: ") + how_it_ended(job))
        if others.found:
            show_processes(others.found)
            output.line(how_they_ended(others))
        elif others.answered and not others.left:
            # A node that did not answer may have some: name those that did.
            is_known = not (others.failures or cancelled.silent)
            where = "" if is_known else f" on {fold_hosts(others.answered)}"
            output.line(f"nothing {'of it is left' if cancelled.jobs else 'is running'}{where}")
    if cancelled.silent:
        hosts = fold_hosts(cancelled.silent)
        output.note(f"warning: {hosts} did not answer: what the job left there is not known")
    show_left(others.left, name)
    show_held(others.held or (), name)
    hostlines.show_failures(others.failures)
    return others.exit_status
