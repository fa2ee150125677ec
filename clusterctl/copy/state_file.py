"""The file in which a detached copy keeps how far it is on each node, in its job's folder."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from clusterctl.copy.report import CopyProgress, NodeProgress, NodeReport, NodeStage, TransferReport
from clusterctl.node.jobs.spec import CopyNode
from clusterctl.node.record import to_json

# Bytes that are reserved for a node, and of a message or hint.
NODE_BYTES, LONGEST_TEXT = 2 << 10, 400
EVERY_S = 1.0


def new_state(hosts: Sequence[str]) -> str:
    """Return the file's first content, which is as long as any later one."""
    nodes = tuple(CopyNode(host, NodeStage.CONNECTING.value) for host in hosts)
    return to_json(nodes).ljust(NODE_BYTES * (len(hosts) + 1))


class StateFile:
    """Writes the file. `watch` passes the progress of the copy on.

    The file is replaced at once. If the disk is full, it is written over in place: it has its
    blocks.
    """

    def __init__(self, path: Path, watch: Callable[[CopyProgress], None]) -> None:
        self._path, self._watch = path, watch
        self._written_at = 0.0
        self._last: CopyProgress | None = None

    def watch(self, progress: CopyProgress) -> None:
        self._watch(progress)
        self._last = progress
        if time.monotonic() - self._written_at >= EVERY_S:
            self._written_at = time.monotonic()
            self._write([_of_progress(node, progress) for node in progress.nodes])

    def finish(self, report: TransferReport) -> None:
        """Write the result of the copy."""
        tools = {node.host: node.upstream for node in self._last.nodes} if self._last else {}
        is_url = report.plan.get("way") == "tool"
        self._write(
            [_of_report(node, report, tools.get(node.host, "") * is_url) for node in report.nodes]
        )

    def _write(self, nodes: Sequence[CopyNode]) -> None:
        text = to_json(nodes)
        new = self._path.with_name(self._path.name + ".new")
        with contextlib.suppress(OSError):  # the disk is full and the file too short, or read-only
            size = self._path.stat().st_size
            data = text.ljust(size).encode()
            try:
                new.write_bytes(data)
                new.replace(self._path)
            except OSError:
                new.unlink(missing_ok=True)
                if len(data) == size:
                    with self._path.open("r+b", buffering=0) as file:
                        os.pwrite(file.fileno(), data, 0)


def _of_progress(node: NodeProgress, progress: CopyProgress) -> CopyNode:
    is_compared = node.stage in (NodeStage.COPYING, NodeStage.DONE)
    is_url = progress.plan.get("way") == "tool"
    present = None
    if progress.source and node.needed_files is not None:
        present = max(0, progress.source.files - node.needed_files)
    return CopyNode(
        node.host,
        node.stage.value,
        tool=node.upstream * is_url,
        files=node.files,
        needed_files=node.needed_files,
        present_files=present,
        bytes=node.bytes if is_compared else None,
        needed_bytes=node.needed_bytes if is_compared else None,
        left_out=progress.source.left_out if progress.source else 0,
        duration_s=round(node.duration_s, 3),
        exit_status={NodeStage.DONE: 0, NodeStage.FAILED: 1}.get(node.stage),
        message=node.note[:LONGEST_TEXT] if node.stage is NodeStage.FAILED else "",
    )


def _of_report(node: NodeReport, report: TransferReport, tool: str) -> CopyNode:
    gap, error = node.gap, node.error
    present = max(0, report.source.files - gap.files) if report.source and gap else None
    return CopyNode(
        node.host,
        (NodeStage.FAILED if error else NodeStage.DONE).value,
        tool=tool,
        files=node.files if gap else None,
        needed_files=gap.files if gap else None,
        present_files=present,
        bytes=node.received_bytes if gap else None,
        needed_bytes=gap.bytes if gap else None,
        left_out=node.left_out + (report.source.left_out if report.source else 0),
        duration_s=round(node.duration_s, 3),
        exit_status=error.exit_status if error else 0,
        message=error.message[:LONGEST_TEXT] if error else "",
        hint=error.hint[:LONGEST_TEXT] if error else "",
    )
