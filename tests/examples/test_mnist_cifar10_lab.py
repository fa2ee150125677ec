"""The unchanged Keras examples, run by `clusterctl train --script` on two hosts of the lab.

test_mnist_cifar10_train asserts that they learn. test_notebooks trains MNIST on hosts.
"""

from __future__ import annotations

import re

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.train]

PYTHON = "/opt/clusterctl/training/bin/python"
MAKE_DATA = f"""set -e; cd ~/examples/horovod
{PYTHON} cifar10/make_sample_cifar10.py --images 100
{PYTHON} cifar10/generate_cifar10_tfrecords.py"""
CLEAN = "rm -rf ~/data/mnist ~/data/cifar10 ~/models"


@pytest.fixture
def with_data(pair):
    """Return the cluster. Each node has generated the same data."""
    pair.ok("run", MAKE_DATA)
    yield pair
    pair.ctl("run", CLEAN)
    pair.ctl("clean-logs", "--jobs", "--force", "--yes")


def test_it_trains_on_two_hosts_and_is_evaluated_and_served(with_data, tmp_path):
    script = "~/examples/horovod/cifar10/keras_cifar10.py"
    flags = ["--epochs", "1", "--batch_size", "12"]
    out = with_data.ok("train", "2", "--script", script, "--", *flags)
    assert "Horovod size: 2\n" in out
    assert out.count("ms/step - loss: ") == 1
    accuracy = float(re.search(r"Test accuracy: (.*)", out)[1])
    assert "Model saved in /home/ubuntu/models/cifar10/1\n" in out
    assert with_data.on(0, "ls ~/models/cifar10/1/saved_model.pb")
    assert with_data.on(1, "ls ~ | grep models || true") == "", "rank 0 alone saves"

    with_data.ok("fetch", str(tmp_path / "run"))
    assert (tmp_path / "run" / "cifar10" / "1" / "saved_model.pb").exists()

    evaluate = f"cd ~/examples/horovod && {PYTHON} cifar10/evaluate_cifar10.py"
    shown = with_data.on(0, evaluate)
    assert f"Average accuracy: {accuracy:.2%}\n" in shown
    assert "Confusion matrix: /home/ubuntu/models/cifar10/confusion_matrix.png\n" in shown

    with_data.ok("serve", "~/models/cifar10")
    url = "http://127.0.0.1:8501/v1/models/cifar10"
    served = with_data.on(0, f"{evaluate} --endpoint {url} --picture served.png; rm served.png")
    assert with_data.ctl("serve", "--stop")[0] == 0
    assert served.splitlines()[1:-1] == shown.splitlines()[1:-1]
    assert served.splitlines()[0] == f"Model: {url}"


def test_a_node_without_data_is_named(pair):
    pair.on(0, f"{PYTHON} ~/examples/horovod/mnist/make_sample_mnist.py")
    try:
        script = "~/examples/horovod/mnist/mnist_hvd.py"
        status, out, err = pair.ctl("train", "2", "--script", script)
        assert status == 1, err
        host = pair.on(1, "hostname").strip()
        assert f"error: {host}: no train.npz in /home/ubuntu/data/mnist" in out + err
        assert "Traceback" not in out
    finally:
        pair.ctl("run", CLEAN)
        pair.ctl("clean-logs", "--jobs", "--force", "--yes")
