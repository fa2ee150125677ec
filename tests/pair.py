"""Clusters in the lab, made by `clusterctl up`. All tests of a worker share one of two nodes."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.domain.errors import ClusterctlError, HostError
from clusterctl.domain.timeouts import Timeouts
from clusterctl.lab.record import LabRecord
from clusterctl.operations.access import Access
from tests.cli.forks import run_one
from tests.lab.running import make_profile, once_client, wait_until

NAME = "pair"
TRAINER = "examples/horovod/tensorflow/train_imagenet_resnet_hvd.py"
STAND_IN = Path(__file__).with_name("stand_in_trainer.py").read_bytes()
CUT = """\
gateway=$(ip route show default | cut -d' ' -f3)
trap 'ip link set eth0 up; ip route add default via $gateway; exit' USR1
sleep 0.5
ip link set eth0 down
while :; do sleep 0.1; done
"""


@dataclass(frozen=True)
class LabCluster:
    """A cluster: `clusterctl ... NAME ...` as a user types it, and further actions for tests."""

    lab: LabRecord
    name: str = NAME
    by_hosts_file: bool = False

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "CLUSTERCTL_HOME": str(self.lab.home), "CLUSTERCTL_LAB": "1"}

    @property
    def words(self) -> list[str]:
        """What names the cluster, or its hosts as those of no cluster."""
        hosts = ["--hosts", f"{self.lab.home}/{self.name}/hosts"]
        return hosts if self.by_hosts_file else [self.name]

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        """Start `clusterctl COMMAND NAME ARGUMENTS...`. COMMAND may be two words."""
        return subprocess.Popen(
            [sys.executable, "-m", "clusterctl", *command.split(), *self.words, *arguments],
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ctl(self, command: str, *arguments: str):
        """Run a command as `start` does, to its end. Return (exit status, stdout, stderr)."""
        status, out, err = run_one([*command.split(), *self.words, *arguments], self.environ)
        assert "Traceback" not in err, err
        return status, out, err

    def ends(self, status: int, shown: str, command: str, *arguments: str) -> str:
        """Return stderr of a command, which has to end with this status and show this text."""
        ended, out, err = self.ctl(command, *arguments)
        assert (ended, shown in err) == (status, True), (ended, out, err)
        return str(err)

    def ok(self, command: str, *arguments: str) -> str:
        """Return the output of a command. It has to succeed."""
        status, out, err = self.ctl(command, *arguments)
        assert status == 0, (out, err)
        return str(out)

    def jobs(self) -> list[dict[str, Any]]:
        """Return the jobs of `jobs --json`, the oldest first."""
        found: list[dict[str, Any]] = json.loads(self.ok("jobs", "--json"))
        return found

    def access(self, timeouts: Timeouts = Timeouts()) -> Access:
        return AppContext(load_settings(self.environ), timeouts).open(self.name)

    def on(self, node: int, command: str, stdin: bytes = b"") -> str:
        """Return the output of a command on a node. It has to succeed."""
        with self.access() as access:
            target = access.all_targets[node]
            result = access.connections.run(target, command, stdin=stdin, timeout_s=240)
        assert result.ok, result
        return result.stdout

    def on_all(self, command: str, stdin: bytes = b"") -> list[str]:
        """Return the output of a command on each node. It has to succeed."""
        with self.access() as access:
            results = [
                access.connections.run(target, command, stdin=stdin, timeout_s=240)
                for target in access.all_targets
            ]
        assert all(result.ok for result in results), results
        return [result.stdout for result in results]

    def put(self, path: str, text: str) -> None:
        """Write a file into the home folder of every node."""
        self.on_all(f"cat > {path}", text.encode())

    @contextlib.contextmanager
    def stand_in_trainer(self) -> Iterator[None]:
        """Let tests/stand_in_trainer.py take the trainer's place for the duration of the block."""
        self.on_all(f"cp -p {TRAINER} {TRAINER}.kept && cat > {TRAINER}", STAND_IN)
        try:
            yield
        finally:
            self.on_all(f"mv {TRAINER}.kept {TRAINER}")

    @contextlib.contextmanager
    def cut_off(self, node: int) -> Iterator[None]:
        """Take a node's link down for the duration of the block, like a pulled cable."""
        word = f"cut-{node}-{os.getpid()}"
        self.on(node, "cat > cut.sh", CUT.encode())
        self.on(node, f"setsid sudo -n sh cut.sh {word} </dev/null >/dev/null 2>&1 &")
        try:
            eventually(lambda: not self.answers(node), "the link to be down")
            yield
        finally:
            # The network no longer reaches the node, but its processes are visible on this machine.
            search = ["pgrep", "-f", f"^sh cut.sh {word}"]
            found = subprocess.run(search, stdout=subprocess.PIPE, check=False)
            for pid in found.stdout.split():
                os.kill(int(pid), signal.SIGUSR1)
            eventually(lambda: self.answers(node), "the link to be up")
            self.on(node, "rm -f cut.sh")

    @contextlib.contextmanager
    def fault(self, node: int, fault: str, *options: str) -> Iterator[None]:
        """Set a lab fault of a host for the duration of the block."""
        with self.access() as access:
            instance = access.cluster.nodes[node].instance_id
        id = self.lab_fault(fault, instance, *options).partition(":")[0]
        try:
            yield
        finally:
            self.lab_fault("clear", id)

    def lab_fault(self, *arguments: str) -> str:
        status, out, err = run_one(["lab", "fault", *arguments], self.environ)
        assert status == 0, err
        return out

    @contextlib.contextmanager
    def instance_profile(self) -> Iterator[None]:
        """Give all nodes a role with all permissions, for the duration of the block."""
        ec2 = once_client(self.lab)
        make_profile(once_client(self.lab, "iam"), "pair")
        with self.access() as access:
            made = [
                ec2.associate_iam_instance_profile(
                    IamInstanceProfile={"Name": "pair"}, InstanceId=node.instance_id
                )["IamInstanceProfileAssociation"]["AssociationId"]
                for node in access.cluster.nodes
            ]
        try:
            yield
        finally:
            for association in made:
                with contextlib.suppress(Exception):
                    ec2.disassociate_iam_instance_profile(AssociationId=association)

    def answers(self, node: int) -> bool:
        with self.access() as access:
            access.connections.connect_timeout_s = 5.0
            try:
                return access.connections.run(access.all_targets[node], "true", timeout_s=5).ok
            except ClusterctlError:
                return False


def quiet_command_ends(
    opened: Callable[[Timeouts], contextlib.AbstractContextManager[Access]], node: int
) -> Timeouts:
    """Run a command that prints nothing for twice as long as a host may be silent. It must end well
    with one of these times: a busy host may take as long to answer as the first ones allow."""
    for silence_s in (2.0, 8.0, 32.0):
        timeouts = Timeouts(silence_s=silence_s)
        with opened(timeouts) as access:
            command = f"sleep {2 * silence_s}; echo done"
            try:
                result = access.connections.run(access.targets[node], command)
            except HostError as error:
                lost = error
                continue
        assert result.stdout == "done\n", result
        return timeouts
    raise lost


def eventually(reached, what: str):
    """Return the first true value of `reached()`. Fail with `what` at the deadline."""
    return wait_until(reached, what)


@pytest.fixture(scope="session")
def launched_pair(lab):
    """Yield a cluster of two nodes, and the names in the home of one. `down` removes it."""
    cluster = LabCluster(lab)
    status, _, err = cluster.ctl("up", "--nodes", "2", "--instance-type", "p3.2xlarge")
    assert status == 0, err
    yield cluster, cluster.on(0, "ls -A").splitlines()
    cluster.ctl("down", "--yes", "--discard-results")


# Removes all files that tests have left, of which some cannot be read, also beside the examples,
# which are kept; and the kernel's messages.
TIDY = """chmod -R u+rwX . 2>/dev/null
ls -A | grep -vxF {kept} | tr '\\n' '\\0' | xargs -0r rm -rf --
rm -rf .clusterctl/jobs .clusterctl/code examples/horovod/*/imagenet_resnet*
sudo -n sh -c 'rm -rf /data/* /etc/clusterctl-lab/kmsg'
"""


@pytest.fixture(scope="module")
def pair(launched_pair):
    """Yield the shared cluster of two nodes. What the tests of a file leave on it is removed."""
    cluster, kept = launched_pair
    yield cluster
    cluster.on_all(TIDY.format(kept=shlex.join(f"-e{name}" for name in kept)))
