"""The complete output of each command. Ids, kinds and exit statuses are asserted elsewhere.

Renew the screens with `pytest tests/cli/test_screens.py --snapshot-update`, and read the diff.
"""

from __future__ import annotations

import pytest
from syrupy.extensions.amber import AmberSnapshotExtension

from clusterctl.diagnosis import bundle
from tests.cli.masks import COPY, MASKS, SPOT, masked
from tests.cli.running import DEMO, launched
from tests.diagnosis.made_up import job_of, own, samples, with_rank
from tests.jobs.training_logs import HEADER, banner, evaluation, rows


@pytest.fixture
def see(clusterctl, snapshot, monkeypatch):
    """Runs a command and compares its output and exit status with the snapshot."""
    monkeypatch.setattr("clusterctl.cli.status._log_in", lambda *_: ((), []))
    monkeypatch.setattr("sys.argv", ["clusterctl"])

    def compare(*arguments: str, account: bool = True) -> None:
        """Compare one command. `account`: use moto's EC2, with the options of its account."""
        ran = (clusterctl if account else clusterctl.anywhere())(*arguments)
        text = f"$ clusterctl {' '.join(arguments)}\n{ran.out}--\n{ran.err}exit {ran.status}\n"
        more = SPOT * ("--spot" in arguments) + COPY * (arguments[0] == "copy")
        text = masked(text.replace(str(clusterctl.home), "HOME"), MASKS + more)
        assert text == snapshot(extension_class=AmberSnapshotExtension)

    return compare


def test_a_cluster_from_plan_to_end(see):
    see("up", *DEMO, "--dry-run")
    see("up", *DEMO, "--timeout", "0.01s")
    see("up", *DEMO, "--dry-run")
    see("status", "demo")
    see("list")
    see("costs")
    see("add", "demo", "1", "--dry-run")
    see("ssh", "demo", "7")
    see("ssh", "demo", "hostname")
    see("gc")
    see("down", "demo", "--yes")
    see("down", "demo", "--yes")
    see("costs", "--since", "1d")


@pytest.mark.parametrize(
    "command",
    ["status demo", "list", "hosts demo", "costs", "costs demo", "ssh demo", "stop demo"]
    + ["start demo", "add demo 1", "remove demo 1 --yes", "replace demo 1 --yes"]
    + ["gc", "down demo"],
)
def test_where_there_is_nothing(see, command):
    see(*command.split())


def test_limits(see, clusterctl):
    launched(clusterctl, "--max-hours", "8", "--budget", "45", "--idle-stop", "30m")
    see("status", "demo")
    see("costs", "demo")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--spot", "--max-hours", "8"),
        ("--or-type", "g5.12xlarge"),
        ("--instance-type", "p9.huge"),
        ("--image", "ami-0123456789abcdef0"),
    ],
    ids=" ".join,
)
def test_other_plans(see, arguments):
    see("up", *DEMO, "--dry-run", *arguments)


def test_a_network_from_plan_to_end(see):
    ssh = ("--ssh-from", "203.0.113.7/32")
    see("network up", "training", "--zones", "a,c", *ssh, "--dry-run")
    see("network up", "training", *ssh)
    see("network up", "training")
    see("network status", "training")
    see("network down", "training")
    see("network down", "training")
    see("network s3", "--dry-run")
    see("network s3")
    see("network s3")


def test_a_rank_that_keeps_the_others_waiting(see, clusterctl, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opens = samples(own("load"), syscall="openat /data/fifo", wait_channel="wait_for_partner")
    bundle.save(with_rank(job_of(), 5, samples=opens), tmp_path / "stuck.json.gz")
    see("diagnose", "--from", "stuck.json.gz", "--tree")
    see("diagnose", "demo", "--from", "stuck.json.gz")
    see("diagnose", "--from", "nothing.json.gz")


CLUSTERS = """\
defaults: {region: us-west-2, instance-type: g5.xlarge, subnet: subnet-1}
clusters:
  demo: {nodes: 4, instance-type: p4d.24xlarge, tag: {team: nlp}}
  part: {network: research}
  few: {nodes: 2, min-nodes: 3, user-data: gone.sh}
  two: {min-nodes: 3, disk-iops: many}
"""


def test_config(see, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("CLUSTERCTL_CONFIG", raising=False)
    monkeypatch.setenv("CLUSTERCTL_NODES", "8")
    monkeypatch.setenv("CLUSTERCTL_NODS", "3")
    see("config check", account=False)
    (tmp_path / "clusterctl.yaml").write_text(CLUSTERS)
    see("config check", account=False)
    see("config check", "--json", account=False)
    (tmp_path / "clusterctl.yaml").write_text(CLUSTERS.partition("  two")[0])
    see("config show", "demo", account=False)
    see("config show", "dmo", account=False)


def test_results(see, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLUSTERCTL_CONFIG", "/dev/null")
    finished = rows([0, 1, *range(50, 14051, 50)], speed=19200.0) + "Finished in 6000.5\n"
    (tmp_path / "run.log").write_text(banner() + HEADER + finished + evaluation())
    see("results", "--log", "run.log", account=False)
    resumed = rows([0, 1, 50, 100]) + banner(samples=5000) + rows([60, 110])
    (tmp_path / "resumed.log").write_text(
        banner(samples=5000) + resumed + "   160   1.0 19347.5    nan    nan 0.10353\n"
    )
    see("results", "--log", "resumed.log", account=False)
    (tmp_path / "keras.log").write_text(
        "Epoch 1/1\r4/4 [==] - 1s 20ms/step - loss: 1.3 - dice: 0.5\nTest loss: 1.1457\n"
    )
    metrics = ("--metric", "dice=dice: ([0-9.]+)", "--metric", "no=n(o)pe")
    see("results", "--log", "keras.log", *metrics, account=False)
    see("results", "--log", "keras.log", "--csv", "-", account=False)


@pytest.mark.lab
def test_train_and_copy(pair, see, clusterctl, tmp_path, monkeypatch):
    for name, value in pair.environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "large").write_bytes(bytes(3 << 20))
    (tmp_path / "set" / "small").write_text("small")
    for node in (0, 1):
        pair.on(node, "rm -rf data/tf-imagenet copied")
    pair.on(1, "mkdir copied && echo old > copied/old")
    try:
        see("copy", "pair", "--dry-run", "--delete", "set/", "copied", account=False)
        see("copy", "pair", "set/", "copied", account=False)
        see("copy", "pair", "--verify", "--delete", "set/", "copied", account=False)
        see("copy", "pair", "/no/such/source", "x", account=False)
        see("copy", "pair", "--nodes", "9", ".", "x", account=False)
        see("copy", "pair", "--from", "0", "/no/such/source", "x", account=False)
        see("train", "pair", "2", "--synthetic", "--dry-run", account=False)
        see("train", "pair", "9", "--synthetic", account=False)
        see("train", "pair", "2", account=False)
    finally:
        for node in (0, 1):
            pair.on(node, "rm -rf copied")
