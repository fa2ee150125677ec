"""The tutorial's second half on two hosts of the lab: from raw images to an evaluated network.

It is small: 60 images of four classes, ResNet-18, six steps. tests/examples shows that it learns.
"""

from __future__ import annotations

import json
import math

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.train]

PREPARE = """\
set -e
cd ~/examples/horovod/tensorflow/utils
python=/opt/clusterctl/training/bin/python
$python make_sample_imagenet.py --output_dir ~/raw \\
    --classes 4 --images 60 --validation_images 16 --size 48
$python preprocess_imagenet.py --raw_data_dir ~/raw --output_dir ~/records \\
    --train_shards 4 --validation_shards 2 --num_processes 1 --allow_corrupt 1
for subset in train validation; do
    $python tensorflow_image_resizer.py -d imagenet -i ~/records -o ~/data/tf-imagenet -r 40 \\
        --subset_name $subset --num_preprocess_threads 1
done
"""
FLAGS = ("-m", "resnet18", "--image_size", "32", "-b", "4", "--num_batches", "6")


@pytest.fixture
def imagenet(pair):
    """Return the cluster with the stand-in for ImageNet on the head node. The end removes it."""
    # Other tests may have left data and jobs.
    for node in (0, 1):
        pair.on(node, "rm -rf raw records data/tf-imagenet ~/.clusterctl/jobs")
    pair.on(0, "cat > prepare.sh && bash prepare.sh", PREPARE.encode())
    yield pair
    pair.ctl("cancel")
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")
    for node in (0, 1):
        pair.on(node, "rm -rf raw records data/tf-imagenet")


@pytest.mark.all
def test_from_raw_images_to_the_result(imagenet, tmp_path):
    # The other node has no data yet, which is reported before mpirun starts.
    status, _, err = imagenet.ctl("train", "2", "--dry-run")
    assert status == 1
    assert "error: pair-1: there is no training data in /home/ubuntu/data/tf-imagenet " in err
    copy = ("--from", "0", "~/data/tf-imagenet/", "~/data/tf-imagenet/")
    assert imagenet.ctl("copy", *copy)[0] == 0

    out = imagenet.ok("train", "2", "--", *FLAGS, "--display_every", "2", "--mllog")
    assert "Found 59 training samples\n" in out, "one image of the stand-in is corrupt"
    trained, line, evaluated = out.partition("\n+ /opt/clusterctl/training/bin/mpirun -np 1 ")
    assert line
    assert "Horovod size: 2\n" in trained
    assert "Finished in " in trained
    assert "Horovod size: 1\n" in evaluated, "the head node has one GPU"
    assert "Validation dataset size: 16\n" in evaluated
    assert "Finished evaluation\n" in evaluated
    assert '"key": "run_start"' in trained, "MLPerf's time begins in the training"
    assert '"key": "run_stop"' in evaluated, "and ends in the evaluation"
    [job] = json.loads(imagenet.ctl("jobs", "--json")[1])
    assert (job["state"], job["gpus"]) == ("succeeded", 2)
    assert f"+ {job['evaluation']}\n" in out
    assert imagenet.ctl("logs")[1] == out, "one job, one log"

    results = imagenet.ok("results", "--json")
    assert_parsed(json.loads(results))

    measure_both_kinds(imagenet, tmp_path / "kept")

    # The same again: the finished training is neither repeated nor deleted.
    status, _, err = imagenet.ctl("train", "2", "--", *FLAGS)
    assert status == 1
    assert f"{job['log_dir']} holds a finished run: step 6 of 6 (1 checkpoint, " in err
    assert "--clear deletes it and starts over; --resume only evaluates it" in err
    assert "model.ckpt-6.index" in imagenet.on(0, f"ls {job['log_dir']}")
    status, out, err = imagenet.ctl("train", "2", "--resume", "--dry-run", "--", *FLAGS)
    assert status == 0, err
    assert "--clear_log" not in out
    assert "holds the final step, 6: nothing is left to train" in err


def measure_both_kinds(imagenet, out):
    """A benchmark on these images and on noise shows the time for reading."""
    short = ("--gpus", "1", "--repeats", "1", "--steps", "4", "--warmup", "2", "--out", str(out))
    kinds = ("--synthetic", "--data-dir", "~/data/tf-imagenet")
    text = imagenet.ok("bench", *short, *kinds, "--json", "--", *FLAGS[:-2])
    said = json.loads(text)
    sizes = {size["data"]: size for size in said["sizes"]}
    runs = {run["data"]: run for run in said["runs"]}
    assert (runs["real"]["images"], len(runs["real"]["rows"])) == (59, 4)
    assert 0 <= sizes["real"]["share_input"] < 1
    assert "--data_dir /home/ubuntu/data/tf-imagenet" in runs["real"]["job"]["line"]


def assert_parsed(results):
    [run] = results["runs"]
    facts = run["facts"]
    assert (facts["gpus"], facts["training_samples"]) == (2, 59)
    assert [row["step"] for row in run["rows"]] == [0, 1, 2, 4]
    assert all(math.isfinite(row["loss"]) for row in run["rows"])
    [score] = run["evaluations"]
    assert (score["step"], score["epoch"]) == (6, 1.0)
    assert 0 <= score["top1"] <= score["top5"] <= 100
