"""`disk` and `clean-logs` in the lab, with a really full volume."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from clusterctl.cli.app_context import AppContext
from clusterctl.config import load_settings
from clusterctl.ec2.volumes import root_rate
from clusterctl.node.jobs.spec import JobEvent, JobSpec
from clusterctl.node.record import to_json
from clusterctl.operations.disk import GROW, SlowDisk, find_slow_disk
from tests.pair import LabCluster
from tests.programs import completed

pytestmark = [pytest.mark.lab]

LOGS = "imagenet_resnet", "examples/horovod/tensorflow/imagenet_resnet"


@pytest.mark.parametrize(
    ("left", "status", "check"), [("64MiB", 0, "disk.crowded"), ("0", 1, "disk.full")]
)
def test_a_full_volume_is_found(pair, left, status, check):
    pair.on(1, "mkdir -p /data/old/run; head -c 20M /dev/zero >/data/old/run/big; echo >/data/b")
    with pair.fault(1, "fill", "--left", left):
        ended, out, err = pair.ctl("disk", "--json")
        assert ended == status
        report = json.loads(out)
        [data] = [one for one in report["disks"] if one["fills"]]
        assert (data["mount"], data["whole"]) == ("/data", True)
        assert data["fills"] == [["/data/old/run/big", 20 << 20]]
        [finding] = report["findings"]
        assert (finding["check"], finding["host"]) == (check, "pair-1")
        assert re.match(r"/data is (9\d|100) % full", finding["message"])
        assert "clusterctl clean-logs pair" in finding["hint"]
        status, out, err = pair.ctl("disk")
        assert finding["message"] in err
        assert re.search(r"pair-1 +/data +1\.0 GiB", out)
        assert re.search(r"pair-1 +/data/old/run/big +20\.0 MiB\n", out)
    pair.on(1, "rm -r /data/old /data/b")


@pytest.mark.all
def test_when_a_disk_that_grows_is_full(pair):
    grows = "setsid sh -c 'while head -c 1M /dev/zero >>/data/grows; do sleep 0.1; done'"
    pair.on(1, f"{grows} </dev/null >/dev/null 2>&1 & echo $! >grows")
    try:
        disks = json.loads(pair.ctl("disk", "--json")[1])["disks"]
        full_in_s = {one["host"]: one["full_in_s"] for one in disks if one["mount"] == "/data"}
        assert full_in_s["pair-0"] is None
        assert 10 < full_in_s["pair-1"] < 3600
    finally:
        pair.on(1, "kill -- -$(cat grows); rm -f /data/grows grows")


def test_root_volumes_grow_once_in_six_hours(pair):
    status, out, err = pair.ctl("disk", "--grow", "200", "--nodes", "1")
    assert (status, err) == (0, "")
    assert re.fullmatch(r"pair-1: \d+ GiB, now 200; no device: \S+\n", out)
    status, _, err = pair.ctl("disk", "--grow", "250", "--nodes", "1")
    assert (status, err.startswith("pair-1: its volume vol-")) == (1, True), err
    # If only the file system has to grow, the volume is not changed.
    status, out, err = pair.ctl("disk", "--grow", "200", "--nodes", "1")
    assert (status, out[:30]) == (0, "pair-1: 200 GiB, now 200; no de"[:30]), err
    pair.ends(2, "pair-[0-1]: larger than 10 GiB", "disk", "--grow", "10")


@pytest.mark.parametrize(
    ("source", "kind", "growpart", "ran", "said"),
    [
        ("/dev/nvme0n1p1", "ext4", 0, ["growpart {dev}/nvme0n1 1", "resize2fs {dev}/nvme0n1p1"], 0),
        ("/dev/nvme0n1p1", "xfs", 1, ["growpart {dev}/nvme0n1 1", "xfs_growfs /"], 0),
        ("/dev/nvme0n1p1", "ext4", 2, ["growpart {dev}/nvme0n1 1"], 3),
        ("/dev/nvme1n1", "ext4", 0, ["resize2fs {dev}/nvme1n1"], 0),
        ("/dev/nvme1n1", "btrfs", 0, [], 3),
        ("tmpfs", "tmpfs", 0, [], 0),
    ],
)
def test_what_grows_a_file_system(tmp_path, source, kind, growpart, ran, said):
    """Fake programs replace the real ones, since a test cannot resize a disk here."""
    dev, blocks, bin = (tmp_path / name for name in ("dev", "block", "bin"))
    (tmp_path / "sys/nvme0n1/nvme0n1p1").mkdir(parents=True)
    (tmp_path / "sys/nvme0n1/nvme0n1p1/partition").write_text("1\n")
    (tmp_path / "sys/nvme1n1").mkdir()
    for folder in (dev, blocks, bin):
        folder.mkdir()
    for name in ("nvme0n1/nvme0n1p1", "nvme1n1"):
        (blocks / Path(name).name).symlink_to(tmp_path / "sys" / name)
        (dev / Path(name).name).touch()
    placed = source.replace("/dev", str(dev))
    for name, does in {
        "findmnt": f'case $2 in SOURCE) echo "{placed}" ;; *) echo {kind} ;; esac',
        **{name: f'echo {name} "$@" >>{tmp_path}/ran' for name in ("resize2fs", "xfs_growfs")},
        "growpart": f'echo growpart "$@" >>{tmp_path}/ran; exit {growpart}',
        "sudo": 'exec "$@"',
    }.items():
        (bin / name).write_text(f"#!/bin/sh\n{does}\n")
        (bin / name).chmod(0o755)
    script = GROW.replace("/sys/class/block", str(blocks)).replace("/dev/", f"{dev}/")
    script = script.replace(f"{dev}/null", "/dev/null")
    path = f"{bin}:{os.environ['PATH']}"
    done = completed(["sh", "-s", "/"], input=script, env={"PATH": path})
    log = tmp_path / "ran"
    assert (log.read_text().splitlines() if log.exists() else []) == [
        line.format(dev=dev) for line in ran
    ]
    assert done.returncode == said, done.stderr


def typed(pair, answer, *arguments):
    """Run `clusterctl ... pair ...` with an answer typed in a terminal: (exit status, stderr)."""
    keyboard, terminal = os.openpty()
    os.write(keyboard, answer.encode())
    done = subprocess.run(
        [sys.executable, "-m", "clusterctl", arguments[0], "pair", *arguments[1:]],
        env=pair.environ,
        stdin=terminal,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
        timeout=240,
        check=False,
    )
    os.close(terminal)
    said = b""
    with contextlib.suppress(OSError):  # Linux raises it at the end
        while more := os.read(keyboard, 4096):
            said += more
    os.close(keyboard)
    return done.returncode, said.decode()


@pytest.mark.all
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


@pytest.mark.all
def test_force_leaves_a_queued_job_what_was_shipped_for_it_to_nodes_where_nothing_runs(pair):
    queued, ended = "20261123-094449-a10d", "20261123-094458-e672"
    for job in (queued, ended):
        pair.on(1, f"mkdir -p .clusterctl/code/{job} && touch .clusterctl/code/{job}/mine.py")
    # A younger one without a record may be of a job that is to start.
    pair.on(1, f"touch -d '2 days ago' .clusterctl/code/{ended}")
    folder, spec = f".clusterctl/jobs/{queued}", to_json(JobSpec(queued))
    event = to_json(JobEvent("submitted", 1.0, {"after": ["x"], "boot_id": ""}))
    pair.on(0, f"mkdir -p {folder} && cat >{folder}/spec.json", spec.encode())
    pair.on(0, f"cat >{folder}/events.jsonl", event.encode() + b"\n")
    # Holds the lock, as a runner does: an open file description's, F_OFD_SETLK.
    holds = 'import fcntl, os, struct, time; f = open("lock", "r+"); fcntl.fcntl(f, 37, '
    holds += 'struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)); time.sleep(300)'
    waits = (
        f"CLUSTERCTL_JOB={queued} setsid python3 -c '{holds}' </dev/null >/dev/null 2>&1 & echo $!"
    )
    pair.on(0, f"cd {folder} && touch lock && {{ {waits} >lock; }}")
    try:
        assert pair.ctl("clean-logs", "--jobs", "--force", "--yes")[0] == 0
        assert pair.on(1, "ls .clusterctl/code") == f"{queued}\n"
    finally:
        pair.ok("cancel")
        pair.on(0, f"rm -rf {folder}")
        pair.on(1, "rm -rf .clusterctl/code")


@pytest.mark.train
def test_clean_logs(pair):
    """The logs are of a job with its own --log_dir, and of runs by hand in the usual folders."""
    small = ("-m", "resnet18", "--image_size", "32", "-b", "2", "--num_batches", "1")
    with pair.stand_in_trainer():
        status, _, err = pair.ctl("train", "1", "--synthetic", "--", *small, "--log_dir", "~/rün s")
    assert status == 0, err
    folders = (*LOGS, "rün s")
    for folder in folders:
        pair.on(1, f"mkdir -p '{folder}' && touch '{folder}/model.ckpt-7.index'")
        pair.on(1, f"head -c 3000000 /dev/zero > '{folder}/model.ckpt-7.data-00000-of-00001'")
    pair.on(1, "echo kept > precious && ln -sfn ~/precious imagenet_resnet/link")
    try:
        out = pair.ok("clean-logs", "--dry-run")
        assert "pair-1: would free 8.6 MiB (3 folders)" in out
        rows = {" ".join(line.split()) for line in out.splitlines()}
        assert "pair-1 /home/ubuntu/rün s 2.9 MiB 1 checkpoint" in rows
        assert "pair-1 /home/ubuntu/imagenet_resnet 2.9 MiB 1 checkpoint 1" in rows
        assert any(row.startswith("pair-0 /home/ubuntu/rün s 8.0 KiB") for row in rows), rows
        # There is no terminal for the question, or the answer is no.
        status, _, err = pair.ctl("clean-logs", "--jobs")
        question = "no terminal to answer this question: Remove 3 checkpoints on pair-1?"
        assert (status, question in err) == (2, True), err
        status, err = typed(pair, "n\n", "clean-logs")
        assert (status, "Remove 3 checkpoints on pair-1?" in err) == (130, True), err
        assert pair.on(1, "ls imagenet_resnet") == (
            "link\nmodel.ckpt-7.data-00000-of-00001\nmodel.ckpt-7.index\n"
        )
        status, err = typed(pair, "y\n", "clean-logs")
        assert status == 0, err
        assert pair.on(1, "cat precious; ls imagenet_resnet") == "kept\nlink\n"
        assert pair.on(0, "ls -d 'rün s' || echo gone") == "gone\n"
        # There is no question for logs alone.
        pair.on(1, f"mkdir -p {LOGS[1]} && touch {LOGS[1]}/hvd_train.log")
        out = pair.ok("clean-logs", "--jobs", "--json")
        first, second = json.loads(out)["nodes"]
        assert [one["path"].split("/")[-2] for one in first["folders"]] == ["jobs"]
        [folder] = second["folders"]
        assert (folder["path"], second["size_bytes"]) == (f"/home/ubuntu/{LOGS[1]}", 0)
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
    """A g4dn.xlarge has NVMe, a p3.2xlarge has not; its way to EBS is slower than a gp3 volume."""
    app = AppContext(load_settings(pair.environ))
    stored = LabCluster(lab, "stored")
    assert stored.ctl("up", "--nodes", "1", "--instance-type", "g4dn.xlarge")[0] == 0
    try:
        with app.open("stored") as access:
            slow = find_slow_disk(access, app.ec2, 0, "~/no/such/folder")
            assert slow
            assert (slow.host, round(slow.rate / 1e6)) == ("stored-0", 119)
            assert slow.free_bytes > 0
            for other in ("/opt/dlami/nvme/set", "/data"):
                assert find_slow_disk(access, app.ec2, 0, other) is None
        with pair.access() as access:
            assert find_slow_disk(access, app.ec2, 0, "~") is None
            node = access.cluster.nodes[0]
        assert root_rate(app.ec2, node.instance_id, node.instance_type) == 125 << 20
    finally:
        stored.ctl("down", "--yes", "--discard-results")
