"""The notebooks run whole, on two hosts of the lab, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pair import LabCluster

pytestmark = [pytest.mark.lab, pytest.mark.train]

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "horovod" / "notebooks"


@pytest.fixture(scope="module")
def cluster(lab):
    cluster = LabCluster(lab, "notebook")
    status, _, err = cluster.ctl("up", "--nodes", "2", "--instance-type", "p3.8xlarge")
    assert status == 0, err
    with cluster.instance_profile():
        yield cluster
    cluster.ctl("down", "--yes")


def run(name, cluster, monkeypatch) -> str:
    """Every cell of a notebook, as Jupyter runs them: what they printed."""
    import nbformat
    from nbclient import NotebookClient

    environ = {
        **cluster.environ,
        "CLUSTERCTL_CLUSTER": cluster.name,
        "AWS_EC2_METADATA_DISABLED": "1",
    }
    for variable, value in environ.items():
        monkeypatch.setenv(variable, value)
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
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


def test_script_mode(cluster, monkeypatch):
    said = run("mnist_script_mode.ipynb", cluster, monkeypatch)
    assert said.count("Horovod size: 2\n") == 1
    assert said.count("Horovod size: 4\n") == 1
    assert "Model saved in " in said
    job = said.rsplit(" left ~/.clusterctl/jobs/", 1)[1].partition("/")[0]
    assert cluster.on(0, f"ls ~/.clusterctl/jobs/{job}/model/1/saved_model.pb")


def test_pipe_mode_and_predictions(cluster, monkeypatch):
    said = run("cifar10_pipe_mode.ipynb", cluster, monkeypatch)
    assert [said.count(f"Horovod size: {size}\n") for size in (1, 2)] == [2, 1]
    for metric in ("train:loss", "train:accuracy", "validation:loss", "validation:accuracy"):
        assert metric in said
    assert "allreduce  " in said, "the timeline's table"
    # What is served is what was evaluated at the end of the last training, on the same images.
    trained = float(said.rsplit("Test accuracy: ", 1)[1].partition("\n")[0])
    assert f"Average accuracy: {trained:.2%}\n" in said
    assert cluster.ctl("serve", "--status") == (0, "", "no model is served\n")
