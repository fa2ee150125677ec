"""disk and clean-logs on the lab, with a volume filled for real."""

from __future__ import annotations

import json

import pytest

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
    ("mib", "status", "check"), [(960, 0, "disk.crowded"), (1020, 1, "disk.full")]
)
def test_a_full_volume_is_found(pair, mib, status, check):
    pair.on(1, f"fallocate -l {mib}M /data/full")
    try:
        ended, out, err = pair.ctl("disk", "--json")
        assert ended == status
        [finding] = json.loads(out)["findings"]
        assert (finding["check"], finding["host"]) == (check, "pair-1")
        assert "/data is 9" in finding["message"] or "/data is 100" in finding["message"]
        assert "clusterctl clean-logs pair" in finding["hint"]
        assert finding["message"] in pair.ctl("disk")[2]
    finally:
        pair.on(1, "rm /data/full")


def test_a_dead_node_is_one_line(pair):
    with pair.cut_off(1):
        status, out, err = pair.ctl("disk")
    assert status == 255
    assert "pair-0  /data" in out
    assert err.startswith("pair-1: did not answer in time")


def test_clean_logs(pair):
    make = "; ".join(
        f"mkdir -p {log} && head -c 3000000 /dev/zero > {log}/model.ckpt" for log in LOGS
    )
    pair.on(1, make)
    pair.on(1, "echo kept > precious && ln -sfn ~/precious imagenet_resnet/link")
    try:
        status, out, err = pair.ctl("clean-logs", "--dry-run")
        assert status == 0, err
        assert "pair-1: would free 5.7 MiB (2 folders)" in out
        assert pair.on(1, "ls imagenet_resnet") == "link\nmodel.ckpt\n"
        status, out, err = pair.ctl("clean-logs", "--json")
        assert status == 0, err
        one = json.loads(out)[1]
        assert one["host"] == "pair-1"
        assert sorted(one["folders"]) == sorted(f"/home/ubuntu/{log}" for log in LOGS)
        assert one["freed_bytes"] >= 6_000_000
        assert pair.on(1, "cat precious") == "kept\n"
        assert "pair-1: freed 0 B (0 folders)" in pair.ctl("clean-logs")[1]
    finally:
        pair.on(1, "rm -rf precious " + " ".join(LOGS))
