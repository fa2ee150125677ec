"""The detection example: its boxes, and ranks that differ."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.examples.conftest import EXAMPLES
from tests.programs import completed

pytestmark = pytest.mark.train

PYTHON = "/usr/bin/python3"  # with Debian's PyTorch

FACTS = """\
import json, torch
from detection import *
boxes = torch.tensor([
    [0.5, 0.5, 0.2, 0.2],
    [0.25, 0.5, 0.5, 1.0],
    [0.2, 0.2, 0.2, 0.2],
    [0.5, 0.5, 1.0, 1.0],
    [0.5, 0.5, 0.0, 0.0],
])
others = torch.tensor([
    [0.5, 0.5, 0.2, 0.2],
    [0.5, 0.5, 0.5, 1.0],
    [0.8, 0.8, 0.2, 0.2],
    [0.5, 0.5, 0.5, 0.5],
    [0.5, 0.5, 0.0, 0.0],
])
images, found, classes = made_up(50, 7)
low, high = (part * SIDE for part in corners(found))
inside = []
for n in range(50):
    (x, y), (right, below) = low[n].round().int().tolist(), high[n].round().int().tolist()
    bright = images[n, classes[n]] > 1
    inside.append(0 <= x < right <= SIDE and 0 <= y < below <= SIDE)
    inside.append(bool(bright[y:below, x:right].any()))
    bright[y:below, x:right] = False
    inside.append(not bright.any())

class Ranks:
    def gather(self, value):
        return [value, value, "other"]

try:
    check_agreement(Detector(), Ranks())
except SystemExit as end:
    said = end.code
os.chdir(os.environ["PLACE"])
sys.argv = ["detection.py", "--model_dir", ""]
keep(Detector(), [], parse_args())
print(json.dumps({
    "iou": intersection_over_union(boxes, others).tolist(),
    "back": intersection_over_union(others, boxes).tolist(),
    "inside": all(inside),
    "same": torch.equal(images, made_up(50, 7)[0]),
    "other": torch.equal(images, made_up(50, ~7)[0]),
    "classes": sorted(set(classes.tolist())),
    "said": said,
}))
"""


def run(*argv, **environ):
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        pytest.skip(f"{PYTHON} has no PyTorch: ./scripts/test installs it")
    folder = EXAMPLES / "pytorch"
    return completed([PYTHON, "-B", *argv], cwd=folder, env={**os.environ, **environ})


def test_boxes_and_images_are_what_they_say(tmp_path):
    done = run("-c", FACTS, PLACE=str(tmp_path))
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    # Equal boxes; half of each in common; apart; one inside the other; boxes without an area.
    assert said["iou"] == pytest.approx([1, 1 / 3, 0, 0.25, 0], abs=1e-6)
    assert said["back"] == pytest.approx(said["iou"])
    assert (said["inside"], said["same"], said["other"]) == (True, True, False)
    assert said["classes"] == [0, 1, 2]
    assert said["said"] == "detection.py: other weights than rank 0's on rank 2"
    assert [one.name for one in tmp_path.iterdir()] == ["detection.pt"], "--model_dir '' is here"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--images", "3"), "3 images are too few: a step takes --batch_size times ranks, 32"),
        (("--epochs", "0"), "argument --epochs: 0 is less than 1"),
        (("--epochs", "1", "--images", "64", "--lr", "1e30"), "the loss is nan"),
    ],
)
def test_it_ends_with_one_clear_line(tmp_path, arguments, says):
    done = run("detection.py", *arguments, "--model_dir", str(tmp_path / "model"))
    assert done.returncode != 0
    assert says in done.stderr.splitlines()[-1]
    assert not (tmp_path / "model").exists()


def test_a_url_is_no_folder():
    done = run("detection.py", "--model_dir", "s3://bucket/x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--model_dir: s3://bucket/x is no path of this machine" in done.stderr.replace(
        "/--model-dir", ""
    )


def test_ranks_that_nothing_would_join_do_not_train(tmp_path):
    """mpirun starts the ranks, and Debian's PyTorch has no Horovod."""
    done = run("detection.py", "--model_dir", str(tmp_path), OMPI_COMM_WORLD_SIZE="2")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"PyTorch, and {PYTHON} has none: use clusterctl or torchrun" in done.stderr
