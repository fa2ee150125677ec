"""`clusterctl s3sync NAME SRC... DST`: a data set from S3 on every node, detached."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from clusterctl.cli.app_context import AppContext, ClusterCommand, account_options
from clusterctl.cli.copy.options import credentials_of
from clusterctl.cli.node_options import node_options, selected
from clusterctl.cli.params import credentials_option
from clusterctl.domain.errors import UsageError, check_home

if TYPE_CHECKING:
    from clusterctl.operations.s3sync import SyncRequest


@click.command(cls=ClusterCommand)
@click.argument("name")
@click.argument("places", nargs=-1, metavar="[SRC... DST | JOB]")
@click.option("--status", "show_status", is_flag=True, help="How far the latest sync is.")
@click.option("--follow", "-f", is_flag=True, help="Show its log until it ends.")
@click.option("--cancel", "end", is_flag=True, help="End the latest sync.")
@credentials_option("The nodes' instance profile's; mine: this machine's; none: a public bucket.")
@click.option(
    "--tool",
    type=click.Choice(["auto", "s5cmd", "aws"]),
    default="auto",
    show_default=True,
    help="What moves the data; auto: s5cmd where a node has it, else aws; else s5cmd is sent.",
)
@click.option("--s3-endpoint", metavar="URL", help="Another S3 than AWS's.")
@click.option("--s3-region", metavar="REGION", help="The bucket's region, if it is not found out.")
@node_options
@click.option("--json", "as_json", is_flag=True, help="Each node's sync as JSON.")
@account_options
def s3sync(
    app: AppContext,
    name: str,
    places: tuple[str, ...],
    show_status: bool,
    follow: bool,
    end: bool,
    credentials: str,
    tool: str,
    s3_endpoint: str | None,
    s3_region: str | None,
    head: bool,
    indices: tuple[int, ...] | None,
    as_json: bool,
) -> int:
    """Bring what is at SRC (s3://BUCKET/PREFIX) to DST on the nodes of cluster NAME, detached.

    \b
    clusterctl s3sync demo s3://my-imagenet s3://my-validation '~/data/tf-imagenet'
    clusterctl s3sync demo --status
    clusterctl s3sync demo --follow
    clusterctl s3sync demo --cancel

    It goes on when this machine is switched off. Only what is missing moves; several sources go
    into the one folder. --status, --follow and --cancel are about the latest sync, or JOB. The exit
    status of --status and --follow is 1 if a node failed.
    """
    from clusterctl.cli import s3sync_report as report
    from clusterctl.copy.request import is_url
    from clusterctl.jobs.plan import check_job_id
    from clusterctl.operations.copy import sender
    from clusterctl.operations.s3sync import cancel_sync, list_syncs, start_sync

    sync_id = None
    if len(places) == 1 and (show_status or follow or end) and not is_url(places[0]):
        sync_id, places = check_job_id(places[0]), ()
    if places:
        if show_status or end:
            raise UsageError("SRC and DST start a sync", "leave out --status and --cancel")
        request = _request(places, tool, s3_endpoint, s3_region)
    elif not (show_status or follow or end):
        raise UsageError("there is nothing to do", "give SRC and DST, or --status")
    with app.open(name) as access:
        connections, targets = access.connections, selected(access, head, indices)
        status = 0
        if places:
            used = credentials_of(credentials, places[:-1], lambda: app.clients)
            started = start_sync(
                connections,
                targets,
                replace(request, credentials=used),
                cache=app.settings.home / "cache",
                send=sender(connections),
                cluster=name,
            )
            status = report.show_started(started, name, as_json and not follow)
            sync_id = started.sync_id
            if not follow or not started.nodes.values:
                return status
            there = {outcome.host for outcome in started.nodes.outcomes if outcome.value}
        else:
            listed = list_syncs(connections, targets, sync_id)
            sync_id = report.latest_or_raise(listed, name, sync_id)
            there = report.hosts_of(listed, sync_id)
        targets = tuple(target for target in targets if target.host in there)
        if end:
            return report.show_cancelled(cancel_sync(connections, targets, sync_id), as_json)
        if follow:
            return max(status, report.follow(connections, targets, name, sync_id, as_json))
        return report.show_records(list_syncs(connections, targets, sync_id), as_json)


def _request(
    places: tuple[str, ...], tool: str, endpoint: str | None, region: str | None
) -> SyncRequest:
    """Return the request of a sync. Raises UsageError."""
    from clusterctl.copy.request import is_url
    from clusterctl.copy.s3 import check_endpoint, parse_source
    from clusterctl.operations.s3sync import SyncRequest

    *sources, destination = places
    if not sources or is_url(destination):
        raise UsageError(
            "SRC or DST is missing", "clusterctl s3sync NAME s3://BUCKET/PREFIX '~/data'"
        )
    parsed = tuple(map(parse_source, sources))
    web = [source.url for source in parsed if not source.is_s3]
    if web:
        raise UsageError(f"s3sync reads S3: {web[0]}", "a file of a web server: clusterctl copy")
    return SyncRequest(
        parsed,
        check_destination(destination),
        tool=tool,
        endpoint=check_endpoint(endpoint),
        region=region,
    )


def check_destination(text: str) -> str:
    """Return the destination as a path on the nodes, absolute or below ~. Raises UsageError."""
    check_home(text)
    return text if text.startswith(("~", "/")) else f"~/{text}" if text else "~"
