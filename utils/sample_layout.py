"""Writing made-up images as ImageNet's raw data: as folders, or as the tar files of downloads."""

from __future__ import annotations

import io
import itertools
import os
import tarfile
from collections.abc import Iterable
from pathlib import Path

from raw_images import LABELS, TRAIN_TAR, VALIDATION_TAR
from sample_images import Sample
from shards import DataError, writing

File = tuple[str, str, bytes]  # synset, name, content
MODIFIED = 1_340_000_000  # time of all files, so that the same flags make the same tar files


class SampleError(DataError):
    """A folder that is not empty."""


def write(sample: Sample, folder: Path, as_tars: bool) -> None:
    """Write the data set to `folder`. Raise SampleError if the folder is not empty."""
    if folder.exists() and any(folder.iterdir()):
        raise SampleError(f"{folder} is not empty: give a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    if as_tars:
        write_tars(sample, folder)
    else:
        write_folders(sample, folder)
    synsets = sample.synsets()
    labels = "".join(f"{synsets[label]}\n" for label in sample.validation_classes())
    with writing(folder / LABELS[0]) as temporary:
        write_file(temporary, labels.encode())


def write_folders(sample: Sample, folder: Path) -> None:
    """Write folders of images: train/SYNSET/ and validation/."""
    for synset, name, content in sample.training_images():
        (folder / "train" / synset).mkdir(parents=True, exist_ok=True)
        write_file(folder / "train" / synset / name, content)
    (folder / "validation").mkdir()
    for _, name, content in sample.validation_files():
        write_file(folder / "validation" / name, content)


def write_file(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, (MODIFIED, MODIFIED))


def write_tars(sample: Sample, folder: Path) -> None:
    """Write the two tar files of ImageNet. The one for training has a tar file for each synset."""
    with writing(folder / TRAIN_TAR) as path, tarfile.open(path, "w") as tar:
        groups = itertools.groupby(sample.training_images(), key=lambda file: file[0])
        for synset, files in groups:
            buffer = io.BytesIO()
            with tarfile.open(fileobj=buffer, mode="w") as inner:
                add_files(inner, files)
            add_files(tar, [(synset, f"{synset}.tar", buffer.getvalue())])
    with writing(folder / VALIDATION_TAR) as path, tarfile.open(path, "w") as tar:
        add_files(tar, sample.validation_files())


def add_files(tar: tarfile.TarFile, files: Iterable[File]) -> None:
    for _, name, content in files:
        about = tarfile.TarInfo(name)
        about.size, about.mtime = len(content), MODIFIED
        tar.addfile(about, io.BytesIO(content))
