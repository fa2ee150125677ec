"""A data set from S3 to every node, by a sync on each that outlives the connection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clusterctl.copy.failures import with_unquoted_home
from clusterctl.copy.s3 import Credentials, LentKeys, UrlSource, urls_config
from clusterctl.copy.s3copy import ask_nodes
from clusterctl.copy.s3plan import UrlFacts, UrlWish, tool_of
from clusterctl.copy.s3sync import (
    TIMEOUT_S,
    TOOLS,
    SyncRecord,
    parse_records,
    program,
    sync_order,
    tool_commands,
)
from clusterctl.diagnostics.program import json_lines, read_each
from clusterctl.domain.errors import ClusterctlError, HostError, UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.jobs.ids import new_job_id
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target


class SyncRunning(HostError):
    """A sync into the same folder is running there."""

    exit_status = 1


class SyncFailed(HostError):
    """A sync has failed as soon as it was started."""

    exit_status = 1


@dataclass(frozen=True)
class SyncRequest:
    """SRC... to DST. `tool`: `auto`, `own`, or one of TOOLS."""

    sources: tuple[UrlSource, ...]
    destination: str
    credentials: Credentials = None
    tool: str = "auto"
    endpoint: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class StartedSync:
    """A sync that runs on the nodes of `nodes.values`."""

    sync_id: str
    how: str
    why: str
    commands: tuple[tuple[str, ...], ...]
    nodes: FanoutResult[str]


def start_sync(
    connections: Connections,
    targets: Sequence[Target],
    request: SyncRequest,
    *,
    cluster: str = "NAME",
) -> StartedSync:
    """Start it on every node that answers, and see that it has begun.

    A node that does not say which tools it has is a failure. `cluster` is for what messages advise.

    Raises ClusterctlError where none can read the sources.
    """
    config = config_of(request)
    tools = request.tool != "own"
    facts = ask_nodes(connections, targets, {**config, "tools": tools})
    readable = [one for one in facts.values if one.reachable]
    if facts.values and not readable:
        first = facts.values[0]
        raise ClusterctlError(f"no node can read the source: {first.why}", first.hint)
    tool, why = choose_tool(request, facts.values)
    commands = []
    if tool:
        commands = tool_commands(
            tool,
            request.sources,
            request.destination,
            readable,
            request.endpoint,
            request.credentials == "none",
        )
    sync_id = new_job_id()
    order = sync_order(sync_id, request.sources, request.destination, config, commands)
    silent = {outcome.host: outcome.error for outcome in facts.failures}
    heard = [target for target in targets if target.host not in silent]
    started = connections.run_all(
        heard, program().command("start"), stdin=program().stdin(order), timeout_s=TIMEOUT_S
    )
    nodes = read_each(started, lambda result: _started(result, cluster, request.destination))
    ended = {outcome.host: outcome for outcome in nodes.outcomes}
    ended.update({host: HostOutcome(host, error=error) for host, error in silent.items()})
    told = tuple(tuple(command) for command in commands)
    in_order = FanoutResult(tuple(ended[target.host] for target in targets))
    return StartedSync(sync_id, tool or "clusterctl", why, told, in_order)


def config_of(request: SyncRequest) -> dict[str, Any]:
    """What the nodes are told."""
    return urls_config(
        request.sources,
        credentials=request.credentials,
        endpoint=request.endpoint,
        region=request.region,
    )


def choose_tool(request: SyncRequest, facts: Sequence[UrlFacts]) -> tuple[str, str]:
    """The tool to use, or none for clusterctl's own program, and why. Raises UsageError."""
    wish = UrlWish(request.sources)
    lent = isinstance(request.credentials, LentKeys)
    web = [source.url for source in wish.sources if not source.is_s3]
    if request.tool in TOOLS:
        if lent:
            raise UsageError(
                f"{request.tool} would need your keys in a file or its environment",
                "leave out --tool: clusterctl's own program takes them over SSH",
            )
        if web:
            raise UsageError(f"{request.tool} reads no web servers: {web[0]}", "leave out --tool")
        able = "s5cmd" if all(one.s5cmd for one in facts) else ""
        able = able if request.tool == "s5cmd" else "aws" if all(one.aws for one in facts) else ""
        if not able:
            lacking = [one.host for one in facts if not getattr(one, request.tool)]
            raise UsageError(
                f"{request.tool} is not on {fold_hosts(lacking)}", "install it, or leave out --tool"
            )
        return request.tool, "as asked"
    if request.tool == "own":
        return "", "as asked"
    if lent:
        return "", "the keys stay in memory that way"
    tool = "" if web else tool_of(facts)
    return tool, "every node has it" if tool else "not every node has s5cmd or aws-cli 2"


def _started(result: CommandResult, cluster: str, destination: str) -> str:
    [answer] = json_lines(result, "starting the sync")
    if "busy" in answer:
        raise SyncRunning(
            result.host,
            f"sync {answer['busy']} into the same folder is running there",
            f"follow it: clusterctl s3sync {cluster} --follow; "
            f"end it: clusterctl s3sync {cluster} --cancel",
        )
    ended = answer.get("ended") or {}
    if ended.get("exit_status") and not ended.get("left_out"):
        why, hint = str(ended.get("why", "")), str(ended.get("hint", ""))
        raise SyncFailed(result.host, why, with_unquoted_home(hint, why, [destination]))
    return result.host


def list_syncs(
    connections: Connections, targets: Sequence[Target], sync_id: str | None = None
) -> FanoutResult[list[SyncRecord]]:
    """The syncs of each node, oldest first, or that one."""
    result = connections.run_all(
        targets,
        program().command("list", *([sync_id] if sync_id else [])),
        stdin=program().stdin(),
        timeout_s=TIMEOUT_S,
    )
    return read_each(result, parse_records)


def latest(listed: FanoutResult[list[SyncRecord]]) -> str | None:
    """The id of the sync that was started last on any node."""
    return max((record.sync_id for records in listed.values for record in records), default=None)


def cancel_sync(
    connections: Connections, targets: Sequence[Target], sync_id: str
) -> FanoutResult[list[SyncRecord]]:
    """End it on every node, and wait for that."""
    result = connections.run_all(
        targets,
        program().command("cancel", sync_id),
        stdin=program().stdin(),
        timeout_s=TIMEOUT_S,
    )
    return read_each(result, parse_records)
