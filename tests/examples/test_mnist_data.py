"""Reading valid and broken MNIST files. The reader needs NumPy, so a program runs the cases."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import EXAMPLES

pytestmark = pytest.mark.train

READ = "uint8 (2, 28, 28) int64 [3, 9]"
OUTCOMES = {
    "npz": READ,
    "npz, labels as bytes": READ,
    "npz with a channel": READ,
    "idx": READ,
    "npz before idx": READ,
    "nothing": "no train.npz in DIR, and not both of train-images-idx3-ubyte.gz and train-labels",
    "half of idx": "no train.npz in DIR, and not both of",
    "empty npz": "DIR/train.npz cannot be read as .npz: No data left in file",
    "text": "DIR/train.npz cannot be read as .npz: ",
    "a bare array": "DIR/train.npz cannot be read as .npz: ",
    "a bare array, old Python": "DIR/train.npz cannot be read as .npz: ",
    "cut npz": "DIR/train.npz cannot be read as .npz: File is not a zip file",
    "npz of objects": "DIR/train.npz cannot be read as .npz: Object arrays cannot be loaded",
    "npz without labels": "DIR/train.npz: labels is not a file in the archive",
    "floats": "DIR/train.npz: images are float64 (2, 28, 28), not bytes (n, 28, 28)",
    "other sizes": "DIR/train.npz: images are uint8 (2, 27, 28), not bytes (n, 28, 28)",
    "no array at all": "DIR/train.npz: images are uint8 (), not bytes (n, 28, 28)",
    "one label": "DIR/train.npz: 2 images, but labels int64 (1,)",
    "one-hot labels": "DIR/train.npz: 2 images, but labels float64 (2, 10)",
    "label 10": "DIR/train.npz: labels from 4 to 10, not 0 to 9",
    "label -1": "DIR/train.npz: labels from -1 to 5, not 0 to 9",
    "no images": "DIR/train.npz: there are no images",
    "idx of floats": "DIR/train-images-idx3-ubyte is no IDX file of bytes",
    "cut idx": "DIR/train-images-idx3-ubyte holds 1567 bytes of 1568",
    "long idx": "DIR/train-images-idx3-ubyte holds 1569 bytes of 1568",
    "cut header": "DIR/train-images-idx3-ubyte ends in its header",
    "empty idx": "DIR/train-images-idx3-ubyte is no IDX file of bytes",
    "no dimensions": "DIR/train-images-idx3-ubyte: images are uint8 (), not bytes (n, 28, 28)",
    "cut gz": "DIR/train-labels-idx1-ubyte.gz cannot be read: ",
    "no gz": "DIR/train-labels-idx1-ubyte.gz cannot be read: Not a gzipped file",
    "swapped": "DIR/train-images-idx3-ubyte: images are uint8 (2,), not bytes (n, 28, 28)",
}


def test_files_are_read_or_named_with_what_is_wrong(run_ranks):
    result = run_ranks(1, Path(__file__).parent / "mnist_cases.py", EXAMPLES / "mnist")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout.partition("FACTS ")[2])
    assert facts["outcomes"].keys() == OUTCOMES.keys()
    for case, expected in OUTCOMES.items():
        outcome = facts["outcomes"][case]
        assert outcome.startswith(expected), case
        assert "\n" not in outcome, case
    assert facts["sample is the same"]
