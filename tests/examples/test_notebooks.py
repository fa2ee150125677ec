"""The notebooks run completely in the lab, with the commands that they show and no others."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.forks import run_one
from tests.pair import LabCluster

pytestmark = [pytest.mark.lab, pytest.mark.train]

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "horovod" / "notebooks"


@contextmanager
def launched(lab, notebook):
    """Run the commands that a notebook shows before its first cell and after its last one."""
    import nbformat

    cells = nbformat.read(NOTEBOOKS / notebook, as_version=4).cells
    before = re.findall(r"^    clusterctl (.+)$", cells[0].source, re.MULTILINE)
    after = re.findall(r"`clusterctl (down \w+)`", "".join(cell.source for cell in cells))
    cluster = LabCluster(lab, before[0].split()[1])
    try:
        for command in before:
            status, _, err = run_one(command.split(), cluster.environ)
            assert status == 0, err
        yield cluster
    finally:
        gone = [
            run_one([*one.split(), "--yes", "--discard-results"], cluster.environ) for one in after
        ]
    assert [status for status, _, _ in gone] == [0], gone


def run(name, cluster, monkeypatch, **instead) -> str:
    """Run every cell of a notebook, as Jupyter does. Return what they printed.

    `instead`: (old, new) texts to replace in cells.
    """
    import nbformat
    from nbclient import NotebookClient

    environ = {**cluster.environ, "AWS_EC2_METADATA_DISABLED": "1"}
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    for old, new in instead.values():
        [cell] = [one for one in notebook.cells if old in one.source]
        cell.source = cell.source.replace(old, new)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources)
    try:
        client.execute()
    finally:
        outputs = (one for cell in notebook.cells for one in cell.get("outputs", ()))
        said = "".join(output.get("text", "") for output in outputs)
        print(said)
    assert not list(NOTEBOOKS.glob("tmp*")), "fit leaves no file behind"
    return said


# TensorFlow takes ten seconds of CPU time to start in each rank. Two ranks have shown that MNIST
# trains, so these four run a small program.
FOUR = """\
import os, pathlib
rank, size = (os.environ["OMPI_COMM_WORLD_" + name] for name in ("RANK", "SIZE"))
data = [os.listdir(os.environ["SM_CHANNEL_" + name]) for name in ("TRAIN", "TEST")]
print("rank", rank, "of", size, "on", os.environ["SM_CURRENT_HOST"], data, flush=True)
if rank == "0":
    folder = pathlib.Path(os.environ["SM_MODEL_DIR"], "1")
    folder.mkdir()
    (folder / "saved_model.pb").write_text("a model")
"""


def test_script_mode(lab, monkeypatch, tmp_path):
    (tmp_path / "four.py").write_text(FOUR)
    mnist = 'estimator = TensorFlow(\n    entry_point={},\n    source_dir="{}"'
    four = mnist.format("train_script", "../mnist"), mnist.format('"four.py"', tmp_path)
    with launched(lab, "mnist_script_mode.ipynb") as cluster:
        said = run("mnist_script_mode.ipynb", cluster, monkeypatch, four=four)
        assert said.count("Horovod size: 2\n") == 1
        assert "Model saved in " in said
        with cluster.access() as access:
            hosts = [node.private_ip for node in access.cluster.nodes]
        data = [["train.npz"], ["test.npz"]]
        for rank in range(4):
            assert f"rank {rank} of 4 on {hosts[rank // 2]} {data}\n" in said
        job = said.rsplit(" left ~/.clusterctl/jobs/", 1)[1].partition("/")[0]
        assert cluster.on(0, f"ls ~/.clusterctl/jobs/{job}/model/1/saved_model.pb")


def test_pipe_mode_and_predictions(lab, monkeypatch):
    with launched(lab, "cifar10_pipe_mode.ipynb") as cluster:
        said = run("cifar10_pipe_mode.ipynb", cluster, monkeypatch)
        assert cluster.ctl("serve", "--status") == (0, "", "no model is served\n")
    assert [said.count(f"Horovod size: {size}\n") for size in (1, 2)] == [2, 1]
    for metric in ("train:loss", "train:accuracy", "validation:loss", "validation:accuracy"):
        assert metric in said
    assert "allreduce  " in said, "the timeline's table"
    # The served model has the accuracy of the last training's evaluation, on the same images.
    trained = float(said.rsplit("Test accuracy: ", 1)[1].partition("\n")[0])
    assert f"Average accuracy: {trained:.2%}\n" in said
