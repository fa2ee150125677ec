"""Runs on a node: finds out what a job will meet there. JSON in, JSON out; nothing is changed.

stdin: {"python": PATH, "mpirun": PATH, "data_dir": PATH or null, "log_dir": PATH or "",
"script": PATH or ""}. Prints

    {"training": {NAME: BYTES}, "validation": {NAME: BYTES}, "data_error": TEXT,
     "records": {NAME: COUNT}, "cut_short": [NAME], "checkpoints": [STEP], "checkpoint_bytes": N,
     "images_per_step": N or null, "free_bytes": N,
     "versions": {"mpirun": TEXT, "python": TEXT, ...}, "script_error": TEXT,
     "cpus": N, "in_lab": BOOLEAN, "capabilities": [90]}

`capabilities` are the compute capabilities of the GPUs, 90 for 9.0.

`records` has the number of records in a few training files: the first, the last, and the smallest
and the largest of the others. Counting all would take a million reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
import sys
from pathlib import Path

from clusterctl.node.programs import output

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SHARD = re.compile(r"(train|validation)-\d+-of-\d+")
CHECKPOINT = re.compile(r"model\.ckpt-(\d+)\..*")
METRICS = "metrics.jsonl"
FRAME_BYTES = 16  # around the data of a TFRecord: the length, its CRC, the CRC of the data
MOST_RECORDS = 100_000
TIMEOUT_S = 60.0
DRIVER = "/proc/driver/nvidia/version"
LAB = "/usr/lib/clusterctl-lab"  # exists on every host of the lab
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
# --check-build` takes a quarter of a minute. What it was built with it says itself.
try:
    import ctypes
    [tensorflow] = find_spec("tensorflow").submodule_search_locations
    names = ("libtensorflow_framework.so", "libtensorflow_cc.so")
    for name in sorted(os.listdir(tensorflow)):
        if name.startswith(names):
            ctypes.CDLL(os.path.join(tensorflow, name), ctypes.RTLD_GLOBAL)
    below = os.path.join(folder, "tensorflow")
    [library] = [name for name in os.listdir(below) if name.startswith("mpi_lib")]
    built = ctypes.CDLL(os.path.join(below, library), os.RTLD_NOW)
    ops = ("mpi", "gloo", "nccl", "ccl")
    found["horovod_has"] = " ".join(op for op in ops if getattr(built, "horovod_%s_built" % op)())
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


def look(question: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to one question (stdin)."""
    return {
        **data(question["data_dir"]),
        **logs(question["log_dir"]),
        "versions": versions(question["python"], question["mpirun"]),
        "script_error": script_error(question["script"]),
        "cpus": len(os.sched_getaffinity(0)),
        "in_lab": Path(LAB).is_dir(),
        "capabilities": capabilities(),
    }


def capabilities() -> list[int]:
    """Return the compute capabilities of the GPUs, ascending, 90 for 9.0; empty without NVIDIA's
    driver."""
    if not Path(DRIVER).exists():
        return []
    asked = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    told = output(asked, TIMEOUT_S, check=False) or ""
    found = re.findall(r"(?m)^\s*(\d+)\.(\d)\s*$", told)
    return sorted({int(major) * 10 + int(minor) for major, minor in found})


def script_error(path: str) -> str:
    """Return why Python cannot run the program at `path`; empty if it can, or without a path."""
    if not path:
        return ""
    try:
        program = Path(path)
        if stat.S_ISDIR(program.stat().st_mode):
            program /= "__main__.py"
            if not program.exists():
                return "Is a directory"
        return "" if os.access(program, os.R_OK) else "Permission denied"
    except OSError as error:
        return str(error.strerror)


def listing(folder: str) -> dict[str, dict[str, int]]:
    """Return the sizes of the training and the validation files by name; empty if there is no such
    folder. Raises OSError."""
    sets: dict[str, dict[str, int]] = {"train": {}, "validation": {}}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            match = SHARD.fullmatch(entry.name)
            if match:
                sets[match[1]][entry.name] = entry.stat().st_size
    return sets


def data(folder: str | None) -> dict[str, Any]:
    """Return the part of the answer about the data folder."""
    sets: dict[str, dict[str, int]] = {"train": {}, "validation": {}}
    trouble = ""
    if folder:
        try:
            sets = listing(folder)
        except OSError as error:
            trouble = f"{error.filename}: {error.strerror}"
    counts = {name: count(Path(folder or "", name)) for name in sample(sets["train"])}
    return {
        "training": sets["train"],
        "validation": sets["validation"],
        "data_error": trouble,
        "records": {name: found for name, found in counts.items() if found is not None},
        "cut_short": [name for name, found in counts.items() if found == -1],
    }


def sample(sizes: dict[str, int]) -> list[str]:
    """Return the first file, the last, and the smallest and the largest of the others."""
    names = sorted(sizes)
    if len(names) < 3:
        return names
    between = sorted(names[1:-1], key=lambda name: sizes[name])
    return list(dict.fromkeys([names[0], between[0], between[-1], names[-1]]))


def count(path: Path) -> int | None:
    """Count the records of a file by their lengths. Return -1 if the file ends within a record,
    None if it has too many records or cannot be read."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        size, position, records = os.fstat(file).st_size, 0, 0
        while position < size:
            length = os.pread(file, 8, position)
            position += FRAME_BYTES + int.from_bytes(length, "little")
            records += 1
            if len(length) < 8 or position > size:
                return -1
            if records > MOST_RECORDS:
                return None
        return records
    except OSError:
        return None
    finally:
        os.close(file)


def logs(folder: str) -> dict[str, Any]:
    """Return the part of the answer about the log folder."""
    steps, size = set(), 0
    try:
        names = sorted(os.listdir(folder)) if folder else []  # noqa: PTH208
    except OSError:
        names = []
    for name in names:
        match = CHECKPOINT.fullmatch(name)
        if match:
            with contextlib.suppress(OSError):
                size += Path(folder, name).stat().st_size
            # TensorFlow writes the index last: without it the checkpoint is not complete.
            if name.endswith(".index"):
                steps.add(int(match[1]))
    return {
        "checkpoints": sorted(steps),
        "checkpoint_bytes": size,
        "images_per_step": images_per_step(Path(folder, METRICS)) if steps else None,
        "free_bytes": free_bytes(folder),
    }


def images_per_step(metrics: Path) -> int | None:
    """Return how many images a step of the last training in a log folder had, of all ranks
    together; None if its metrics do not tell.

    They have the training's images, and how many epochs came before a step.
    """
    samples: dict[str, int] = {}
    found = None
    try:
        # Not a pipe of that name, which would block.
        lines = metrics.read_text(errors="replace").splitlines() if metrics.is_file() else []
    except OSError:
        return None
    for line in lines:
        with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError):
            row = json.loads(line)
            if row["kind"] == "begin":
                samples[row["run"]] = row["training_samples"]
            elif row["kind"] == "train":
                found = round(row["epoch"] * samples[row["run"]] / row["step"])
    return found if found and found > 0 else None


def free_bytes(folder: str) -> int | None:
    """Return the free bytes on the file system of a folder, which need not exist; None: unknown."""
    for place in [Path(folder), *Path(folder).parents] if folder else []:
        with contextlib.suppress(OSError):
            system = os.statvfs(place)
            return system.f_bavail * system.f_frsize
    return None


def versions(python: str, mpirun: str, timeout_s: float = TIMEOUT_S) -> dict[str, str]:
    """Return the versions of what is installed.

    A program that does not start, or does not end within `timeout_s` seconds, is left out. Has
    Python not started because of variables in the environment, they are `python_variables`.
    """
    found = {"kernel": os.uname().release}
    with contextlib.suppress(OSError):
        driver = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", Path(DRIVER).read_text())
        found.update({"driver": driver[1]} if driver else {})
    said = (output([mpirun, "--version"], timeout_s, check=False) or "").strip()
    if said:
        found["mpirun"] = said.splitlines()[0]
    for options in ("-W", "-EW"):
        # A wrapper may print something before: only the last line counts.
        told = output([python, options, "ignore", "-c", VERSIONS], timeout_s, check=False)
        if told is None:
            break
        for line in told.strip().splitlines()[-1:]:
            with contextlib.suppress(ValueError):
                found.update(json.loads(line))
                if options == "-EW":
                    found["python_variables"] = " ".join(
                        f"{name}={value}"
                        for name, value in sorted(os.environ.items())
                        if name.startswith("PYTHON")
                    )
                return found
    return found


def main() -> None:
    print(json.dumps(look(json.loads(sys.stdin.buffer.read()))))
