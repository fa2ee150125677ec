"""`clusterctl s3sync NAME SRC... DST`: a detached copy from S3, and how far it is on each node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import AppContext, cluster_command, node_options, selected
from clusterctl.cli.copy.options import CopyOptions, s3_options, url_access
from clusterctl.cli.params import json_option
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts, grouped
from clusterctl.domain.results import status_of, worst
from clusterctl.domain.units import format_bytes, format_duration

if TYPE_CHECKING:
    from clusterctl.copy.request import CopyRequest
    from clusterctl.node.jobs.spec import JobRecord
    from clusterctl.operations.access import Access
    from clusterctl.operations.s3sync import SyncNode
    from clusterctl.transport.dial import Target


@cluster_command()
@click.argument("places", nargs=-1, metavar="[SRC... DST | JOB]")
@click.option("--status", "show_status", is_flag=True, help="How far the latest sync is.")
@click.option("--follow", "-f", is_flag=True, help="Show its log until it ends.")
@s3_options
@node_options
@json_option("Sync")
def s3sync(
    app: AppContext,
    name: str,
    places: tuple[str, ...],
    show_status: bool,
    follow: bool,
    credentials: str,
    tool: str,
    s3_endpoint: str | None,
    s3_region: str | None,
    head: bool,
    indices: tuple[int, ...] | None,
    as_json: bool,
) -> int:
    """Copy what is at SRC (s3://BUCKET/PREFIX) to DST on the nodes of cluster NAME, detached.

    \b
    clusterctl s3sync demo s3://my-imagenet s3://my-validation '~/data/tf-imagenet'
    clusterctl s3sync demo --status
    clusterctl s3sync demo --follow

    The same as `copy --detach`: a job, which goes on when this machine is switched off, and which
    `clusterctl cancel` ends. Only what is missing moves; several sources go into the one folder.
    --status and --follow are about the latest sync, or JOB; their status is 1 if a node failed.
    """
    from clusterctl.copy.request import is_url
    from clusterctl.jobs.plan import check_job_id
    from clusterctl.operations.s3sync import find_sync

    job_id = None
    if len(places) == 1 and (show_status or follow) and not is_url(places[0]):
        job_id, places = check_job_id(places[0]), ()
    if places and show_status:
        raise UsageError("SRC and DST start a sync", "leave out --status")
    if not (places or show_status or follow):
        raise UsageError("there is nothing to do", "give SRC and DST, or --status")
    request = _request(places) if places else None
    options = CopyOptions(
        credentials=credentials, tool=tool, s3_endpoint=s3_endpoint, s3_region=s3_region
    )
    with app.open(name) as access:
        targets = selected(access, head, indices)
        hosts = {target.host for target in targets} if head or indices is not None else None
        status = 0
        if request:
            status, job = _start(app, access, targets, request, options, as_json and not follow)
            if not follow:
                return status
        else:
            job = find_sync(access, job_id)
        if follow:
            return max(status, _follow(access, job, hosts, as_json))
        return _show(_nodes(access, job, hosts), as_json)


def _request(places: tuple[str, ...]) -> CopyRequest:
    """Return the request of a sync. Raises UsageError."""
    from clusterctl.copy.request import CopyRequest, is_s3, is_url

    *sources, destination = places
    if not sources or is_url(destination):
        raise UsageError(
            "SRC or DST is missing", "clusterctl s3sync NAME s3://BUCKET/PREFIX '~/data'"
        )
    other = [source for source in sources if not is_s3(source)]
    if other:
        raise UsageError(f"s3sync reads S3: {other[0]}", "anything else: clusterctl copy --detach")
    return CopyRequest(tuple(sources), destination)


def _nodes(access: Access, job: JobRecord, hosts: set[str] | None) -> list[SyncNode]:
    """Return the sync on each of its nodes that are selected: by default all."""
    from clusterctl.operations.s3sync import nodes_of

    nodes = nodes_of(job, access.cluster.name)
    return [node for node in nodes if hosts is None or node.host in hosts]


def _start(
    app: AppContext,
    access: Access,
    targets: Sequence[Target],
    request: CopyRequest,
    options: CopyOptions,
    as_json: bool,
) -> tuple[int, JobRecord]:
    """Start the job and wait for its first progress; print where it runs and how to follow and end
    it.

    Return the exit status so far, and the job.
    """
    from clusterctl.operations.detached_copy import plan_detached_copy, start_copy_job
    from clusterctl.operations.s3sync import wait_until_listed

    urls = url_access(options, request.sources, lambda: app.clients, app.settings.home)
    copy = plan_detached_copy(access, targets, request)
    started = start_copy_job(access, copy, urls=urls, offline=bool(app.settings.lab))
    name, job = access.cluster.name, wait_until_listed(access, started.job.job_id)
    failed = [node for node in _nodes(access, job, None) if node.is_failed]
    unheard = {node.host for node in failed}
    silent = [one for one in started.failures if one.host not in unheard]
    unheard |= {one.host for one in silent}
    hosts = [target.host for target in targets if target.host not in unheard]
    if hosts:
        output.note(f"sync {job.job_id} runs on {fold_hosts(hosts)}, by {started.tools}")
        output.note(f"  how far:   clusterctl s3sync {name} --status")
        output.note(f"  follow it: clusterctl s3sync {name} --follow")
        output.note(f"  end it:    clusterctl cancel {name} {job.job_id}")
    if as_json:
        failures = [*failed, *silent]
        data = {"job_id": job.job_id, "how": started.tools, "hosts": hosts, "failures": failures}
        output.data(data)
    _show_reasons(failed)
    hostlines.show_failures(silent)
    return worst([status_of(silent), *(node.exit_status for node in failed)]), job


def _show(nodes: list[SyncNode], as_json: bool) -> int:
    """Print one line for each node; return 1 if one failed, 255 if one was not reached, else 0."""
    from clusterctl.operations.s3sync import status_of_sync

    if as_json:
        _print_data(nodes)
    else:
        columns = ("NODE", "STATE", "FILES", "BYTES", "RATE", "TIME", "BY", "DST")
        output.table(columns, list(map(_row, nodes)))
        _show_reasons(nodes)
    return status_of_sync(nodes)


def _follow(access: Access, job: JobRecord, hosts: set[str] | None, as_json: bool) -> int:
    """Show the log until the job has ended, and how it ended on each node.

    Return the exit status, 130 after Ctrl-C, which does not end the sync.
    """
    from clusterctl.cli.following import note_lost
    from clusterctl.jobs.detached import LogFollower, find_job
    from clusterctl.operations.logs import follow
    from clusterctl.operations.s3sync import status_of_sync

    def show(chunk: bytes) -> None:
        output.raw(chunk, "stderr" if as_json else "stdout")

    try:
        follow(access, job.job_id, LogFollower(show, note_lost))
    except KeyboardInterrupt:
        output.note(f"\nno longer following: sync {job.job_id} goes on")
        output.note(f"  follow it: clusterctl s3sync {access.cluster.name} --follow")
        return output.INTERRUPTED
    nodes = _nodes(access, find_job(access.connections, access.head, job.job_id), hosts)
    if as_json:
        _print_data(nodes)
    for text, same in grouped((node.shown_state, node) for node in nodes).items():
        took = format_duration(max(node.duration_s for node in same))
        output.note(f"{fold_hosts([node.host for node in same])}: {text} after {took}")
    _show_reasons(nodes)
    return status_of_sync(nodes)


def _print_data(nodes: Sequence[SyncNode]) -> None:
    failed = [node for node in nodes if node.is_failed]
    output.data({"nodes": [one for one in nodes if one not in failed], "failures": failed})


def _show_reasons(nodes: Sequence[SyncNode]) -> None:
    hostlines.show_reasons((node.host, (node.message, node.hint)) for node in nodes if node.message)


def _row(node: SyncNode) -> tuple[object, ...]:
    copied = node.copied
    files = "-" if copied.files is None else f"{copied.files}/{copied.needed_files}"
    if copied.present_files:
        files += f", {copied.present_files} were there"
    size = "-"
    if copied.bytes is not None and copied.needed_bytes is not None:
        size = f"{format_bytes(copied.bytes)} of {format_bytes(copied.needed_bytes)}"
    rate = "-" if node.rate is None else f"{format_bytes(node.rate)}/s"
    took = format_duration(node.duration_s)
    place = node.job.spec.destination
    return (node.host, node.shown_state, files, size, rate, took, copied.tool, place)
