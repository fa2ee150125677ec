"""Parameter servers on two hosts of the lab: a training, and the end of all processes together."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.pair import eventually
from tests.variants import usual

pytestmark = [pytest.mark.lab, pytest.mark.train]

MNIST = Path(__file__).parents[2] / "examples" / "horovod" / "mnist"
PYTHON = "/opt/clusterctl/training/bin/python"
JOB = """\
entry_point: program.py
instance_count: 2
distribution: {parameter_server: {enabled: true}}
"""
# The last argument names the role, so that a test finds the process on a node.
PROGRAM = """\
import json, os, sys, time
task = json.loads(os.environ["TF_CONFIG"])["task"]
if len(sys.argv) < 2 or not sys.argv[-1].startswith("part-"):
    os.execv(sys.executable, [sys.executable, "program.py", "part-" + task["type"]])
print("PART", task["type"], flush=True)
while not os.path.exists(os.path.expanduser("~/chief-may-end")) or task["type"] != "chief":
    time.sleep(0.1)
"""


def nothing_is_left(pair):
    """Assert that there are no programs or servers on any node."""
    look = "pgrep -u $USER -fa 'part-[a-z]|tf.distribute.[S]erver|[r]ank.pyz' || true"
    for node in range(2):
        eventually(lambda node=node: pair.on(node, look) == "", f"node {node} to have none left")


@pytest.mark.all
def test_a_model_of_two_nodes(pair, tmp_path):
    shutil.copytree(MNIST, tmp_path / "mnist")
    job_file = tmp_path / "mnist" / "mnist_ps.yaml"
    job_file.write_text(job_file.read_text() + "hyperparameters: {epochs: 4, batch_size: 20}\n")
    make = "~/examples/horovod/mnist/make_sample_mnist.py --images 600 --test_images 200"
    assert pair.ctl("run", f"{PYTHON} {make}")[0] == 0
    try:
        out = pair.ok("train", "--job-file", str(job_file), "--dry-run", "--json")
        with pair.access() as access:
            addresses = [node.private_ip for node in access.cluster.nodes]
        planned = json.loads(out)["tf_config"]["cluster"]
        assert [one.split(":")[0] for one in planned["ps"]] == addresses

        status, out, err = pair.ctl(
            *("train", "--job-file", str(job_file), "--model-dir", str(tmp_path / "kept"))
        )
        assert status == 0, err + out
        assert "Workers: 1\n" in out
        # The digits can be learned: random guesses are right once in ten.
        assert float(re.search(r"Test accuracy: (.*)", out)[1]) > 0.5
        assert (tmp_path / "kept" / "model" / "1" / "saved_model.pb").is_file()
        nothing_is_left(pair)
    finally:
        pair.ctl("run", "rm -rf ~/data/mnist")
        pair.ctl("clean-logs", "--jobs", "--force", "--yes")


@pytest.mark.parametrize(
    ("victim", "says"),
    usual(
        1,
        [
            ("part-worker", "the worker was killed by signal 9"),
            ("tf.distribute.[S]erver", "the parameter server was killed by signal 9"),
            ("[r]ank.pyz", ""),
            ("cancel", ""),
            ("", ""),
            ("part-chief", "the chief was killed by signal 9"),
        ],
    ),
)
def test_what_ends_a_job_ends_all_of_it(pair, tmp_path, victim, says):
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "job.yaml").write_text(JOB)
    pair.on(0, "rm -f ~/chief-may-end")
    pair.ok("train", "--job-file", str(tmp_path / "job.yaml"), "--detach")
    [job] = pair.jobs()
    for node, part in ((0, "chief"), (1, "worker")):
        look = f"pgrep -u $USER -f 'part-{part}$' && pgrep -u $USER -f tf.distribute.[S]erver"
        eventually(lambda node=node, look=look: pair.on(node, f"{look} || true"), f"the {part}")
    try:
        if victim == "cancel":
            assert pair.ctl("cancel", job["job_id"])[0] == 0
        elif victim:
            pair.on(0 if "chief" in victim else 1, f"pkill -9 -u $USER -f '{victim}'")
        else:
            pair.on(0, "touch ~/chief-may-end")
        ended = pair.ctl("wait", job["job_id"])[0]
        assert (ended == 0) == (victim == "")
        log = pair.ctl("logs", job["job_id"])[1].splitlines()
        # The first event is reported. The other processes were ended, which is not their failure.
        told = [
            line
            for line in log
            if line.startswith("clusterctl: ")
            and not line.startswith("clusterctl: the command ended")
            and "collect" not in line
        ]
        assert [line.split(": ")[2] for line in told] == ([f"{says} (Killed)"] if says else []), log
        nothing_is_left(pair)
    finally:
        pair.ctl("cancel", job["job_id"])
        pair.ctl("clean-logs", "--jobs", "--force", "--yes")
