"""disk and clean-logs on the lab, with a volume filled for real."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.ec2.launch.request import root_rate
from clusterctl.operations.disk import SlowDisk, find_slow_disk

pytestmark = [pytest.mark.lab]

LOGS = "imagenet_resnet", "examples/horovod/tensorflow/imagenet_resnet"


def test_disk(pair):
    status, out, err = pair.ctl("disk")
    assert (status, err) == (0, "")
    header, *rows = [line.split() for line in out.splitlines()]
    assert header == ["NODE", "MOUNT", "SIZE", "FREE", "USED"]
    assert {(row[0], row[1]) for row in rows} >= {
        (node, mount) for node in ("pair-0", "pair-1") for mount in ("/", "/data")
    }


@pytest.mark.parametrize(
    ("left", "status", "check"), [("64MiB", 0, "disk.crowded"), ("0", 1, "disk.full")]
)
def test_a_full_volume_is_found(pair, left, status, check):
    with pair.fault(1, "fill", "drain", "--left", left):
        ended, out, err = pair.ctl("disk", "--json")
        assert ended == status
        [finding] = json.loads(out)["findings"]
        assert (finding["check"], finding["host"]) == (check, "pair-1")
        assert re.match(r"/data is (9\d|100) % full", finding["message"])
        assert "clusterctl clean-logs pair" in finding["hint"]
        status, out, err = pair.ctl("disk")
        assert finding["message"] in err
        assert re.search(r"pair-1 +/data +1\.0 GiB", out)


def test_a_dead_node_is_one_line(pair):
    with pair.cut_off(1):
        status, out, err = pair.ctl("disk")
    assert status == 255
    assert "pair-0  /data" in out
    assert err.startswith("pair-1: did not answer in time")


def typed(pair, answer, *arguments):
    """`clusterctl ... pair ...` with this answer typed into a terminal: (exit status, stderr)."""
    keyboard, terminal = os.openpty()
    os.write(keyboard, answer.encode())
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", arguments[0], "pair", *arguments[1:]],
        env=pair.environ,
        stdin=terminal,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    os.close(keyboard)
    os.close(terminal)
    return done.returncode, done.stderr


def test_force_leaves_the_usual_folders_to_a_run_that_was_typed_by_hand(pair):
    checkpoint = "imagenet_resnet/model.ckpt-7.index"
    pair.on(1, f"mkdir -p imagenet_resnet && touch {checkpoint}")
    pair.on(0, "cp /bin/sleep mpirun && { setsid ./mpirun 300 </dev/null >/dev/null 2>&1 & }")
    try:
        assert pair.ctl("clean-logs", "--force", "--yes")[0] == 0
        assert pair.on(1, f"ls {checkpoint}") == f"{checkpoint}\n"
        assert pair.ctl("cancel")[0] == 0
        assert pair.ctl("clean-logs", "--force", "--yes")[0] == 0
        assert pair.on(1, "ls -d imagenet_resnet || echo gone") == "gone\n"
    finally:
        pair.ctl("cancel")
        pair.on(0, "rm -f mpirun")
        pair.on(1, "rm -rf imagenet_resnet")


@pytest.mark.train
def test_clean_logs(pair):
    """Of a job with a --log_dir of its own, and of runs by hand in the usual folders."""
    small = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "1")
    status, _, err = pair.ctl("train", "1", "--synthetic", "--", *small, "--log_dir", "~/rün s")
    assert status == 0, err
    folders = (*LOGS, "rün s")
    for folder in folders:
        pair.on(1, f"mkdir -p '{folder}' && touch '{folder}/model.ckpt-7.index'")
        pair.on(1, f"head -c 3000000 /dev/zero > '{folder}/model.ckpt-7.data-00000-of-00001'")
    pair.on(1, "echo kept > precious && ln -sfn ~/precious imagenet_resnet/link")
    try:
        status, out, err = pair.ctl("clean-logs", "--dry-run")
        assert status == 0, err
        assert "pair-1: would free 8.6 MiB (3 folders)" in out
        rows = {" ".join(line.split()) for line in out.splitlines()}
        assert "pair-1 /home/ubuntu/rün s 2.9 MiB 1 checkpoint" in rows
        assert "pair-1 /home/ubuntu/imagenet_resnet 2.9 MiB 1 checkpoint 1" in rows
        assert any(row.startswith("pair-0 /home/ubuntu/rün s 8.0 KiB") for row in rows), rows
        # Nobody is there to ask, or says no.
        status, _, err = pair.ctl("clean-logs", "--jobs")
        assert (status, "nothing is removed: 3 checkpoints on pair-1" in err) == (2, True), err
        status, err = typed(pair, "n\n", "clean-logs")
        assert (status, "Remove 3 checkpoints on pair-1?" in err) == (130, True), err
        assert pair.on(1, "ls imagenet_resnet") == (
            "link\nmodel.ckpt-7.data-00000-of-00001\nmodel.ckpt-7.index\n"
        )
        status, err = typed(pair, "y\n", "clean-logs")
        assert status == 0, err
        assert pair.on(1, "cat precious; ls imagenet_resnet") == "kept\nlink\n"
        assert pair.on(0, "ls -d 'rün s' || echo gone") == "gone\n"
        # Logs alone are not asked for.
        pair.on(1, f"mkdir -p {LOGS[1]} && touch {LOGS[1]}/hvd_train.log")
        status, out, err = pair.ctl("clean-logs", "--jobs", "--json")
        assert status == 0, err
        first, second = json.loads(out)
        assert [name.split("/")[-2] for name in first["folders"]] == ["jobs"]
        assert second == {
            "host": "pair-1",
            "freed_bytes": 0,
            "folders": {f"/home/ubuntu/{LOGS[1]}": 0},
            "checkpoints": {},
        }
        assert "pair-1: freed 0 B (0 folders)" in pair.ctl("clean-logs")[1]
    finally:
        pair.ctl("clean-logs", "--jobs", "--yes")
        pair.on(1, "rm -rf precious imagenet_resnet")


@pytest.mark.parametrize(
    ("rate", "size", "says"),
    [
        (125 << 20, 150 << 30, "takes 125.0 MiB/s: 150.0 GiB need 20 min 29 s at least"),
        (119e6, 1 << 40, "takes 113.5 MiB/s: 1.0 TiB need 2 h 34 min at least"),
        (125 << 20, 7 << 30, None),
    ],
)
def test_what_the_root_volume_costs(rate, size, says):
    found = SlowDisk("demo-0", rate, 900 << 30).finding(size)
    assert (found and found.message) == (says and f"DST is on the root volume, which {says}")
    assert not found or (found.host, "/opt/dlami/nvme" in found.hint) == ("demo-0", True)


def test_a_destination_on_ebs_beside_local_nvme(lab, pair):
    """A g4dn.xlarge has NVMe, a p3.2xlarge none; its way to EBS is slower than a gp3."""
    app = AppContext(load_settings(pair.environ))
    up = [sys.executable, "-m", "clusterctl", "up", "stored", "--nodes", "1"]
    up += ["--instance-type", "g4dn.xlarge"]
    subprocess.run(up, env=pair.environ, check=True)
    try:
        with app.open("stored") as access:
            slow = find_slow_disk(access, app.ec2, 0, '"$HOME"/no/such/folder')
            assert slow
            assert (slow.host, round(slow.rate / 1e6)) == ("stored-0", 119)
            assert slow.free_bytes > 0
            for other in ("/opt/dlami/nvme/set", "/data"):
                assert find_slow_disk(access, app.ec2, 0, other) is None
        with pair.access() as access:
            assert find_slow_disk(access, app.ec2, 0, '"$HOME"') is None
            instance = access.cluster.nodes[0].instance_id
        assert root_rate(app.ec2, instance) == 125 << 20
    finally:
        subprocess.run([*up[:3], "down", "stored", "--yes"], env=pair.environ, check=False)
