"""Facts about what is installed for jobs: MPI, Python, the examples, the data."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Dict, Optional, Sequence

from clusterctl.node.facts import gpus, training
from clusterctl.node.facts.report import deadline, output
from clusterctl.node.jobs import unpack
from clusterctl.node.record import RecordError, from_json, to_json

# A busy node loads TensorFlow's libraries slowly.
SLOW_S = 30.0


# Where mpirun is, in the order of preference, with the variables of an active environment: that
# environment (for train.sh), the folder that `env install` was given, its defaults, the conda
# environments of the tutorial's Deep Learning AMI, the Open MPI of Deep Learning AMIs, the
# system's. New GPUs change the order (jobs/head_facts.py).
MPIRUN_2_15 = "/opt/clusterctl/training/bin/mpirun"
NEWEST_MPIRUN = "/opt/clusterctl/training-newest/bin/mpirun"
MPIRUN_PATHS = (
    *("$VIRTUAL_ENV/bin/mpirun", "$CONDA_PREFIX/bin/mpirun", "$TRAINING_ENV/bin/mpirun"),
    *(MPIRUN_2_15, NEWEST_MPIRUN, "~/anaconda3/envs/tensorflow*/bin/mpirun"),
    *("/opt/amazon/openmpi5/bin/mpirun", "/opt/amazon/openmpi/bin/mpirun", "/usr/bin/mpirun"),
)
# Python interpreters that may have PyTorch: of the active environment, of newer and older Deep
# Learning AMIs, of our training environment, of the system.
TORCH_PYTHONS = (
    *("$VIRTUAL_ENV/bin/python", "/opt/pytorch/bin/python3"),
    *("/opt/conda/envs/pytorch*/bin/python3", "~/anaconda3/envs/pytorch*/bin/python"),
    *("/opt/clusterctl/training/bin/python", "/usr/local/bin/python3", "/usr/bin/python3"),
)
HAS_MODULE = "import importlib.util as u, sys; sys.exit(not u.find_spec(sys.argv[1]))"


@dataclass(frozen=True)
class Mpi:
    """An mpirun, the first line of its `--version`, and the Python that belongs to it."""

    mpirun: str
    version: str
    python: str
    horovod: bool


@deadline(60.0)
def environments(active: str = "") -> tuple[Mpi, ...]:
    """Return the environments that a job may use, in the order of preference. `active` is a virtual
    environment that counts as activated; empty: that of the login. What is listed for two reasons
    is there twice."""
    found = {path: _mpi(path) for path in dict.fromkeys(_executables(MPIRUN_PATHS, active))}
    return tuple(found[path] for path in _executables(MPIRUN_PATHS, active))


def _mpi(mpirun: str) -> Mpi:
    folder = os.path.dirname(mpirun)  # noqa: PTH120
    pythons = (f"{folder}/python", f"{folder}/python3", shutil.which("python3") or "")
    python = next((path for path in pythons if os.access(path, os.X_OK)), "")
    printed = output([mpirun, "--version"], check=False, errors=True) or ""
    return Mpi(mpirun, printed.split("\n")[0], python, has_module(python, "horovod"))


@deadline(60.0)
def torch_python(active: str = "") -> str:
    """Return the first Python that has PyTorch; empty without. `active`: as for `environments`."""
    found = _executables(TORCH_PYTHONS, active)
    return next((python for python in found if has_module(python, "torch")), "")


def _executables(patterns: Sequence[str], active: str) -> list[str]:
    """Return the programs that are there, in the order of `patterns`."""
    kept = Path.home() / ".clusterctl/training-env"
    folders = {
        "VIRTUAL_ENV": os.path.expanduser(active) or os.environ.get("VIRTUAL_ENV", ""),  # noqa: PTH111
        "CONDA_PREFIX": os.environ.get("CONDA_PREFIX", ""),
        "TRAINING_ENV": kept.read_text().strip() if kept.exists() else "",
    }
    found = []
    for pattern in patterns:
        folder, _, rest = pattern.partition("/")
        if folder.startswith("$"):
            below = glob.escape(folders[folder[1:]] or "/none")
            pattern = f"{below}/{rest}"  # noqa: PLW2901
        paths = sorted(glob.glob(os.path.expanduser(pattern)))  # noqa: PTH111, PTH207
        found += [path for path in paths if os.access(path, os.X_OK)]
    return found


def has_module(python: str, name: str) -> bool:
    """Return whether a Python has a module, also if it works only without variables of the login,
    such as PYTHONHOME. Not in the home folder, where a folder of that name would be the module."""
    return bool(python) and any(
        output([python, option, HAS_MODULE, name], cwd="/") is not None for option in ("-c", "-Ec")
    )


# Run by the trainer's Python: prints the versions of its packages, one JSON line.
VERSIONS = """
import json, os, sys
from importlib.util import find_spec
try:
    from importlib.metadata import version
except ImportError:
    from pkg_resources import get_distribution
    version = lambda name: get_distribution(name).version
found = {"python": sys.version.split()[0]}
for name in ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "horovod", "torch"):
    try:
        found.setdefault(name.split("-")[0], version(name))
    except Exception:
        pass
# tf_keras takes the place of Keras 3 where this is set, as an environment of ours does itself.
legacy = os.environ.get("TF_USE_LEGACY_KERAS") == "1"
try:
    found["keras"] = version("tf_keras" if legacy else "keras")
except Exception:
    pass
try:
    [folder] = find_spec("horovod").submodule_search_locations
    with open(os.path.join(folder, "metadata.json")) as file:
        found["horovod_built_for"] = json.load(file)["tensorflow"]
except Exception:
    pass
# Loaded as TensorFlow does it, but without TensorFlow: a third of a second, where `horovodrun
# --check-build` takes a quarter of a minute. What it was built with it says itself. A success is
# kept, and holds as long as no library that was loaded has changed. A failure is never kept.
def identities(paths):
    stats = [(path, os.stat(path)) for path in paths]
    return {path: [one.st_ino, one.st_size, one.st_mtime_ns] for path, one in stats}
def loaded(tensorflow, library):
    import ctypes
    names = ("libtensorflow_framework.so", "libtensorflow_cc.so")
    for name in sorted(os.listdir(tensorflow)):
        if name.startswith(names):
            ctypes.CDLL(os.path.join(tensorflow, name), ctypes.RTLD_GLOBAL)
    built = ctypes.CDLL(library, os.RTLD_NOW)
    ops = ("mpi", "gloo", "nccl", "ccl")
    return " ".join(op for op in ops if getattr(built, "horovod_%s_built" % op)())
try:
    [tensorflow] = find_spec("tensorflow").submodule_search_locations
    below = os.path.join(folder, "tensorflow")
    [library] = [name for name in os.listdir(below) if name.startswith("mpi_lib")]
    library = os.path.join(below, library)
    # Where the loader searches for libraries besides the folders that these name.
    paths = [library, tensorflow, os.environ.get("LD_LIBRARY_PATH", ""), "/etc/ld.so.cache"]
    kept = os.path.expanduser("~/.cache/clusterctl/horovod.json")
    try:
        with open(kept) as file:
            old = json.load(file)
        if old["paths"] != paths or identities(old["files"]) != old["files"]:
            raise ValueError("something has changed")
        found["horovod_has"] = old["has"]
    except Exception:
        found["horovod_has"] = loaded(tensorflow, library)
        with open("/proc/self/maps") as file:
            mapped = {line.strip().partition("/")[2] for line in file if "/" in line}
        files = identities([tensorflow, "/etc/ld.so.cache", *("/" + path for path in mapped)])
        if sys.argv[1:]:
            os.makedirs(os.path.dirname(kept), exist_ok=True)
            part = "%s.%d" % (kept, os.getpid())
            with open(part, "w") as file:
                json.dump({"paths": paths, "has": found["horovod_has"], "files": files}, file)
            os.replace(part, kept)
except Exception as failure:
    if "undefined symbol" in str(failure):
        found["horovod_error"] = str(failure)
# CUDA's runtime library and cuDNN, where they are packages of their own.
for key, package in (("cuda", "nvidia-cuda-runtime"), ("cudnn", "nvidia-cudnn")):
    for generation in ("-cu12", "-cu13", "", "-cu11"):
        try:
            found.setdefault(key, version(package + generation))
        except Exception:
            pass
try:
    for path in (*sys.path, ""):
        library = os.path.join(path and os.path.join(path, "nvidia/nccl/lib"), "libnccl.so.2")
        if not path or os.path.exists(library):
            number = ctypes.c_int()
            ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
            step = 10000 if number.value > 9999 else 1000
            found["nccl"] = "%d.%d.%d" % (
                number.value // step, number.value % step // 100, number.value % 100
            )
            break
except Exception:
    pass
print(json.dumps(found))
"""


@deadline(60.0)
def versions(python: str, mpirun: str, keeps: bool = True) -> dict[str, str]:
    """Return the versions of what a job uses. With `keeps`, what Horovod has is kept in a file.

    A program that does not start is left out. Has Python not started because of variables in the
    environment, they are `python_variables`.
    """
    found = {"kernel": os.uname().release}
    with contextlib.suppress(OSError):
        driver = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", Path(gpus.DRIVER).read_text())
        found.update({"driver": driver[1]} if driver else {})
    version_text = (output([mpirun, "--version"], check=False) or "").strip()
    if version_text:
        found["mpirun"] = version_text.splitlines()[0]
    for options in ("-W", "-EW"):
        # A wrapper may print something before: only the last line counts.
        printed = output(
            [python, options, "ignore", "-c", VERSIONS, *["keep"] * keeps], check=False
        )
        if printed is None:
            break
        for line in printed.strip().splitlines()[-1:]:
            with contextlib.suppress(RecordError):
                found.update(from_json(Dict[str, str], line))
                if options == "-EW":
                    found["python_variables"] = " ".join(
                        f"{name}={value}"
                        for name, value in sorted(os.environ.items())
                        if name.startswith("PYTHON")
                    )
                return found
    return found


@deadline(SLOW_S)
def mpirun_on_path() -> Optional[tuple[str, str]]:
    """Return path and version of the `mpirun` on PATH. A job may use another one."""
    path = shutil.which("mpirun")
    if not path:
        return None
    return path, (output([path, "--version"]) or "").split("\n")[0]


@deadline(SLOW_S)
def scripts() -> dict[str, str]:
    """Return hashes of the shipped examples as they are on this node, without the hosts file: that
    differs between clusters."""
    home = Path.home()
    record = home / unpack.SHIPPED
    names = from_json(Dict[str, str], record.read_bytes()) if record.exists() else {}
    found = {}
    for name in sorted(names):
        if not name.endswith("/hosts"):
            try:
                found[name] = hashlib.sha256((home / name).read_bytes()).hexdigest()[:12]
            except OSError as error:
                found[name] = str(error.strerror)
    return found


@deadline(SLOW_S)
def data(folder: str) -> Optional[tuple[str, int]]:
    """Return a hash of the names and sizes of the training and validation files, and their number.
    None if there are no such files."""
    found = training.listing(os.path.expanduser(folder))  # noqa: PTH111
    sizes = sorted({**found["train"], **found["validation"]}.items())
    if not sizes:
        return None
    return hashlib.sha256(to_json(sizes).encode()).hexdigest()[:12], len(sizes)
