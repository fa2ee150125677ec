"""The notebooks run whole, on two hosts of the lab, as a user runs them."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

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


def outputs(notebook: nbformat.NotebookNode) -> str:
    return "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
    )


def test_script_mode(cluster, monkeypatch):
    environ = {
        **cluster.environ,
        "CLUSTERCTL_CLUSTER": cluster.name,
        "AWS_EC2_METADATA_DISABLED": "1",
    }
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOKS / "mnist_script_mode.ipynb", as_version=4)
    resources = {"metadata": {"path": str(NOTEBOOKS)}}
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", resources=resources)
    try:
        client.execute()
    finally:
        said = outputs(notebook)
        print(said)
    assert said.count("Horovod size: 2\n") == 1
    assert said.count("Horovod size: 4\n") == 1
    assert "Model saved in " in said
    job = said.rsplit(" left ~/.clusterctl/jobs/", 1)[1].partition("/")[0]
    assert cluster.on(0, f"ls ~/.clusterctl/jobs/{job}/model/1/saved_model.pb")
    assert not list(NOTEBOOKS.glob("tmp*")), "fit leaves no file behind"
