"""`clusterctl copy NAME SRC... DST`: copyclust on a named cluster."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterctl.cli import hostlines, output
from clusterctl.cli.app_context import (
    AppContext,
    ClusterCommand,
    account_options,
    node_options,
    selected,
)
from clusterctl.cli.copy.options import CopyOptions, CopyWords, copy_options, request_of, url_access
from clusterctl.cli.copy.text import missing_line
from clusterctl.cli.params import Index, SelectionOption, complete_file
from clusterctl.domain.errors import UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import status_of

if TYPE_CHECKING:
    from clusterctl.cli.copy.view import CopyView
    from clusterctl.copy.fetch import UrlAccess
    from clusterctl.domain.cluster import Cluster
    from clusterctl.operations.access import Access
    from clusterctl.operations.detached_copy import DetachedCopy
    from clusterctl.transport.dial import Target

# Seconds that a dry run waits for EC2's description of a disk.
DISK_WITHIN_S = 3.0


class _Copy(CopyWords, ClusterCommand):
    pass


@click.command(cls=_Copy)
@click.argument("name")
@click.argument("src", nargs=-1, required=True, shell_complete=complete_file)
@click.argument("dst")
@node_options
@click.option(
    "--from",
    "from_node",
    type=Index(),
    cls=SelectionOption,
    help="SRC is there, on the node 0 or NAME-0.",
)
@click.option("-d", "--detach", is_flag=True, help="Go on without this machine, as a job.")
@copy_options
@account_options
def copy(
    app: AppContext,
    name: str,
    src: tuple[str, ...],
    dst: str,
    head: bool,
    indices: tuple[int, ...] | None,
    from_node: int | None,
    detach: bool,
    options: CopyOptions,
) -> int:
    """Copy SRC of this machine to DST on all nodes of cluster NAME, in the time of one copy.

    \b
    clusterctl copy demo ~/data/tf-imagenet/ '~/data/tf-imagenet/'
    clusterctl copy demo --nodes 1-3 train.py '~/'
    clusterctl copy demo --from 0 '~/data/' '~/data/'
    clusterctl copy demo --detach ~/data/tf-imagenet/ '~/data/tf-imagenet/'
    clusterctl copy demo s3://bucket/tf-imagenet/ '~/data/tf-imagenet/'

    SRC is a file, a folder, a glob or a URL, and may be several. With a slash at its end it
    stands for what is in the folder. Running it again copies what is missing.
    """
    from clusterctl.cli.copy.view import showing
    from clusterctl.operations.copy import CopyTerms, copy_to_cluster
    from clusterctl.operations.detached_copy import plan_detached_copy

    if from_node is not None and dst.partition("/")[0] in (".", ".."):
        raise UsageError(
            f"DST is on the nodes, and {dst!r} seems to be a folder of this machine",
            f"what a job wrote comes here by: clusterctl fetch {name}; a DST is like '~/data'",
        )
    with showing(options) as shown:
        request = request_of(options, src, dst, from_node)
        with app.open(name) as access:
            targets = selected(access, head, indices)
            if from_node is not None:
                access.select((from_node,))
            missing = _missing(access.cluster)
            # With --head or --nodes, other nodes that are missing do not count as a failure.
            missing = () if head or indices else missing
            job = plan_detached_copy(access, targets, request) if detach else None
            urls = url_access(options, src, lambda: app.clients, app.settings.home)
            if job and not job.needs_this_machine:
                return max(_start(app, access, job, urls, options), int(bool(missing)))
            looking = _check_disk(app, access, targets, dst, shown)
            # A detached copy of files from here goes to the head node first; the job copies on.
            report = copy_to_cluster(
                access,
                (access.head,) if job else targets,
                request,
                watch=shown.watch,
                terms=CopyTerms(urls, options.fanout, options.timeout_s),
                link_rates=lambda: _link_rates(app, access),
            )
            if options.dry_run:
                looking.join(DISK_WITHIN_S)
        report = replace(report, missing=missing)
    status = shown.finish(report)
    if job and not report.failed and not report.error:
        with app.open(name) as access:
            mirror = request.delete and report.ok
            status = max(status, _start(app, access, job, urls, options, mirror))
    return status


def _start(
    app: AppContext,
    access: Access,
    job: DetachedCopy,
    urls: UrlAccess,
    options: CopyOptions,
    mirror: bool = False,
) -> int:
    """Start the job that copies, and print how to follow and end it. Return the exit status, of
    nodes that did not answer.

    `mirror`: the head node's DST equals SRC, so the job may delete what others have beyond it.
    """
    from clusterctl.operations.detached_copy import start_copy_job

    words = ["--plan"] if options.show_plan else []
    words += ["--quiet"] if options.quiet else []
    words += ["--timeout", f"{options.timeout_s:g}s"] if options.timeout_s else []
    started = start_copy_job(
        access,
        job,
        urls=urls,
        offline=bool(app.settings.lab),
        mirror=mirror,
        options=(*words, "--fanout", str(options.fanout)),
    )
    spec, hosts = started.job, [target.host for target in job.targets]
    if options.as_json:
        output.event({"event": "job", "job_id": spec.job_id, "nodes": hosts, "line": spec.line})
    output.note(
        f"job {spec.job_id} copies to {fold_hosts(hosts)} from now on, without this machine"
    )
    output.print_job_commands(access.cluster.name, spec.job_id)
    hostlines.show_failures(started.failures)
    return status_of(started.failures)


def _missing(cluster: Cluster) -> tuple[str, ...]:
    """Return the names of nodes that the cluster should have and lacks, after a warning."""
    missing = tuple(f"{cluster.name}-{index}" for index in cluster.missing)
    if missing:
        output.note(f"warning: {missing_line(missing, len(cluster.nodes))}")
    return missing


def _check_disk(
    app: AppContext, access: Access, targets: Sequence[Target], path: str, shown: CopyView
) -> threading.Thread:
    """Find out, in a thread during the copy, whether DST is on a slow disk.

    It queries the first node only, since the nodes of a cluster are alike.
    """
    from clusterctl.operations.disk import find_slow_disk

    first = next(node for node in access.cluster.nodes if node.name == targets[0].host)

    def probe() -> None:
        # This is advice only: the copy itself reports errors of a node or of EC2 that matter.
        with contextlib.suppress(Exception):
            shown.slow_disk = find_slow_disk(access, app.ec2, first.index, path)

    thread = threading.Thread(target=probe, daemon=True)
    thread.start()
    return thread


def _link_rates(app: AppContext, access: Access) -> dict[str, float]:
    """Return the link rate of each instance type, in bytes a second, as EC2 describes it.

    The plan uses it if there is one: an error of AWS means an empty answer. Links of the local EC2
    are this machine's, whatever the type.
    """
    if app.settings.lab:
        return {}
    from clusterctl.domain.errors import AwsError
    from clusterctl.ec2.machines import find_machine_types

    try:
        found = find_machine_types(
            app.ec2, sorted({node.instance_type for node in access.cluster.nodes})
        )
    except AwsError:
        return {}
    return {name: type_.link_gbps * 1e9 / 8 for name, type_ in found.items() if type_.link_gbps}
