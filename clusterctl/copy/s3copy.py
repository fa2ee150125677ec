"""A copy whose source is at URLs: what the nodes can do with it, and copies by their own tools."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from clusterctl.copy.report import (
    CopyProgress,
    NodeProgress,
    NodeReport,
    NodeStage,
    TransferReport,
)
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import Credentials, LentKeys, UrlSource, parse_source, urls_config
from clusterctl.copy.s3plan import UrlFacts, UrlPlan, UrlWish, parse_probe, plan_urls
from clusterctl.copy.s3sync import probe, tool_commands
from clusterctl.diagnostics.program import read_each
from clusterctl.domain.errors import ClusterctlError, CommandFailed
from clusterctl.domain.results import CommandResult, FanoutResult, HostOutcome
from clusterctl.transport.connections import Connections
from clusterctl.transport.fanout import DEFAULT_FANOUT, fan_out
from clusterctl.transport.target import Target

# A source that does not answer is given up by the node itself in the meantime.
PROBE_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class UrlCopy:
    """How a request goes. `config` may hold keys: it goes to relays' stdin and nowhere else.

    `request` has its way. The relay that lists, and in a chain reads, is on `plan.source`, or here
    where that is None.
    """

    request: CopyRequest
    plan: UrlPlan
    config: dict[str, Any]
    commands: tuple[tuple[str, ...], ...] = ()


def prepare_url_copy(
    connections: Connections,
    targets: Sequence[Target],
    request: CopyRequest,
    *,
    credentials: Credentials = None,
    own_keys: Callable[[], LentKeys] | None = None,
    endpoint: str | None = None,
    region: str | None = None,
    max_workers: int = DEFAULT_FANOUT,
) -> UrlCopy:
    """Ask the nodes what they can do with the source, and decide. Raises ClusterctlError.

    `own_keys` gives this machine's, for the case that it has to read the source itself.
    """
    sources = tuple(map(parse_source, request.sources))
    config = urls_config(
        sources,
        names=request.names,
        credentials=credentials,
        endpoint=endpoint,
        region=region,
        mirror=request.delete,
    )
    wish = wish_of(request, sources, credentials)
    asked = ask_nodes(connections, targets, {**config, "tools": wish.plain}, max_workers)
    facts = asked.values
    if not facts and asked.failures and asked.failures[0].error:
        raise asked.failures[0].error
    plan = plan_urls(wish, facts)
    if plan.source is None and credentials is None and own_keys:
        config = {**config, "credentials": own_keys().as_config()}
    commands: tuple[tuple[str, ...], ...] = ()
    if plan.tool:
        lines = tool_commands(
            plan.tool, sources, request.destination, facts, endpoint, credentials == "none"
        )
        commands = tuple(tuple(line) for line in lines)
    return UrlCopy(replace(request, way=plan.way), plan, config, commands)


def wish_of(
    request: CopyRequest, sources: tuple[UrlSource, ...], credentials: Credentials
) -> UrlWish:
    """What is asked for, as far as it decides on the way."""
    more = (request.delete, request.checksum, request.dry_run, request.verify, request.encrypt)
    plain = (
        not any(more)
        and request.names is None
        and not isinstance(credentials, LentKeys)
        and all(source.is_s3 for source in sources)
    )
    return UrlWish(sources, request.way, plain, link_rate=request.link_rate)


def ask_nodes(
    connections: Connections,
    targets: Sequence[Target],
    config: dict[str, Any],
    max_workers: int = DEFAULT_FANOUT,
) -> FanoutResult[UrlFacts]:
    """What each node can do with the source. One outcome per node."""
    result = connections.run_all(
        targets,
        probe().command(),
        stdin=probe().stdin(config),
        timeout_s=PROBE_TIMEOUT_S,
        max_workers=max_workers,
    )
    return read_each(result, parse_probe)


def tool_script(commands: Sequence[Sequence[str]]) -> str:
    """One command after the other for the node's shell; only a leading `~/` is its to expand."""
    return " && ".join(" ".join(map(_word, command)) for command in commands)


def _word(word: str) -> str:
    if word == "~":
        return '"$HOME"'
    return f'"$HOME"/{shlex.quote(word[2:])}' if word.startswith("~/") else shlex.quote(word)


def copy_by_tool(
    connections: Connections,
    targets: Sequence[Target],
    copy: UrlCopy,
    *,
    watch: Callable[[CopyProgress], None],
    timeout_s: float | None = None,
    max_workers: int = DEFAULT_FANOUT,
) -> TransferReport:
    """Run the tool on every node to its end. What it moved it tells to nobody."""
    began = time.monotonic()
    script = tool_script(copy.commands)
    stages = {target.host: NodeStage.COPYING for target in targets}

    def show() -> None:
        nodes = tuple(NodeProgress(host, stage) for host, stage in stages.items())
        watch(CopyProgress(time.monotonic() - began, nodes))

    def ended(outcome: HostOutcome[CommandResult]) -> None:
        good = outcome.value is not None and outcome.value.ok
        stages[outcome.host] = NodeStage.DONE if good else NodeStage.FAILED
        show()

    def one(target: Target) -> CommandResult:
        return connections.run(target, script, timeout_s=timeout_s)

    show()
    try:
        result = fan_out(one, targets, max_workers=max_workers, on_outcome=ended)
    except KeyboardInterrupt:
        connections.interrupt()
        raise
    return TransferReport(
        source=None,
        nodes=tuple(_report(copy.plan.tool, outcome) for outcome in result.outcomes),
        duration_s=time.monotonic() - began,
        plan=copy.plan.as_data(),
    )


def _report(tool: str, outcome: HostOutcome[CommandResult]) -> NodeReport:
    if outcome.value is None:
        return NodeReport(outcome.host, error=outcome.error)
    result = outcome.value
    error: ClusterctlError | None = None
    if not result.ok:
        said = (result.stderr.strip() or result.stdout.strip()).splitlines()
        why = f": {said[-1]}" if said else ""
        message = f"{tool} ended with status {result.exit_status}{why}"
        error = CommandFailed(
            outcome.host, message, "leave out --tool: then the nodes pull by themselves"
        )
    return NodeReport(outcome.host, duration_s=result.duration_s, error=error)
