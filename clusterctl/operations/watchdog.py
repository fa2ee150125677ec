"""The watchdog of a job. It runs beside the job on the head node and needs no other machine.

If the job makes no step for long enough, the watchdog diagnoses it as `diagnose` does, with the
head node's own SSH keys. It stores the evidence in the job's folder and writes the verdict to the
job's log.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from clusterctl.bootstrap.head_programs import put_programs
from clusterctl.bootstrap.inspection import MPI_KEY
from clusterctl.bootstrap.trust import KNOWN_HOSTS
from clusterctl.diagnosis.bundle import save
from clusterctl.diagnosis.verdict import diagnose as conclude
from clusterctl.domain.cluster import Cluster, Node, NodeState
from clusterctl.domain.errors import ClusterctlError, UsageError
from clusterctl.domain.timeouts import Clock
from clusterctl.domain.units import format_duration
from clusterctl.jobs.deploy import HOSTS_PATH
from clusterctl.jobs.metrics.logs import TAG
from clusterctl.node.jobs import jobs, processes
from clusterctl.node.jobs.spec import Watchdog, WatchedHost
from clusterctl.operations.access import Access
from clusterctl.operations.diagnose import SamplingPlan, collect
from clusterctl.operations.folder import ClusterFolder
from clusterctl.operations.kill import cancel
from clusterctl.transport.connections import Connections
from clusterctl.transport.keys import PinnedHostKeys, load_key
from clusterctl.transport.session import Identity

BUNDLE, SAID = "diagnosis.gz", "watchdog"
# Before its first step a job may be silent this many times as long as after it: it imports
# libraries, opens data and compiles the first batch.
START_UP = 3
LEAST_S = 1.0  # the shortest --watchdog
OWN = "clusterctl watchdog, "  # begins each line of the watchdog in the job's log
# Log lines that are no sign of progress: the watchdog's own, Horovod's warnings about stalled ranks
# with the lists that follow them, and empty lines.
NO_STEP = re.compile(
    rf"^{OWN}|stall_inspector|tensors were submitted to be reduced|subset of ranks and are waiting|"
    r"cause deadlock|^(Missing|Stalled) ranks:|^\d+!?: \[|^\s*$"
)
LOOK_BYTES = 1 << 20  # the most bytes of the log that one poll reads


def prepare(access: Access, after_s: float, cancels: bool, cache: Path, offline: bool) -> Watchdog:
    """Put the watchdog's programs on the head node and return its settings.

    One diagnosis is made at once, to be sure that it works; it also stores py-spy on the nodes.
    `after_s` is the time without a step after which the watchdog acts. For `cache` and `offline`
    see put_programs. Raise UsageError if `after_s` is too short, and ClusterctlError. A node that
    does not answer is no error here.
    """
    if after_s < LEAST_S:
        raise UsageError(
            f"--watchdog {after_s:g}s is shorter than steps may be",
            f"give it {LEAST_S:g}s or more, such as 5m",
        )
    put_programs(access.connections, access.head, HOSTS_PATH, cache, offline)
    collect(access, looking=SamplingPlan(samples=1))
    hosts = tuple(
        WatchedHost(node.index, node.name, node.private_ip, node.gpus)
        for node in access.cluster.in_service
    )
    cluster = access.cluster
    return Watchdog(cluster.name, cluster.ssh_user, after_s, cancels, hosts)


class JobProgress:
    """Detects whether a job makes steps, from its log and the trainer's metrics file.

    `last` is the time of the last sign of progress and `began` that of the attempt's start, both by
    `clock.monotonic`.
    """

    def __init__(self, folder: Path, clock: Clock = Clock()) -> None:
        self._clock = clock
        spec, _ = jobs.known_spec(folder)
        self._folder, self._log = folder, folder / "log"
        self._metrics = Path(spec.workdir, spec.log_dir, jobs.METRICS) if spec.log_dir else None
        self._read = 0
        self._rows = _size(self._metrics)
        self._begin()

    def _begin(self) -> None:
        self._attempt = jobs.mtime_of(self._folder / "exit_status")
        self.has_stepped = False
        self.began = self.last = self._clock.monotonic()

    def look(self) -> None:
        """Read what the job has written since the last call."""
        # After a lost node, the job waits up to 15 minutes for its nodes and then starts again. So
        # the time counts from the new attempt on.
        waits = is_between_attempts(self._folder)
        if waits or jobs.mtime_of(self._folder / "exit_status") != self._attempt:
            self._begin()
        rows, now = _size(self._metrics), self._clock.monotonic()
        # The file shrinks when the job clears what an earlier job left; that is no step.
        if rows > self._rows:
            self.has_stepped, self.last = True, now
        self._rows = rows
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(self._read)
            content = log.read(LOOK_BYTES)
            # An incomplete last line is read again with the next call, unless it alone fills the
            # buffer.
            lines, end, rest = content.rpartition(b"\n")
            if not end and len(content) == LOOK_BYTES:
                lines, rest = content, b""
            self._read += len(content) - len(rest)
            text = lines.decode(errors="replace")
            if any(not NO_STEP.search(TAG.sub("", one).strip()) for one in text.splitlines()):
                self.last = now

    def silent_s(self, after_s: float) -> float | None:
        """Return the seconds since the last progress if that is too long, else None.

        Too long is more than `after_s`. Before the first step, nothing is too long until START_UP
        times `after_s` after the start.
        """
        now = self._clock.monotonic()
        if not self.has_stepped and now - self.began < START_UP * after_s:
            return None
        return now - self.last if now - self.last > after_s else None


def is_between_attempts(folder: Path) -> bool:
    """Return whether an attempt of the job has failed and after.py runs on the head node: it ends
    leftover processes, or waits for nodes."""
    program = str(folder / "after.py")
    return any(program in one.argv for one in processes.all_processes().values())


def _size(path: Path | None) -> int:
    try:
        return path.stat().st_size if path else 0
    except OSError:
        return 0


def main() -> None:
    """Watch the job whose id is the argument until it has ended. Runs on the head node."""
    folder = jobs.JOBS / sys.argv[1]
    settings = jobs.read_spec(folder).watchdog
    assert settings, "it is started for jobs with a watchdog alone"
    progress = JobProgress(folder)
    looked_at = 0.0
    while jobs.pid_of(folder):
        time.sleep(min(5.0, settings.after_s / 5))
        progress.look()
        silent_s = progress.silent_s(settings.after_s)
        # Act once each time that the progress stops.
        if silent_s is not None and looked_at != progress.last and jobs.pid_of(folder):
            looked_at = progress.last
            _fire(folder, settings, progress, silent_s)


def _fire(folder: Path, settings: Watchdog, progress: JobProgress, silent_s: float) -> None:
    """Diagnose the job, save the evidence, and cancel the job if the settings say so and it still
    makes no step."""
    stopped, said = progress.last, f"no step for {format_duration(silent_s)}"
    with _telling(folder, said), head_access(settings) as access:
        # If the diagnosis fails, for example on a full disk, the job is cancelled all the same.
        with _telling(folder, f"{said}; not all is kept"):
            evidence = collect(access, folder.name)
            _say(folder, f"{said}: {conclude(evidence).verdict}")
            save(evidence, folder / BUNDLE)
            bundle = f".clusterctl/jobs/{folder.name}/{BUNDLE}"
            fetch = f"clusterctl ssh {settings.cluster} -- cat {bundle}"
            show = "clusterctl diagnose --from stuck.gz"
            _say(folder, f"all that was seen: {fetch} >stuck.gz && {show}")
        progress.look()
        if settings.cancels and progress.last != stopped:
            _say(folder, "the job makes steps again, and is not ended")
        elif settings.cancels:
            _say(folder, "the job is ended, as --watchdog-cancel asks")
            cancel(access, folder.name)


@contextlib.contextmanager
def _telling(folder: Path, failed: str) -> Iterator[None]:
    """Report any exception of the block instead of raising it, so that the watchdog stays alive.
    `failed` begins the message."""
    try:
        yield
    except ClusterctlError as error:
        _say(folder, f"{failed}: {error.message}")
    except Exception as error:
        _say(folder, f"{failed}: {error!r}")


def _say(folder: Path, text: str) -> None:
    """Append a line with the time to the job's log and to the file that `clusterctl jobs` shows."""
    now = datetime.now(timezone.utc)
    with contextlib.suppress(OSError), (folder / SAID).open("a") as file:
        file.write(f"{now:%Y-%m-%d %H:%M:%S} UTC: {text}\n")
    with contextlib.suppress(OSError), (folder / "log").open("a") as log:
        log.write(f"{OWN}{now:%H:%M:%S} UTC: {text}\n")


def head_access(settings: Watchdog) -> Access:
    """Return access to the cluster from its own head node: by private addresses, with ~/.ssh."""
    some: dict[str, Any] = dict.fromkeys(("instance_id", "instance_type", "availability_zone"), "")
    some |= {
        "state": NodeState.RUNNING,
        "public_ip": None,
        "launched_at": datetime.now(timezone.utc),
    }
    nodes = tuple(
        Node(index=one.index, name=one.name, gpus=one.gpus, private_ip=one.address, **some)
        for one in map(with_current_address, settings.hosts)
    )
    cluster = Cluster(settings.cluster, "", settings.user, nodes)
    # What `up` has put there for mpirun.
    ssh = Path.home() / ".ssh"
    identity = Identity((load_key(ssh / MPI_KEY),))
    connections = Connections(identity, PinnedHostKeys([ssh / KNOWN_HOSTS]))
    return Access(cluster, ClusterFolder(Path.home() / ".clusterctl"), connections)


def with_current_address(host: WatchedHost) -> WatchedHost:
    """Return the node with its current address. The node may have been replaced while the job was
    queued or waited for it."""
    try:
        return replace(host, address=socket.gethostbyname(host.name))
    except OSError:
        return host
