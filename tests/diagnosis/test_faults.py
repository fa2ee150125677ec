"""Faults in real Horovod jobs on hosts of the lab: `diagnose` names rank, host and cause.

With CLUSTERCTL_FAULTS_TABLE=FILE, each fault appends its row of the table in docs/diagnose.md.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest

from clusterctl.operations.access import Access
from tests.lab.running import wait_until
from tests.pair import LabCluster, eventually
from tests.skew import skewed

# These run with --all. Every run has a healthy training and a frozen host in
# tests/operations/test_diagnose.py, and a stopped rank in tests/cli/test_watch.py.
pytestmark = [pytest.mark.lab, pytest.mark.train, pytest.mark.all]

FAULTY = Path(__file__).with_name("faulty.py")
STEPS = 15  # between two faults
# Horovod reports a stall after a minute, which is long for a test. With its default cycle of 1 ms,
# its threads keep the processors busy.
QUICK = ("-x", "HOROVOD_STALL_CHECK_TIME_SECONDS=3", "-x", "HOROVOD_CYCLE_TIME=10")


class SickCluster(LabCluster):
    """Three nodes with ranks 0 and 1, 2, and 3. Their job is shared until a fault ends it."""

    job = ""
    step_s = 0.0
    kept: Access

    def join(self) -> None:
        """Log in, and give the first node two slots in the hosts file."""
        self.kept = self.access()
        hosts = Path(self.lab.home, "sick", "hosts")
        hosts.write_text(hosts.read_text().replace("slots=1", "slots=2", 1))

    def on(self, node: int, command: str, stdin: bytes = b"") -> str:
        # One connection for all: to query EC2 and log in again takes seconds on a busy machine.
        run = self.kept.connections.run
        result = run(self.kept.targets[node], command, stdin=stdin, timeout_s=60)
        assert result.ok, result
        return result.stdout

    def log(self) -> str:
        # Not `clusterctl logs`, which takes a second of CPU time to start.
        return self.on(0, 'cat "$(ls -td ~/.clusterctl/jobs/2* | head -n 1)"/log')

    def count_steps(self) -> int:
        return self.log().count("step ")

    def end(self) -> None:
        self.job, self.step_s = "", 0.0
        self.ctl("kill")
        for node in (0, 1, 2):
            self.on(node, "rm -f /data/o*.? /data/pid.* /data/fifo && mkfifo /data/fifo")

    def start_job(self, *arguments: str) -> None:
        """Start the job. Do not wait for its output."""
        self.end()
        run = ("train", "4", "--detach", "--force", "--script", "~/faulty.py", *QUICK, "--")
        status, _, err = self.ctl(*run, *arguments)
        assert status == 0, err

    def steps(self, within_s: float = 120) -> bool:
        """Return whether the job makes steps."""
        before = self.count_steps()
        with contextlib.suppress(AssertionError):
            return wait_until(lambda: self.count_steps() > before, "a step", within_s)
        return False

    def stepping(self) -> None:
        """Return the healthy job that never ends, making steps."""
        if not (self.job and self.steps(60)):
            self.start_job()
            assert self.steps(), self.log()
            self.job = "steps"
        # So many that the hang before them is no usual time of a step.
        began, before = time.monotonic(), self.count_steps()
        wait_until(lambda: self.count_steps() >= before + STEPS, "steps", 60)
        self.step_s = (time.monotonic() - began) / STEPS

    def silent(self, seconds: float = 3) -> None:
        """Wait until there is no step for so long, and for the time of six, before
        which a job may just be slow. Horovod may report the stall repeatedly."""
        seconds = max(seconds, 6 * self.step_s)
        last, since = -1, time.monotonic()
        while time.monotonic() < since + seconds:
            time.sleep(0.3)
            now = self.count_steps()
            if now != last:
                last, since = now, time.monotonic()

    def ended(self) -> None:
        def over() -> bool:
            [*_, job] = json.loads(self.ctl("jobs", "--json")[1])
            return job["state"] != "running"

        eventually(over, "the job's end")

    def says(self, text: str) -> None:
        eventually(lambda: text in self.log(), text)

    def stalls(self) -> None:
        """Wait for Horovod's next report, before which a rank at work may just be slow: what is
        usual in a young job is not known yet."""
        before = self.log().count("Missing ranks:")
        eventually(lambda: self.log().count("Missing ranks:") > before, "Horovod's report")

    def stalled(self, *tensors: str) -> None:
        """Wait until Horovod's last report names these tensors.

        On a busy machine it also reports the slow first step. Its first report omits tensors that
        have waited for less than 3 s.
        """

        def reported() -> bool:
            _, found, report = self.log().partition("step 0")[2].rpartition("Missing ranks:")
            return bool(found) and all(name in report for name in tensors)

        eventually(reported, "Horovod's report")

    def diagnose(self) -> dict:
        status, out, err = self.ctl("diagnose", "--json")
        assert status in (0, 1, 2, 3), err
        return json.loads(out)


Inject = Callable[[SickCluster], AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """A fault that `inject` makes for the duration of its block, and the expected finding.

    One of `checks` has to be found on this host and, for a rank's fault, for this rank. It has to
    be the verdict if the job waits for it.
    """

    name: str
    inject: Inject
    checks: tuple[str, ...]
    node: int | None = None
    rank: int | None = None
    is_verdict: bool = True


def during(
    does: str = "true",
    undoes: str = "true",
    until: Callable[[SickCluster], object] = lambda sick: None,
    ends: bool = False,
    node: int = 1,
) -> Inject:
    """A fault on a node during the healthy job, which may end because of it."""

    @contextlib.contextmanager
    def inject(sick: SickCluster) -> Iterator[None]:
        sick.stepping()
        sick.on(node, does)
        try:
            until(sick)
            yield
        finally:
            sick.on(node, undoes)
            if ends:
                sick.end()

    return inject


# Ends what Python waits for. Of the rest, withdrawing the order is enough.
GIVE_UP = "kill -USR1 $(cat /data/pid.{rank})"


def ordered(
    word: str,
    release: str = "",
    until: Callable[[SickCluster], object] = SickCluster.silent,
    ends: bool = False,
    rank: int = 2,
) -> Inject:
    """An order for rank 2 or 3 of the running job, which is withdrawn at the end."""
    undoes = f"rm -f /data/o*.{rank}; {release or GIVE_UP.format(rank=rank)}"
    return during(order(word, rank), undoes, until, ends, node=rank - 1)


def order(word: str, *ranks: int) -> str:
    """Return the shell command that has ranks of one host obey, and waits until they do."""
    orders = (f"echo {word} >/data/order.{rank}" for rank in ranks)
    obey = (f"until [ -e /data/obeys.{rank} ]; do sleep 0.2; done" for rank in ranks)
    return "; ".join((*orders, *obey))


@contextlib.contextmanager
def locked(sick: SickCluster) -> Iterator[None]:
    """Another process on the node of rank 2 holds the lock that the rank wants."""
    sick.stepping()
    sick.on(1, "setsid flock -x /data/lock sleep 300 </dev/null >/dev/null 2>&1 &")
    release = "pkill -f '[f]lock -x /data/lock'; pkill -f '[s]leep 300'"
    with ordered("lock", release=release)(sick):
        yield


@contextlib.contextmanager
def slowly_read(sick: SickCluster) -> Iterator[None]:
    sick.stepping()
    read = "setsid sh -c 'exec 3</data/fifo; sleep 301' </dev/null >/dev/null 2>&1 &"
    sick.on(1, read)
    try:
        with ordered("slow-reader")(sick):
            yield
    finally:
        sick.on(1, "pkill -f '[s]leep 301'")


def of_two(word: str) -> Inject:
    """An order for both ranks of node 0."""

    @contextlib.contextmanager
    def inject(sick: SickCluster) -> Iterator[None]:
        sick.stepping()
        sick.on(0, order(f"{word}@10", 0, 1))
        try:
            # Half of the ranks may be at work of their own for some seconds.
            sick.silent(12)
            yield
        finally:
            give_up = (GIVE_UP.format(rank=rank) for rank in (0, 1))
            sick.on(0, "; ".join(["rm -f /data/o*.?", *give_up]))

    return inject


OPEN_FIFO = "timeout 5 sh -c ': > /data/fifo' || true"


def job_of(*arguments: str, until: Callable[[SickCluster], object] = SickCluster.silent) -> Inject:
    """A job that fails by itself, and is killed at the end."""

    @contextlib.contextmanager
    def inject(sick: SickCluster) -> Iterator[None]:
        sick.start_job(*arguments)
        until(sick)
        try:
            yield
        finally:
            sick.end()

    return inject


RANK = "$(cat /data/pid.2)"
DAEMON = "-u $(id -u) -f '[p]rted'"
# The lab's hosts share this machine's kernel and memory. So the kill is real, but the test writes
# the lines that the kernel would log.
KERNEL_LOG = "/etc/clusterctl-lab/kmsg"
KILL_FOR_MEMORY = f"""
pid={RANK}; log() {{ echo "[$(cut -d" " -f1 /proc/uptime)] $1" | sudo -n tee -a {KERNEL_LOG}; }}
sudo -n mkdir -p /etc/clusterctl-lab
log "oom-kill:constraint=CONSTRAINT_MEMCG,task=python,pid=$pid"
log "Memory cgroup out of memory: Killed process $pid (python) total-vm:9999999kB"
sudo -n kill -KILL "$pid"
"""


@contextlib.contextmanager
def full_disk(sick: SickCluster) -> Iterator[None]:
    sick.stepping()
    checkpoint = ordered(
        "checkpoint",
        release="rm -f /data/model.ckpt-7.data",
        until=lambda sick: (sick.says("cannot save the checkpoint"), sick.silent()),
    )
    with sick.fault(1, "fill", "--left", "8KiB"), checkpoint(sick):
        yield


def of_host(fault: str, *options: str) -> Inject:
    """A fault of the lab on the node of rank 3."""

    @contextlib.contextmanager
    def inject(sick: SickCluster) -> Iterator[None]:
        sick.stepping()
        with sick.fault(2, fault, *options):
            yield

    return inject


@contextlib.contextmanager
def powered_off(sick: SickCluster) -> Iterator[None]:
    sick.stepping()
    sick.on(2, "setsid sudo -n sh -c 'sleep 0.5; poweroff' </dev/null >/dev/null 2>&1 &")
    try:
        eventually(lambda: not sick.answers(2), "the host to be off")
        eventually(lambda: "\"stopped\"" in sick.ctl("status", "--json")[1], "EC2 to show it")
        yield
    finally:
        status, _, err = sick.ctl("start")
        assert status == 0, err
        sick.join()  # the node's address has changed
        sick.end()


def changed(does: str, undoes: str, node: int = 2, stdin: bytes = b"") -> Inject:
    """A fault of a node that needs no job."""

    @contextlib.contextmanager
    def inject(sick: SickCluster) -> Iterator[None]:
        sick.on(node, does, stdin)
        try:
            yield
        finally:
            sick.on(node, undoes)

    return inject


@contextlib.contextmanager
def other_host_key(sick: SickCluster) -> Iterator[None]:
    key = "/etc/ssh/ssh_host_ed25519_key"
    sick.on(2, f"sudo -n cp -p {key} {key}.kept; sudo -n cp -p /etc/ssh/ssh_host_ecdsa_key /tmp")
    undo = f"sleep 12; mv {key}.kept {key}; mv /tmp/ssh_host_ecdsa_key /etc/ssh/"
    undo += "; pkill -HUP -o -x sshd"
    # Logins fail afterwards, so a process on the node undoes it.
    sick.on(2, f"setsid sudo -n sh -c '{undo}' </dev/null >/dev/null 2>&1 &")
    sick.on(2, NEW_KEYS)
    eventually(lambda: not sick.answers(2), "the host key to be another")
    try:
        yield
    finally:
        eventually(lambda: sick.answers(2), "the host key to be as it was")


NEW_KEYS = """\
cd /etc/ssh; sudo rm ssh_host_*_key; sudo ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key
sudo cp ssh_host_ed25519_key ssh_host_ecdsa_key; sudo pkill -HUP -o -x sshd
"""


def built(source: str) -> bytes:
    """Build a shared library with one function."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "made.so")
        argv = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(made), "-ldl"]
        subprocess.run(argv, input=source.encode(), check=True)
        return made.read_bytes()


@contextlib.contextmanager
def wrong_build(sick: SickCluster) -> Iterator[None]:
    """Build a Horovod library that lacks a symbol, as if built for another TensorFlow."""
    folder = "/data/horovod/tensorflow"
    sick.on(1, f"mkdir -p {folder} && cat >{folder}/mpi_lib.so", built(NEEDS_SYMBOL))
    with job_of("2:early-symbol", until=SickCluster.ended)(sick):
        yield


NEEDS_SYMBOL = """\
namespace tensorflow { struct Status { Status(int, const char*); }; }
extern "C" void begin() { tensorflow::Status status(0, ""); }
tensorflow::Status (*keep)(int, const char*) = [](int a, const char* b) {
    return tensorflow::Status(a, b);
};
"""


def skewed_clock(sick: SickCluster) -> AbstractContextManager[None]:
    return skewed(sick, 2, -90)


def both(first: Inject, second: Inject) -> Inject:
    @contextlib.contextmanager
    def inject(sick: SickCluster) -> Iterator[None]:
        with first(sick), second(sick):
            yield

    return inject


RECORD = "/data/train-00017-of-01024"
TORN_RECORD = b"\x10" + bytes(7) + b"not the checksum of a length, by far"
FULL_SHM = "fallocate -l 2G /dev/shm/big || fallocate -l 2047M /dev/shm/big"


@contextlib.contextmanager
def same_name(sick: SickCluster) -> Iterator[None]:
    own, other = (sick.on(node, "hostname").strip() for node in (2, 1))
    with changed(f"sudo -n hostname {other}", f"sudo -n hostname {own}")(sick):
        yield


def fails(word: str) -> Inject:
    """A job that rank 2 ends by an error before the first step."""
    return job_of(f"2:early-{word}", until=SickCluster.ended)


HEALTHY, UNKNOWN = "healthy", "unknown"
FAULTS = [
    Fault("a healthy job", during(), (HEALTHY,)),
    Fault("a host frozen", of_host("freeze"), ("host.silent",), 2, 3),
    Fault(
        "a rank stopped (SIGSTOP)",
        during(f"kill -STOP {RANK}", f"kill -CONT {RANK}", SickCluster.silent),
        ("rank.stopped",),
        1,
        2,
    ),
    Fault(
        "mpirun's daemon on a node stopped",
        during(f"pkill -STOP {DAEMON}", f"pkill -CONT {DAEMON}"),
        ("daemon.stopped",),
        1,
    ),
    Fault(
        "a rank in an endless Python loop",
        ordered("loop", until=SickCluster.stalls),
        ("rank.busy",),
        1,
        2,
    ),
    Fault("a rank blocked on a FIFO", ordered("fifo"), ("rank.io",), 1, 2),
    Fault(
        "a rank in D state (a stand-in for a dead mount)",
        ordered("spawn", release=OPEN_FIFO),
        ("rank.uninterruptible",),
        1,
        2,
    ),
    Fault("a rank that retries on a full disk", full_disk, ("rank.busy", "disk.full"), 1, 2),
    Fault("a host's link cut", of_host("cut"), ("host.silent",), 2, 3),
    Fault(
        "a host's link slowed 50×",
        of_host("shape", "--rate", "1mbit"),
        ("link.slow",),
        2,
    ),
    Fault(
        "a rank slow at its own work",
        ordered("slow", until=SickCluster.steps),
        ("rank.straggler",),
        1,
        2,
    ),
    Fault("a rank asleep", ordered("nap"), ("rank.blocked",), 1, 2),
    Fault("both ranks of a host asleep", of_two("nap"), ("rank.blocked",), 0, 1),
    Fault(
        "a rank in another collective",
        ordered("gather", ends=True),
        # By the stacks, or by Horovod's report.
        ("ranks.differ", "rank.skipped", "ranks.order"),
        1,
        2,
    ),
    Fault("a rank that waits for a lock", locked, ("rank.io",), 1, 2),
    Fault("a rank without an answer", ordered("answer"), ("rank.blocked",), 1, 2),
    Fault("a rank whose reader is slow", slowly_read, ("rank.io",), 1, 2),
    Fault("a rank that waits for its child", ordered("child"), ("rank.blocked",), 1, 2),
    Fault("two threads in a deadlock", ordered("deadlock"), ("rank.blocked",), 1, 2),
    # At one line at all three samples it is not known, or told as no error.
    Fault("a rank that validates alone", ordered("validate"), (HEALTHY, UNKNOWN, "rank.busy")),
    Fault(
        "a rank in an endless C loop",
        ordered("c-loop", until=SickCluster.stalls),
        ("rank.busy",),
        1,
        2,
    ),
    Fault(
        "a rank skips a collective",
        ordered("skip", until=lambda sick: sick.stalled("conv2"), ends=True),
        ("rank.skipped", "ranks.differ"),
        1,
        2,
    ),
    Fault(
        "two ranks in another order",
        job_of("2:swap", "3:swap", until=lambda sick: sick.stalled("conv1", "conv2")),
        ("ranks.order",),
    ),
    Fault(
        "a rank's exception while the rest wait",
        ordered("raise", until=lambda sick: sick.says("loss is NaN"), ends=True, rank=3),
        ("rank.exception",),
        2,
        3,
    ),
    Fault(
        "a rank that left before hvd.init",
        job_of("3:leave", until=lambda sick: time.sleep(15)),
        ("rank.missing",),
        2,
        3,
    ),
    Fault(
        "a rank killed for memory (OOM)",
        during(KILL_FOR_MEMORY, f"sudo -n rm {KERNEL_LOG}", SickCluster.ended, ends=True),
        ("rank.oom",),
        1,
        2,
    ),
    Fault(
        "mpirun's daemon on a node killed",
        during(f"pkill -KILL {DAEMON}", until=SickCluster.ended, ends=True),
        ("mpi.daemon-lost", "mpi.daemon-silent"),
        1,
    ),
    Fault("too few file descriptors", fails("files"), ("system.too-many-files",), 1, 2),
    Fault(
        "a corrupted TFRecord",
        both(changed(f"cat >{RECORD}", f"rm {RECORD}", 1, TORN_RECORD), fails("record")),
        ("tf.data-loss",),
        1,
        2,
    ),
    Fault(
        "full /dev/shm",
        both(changed(FULL_SHM, "rm /dev/shm/*", 1), fails("shm")),
        ("shm.full",),
        1,
        2,
    ),
    Fault(
        "Horovod built against another TensorFlow",
        wrong_build,
        ("horovod.undefined-symbol",),
        1,
        2,
    ),
    Fault("a node's clock 90 s late", skewed_clock, ("clock.skew",), 2, is_verdict=False),
    Fault("two nodes of one name", same_name, ("host.name",), 2, is_verdict=False),
    Fault("a host key changed", other_host_key, ("host.key",), 2, is_verdict=False),
    Fault("a host powered off", powered_off, ("host.off",), 2, is_verdict=False),
]


@pytest.fixture(scope="module")
def sick(lab):
    cluster = SickCluster(lab, "sick")
    status, _, err = cluster.ctl("up", "--nodes", "3", "--instance-type", "p3.2xlarge")
    assert status == 0, err
    cluster.join()
    cluster.put("faulty.py", FAULTY.read_text())
    yield cluster
    cluster.ctl("down", "--yes", "--discard-results")


def record(*row: str) -> None:
    path = os.environ.get("CLUSTERCTL_FAULTS_TABLE")
    if path:
        with Path(path).open("a") as file:
            file.write(f"| {' | '.join(row)} |\n")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_is_named(sick, fault):
    with fault.inject(sick):
        began = time.monotonic()
        seen = sick.diagnose()
        took_s = time.monotonic() - began
    named = next((one for one in seen["findings"] if one["check"] in fault.checks), {})
    said = (named.get("check", seen["check"]), named.get("message", seen["verdict"]))
    record(fault.name, "`{}`: {}".format(*said), f"{took_s:.1f}")
    assert HEALTHY in fault.checks or named, seen["verdict"]
    if HEALTHY in fault.checks:
        assert "error" not in {one["severity"] for one in seen["findings"]}, json.dumps(seen)
    if fault.is_verdict:
        assert seen["check"] in fault.checks, seen["verdict"]
    if fault.node is not None:
        assert named["host"] == f"sick-{fault.node}", json.dumps(seen)
    if fault.rank is not None:
        assert fault.rank in named["ranks"], seen


PYTHON = "/opt/clusterctl/training/bin/python"
MAKE_DATA = f"""set -e; cd ~/examples/horovod
{PYTHON} mnist/make_sample_mnist.py --images 2000 --test_images 100
{PYTHON} cifar10/make_sample_cifar10.py --images 500
{PYTHON} cifar10/generate_cifar10_tfrecords.py"""
SMALL = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "1000000")
LONG = ("--epochs", "100000", "--batch_size", "12")
EXAMPLES = {
    "tensorflow": ("--synthetic", "--", *SMALL),
    "mnist": ("--script", "~/examples/horovod/mnist/mnist_hvd.py", "--", *LONG),
    "cifar10": ("--script", "~/examples/horovod/cifar10/keras_cifar10.py", "--", *LONG),
}
LOOKS = 4


@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.timeout(900)
def test_no_healthy_job_is_called_sick(sick, example):
    """This includes its start: libraries are imported, data is opened, the model is compiled."""
    sick.end()
    status, _, err = sick.ctl("run", MAKE_DATA)
    assert status == 0, err
    status, _, err = sick.ctl("train", "4", "--detach", "--force", *EXAMPLES[example])
    assert status == 0, err
    try:
        looks = [sick.diagnose() for _ in range(LOOKS)]
        assert sick.ctl("jobs")[1].count("running") == 1, sick.log()
    finally:
        sick.end()
    found = [finding for look in looks for finding in look["findings"]]
    wrong = [finding for finding in found if finding["severity"] == "error"]
    record(f"{LOOKS} looks at a healthy job of {example}", f"{len(wrong)} called sick", "")
    assert not wrong
