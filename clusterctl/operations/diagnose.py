"""What is to be seen of a job, from all its hosts at once: `collect` returns it as one value.

Conclusions are drawn in `diagnosis`. A host that is silent is evidence: it has `error`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
import threading
import time
import zlib
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import clusterctl
from clusterctl.diagnosis.evidence import Evidence, HostEvidence, JobEvidence, decode
from clusterctl.domain.errors import ClusterctlError, CommandTimeout, UsageError
from clusterctl.domain.hostsfile import parse_hosts_file
from clusterctl.domain.results import json_lines
from clusterctl.jobs.detached import read_record
from clusterctl.node.packer import program_of
from clusterctl.operations.access import Access
from clusterctl.transport.fanout import fan_out
from clusterctl.transport.target import Target

SAMPLER = program_of("clusterctl.node.diagnosis.sampler")
CONNECT_WITHIN_S = 4.0
# Beyond the samples: for facts of a slow node.
BESIDE_S = 3.5
# Once for each node: through a home's uplink it takes long.
SEND_WITHIN_S = 30.0
LOG_LINES = 2000


@dataclass(frozen=True)
class Looking:
    """How often each process is looked at, and what lies between."""

    samples: int = 3
    spacing_s: float = 1.0

    @property
    def within_s(self) -> float:
        return self.samples * self.spacing_s + BESIDE_S


@dataclass(frozen=True)
class PySpyFile:
    """The program that reads stacks, as it is installed here."""

    machine: str
    path: Path

    @functools.cached_property
    def content(self) -> bytes:
        return self.path.read_bytes()

    @functools.cached_property
    def name(self) -> str:
        return f"py-spy-{hashlib.sha256(self.content).hexdigest()[:16]}"

    @functools.cached_property
    def packed(self) -> bytes:
        return zlib.compress(self.content, 6)


def collect(
    access: Access,
    job_id: str | None = None,
    looking: Looking = Looking(),  # noqa: B008 - frozen
) -> Evidence:
    """Look at that job, or the one that runs, or was started by hand, or else the latest.

    Raises UsageError for an unknown job. A host that cannot be asked is in the evidence.
    """
    began, taken_at = time.monotonic(), datetime.now(timezone.utc)
    access.connections.connect_timeout_s = CONNECT_WITHIN_S
    spy = installed_py_spy()
    head = access.head.host

    def one(target: Target) -> tuple[HostEvidence, dict[str, Any] | None]:
        return ask(access, target, target.host == head, job_id, looking, spy)

    outcomes = fan_out(one, access.targets).outcomes
    nodes = {node.name: node for node in access.cluster.nodes}
    hosts, told = [], None
    for outcome in outcomes:
        node = nodes[outcome.host]
        if outcome.value:
            host, record = outcome.value
            told = told or record
        else:
            host = _silent(outcome.error)
        address = node.private_ip or node.address
        slots = max(node.gpus, 1)
        hosts.append(replace(host, index=node.index, host=node.name, address=address, slots=slots))
    job = job_of(told, hosts, job_id)
    return Evidence(
        cluster=access.cluster.name,
        taken_at=taken_at.isoformat(timespec="seconds"),
        took_s=round(time.monotonic() - began, 2),
        version=clusterctl.__version__,
        job=job,
        hosts=tuple(hosts),
    )


def ask(
    access: Access,
    target: Target,
    is_head: bool,
    job_id: str | None,
    looking: Looking,
    spy: PySpyFile | None,
) -> tuple[HostEvidence, dict[str, Any] | None]:
    """What one node says, and of the head node what it has of the job. Raises HostError."""
    within_s = looking.within_s
    question = {
        "py_spy": spy.name if spy else "",
        "samples": looking.samples,
        "spacing_s": looking.spacing_s,
        "within_s": within_s,
        "head": is_head,
        "job": job_id,
        "log_lines": LOG_LINES,
    }
    talk = Talk(SAMPLER.stdin(question), spy)
    problems = []
    try:
        result = access.connections.run(
            target,
            SAMPLER.command(),
            stdin=talk,
            sink=talk.hear,
            timeout_s=within_s + CONNECT_WITHIN_S + (SEND_WITHIN_S if spy else 0),
        )
        json_lines(replace(result, stdout="", stderr=talk.complaint), "looking at it")
    except CommandTimeout:
        # A process that hangs in the kernel keeps the program from ending, not from answering.
        if talk.answer is None:
            raise
        problems.append("what looked at it did not end")
    finally:
        talk.close()
    if talk.answer is None:
        raise ClusterctlError(f"what looked at {target.host} ended without an answer")
    host = decode(HostEvidence, talk.answer.get("host"))
    if spy is None:
        problems.append(
            "no stacks by py-spy: it is not installed beside clusterctl: pip install py-spy"
        )
    elif talk.refused:
        problems.append(talk.refused)
    return (
        replace(
            host,
            clock_offset_s=talk.offset_s,
            clock_error_s=talk.error_s,
            problems=(*host.problems, *problems),
        ),
        talk.answer.get("job"),
    )


@dataclass
class Talk:
    """The standard input of the program on a node, which depends on what it says (node/diagnosis/
    sampler.py). It ends when the answer is there."""

    data: bytes
    spy: PySpyFile | None
    answer: dict[str, Any] | None = None
    complaint: str = ""
    refused: str = ""
    offset_s: float | None = None
    error_s: float | None = None
    _asked_at: float = 0.0
    _has_py_spy: bool = False
    _line: bytearray = field(default_factory=bytearray)
    _ended: bool = False
    _change: threading.Condition = field(default_factory=threading.Condition)

    def read_at(self, offset: int, wait_s: float) -> bytes | None:
        """See transport.stdin.Stdin."""
        with self._change:
            self._change.wait_for(lambda: len(self.data) > offset or self._ended, wait_s)
            if len(self.data) > offset:
                return self.data[offset : offset + (1 << 16)]
            return b"" if self._ended else None

    def close(self) -> None:
        with self._change:
            self._ended = True
            self._change.notify_all()

    def hear(self, stream: str, chunk: bytes) -> None:
        """Take output of the program."""
        now = time.time()
        if stream == "stderr":
            self.complaint = (self.complaint + chunk.decode(errors="replace"))[-4000:]
            return
        self._line += chunk
        while b"\n" in self._line:
            line, _, rest = bytes(self._line).partition(b"\n")
            self._line = bytearray(rest)
            # A login shell may greet first.
            if line.startswith(b"{"):
                self._take(json.loads(line), now)

    def _take(self, said: dict[str, Any], now: float) -> None:
        if "machine" in said:
            self._has_py_spy = said["has_py_spy"]
            if self.spy and not self._has_py_spy and said["machine"] != self.spy.machine:
                self.refused = (
                    f"no stacks by py-spy: it runs on {said['machine']}, and the one here is for "
                    f"{self.spy.machine}"
                )
            self._asked_at = time.time()
            self._say(b"\n")
        elif "clock" in said:
            self.error_s = round((now - self._asked_at) / 2, 4)
            self.offset_s = round(said["clock"] - (now + self._asked_at) / 2, 4)
            send = b""
            if self.spy and not self._has_py_spy and not self.refused:
                send = self.spy.packed
            self._say(b"%d\n" % len(send) + send)
        else:
            self.answer = said
            self.close()

    def _say(self, data: bytes) -> None:
        with self._change:
            self.data += data
            self._change.notify_all()


def _silent(error: ClusterctlError | None) -> HostEvidence:
    """What is known of a host that did not say anything. The error has EC2's words in it."""
    said = str(error.message) if error else "no answer"
    what, _, ec2 = said.partition("; EC2 ")
    return HostEvidence(error=what, ec2=f"EC2 {ec2}" if ec2 else "")


def job_of(
    told: dict[str, Any] | None, hosts: list[HostEvidence], job_id: str | None
) -> JobEvidence | None:
    """The job, as the head node and the ranks' environments have it. None: nothing has run.

    Raises UsageError for a job that the head node does not know.
    """
    if told and job_id and not told.get("found"):
        raise UsageError(f"there is no job {job_id}", "see `clusterctl logs NAME --list`")
    told = told or {}
    record = read_record(told["found"]) if told.get("found") else None
    ranks = [rank for host in hosts for rank in host.ranks]
    wanted = record.job_id if record else job_id
    sizes = [rank.size for rank in ranks if rank.size and rank.job_id == wanted]
    if not (record or told.get("line") or sizes):
        return None
    entries = parse_hosts_file(told.get("hosts") or "").entries
    common: dict[str, Any] = {
        key: told[key]
        for key in (
            *("log_bytes", "log_silent_s", "log_first", "log", "metrics", "metrics_silent_s"),
            "others",
        )
        if told.get(key)
    }
    common["hosts"] = {entry.host: entry.slots for entry in entries}
    common["log_dir"] = told.get("log_dir", "")
    if record:
        common |= {
            "job_id": record.job_id,
            "state": record.state.value,
            "exit_status": record.exit_status,
            "started_at": record.started_at.isoformat(timespec="seconds"),
            "age_s": round(record.duration_s, 1),
            "size": record.ranks,
            "line": record.line,
            "log_dir": record.log_dir,
        }
    else:
        common |= {
            "job_id": job_id or "",
            "state": "running",
            "age_s": told.get("age_s", max((rank.age_s for rank in ranks), default=0.0)),
            "size": max(sizes, default=0),
            "line": shlex.join(told.get("line", ())),
        }
    return decode(JobEvidence, common)


@functools.lru_cache(maxsize=1)
def installed_py_spy() -> PySpyFile | None:
    """The one that pip put beside this package."""
    try:
        files = distribution("py-spy").files or ()
    except PackageNotFoundError:
        return None
    paths = [Path(str(file.locate())) for file in files if file.name == "py-spy"]
    here = [path for path in paths if path.is_file()]
    return PySpyFile(_machine_of(here[0]), here[0]) if here else None


def _machine_of(program: Path) -> str:
    """For which machine an ELF file is, as `uname -m` has it; of another system's program empty."""
    with program.open("rb") as file:
        start = file.read(20)
    number = int.from_bytes(start[18:20], "little") if start.startswith(b"\x7fELF") else 0
    return {62: "x86_64", 183: "aarch64"}.get(number, "")
