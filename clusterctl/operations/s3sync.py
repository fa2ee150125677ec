"""Download data from S3 to every node, or a file of a web server to one node.

Each node runs a sync job of its own that outlives the connection (node/relay/syncjobs.py). `copy`
follows these jobs to their end, `s3sync` may leave them.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.copy.failures import out_of_time, with_unquoted_home
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import (
    CopyProgress,
    NodeProgress,
    NodeReport,
    NodeStage,
    TransferReport,
)
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import AccessKeys, Credentials, UrlSource, parse_source, tool_to_send
from clusterctl.copy.s3sync import (
    TIMEOUT_S,
    LogPart,
    SyncRecord,
    SyncState,
    parse_log,
    parse_records,
    program,
    progress_of,
)
from clusterctl.domain.errors import ClusterctlError, CommandFailed, HostError, UsageError
from clusterctl.domain.ranges import fold_hosts
from clusterctl.domain.results import (
    CommandResult,
    FanoutResult,
    HostOutcome,
    json_line,
    parse_outputs,
)
from clusterctl.jobs.mpirun import JOB_VARIABLE
from clusterctl.jobs.plan import new_job_id
from clusterctl.node.jobs.processes import SYNC
from clusterctl.node.relay.messages import Done, Listed
from clusterctl.transport.connections import Connections
from clusterctl.transport.target import Target

# Seconds between two polls of the nodes, and during the first two seconds of a copy.
BETWEEN_LOOKS_S = 1.0
BETWEEN_FIRST_LOOKS_S = 0.25
# Consecutive polls that a node may fail to answer before it counts as failed.
MOST_FAILURES = 20
# A dry run lists all objects, which may be millions.
LOOK_TIMEOUT_S = 600.0
# The path on a node of the tool that is sent to it (node/relay/s3files.py, MORE_PATH).
SENT_TOOL = "~/.clusterctl/bin/s5cmd"

# Copies one file of this machine to a path on some nodes (operations/copy.py, sender).
Send = Callable[[Path, str, Sequence[Target]], None]


class SyncRunning(HostError):
    """Another sync into the same folder is running on the node."""

    exit_status = 1


class SyncFailed(HostError):
    """A sync failed within seconds of its start."""

    exit_status = 1


@dataclass(frozen=True)
class SyncRequest:
    """A sync of sources to a folder of the nodes. A source on a web server is the only source.

    `tool` is `auto`, `s5cmd` or `aws`. `names` are the paths below the source to sync; None for
    all.
    """

    sources: tuple[UrlSource, ...]
    destination: str
    credentials: Credentials = None
    tool: str = "auto"
    endpoint: str | None = None
    region: str | None = None
    names: tuple[bytes, ...] | None = None
    delete: bool = False
    checksum: bool = False

    def order(self, sync_id: str = "") -> dict[str, Any]:
        """Return the order for a node (node/relay/syncjobs.py). It may contain keys, so it must be
        sent on standard input only, never on a command line."""
        return {
            "id": sync_id,
            "sources": [source.url for source in self.sources],
            "destination": self.destination,
            "config": self._config if self.sources[0].is_s3 else self._web_config,
        }

    @property
    def _web_config(self) -> dict[str, Any]:
        return {"url": self.sources[0].url, "checksum": self.checksum}

    @property
    def _config(self) -> dict[str, Any]:
        """The configuration that node/relay/s3files.py reads."""
        keys = self.credentials
        return {
            "sources": [{"bucket": one.bucket, "key_b64": _b64(one.key)} for one in self.sources],
            "names_b64": None if self.names is None else list(map(_b64, self.names)),
            "credentials": vars(keys) if isinstance(keys, AccessKeys) else keys,
            "endpoint": self.endpoint,
            "region": self.region,
            "tool": self.tool,
            "delete": self.delete,
            "checksum": self.checksum,
        }


def _b64(name: bytes) -> str:
    """Encode a name for JSON, which cannot hold names that are not UTF-8."""
    return base64.b64encode(name).decode()


@dataclass(frozen=True)
class StartedSync:
    """A sync that was started. `nodes` has the name of each node on which it runs, or an error.
    `how` names the tools in use."""

    sync_id: str
    how: str
    nodes: FanoutResult[str]


# Tools


def ready_tools(
    connections: Connections,
    targets: Sequence[Target],
    request: SyncRequest,
    cache: Path,
    send: Send,
) -> FanoutResult[str]:
    """Return the name of the S3 tool that each node uses, after sending s5cmd to nodes without one.

    Raise UsageError if the request wants `aws` and a node has none, and ClusterctlError.
    """
    found = _ask(connections, targets, "probe", _one_answer)
    wanted = ("s5cmd", "aws") if request.tool == "auto" else (request.tool,)
    lacking: dict[str, list[Target]] = {}
    tools = []
    for target, outcome in zip(targets, found.outcomes):
        if outcome.value is None:
            tools.append(HostOutcome[str](target.host, error=outcome.error))
            continue
        tool = next((name for name in wanted if name in outcome.value["tools"]), None)
        if tool is None:
            lacking.setdefault(outcome.value["machine"], []).append(target)
        tools.append(HostOutcome(target.host, tool or "s5cmd"))
    if lacking and request.tool == "aws":
        hosts = [target.host for without in lacking.values() for target in without]
        raise UsageError(
            f"aws of version 2 is not on {fold_hosts(hosts)}", "install it, or leave out --tool"
        )
    for machine, without in lacking.items():
        send(tool_to_send(machine, cache), SENT_TOOL, without)
    return FanoutResult(tuple(tools))


# Starting, listing, cancelling


def start_sync(
    connections: Connections,
    targets: Sequence[Target],
    request: SyncRequest,
    *,
    cache: Path,
    send: Send,
    cluster: str = "NAME",
    sync_id: str | None = None,
) -> StartedSync:
    """Start a sync on every node that answers, and check that it has not failed at once.

    A node that does not answer is a failure in the result. `send` copies the S3 tool to nodes
    without one, and `cache` is its folder on this machine. `cluster` is the name in the commands
    that messages suggest. Raise ClusterctlError.
    """
    silent: dict[str, HostOutcome[str]] = {}
    tools: set[str] = {"https"}
    if request.sources[0].is_s3:
        ready = ready_tools(connections, targets, request, cache, send)
        silent = {one.host: HostOutcome(one.host, error=one.error) for one in ready.failures}
        tools = set(ready.values)
    sync_id = sync_id or new_job_id()
    heard = [target for target in targets if target.host not in silent]
    nodes = _ask(
        connections,
        heard,
        "start",
        lambda result: _started(result, cluster, request.destination),
        order=request.order(sync_id),
        marker=f"{JOB_VARIABLE}={SYNC}{sync_id}",
    )
    ended = {**{one.host: one for one in nodes.outcomes}, **silent}
    in_order = FanoutResult(tuple(ended[target.host] for target in targets))
    return StartedSync(sync_id, ", ".join(sorted(tools)), in_order)


def _started(result: CommandResult, cluster: str, destination: str) -> str:
    """Return the host on which the sync started. Raise SyncRunning, SyncFailed, CommandFailed."""
    answer = json_line(result, "starting the sync")
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
    """List the syncs of each node, oldest first, or only the sync `sync_id`."""
    return _ask(connections, targets, "list", parse_records, *([sync_id] if sync_id else []))


def latest(listed: FanoutResult[list[SyncRecord]]) -> str | None:
    """Return the id of the latest sync on any node, or None if there is none."""
    return max((record.sync_id for records in listed.values for record in records), default=None)


def cancel_sync(
    connections: Connections, targets: Sequence[Target], sync_id: str
) -> FanoutResult[list[SyncRecord]]:
    """Cancel a sync on every node and wait for its end."""
    return _ask(connections, targets, "cancel", parse_records, sync_id)


def _ask(
    connections: Connections,
    targets: Sequence[Target],
    action: str,
    parse: Callable[[CommandResult], Any],
    *arguments: str,
    order: dict[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
    marker: str = "",
) -> FanoutResult[Any]:
    """Run an action of the program on nodes. `marker` is a variable, NAME=VALUE, by which the
    guard and the commands that would disturb the action recognize it."""
    command = program(action).command(action, *arguments)
    result = connections.run_all(
        targets,
        f"env {marker} {command}" if marker else command,
        stdin=program(action).stdin(order or b""),
        timeout_s=timeout_s,
    )
    return parse_outputs(result, parse)


def _one_answer(result: CommandResult) -> dict[str, Any]:
    return json_line(result, "asking for the tools for S3")


# Following


class SyncFollower:
    """Follows a sync on many nodes: call `look` until no node is `left`.

    A node that does not answer is polled again; after MOST_FAILURES times in a row, its error is
    its outcome. `sink` receives each node's name and new bytes of its log.
    """

    def __init__(
        self,
        connections: Connections,
        targets: Sequence[Target],
        sync_id: str,
        sink: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self._connections, self._targets = connections, list(targets)
        self._sync_id, self._sink = sync_id, sink
        self._at = {target.host: 0 for target in targets}
        self._failures = {target.host: 0 for target in targets}
        self.known: dict[str, SyncRecord] = {}
        self._over: dict[str, ClusterctlError | None] = {}

    @property
    def left(self) -> list[Target]:
        """The nodes on which the sync has neither ended nor failed."""
        return [target for target in self._targets if target.host not in self._over]

    @property
    def result(self) -> FanoutResult[SyncRecord]:
        """Each node's last known record, or its error."""
        return FanoutResult(
            tuple(
                HostOutcome(host, None if error else self.known.get(host), error)
                for host, error in ((t.host, self._over.get(t.host)) for t in self._targets)
            )
        )

    def look(self) -> None:
        """Poll the nodes that are left, and pass new parts of their logs to the sink."""
        left, asked = self.left, program("log")
        result = self._connections.run_all(
            left,
            lambda target: asked.command("log", self._sync_id, str(self._at[target.host])),
            stdin=asked.stdin(),
            timeout_s=TIMEOUT_S,
        )
        for target, outcome in zip(left, parse_outputs(result, _part).outcomes):
            if outcome.value is not None:
                self._take(outcome.value)
            elif outcome.error is not None:
                self._fail(target, outcome.error)

    def _take(self, part: LogPart) -> None:
        host = part.record.host
        self.known[host], self._at[host], self._failures[host] = part.record, part.at, 0
        if part.text and self._sink:
            self._sink(host, part.text)
        if not part.record.running and not part.more:
            self._over[host] = None

    def _fail(self, target: Target, error: ClusterctlError) -> None:
        self._failures[target.host] += 1
        # A program that failed on the node would fail again; a lost connection may pass.
        if isinstance(error, CommandFailed) or self._failures[target.host] >= MOST_FAILURES:
            self._over[target.host] = error
        else:
            # The next poll logs in again.
            self._connections.forget(target)


def _part(result: CommandResult) -> LogPart:
    part = parse_log(result)
    if part is None:
        raise CommandFailed(result.host, "there is no such sync on it", "see --status")
    return part


def follow_sync(
    connections: Connections,
    targets: Sequence[Target],
    sync_id: str,
    sink: Callable[[str, bytes], None],
    every_s: float = BETWEEN_LOOKS_S,
) -> FanoutResult[SyncRecord]:
    """Pass new parts of the logs to `sink` until the sync has ended on all nodes.

    The nodes are polled every `every_s` seconds.
    """
    watched = SyncFollower(connections, targets, sync_id, sink)
    while watched.left:
        watched.look()
        if watched.left:
            time.sleep(every_s)
    return watched.result


# A copy


def sync_of(
    request: CopyRequest, credentials: Credentials, endpoint: str | None, region: str | None
) -> SyncRequest:
    """Return the sync request for a copy whose sources are URLs. Raise UsageError for options that
    do not fit them."""
    sources = tuple(map(parse_source, request.sources))
    web = [source.url for source in sources if not source.is_s3]
    if web and (len(sources) > 1 or request.names is not None or request.delete):
        raise UsageError(
            f"one file of a web server is copied at a time, and as it is: {web[0]}",
            "leave out the other sources, --files-from and --delete",
        )
    if request.encrypt and not web:
        raise UsageError("S3 has TLS of its own", "leave out --encrypt")
    return SyncRequest(
        sources,
        request.destination,
        credentials,
        endpoint=endpoint,
        region=region,
        names=request.names,
        delete=request.delete,
        checksum=request.checksum,
    )


def copy_by_job(
    connections: Connections,
    targets: Sequence[Target],
    request: SyncRequest,
    *,
    cache: Path,
    send: Send,
    watch: Callable[[CopyProgress], None],
    dry_run: bool = False,
    timeout_s: float | None = None,
    every_s: float = BETWEEN_LOOKS_S,
) -> tuple[TransferReport, Mapping[str, SyncRecord]]:
    """Run a sync job on every node to its end. Return the report, and each node's last record.

    The nodes are polled every `every_s` seconds, at first more often. On KeyboardInterrupt, and
    when `timeout_s` has passed, the jobs are cancelled. Raise ClusterctlError if no job could be
    started.
    """
    began = time.monotonic()
    if dry_run:
        return _looked_at(connections, targets, request, cache, send), {}
    sync_id = new_job_id()
    try:
        started = start_sync(connections, targets, request, cache=cache, send=send, sync_id=sync_id)
        failed = {one.host: one.error for one in started.nodes.failures}
        running = [target for target in targets if target.host not in failed]
        plan = _plan(started.how)
        watched = SyncFollower(connections, running, sync_id)
        rates = _Rates()
        while watched.left and (timeout_s is None or time.monotonic() - began < timeout_s):
            watched.look()
            nodes = [_progress(target.host, watched.known, rates, failed) for target in targets]
            summary = _summary(record.listed for record in watched.known.values())
            watch(CopyProgress(time.monotonic() - began, tuple(nodes), summary, plan=plan))
            early = time.monotonic() - began < 2
            time.sleep(min(every_s, BETWEEN_FIRST_LOOKS_S) if early else every_s)
    except KeyboardInterrupt:
        cancel_sync(connections, targets, sync_id)
        raise
    late = {target.host for target in watched.left}
    if late:
        cancel_sync(connections, watched.left, sync_id)
    errors = {**{one.host: one.error for one in watched.result.outcomes}, **failed}
    errors |= {host: out_of_time(host, timeout_s or 0.0) for host in late}
    hosts = [target.host for target in targets]
    reports = [_report(host, watched.known.get(host), errors[host]) for host in hosts]
    report = TransferReport(
        source=_summary(record.listed for record in watched.known.values()),
        nodes=tuple(reports),
        duration_s=time.monotonic() - began,
        plan=plan,
    )
    return report, watched.known


def _plan(tools: str) -> dict[str, Any]:
    """Return the plan that `--json` and `--plan` show."""
    why = ["Every node pulls all from the source itself: no node waits for another."]
    return {"way": "tool", "tool": tools, "why": why, "predicted_s": None}


class _Rates:
    """The recent rate of each node in bytes per second, measured over at least BETWEEN_LOOKS_S."""

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int, float]] = {}

    def of(self, host: str, size: int) -> float:
        now = time.monotonic()
        when, before, rate = self._last.get(host, (now, size, 0.0))
        if now - when >= BETWEEN_LOOKS_S or host not in self._last:
            rate = (size - before) / (now - when) if now > when else 0.0
            self._last[host] = (now, size, rate)
        return rate


def _progress(
    host: str,
    known: Mapping[str, SyncRecord],
    rates: _Rates,
    failed: Mapping[str, ClusterctlError | None],
) -> NodeProgress:
    record = known.get(host)
    if host in failed or record is None:
        return NodeProgress(host, NodeStage.FAILED if host in failed else NodeStage.CONNECTING)
    stage = {SyncState.SUCCEEDED: NodeStage.DONE, SyncState.INCOMPLETE: NodeStage.DONE}.get(
        record.state, NodeStage.FAILED
    )
    if record.running:
        stage = NodeStage.COMPARING if record.bytes is None else NodeStage.COPYING
    size, needed = record.bytes or 0, record.total_bytes or 0
    return NodeProgress(host, stage, size, needed, rates.of(host, size), record.how)


def _summary(listed: Iterable[Listed | None]) -> SourceSummary | None:
    """Return the size of the source, from the first node that has listed it. None: none has yet."""
    told = next(filter(None, listed), None)
    return told and SourceSummary(told.files, told.bytes, 0, told.warnings)


def _report(host: str, record: SyncRecord | None, error: ClusterctlError | None) -> NodeReport:
    if record is None:
        return NodeReport(host, error=error)
    if error is None and record.state not in (SyncState.SUCCEEDED, SyncState.INCOMPLETE):
        lost = "its process is gone: was the node rebooted?"
        again = "run the same copy again: it goes on where it stopped"
        error = CommandFailed(host, record.why or lost, record.hint or again)
    done = record.done or Done()
    return NodeReport(
        host,
        gap=record.gap,
        received_bytes=record.bytes or 0,
        files=record.files or 0,
        deleted=done.deleted,
        left_out=done.left_out,
        duration_s=record.duration_s,
        error=error,
        warnings=(*record.remarks, *done.warnings),
    )


def _looked_at(
    connections: Connections,
    targets: Sequence[Target],
    request: SyncRequest,
    cache: Path,
    send: Send,
) -> TransferReport:
    """Return the report of a dry run: what each node would download."""
    began = time.monotonic()
    tools: Sequence[str] = ["https"]
    if request.sources[0].is_s3:
        tools = ready_tools(connections, targets, request, cache, send).values
    found = _ask(
        *(connections, targets, "look", _one_answer),
        order=request.order(),
        timeout_s=LOOK_TIMEOUT_S,
    )
    reports = []
    told = [progress_of(one.value or {}) for one in found.outcomes]
    for one, known in zip(found.outcomes, told):
        error = one.error
        if one.value and "why" in one.value:
            error = CommandFailed(one.host, one.value["why"], one.value["hint"])
        gap = known.get("gap")
        warnings = (*known["remarks"], *(gap.warnings if gap else ()))
        reports.append(NodeReport(one.host, gap, error=error, warnings=warnings))
    return TransferReport(
        source=_summary(known.get("listed") for known in told),
        nodes=tuple(reports),
        duration_s=time.monotonic() - began,
        dry_run=True,
        plan=_plan(", ".join(sorted(set(tools)))),
    )
