"""Facts about what a training reads and writes: its program, its data, its log folder."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from clusterctl.node.facts.report import deadline
from clusterctl.node.paths import step_of
from clusterctl.node.record import from_json

SHARD = re.compile(r"(train|validation)-\d+-of-\d+")
METRICS = "metrics.jsonl"
FRAME_BYTES = 16  # around the data of a TFRecord: the length, its CRC, the CRC of the data
MOST_RECORDS = 100_000
# A folder on a file system of the network may have thousands of files.
READ_S = 60.0


@dataclass(frozen=True)
class TrainingFiles:
    """The files of the training data: sizes in bytes by name.

    `records` has the number of records of a few files of each subset: the first, the last, and the
    smallest and the largest of the others; -1 for a file that ends within a record. Counting all
    would take a million reads. `error` is the reason if the folder cannot be read, else empty.
    """

    training: dict[str, int] = field(default_factory=dict)
    validation: dict[str, int] = field(default_factory=dict)
    records: dict[str, int] = field(default_factory=dict)
    error: str = ""


@deadline(READ_S)
def training_files(folder: Optional[str]) -> TrainingFiles:
    """Return the training and validation files; none for None, or if the folder is not there."""
    try:
        sets = listing(folder) if folder else {}
    except OSError as error:
        return TrainingFiles(error=f"{error.filename}: {error.strerror}")
    training, validation = sets.get("train", {}), sets.get("validation", {})
    names = [*sample(training), *sample(validation)]
    counts = {name: count(Path(folder or "", name)) for name in names}
    records = {name: found for name, found in counts.items() if found is not None}
    return TrainingFiles(training, validation, records)


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


@dataclass(frozen=True)
class TrainingLog:
    """What a training has left in its log folder: the steps of its whole checkpoints, ascending,
    and the bytes of all. `images_per_step` is of all ranks together; None: unknown. `free_bytes` is
    the free space there, also of a folder that is not there yet; None: unknown. So is `model`, the
    name of the training's."""

    checkpoints: tuple[int, ...] = ()
    checkpoint_bytes: int = 0
    images_per_step: Optional[int] = None
    free_bytes: Optional[int] = None
    model: Optional[str] = None


@deadline(READ_S)
def training_log(folder: str) -> TrainingLog:
    """Return what is in a log folder; nothing for an empty path."""
    steps, size = set(), 0
    try:
        names = sorted(os.listdir(folder)) if folder else []  # noqa: PTH208
    except OSError:
        names = []
    for name in names:
        step = step_of(name)
        if step >= 0:
            with contextlib.suppress(OSError):
                size += Path(folder, name).stat().st_size
            # TensorFlow writes the index last: without it the checkpoint is not complete.
            if name.endswith(".index"):
                steps.add(step)
    images, model = last_training(Path(folder, METRICS)) if steps else (None, None)
    return TrainingLog(tuple(sorted(steps)), size, images, free_bytes(folder), model)


def last_training(metrics: Path) -> tuple[int | None, str | None]:
    """Return how many images a step of the last training in a log folder had, of all ranks
    together, and its model; None for what its metrics lack.

    They have the training's images, and how many epochs came before a step.
    """
    samples: dict[str, int] = {}
    models: dict[str, Any] = {}
    found = model = None
    try:
        # Not a pipe of that name, which would block.
        lines = metrics.read_text(errors="replace").splitlines() if metrics.is_file() else []
    except OSError:
        return None, None
    for line in lines:
        with contextlib.suppress(LookupError, TypeError, ValueError, ArithmeticError):
            row = from_json(dict, line)
            if row["kind"] == "begin":
                samples[row["run"]] = row["training_samples"]
                models[row["run"]] = row.get("model")
            elif row["kind"] == "train":
                model = models[row["run"]]
                found = round(row["epoch"] * samples[row["run"]] / row["step"])
    return found if found and found > 0 else None, str(model) if model else None


def free_bytes(folder: str) -> Optional[int]:
    """Return the free bytes on the file system of a folder, which need not exist; None: unknown."""
    for place in [Path(folder), *Path(folder).parents] if folder else []:
        with contextlib.suppress(OSError):
            system = os.statvfs(place)
            return system.f_bavail * system.f_frsize
    return None


def session_folder_bytes() -> Optional[int]:
    """Return the free bytes where mpirun has its session folder: in the login's TMPDIR, or /tmp."""
    return free_bytes(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


ELF, COMPILED = b"\x7fELF", "it is a compiled program, not one in Python"


@deadline(READ_S)
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
        if not stat.S_ISREG(program.stat().st_mode):  # a FIFO's first bytes may never come
            return "" if os.access(program, os.R_OK) else "Permission denied"
        with program.open("rb") as file:
            return COMPILED if file.read(len(ELF)) == ELF else ""
    except OSError as error:
        return str(error.strerror)
