"""Measure the network between a cluster's nodes: each pair, then all nodes with MPI and NCCL.

Each node runs a relay (clusterctl/node/relay/probe.py). In a pair, one node's relay measures and
the other's relay serves it.
"""

from __future__ import annotations

import re
import secrets
import shlex
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from clusterctl.bench.network import (
    NCCL_PROGRAMS,
    NO_MPI,
    AllreduceTable,
    NetworkFigures,
    Pair,
    disjoint,
    outliers,
    rounds,
    table_of_mpi,
    table_of_nccl,
)
from clusterctl.copy.session import Ended, RelayGroup, Update
from clusterctl.domain.errors import HostError, UsageError
from clusterctl.domain.results import CommandResult, HostFailure
from clusterctl.jobs.head_facts import HeadFacts, choose_environment, shared_network
from clusterctl.jobs.mpirun import MpiLaunch, mpirun_argv
from clusterctl.jobs.plan import new_job_id, node_exports
from clusterctl.jobs.trainer import CPU, Preset, choose_preset
from clusterctl.node.jobs import allreduce
from clusterctl.node.procfs import JOB_VARIABLE
from clusterctl.node.relay.messages import Failed, Listening, Measure, Measured, printable
from clusterctl.operations.access import Access
from clusterctl.operations.logs import refuse_while_training
from clusterctl.operations.train import head_facts, live_hosts

# A relay sends an event every second. A measurement can delay these events on a node with few
# CPUs, so the limit for a silent node is much longer.
SILENT_AFTER_S = 10.0
LOGIN_WITHIN_S = 30.0
# Beyond the measuring time of a pair: for its connections and the timeouts of its two relays.
SLACK_S = 25.0
MPI_WITHIN_S = 180  # seconds for one mpirun

# Prints `osu=PATH` for the first osu_allreduce found: on the PATH, then where packages and builds
# from source put it. Prints `PROGRAM=PATH` for those of nccl-tests that are next to the first
# all_reduce_perf, and `nccl_library=FOLDER` for the NCCL of the environment whose folder is $1.
FIND = """\
for one in "$(command -v osu_allreduce)" /opt/osu*/libexec/osu-micro-benchmarks/mpi/collective/\
osu_allreduce /usr/local/libexec/osu-micro-benchmarks/mpi/collective/osu_allreduce \
"$HOME"/osu-micro-benchmarks*/c/mpi/collective/*/osu_allreduce; do
  [ -x "$one" ] && echo "osu=$one" && break
done
for one in "$(command -v all_reduce_perf)" /opt/nccl-tests/build/all_reduce_perf \
/usr/local/cuda-*/efa/test-cuda-*/all_reduce_perf "$HOME"/nccl-tests/build/all_reduce_perf; do
  [ -x "$one" ] || continue
  for name in all_reduce_perf all_gather_perf reduce_scatter_perf alltoall_perf; do
    [ -x "${one%/*}/$name" ] && echo "$name=${one%/*}/$name"
  done
  break
done
for one in "$1"/lib/python3*/site-packages/nvidia/nccl/lib; do
  [ -e "$one/libnccl.so.2" ] && echo "nccl_library=$one" && break
done
:"""


@dataclass(frozen=True)
class NetworkProgress:
    """Progress of a measurement: `done` of `pairs` pairs, or, where `pairs` is 0, `doing`."""

    done: int
    pairs: int
    doing: str = ""


def measure_network(
    access: Access,
    *,
    streams: int,
    seconds: float,
    force: bool = False,
    watch: Callable[[NetworkProgress], None] = lambda step: None,
) -> NetworkFigures:
    """Measure all pairs of nodes in service, then the allreduce over all of them.

    Each of a pair's four rates is measured for `seconds`, over one TCP connection and over
    `streams`. A node that does not answer is in the result's `failures`. Its `link` is unknown.

    Raise UsageError with fewer than two nodes, JobRunning while a job runs unless `force`. On every
    exit, KeyboardInterrupt included, the relays on reachable nodes are stopped.
    """
    names = [target.host for target in access.targets]
    if len(names) < 2:
        raise UsageError(
            f"{access.cluster.name} has one node in service: there is no network to measure",
            f"add one: clusterctl up {access.cluster.name} --nodes 2",
        )
    if not force:
        refuse_while_training(access, "the measurement would slow it down, and it the measurement")
    began, now = time.monotonic(), datetime.now(timezone.utc)
    with _Probes(access, streams, seconds, watch) as probes:
        probes.listen()
        probes.play(rounds(names))
        behind = outliers(probes.report(names))
        probes.play(disjoint(behind.again(probes.report(names))))
        report = probes.report(names)
    types = {node.name: node.instance_type for node in access.cluster.nodes}
    report = replace(
        report,
        instance_types=tuple(sorted({types[name] for name in names})),
        measured_at=now.isoformat(timespec="seconds"),
    )
    report = _with_collectives(access, report, watch)
    return replace(report, duration_s=round(time.monotonic() - began, 1))


def _with_collectives(
    access: Access, report: NetworkFigures, watch: Callable[[NetworkProgress], None]
) -> NetworkFigures:
    """Return the figures of the pairs with those of all nodes together, as far as they came."""
    failures = report.failures
    tables: list[AllreduceTable] = []
    lacks: list[str] = []
    try:
        for found in _allreduces(access, report, watch):
            if isinstance(found, str):
                lacks.append(found)
            else:
                tables.append(found)
    except HostError as error:
        # The head node was lost meanwhile.
        failures += (no_answer(access.cluster.name, error.host, error.message),)
    return replace(
        report,
        failures=failures,
        allreduce=tuple(table for table in tables if table.operation == "allreduce"),
        collectives=tuple(table for table in tables if table.operation != "allreduce"),
        lacks_nccl_tests=tuple(lacks),
    )


class _Probes(RelayGroup[str]):
    """The measuring relays, one per node.

    `broken` maps a pair to the reason it was not measured, `figures` a measured pair to its figures
    (see the message Measured).
    """

    def __init__(
        self, access: Access, streams: int, seconds: float, watch: Callable[[NetworkProgress], None]
    ) -> None:
        config = {"role": "probe", "secret": secrets.token_hex(32)}
        super().__init__(access.connections, access.targets, config)
        self._cluster = access.cluster.name
        self.streams, self.seconds, self.watch = streams, seconds, watch
        self.broken: dict[Pair, str] = {}
        self.figures: dict[Pair, dict[str, float]] = {}
        self._last_message_at: dict[str, float] = {}
        self._at: dict[str, Listening] = {}

    def report(self, names: Sequence[str]) -> NetworkFigures:
        """Return the results so far. Rates and times of a pair are entered for both directions."""
        found = {**self.figures}

        def rates(word: str) -> dict[Pair, float]:
            ways = {pair: figures[f"{word}_out"] for pair, figures in found.items()}
            back = {pair[::-1]: figures[f"{word}_back"] for pair, figures in found.items()}
            return {**ways, **back}

        def times(word: str) -> dict[Pair, float]:
            one = {pair: figures[word] for pair, figures in found.items()}
            return {**one, **{pair[::-1]: took for pair, took in one.items()}}

        return NetworkFigures(
            nodes=tuple(names),
            streams=self.streams,
            seconds=self.seconds,
            many=rates("many"),
            one=rates("one"),
            rtt=times("rtt_p50"),
            rtt_p99=times("rtt_p99"),
            failures=tuple(no_answer(self._cluster, *one) for one in self.failures.items()),
            broken={
                pair: why
                for pair, why in self.broken.items()
                if pair not in found and not self.failures.keys() & {*pair}
            },
        )

    def listen(self) -> None:
        """Wait until each relay accepts connections from the others, or has failed."""
        self.watch(NetworkProgress(0, 0, "logging in"))
        deadline = time.monotonic() + LOGIN_WITHIN_S
        while waiting := self._relays.keys() - self._at.keys() - self.failures.keys():
            self._turn()
            if time.monotonic() > deadline:
                for name in waiting:
                    self.fail(name, f"no answer within {LOGIN_WITHIN_S:g} s")

    def play(self, plan: list[list[Pair]]) -> None:
        """Measure the pairs of each round at the same time, one round after the other.

        If a pair is measured again, the better of each figure is kept.
        """
        pairs, done = sum(map(len, plan)), 0
        for games in plan:
            self.watch(NetworkProgress(done, pairs))
            waiting = {}
            for one, other in games:
                if not {one, other} & self.failures.keys():
                    there = self._at[other]
                    order = Measure(other, there.address, there.port, self.streams, self.seconds)
                    self._relays[one].give(order)
                    waiting[one] = other
            # A pair takes 5.3 x `seconds`: four rates with a warm-up of a fifth each, and half a
            # `seconds` of round trips.
            limit_s = 6 * self.seconds + SLACK_S
            deadline = time.monotonic() + limit_s
            while waiting:
                for name, event in self._turn():
                    if isinstance(event, Measured) and waiting.get(name) == event.name:
                        self._take((name, waiting.pop(name)), event)
                late = time.monotonic() > deadline
                for one, other in list(waiting.items()):
                    # `one` measures. If `other` fails, `one` reports that after its own timeout.
                    if late or one in self.failures:
                        self.broken[one, other] = f"not measured within {limit_s:g} s"
                        del waiting[one]
            done += len(games)

    def _take(self, pair: Pair, event: Measured) -> None:
        if event.why or not event.figures:
            self.broken[pair] = printable(event.why)
            return
        before = self.figures.get(pair, event.figures)
        self.figures[pair] = {
            name: (min if name.startswith("rtt") else max)(value, before.get(name, value))
            for name, value in event.figures.items()
        }

    def _turn(self) -> list[tuple[str, Update]]:
        """Process and return the next events, and fail silent nodes."""
        now = time.monotonic()
        updates = self.updates()
        for name, event in updates:
            self._last_message_at[name] = now
            if isinstance(event, Listening):
                self._at[name] = event
            elif isinstance(event, Ended):
                self.fail(name, event.error.message if event.error else "its relay has ended")
            elif isinstance(event, Failed):
                self.fail(name, printable(event.why))
        for name in self._at:
            if now - self._last_message_at[name] > SILENT_AFTER_S:
                self.fail(name, f"no message for {SILENT_AFTER_S:g} s")
        return updates


def no_answer(cluster: str, host: str, message: str) -> HostFailure:
    """Return the failure of a node that was not measured, with what shows why."""
    hint = f"see why: clusterctl doctor {cluster}"
    return HostFailure(host, HostError.__name__, message, hint)


def _allreduces(
    access: Access, report: NetworkFigures, watch: Callable[[NetworkProgress], None]
) -> Iterable[AllreduceTable | str]:
    """Yield the allreduce with MPI, one rank per node, then the operations of nccl-tests, one rank
    per GPU; the name of each of its programs that the head node lacks, if it has GPUs. Only nodes
    that answered take part.

    Yield nothing if fewer than two nodes or not the head node answered. Raise HostError of the head
    node.
    """
    failed = {one.host for one in report.failures}
    names = [name for name in report.nodes if name not in failed]
    addresses = {node.name: node.private_ip for node in access.cluster.nodes}
    hosts = [addresses[name] for name in names]
    if len(hosts) < 2 or access.head_name not in names:
        return
    facts = head_facts(access)
    if not facts.environments:
        yield AllreduceTable(NO_MPI, len(hosts), error="there is no Open MPI on the head node")
        return
    prefix = choose_environment(facts, needs_horovod=False).mpirun.path.rpartition("/bin/")[0]
    find = f"set -- {shlex.quote(prefix)}\n{FIND}"
    found = access.connections.run(access.head, find, timeout_s=30).stdout
    tools = dict(re.findall(r"(?m)^(osu|nccl_library|[a-z_]+_perf)=(.+)$", found))
    watch(NetworkProgress(0, 0, "allreduce by MPI"))
    measured = False
    if "osu" in tools:
        osu = (tools["osu"], "-m", "8:67108864")
        table = _by_mpi(access, facts, hosts, osu, "osu_allreduce")
        measured = not table.error
        yield table
    if not measured:
        text = Path(allreduce.__file__).read_text()
        # The program travels on mpirun's command line: the nodes need no file for it.
        program = ("python3", "-ISuc", f"{text}\nmain()\n", prefix)
        yield _by_mpi(access, facts, hosts, program, "MPI_Allreduce")
    # nccl-tests use the NCCL of training, not that of a CUDA toolkit.
    libraries = [tools.get("nccl_library", ""), facts.library_path]
    facts = replace(facts, library_path=":".join(filter(None, libraries)))
    for name, operation in NCCL_PROGRAMS.items():
        if name in tools:
            watch(NetworkProgress(0, 0, f"{operation} by NCCL"))
            yield _by_nccl(access, facts, report, hosts, tools[name])
        elif facts.nvidia_driver:
            yield name


def _by_mpi(
    access: Access, facts: HeadFacts, hosts: list[str], program: tuple[str, ...], name: str
) -> AllreduceTable:
    slots = dict.fromkeys(hosts, 1)
    result = _mpirun(access, facts, slots, program, CPU)
    table = table_of_mpi(result.stdout, result.exit_status, name, len(hosts))
    return replace(table, error=f"{table.error}{_causes(result)}") if table.error else table


def _by_nccl(
    access: Access, facts: HeadFacts, report: NetworkFigures, hosts: list[str], path: str
) -> AllreduceTable:
    slots = {one.host: one.slots for one in live_hosts(access).entries if one.host in hosts}
    preset = choose_preset("gpu", nvidia_driver=True, efa=facts.efa > 0)
    # NCCL then prints its version.
    preset = replace(preset, exports=(*preset.exports, ("NCCL_DEBUG", "VERSION")))
    program = (path, "-b", "1M", "-e", "1G", "-f", "4", "-g", "1")
    result = _mpirun(access, facts, slots, program, preset)
    [instance_type, *others] = report.instance_types
    table = table_of_nccl(
        result.stdout,
        result.exit_status,
        path.rpartition("/")[2],
        sum(slots.values()),
        "" if others else instance_type,
        len(hosts),
    )
    return replace(table, error=f"{table.error}{_causes(result)}") if table.error else table


def _mpirun(
    access: Access,
    facts: HeadFacts,
    slots: Mapping[str, int],
    program: tuple[str, ...],
    preset: Preset,
) -> CommandResult:
    """Run `program` with mpirun on the head node and wait for its end. `slots` maps the address of
    each host to its number of ranks. Raise HostError of the head node."""
    mpirun = choose_environment(facts, needs_horovod=False).mpirun
    launch = MpiLaunch(
        mpirun=mpirun,
        hosts=len(slots),
        ranks=sum(slots.values()),
        settings=preset.settings,
        exports=(
            *preset.exports_for(max(slots.values())),
            *node_exports(mpirun.path, preset, facts),
            # With this variable `clusterctl kill` finds the ranks if the connection is lost.
            (JOB_VARIABLE, new_job_id()),
        ),
        program=program,
        network=shared_network(slots, facts),
    )
    argv = mpirun_argv(launch)
    # Name the hosts on the command line: the hosts file on the head node also lists nodes that do
    # not answer, and other numbers of slots.
    at = argv.index("--hostfile")
    argv[at : at + 2] = ["--host", ",".join(f"{host}:{number}" for host, number in slots.items())]
    # Without --foreground, the signal with which sshd ends the command does not reach mpirun.
    line = f"exec timeout --foreground -k 10 {MPI_WITHIN_S} {shlex.join(argv)}"
    return access.connections.run(access.head, line, timeout_s=MPI_WITHIN_S + 30)


def _causes(result: CommandResult) -> str:
    """Return a colon and the beginning of a program's messages; empty if there are none.

    nccl-tests print the cause of a failure on stdout, and mpirun's messages follow on stderr.
    """
    causes = re.findall(r"Test \w+ failure .*'.*'", result.stdout)[:1]
    output = causes or [one.strip() for one in result.stderr.splitlines() if one.strip(" -")]
    return printable(f": {' '.join(output)[:300]}") if output else ""
