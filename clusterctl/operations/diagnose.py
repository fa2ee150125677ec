"""Collect the evidence for `diagnose`: the state of a job, from all its hosts at the same time.

`collect` returns it as one value; the package `diagnosis` draws the conclusions. A host that does
not answer is evidence too: its `error` is set.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import random
import re
import shlex
import threading
import time
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import clusterctl
from clusterctl.bootstrap.wheels import program_in_wheel
from clusterctl.diagnosis.case import numbered
from clusterctl.diagnosis.evidence import Evidence, HostEvidence, JobEvidence, ProcessEvidence
from clusterctl.diagnosis.ranks import sees_nothing, usual_size
from clusterctl.domain.errors import (
    ClusterctlError,
    CommandFailed,
    CommandNotRun,
    HostError,
    NotFound,
    UsageError,
)
from clusterctl.domain.hostsfile import HostSlots, parse_hosts_file
from clusterctl.jobs.processes import job_names
from clusterctl.node.diagnosis.job import JobOnHead, JobOutput
from clusterctl.node.diagnosis.sampler import SamplerRequest, SamplerResponse, sample
from clusterctl.node.diagnosis.stacks import FOLDER as NODES_PY_SPY
from clusterctl.node.jobs.spec import JobState
from clusterctl.node.record import salvage
from clusterctl.operations.access import Access
from clusterctl.operations.native_frames import with_closer_reads
from clusterctl.transport.call import HostConnections, HostLogin, NodeCall, call
from clusterctl.transport.dial import Target
from clusterctl.transport.fanout import fan_out

# The first command on each node: prints its clock, its architecture and the py-spy that it has. It
# is short, because its round trip bounds the error of the measured clock offset.
GREETING = (
    "echo $(date +%s.%N) $(uname -m) $(cd ~/.local/share/clusterctl 2>/dev/null && echo py-spy-*)"
)
CONNECT_WITHIN_S = 4.0
# How long a kept connection may take to start a command before it is opened again.
DOUBT_AFTER_S = 3.0
# Time beyond the sampler's own deadline, for its output to arrive.
ENDING_S = 1.5
# Time to send py-spy to a node that lacks it: a home uplink is slow.
SEND_WITHIN_S = 30.0
# A node has a slow link if its round trip takes at least 0.2 s and 10 times as long as the quickest
# node's.
SLOW_S, TIMES_SLOWER = 0.2, 10
DOWNLOAD_WITHIN_S = 60.0


@dataclass(frozen=True)
class PySpyFile:
    """The py-spy program, which reads Python stacks. `name` contains its digest; nodes store the
    program under this name."""

    name: str
    content: bytes

    @functools.cached_property
    def packed(self) -> bytes:
        """The program compressed, for a node that lacks it. Cached, because compressing is slow."""
        return zlib.compress(self.content, 6)


@dataclass
class PySpies:
    """Finds py-spy for each architecture: the installed one, else one that pip downloads into
    `cache`. Thread-safe."""

    cache: Path
    _nearest_s: float = math.inf
    _found: dict[str, tuple[PySpyFile | None, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def of(self, machine: str) -> tuple[PySpyFile | None, str]:
        """Return the program for an architecture as `uname -m` names it, or None and the reason."""
        # Under the lock, so that one thread downloads it and the others wait for that.
        with self._lock:
            if machine not in self._found:
                self._found[machine] = self._find(machine)
            return self._found[machine]

    def for_node(
        self, machine: str, kept: Sequence[str], round_trip_s: float | None
    ) -> tuple[PySpyFile | None, str, bytes]:
        """Return the program for a node, the reason if there is none, and the bytes to send it.

        `kept` are the programs that the node has already. None is sent over a link that is far
        slower than the others', where that would use up the whole time. `round_trip_s` is that of
        the link, None if it is not known.
        """
        round_trip_s = round_trip_s or 0.0
        self._nearest_s = min(self._nearest_s, round_trip_s or math.inf)
        spy, why = self.of(machine)
        if spy is None or spy.name in kept:
            return spy, why, b""
        if round_trip_s >= max(SLOW_S, TIMES_SLOWER * self._nearest_s):
            return None, "its link is too slow to send py-spy over it", b""
        return spy, "", spy.packed

    def _find(self, machine: str) -> tuple[PySpyFile | None, str]:
        own = installed_py_spy()
        path = own if own and machine_of(own) == machine else self.cache / f"py-spy-{machine}"
        try:
            if not path.exists():
                download_py_spy(machine, path)
            content = path.read_bytes()
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            return None, f"there is no py-spy for {machine}: {error}"
        name = f"py-spy-{hashlib.sha256(content).hexdigest()[:16]}"
        return PySpyFile(name, content), ""


def installed_py_spy() -> Path | None:
    """Return the py-spy that pip installed with this package, else, on a node, the one that an
    earlier diagnosis stored there. Return None without either."""
    try:
        files = distribution("py-spy").files or ()
    except PackageNotFoundError:
        files = ()
    paths = [Path(str(file.locate())) for file in files if file.name.startswith("py-spy")]
    return next((path for path in (*paths, *NODES_PY_SPY.glob("py-spy-*")) if path.is_file()), None)


def machine_of(program: Path) -> str:
    """Return the architecture of a Linux program as `uname -m` names it, empty for any other."""
    with program.open("rb") as file:
        start = file.read(20)
    # The ELF header's e_machine, at offset 18: EM_X86_64 or EM_AARCH64.
    number = int.from_bytes(start[18:20], "little") if start.startswith(b"\x7fELF") else 0
    return {62: "x86_64", 183: "aarch64"}.get(number, "")


def download_py_spy(machine: str, path: Path) -> None:
    """Download py-spy's wheel for another architecture with pip and store its program at `path`.

    Raise OSError, with advice in the message.
    """
    try:
        content = program_in_wheel("py-spy", machine, "/scripts/py-spy", DOWNLOAD_WITHIN_S)
    except OSError as error:
        raise OSError(f"{error}; put one there, of the wheel that PyPI has: {path}") from None
    path.parent.mkdir(parents=True, exist_ok=True)
    # Renamed into place, so that another process never reads half of it.
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(content)
    draft.replace(path)


def collect(
    access: Access,
    job_id: str | None = None,
    looking: SamplerRequest = SamplerRequest(),  # noqa: B008 - frozen
) -> Evidence:
    """Collect the evidence on job `job_id`. With None: on the running job, else one that was
    started by hand, else the latest. One that was started by hand is named by the process ID of its
    launcher on the head node.

    A host that does not answer is in the evidence. A host in quarantine is included only if it has
    ranks of the job, or may have. Raise NotFound for an unknown job.
    """
    began, taken_at = time.monotonic(), datetime.now(timezone.utc)
    access.connections.connect_timeout_s = CONNECT_WITHIN_S
    # A kept connection may be to a host that hangs or is gone by now.
    access.connections.doubt_after_s = DOUBT_AFTER_S
    spies = PySpies(access.folder.path.parent)

    def one(target: Target) -> tuple[HostEvidence, JobOnHead | None]:
        request = replace(looking, job=job_id, head=target.host == access.head_name)
        return ask(access.connections, target, request, spies)

    outcomes = fan_out(one, access.all_targets).outcomes
    nodes = {node.name: node for node in access.cluster.nodes}
    hosts, on_head = [], None
    for outcome in outcomes:
        node = nodes[outcome.host]
        if outcome.value:
            host, record = outcome.value
            on_head = on_head or record
        else:
            host = silent(outcome.error)
        address = node.private_ip or node.address
        slots = max(node.gpus, 1)
        host = replace(host, index=node.index, host=node.name, address=address, slots=slots)
        hosts.append(replace(host, quarantined=node.quarantined))
    hosts += gone_hosts(access, on_head)
    launcher = str(on_head.launcher) if on_head and not on_head.found else ""
    if on_head and job_id and not (on_head.found or launcher == job_id):
        raise NotFound(f"there is no job {job_id}", f"see `clusterctl jobs {access.cluster.name}`")
    hosts, others = apart(hosts, launcher, job_id or "")
    if launcher and not any(one.job_id == job_id for host in hosts for one in host.processes):
        job_id = None  # which ranks are those of the mpirun that was named is not known
    job = job_of(on_head, hosts, job_id)
    job = job and replace(job, others=(*job.others, *others))
    hosts = relevant_hosts(job, hosts)
    evidence = numbered(
        Evidence(
            cluster=access.cluster.name,
            taken_at=taken_at.isoformat(timespec="seconds"),
            version=clusterctl.__version__,
            job=job,
            hosts=tuple(hosts),
        )
    )
    if looking.samples > 1:
        evidence = with_closer_reads(access.connections, access.all_targets, evidence)
    return replace(evidence, took_s=round(time.monotonic() - began, 2))


def apart(
    hosts: list[HostEvidence], launcher: str, chosen: str = ""
) -> tuple[list[HostEvidence], dict[str, None]]:
    """Return the hosts with a job ID for the processes of other jobs by hand than that of this
    launcher on the head node, and these IDs; nothing new if it has none. If it was `chosen` by its
    name, its own get that as their job ID."""
    name = job_names([host.processes for host in hosts])
    heads = [one for host in hosts if host.index == 0 for one in host.processes]
    own = next(
        (name(one) for one in heads if one.role == "launcher" and f"{one.pid}" == launcher), ""
    )
    others: dict[str, None] = {}
    ranks = (one for host in hosts for one in host.processes if one.role == "rank")
    if not any(name(one) == own for one in ranks if one.job_id is None):
        return hosts, others  # it is not known which ranks are its own

    def marked(one: ProcessEvidence) -> ProcessEvidence:
        its = name(one) if one.job_id is None else ""
        if its == own != "" and chosen:  # a torchrun has a launcher on each host, with its own name
            return replace(one, job_id=chosen)
        if its in ("", own):
            return one
        others.update({its: None} if one.role == "rank" else {})
        return replace(one, job_id=its)

    found = [replace(host, processes=tuple(map(marked, host.processes))) for host in hosts]
    return found, others


def gone_hosts(access: Access, on_head: JobOnHead | None) -> list[HostEvidence]:
    """Return the evidence on the cluster's missing nodes that the job used, or may have used.

    `on_head` is what the head node has of the job; None if it did not answer.
    """
    on_head = on_head or JobOnHead()
    attempts = on_head.found.status.attempts if on_head.found else ()
    notices = [attempt.get("notices") or {} for attempt in attempts]
    hosts = []
    for index in access.cluster.missing:
        name = f"{access.cluster.name}-{index}"
        if on_head.found and name not in on_head.addresses:
            continue
        notice: dict[str, Any] = next((one[name] for one in reversed(notices) if name in one), {})
        why = access.why_lost(name, "", notice)
        address = on_head.addresses.get(name) or ""
        why_gone = "its instance is gone" + (f": {why}" if why else "")
        hosts.append(
            HostEvidence(index=index, host=name, address=address, error=why_gone, ec2=why_gone)
        )
    return hosts


def relevant_hosts(job: JobEvidence | None, hosts: list[HostEvidence]) -> list[HostEvidence]:
    """Drop the hosts in quarantine, except those that have ranks of the job, and those that do not
    answer while ranks of the running job are missing."""
    ranks = {
        host.host: {one.rank for one in host.ranks if job and one.job_id == job.job_id}
        for host in hosts
    }
    numbers = set().union(*ranks.values())
    is_short = job is not None and job.state is JobState.RUNNING and len(numbers) < job.size
    return [
        host
        for host in hosts
        if not host.quarantined or ranks[host.host] or (host.error and is_short)
    ]


def ask(
    connections: HostConnections, target: Target, request: SamplerRequest, spies: PySpies
) -> tuple[HostEvidence, JobOnHead | None]:
    """Run the sampler on one node. Return the node's evidence and, from the head node, what it has
    of the job (else None). Raise HostError."""
    # Log in first: the greeting's time bounds the error of the clock's offset and must not include
    # the login.
    session = _logged_in(connections, target)
    sent_at = time.time()
    result = connections.run(target, GREETING, timeout_s=CONNECT_WITHIN_S, stdin=b"")
    answered_at = time.time()
    words = [*result.stdout.split(), "", ""]
    spy, why, send = spies.for_node(words[1], words[2:], session.round_trip_s)
    request = replace(request, py_spy=spy.name if spy else "", py_spy_missing=why)

    def sampled(within_s: float) -> SamplerResponse:
        timeout_s = within_s + ENDING_S + (SEND_WITHIN_S if send else 0)
        timed = replace(request, within_s=within_s)
        return call(connections, target, NodeCall(sample, timed, "looking at it", timeout_s, send))

    response = sampled(request.within_s)
    host, problems = salvage(HostEvidence, response.host)
    if host and sees_nothing(host):
        # It was too busy to read its processes in time. Without a second answer the first counts.
        with suppress(HostError):
            response = sampled(2 * request.within_s)
            host, problems = salvage(HostEvidence, response.host)
    on_head, wrong = salvage(JobOnHead, response.job) if response.job is not None else (None, ())
    if host is None or (response.job or {}).get("found") and not (on_head and on_head.found):
        why = (*problems, *wrong)[0]
        raise CommandNotRun(target.host, f"looking at it failed: unexpected response: {why}")
    host = replace(host, problems=(*host.problems, *_damaged(*problems, *wrong)))
    return _with_clock(host, words[0], sent_at, answered_at), on_head


def _with_clock(host: HostEvidence, clock: str, sent_at: float, answered_at: float) -> HostEvidence:
    """Return the evidence with how far the node's clock is ahead of ours. It read its clock during
    the round trip: compare it with the middle of that. The error is at most half of it."""
    now_s = math.nan
    with suppress(ValueError):
        now_s = float(clock)
    if not math.isfinite(now_s):
        return replace(host, problems=(*host.problems, *_damaged(f"clock: {clock[:60]!r}")))
    return replace(
        host,
        clock_offset_s=round(now_s - (sent_at + answered_at) / 2, 4),
        clock_error_s=round((answered_at - sent_at) / 2, 4),
    )


def _damaged(*problems: str) -> list[str]:
    return [f"unexpected value: {problem}" for problem in problems]


def _logged_in(connections: HostConnections, target: Target) -> HostLogin:
    """Return the session with a node. A refusal is tried again: sshd refuses logins while too many
    others are under way (MaxStartups of sshd_config(5)). Raise HostError."""
    deadline = time.monotonic() + CONNECT_WITHIN_S
    while True:
        try:
            return connections.session(target)
        except HostError as error:
            refused = re.search(
                r"no SSH session|reset by peer|closed|broken pipe", error.message, re.I
            )
            if not refused or time.monotonic() >= deadline:
                raise
        time.sleep(random.uniform(0.2, 0.8))


def silent(error: ClusterctlError | None) -> HostEvidence:
    """Return the evidence on a host that did not answer. Its error may include what EC2 says."""
    reason = error.message if error else "no answer"
    what, _, ec2 = reason.partition("; EC2 ")
    if reason.startswith("its instance is "):
        return HostEvidence(error=reason, ec2=reason)
    if isinstance(error, CommandFailed) and error.hint:
        what += f" ({error.hint})"  # of a host that answers, and cannot run the program
    return HostEvidence(error=what, ec2=f"EC2 {ec2}" if ec2 else "")


def _entries(text: str) -> tuple[HostSlots, ...]:
    """Return the hosts of a job's hosts file. A file that is missing or wrong has none."""
    try:
        return parse_hosts_file(text).entries
    except UsageError:
        return ()


def job_of(
    on_head: JobOnHead | None, hosts: list[HostEvidence], job_id: str | None
) -> JobEvidence | None:
    """Return the job's evidence from what the head node has of it and the ranks' environment
    variables. Return None if no job has run.

    A job without a record is the one of these ranks with the ID `job_id`.
    """
    is_silent, on_head = on_head is None, on_head or JobOnHead()
    record = on_head.found
    ranks = [rank for host in hosts for rank in host.ranks]
    wanted = record.job_id if record else job_id
    if is_silent and ranks:
        # The head node does not answer: take the job to which most ranks belong.
        wanted = Counter(rank.job_id for rank in ranks).most_common(1)[0][0]
    sizes = [rank.size for rank in ranks if rank.size and rank.job_id == wanted]
    if not (record or on_head.line or sizes):
        return None
    evidence = JobEvidence(
        job_id=wanted or "",
        **{one.name: getattr(on_head, one.name) for one in fields(JobOutput)},
        hosts={entry.host: entry.slots for entry in _entries(on_head.hosts)},
        others=on_head.others,
        is_chosen=job_id is not None,
    )
    if record:
        return replace(
            evidence,
            state=record.state,
            exit_status=record.exit_status,
            started_at=record.started_at.isoformat(timespec="seconds"),
            age_s=round(record.duration_s, 1),
            size=record.ranks,
            line=record.spec.line,
            log_dir=record.spec.log_dir,
            reason=record.status.reason,
            messages=record.status.messages,
            ended_s=record.status.ended_at and round(record.now - record.status.ended_at, 1),
            retries_left=max(0, record.spec.retries - len(record.status.attempts)),
        )
    oldest_s = max((rank.age_s for rank in ranks), default=0.0)
    return replace(
        evidence,
        state=JobState.RUNNING,
        age_s=oldest_s if on_head.age_s is None else on_head.age_s,
        size=usual_size(sizes),
        line=shlex.join(on_head.line),
    )
