"""The raw images of ImageNet: in folders, or in its tar files, which are read without unpacking."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Optional

from shards import CLASSES, DataError

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
LABELS = ("synset_labels.txt", "imagenet_2012_validation_synset_labels.txt")
VALIDATION_FOLDERS = ("validation", "val")


class RawError(DataError):
    """Raw data that is missing or not laid out as ImageNet's."""


class RawImage(NamedTuple):
    """An image file, or the part of a tar file with one. `synset` is "" if it is not known.

    `offset` and `size` are in bytes; `offset` is 0 for a file of its own.
    """

    synset: str
    name: str
    path: str
    offset: int
    size: int
    modified: int  # seconds since 1970

    @property
    def stamp(self) -> tuple[str, int, int]:
        """Name, size and time, which differ if another image of this name replaces it."""
        return self.name, self.size, self.modified


def train_images(raw: Path) -> list[RawImage]:
    """Return every training image, sorted by synset and name. Raise RawError.

    They are in the downloaded tar file of tar files, in `train/SYNSET.tar` or in `train/SYNSET/`.
    """
    tar, folder = raw / TRAIN_TAR, raw / "train"
    if tar.is_file():
        found = list(images_of_nested_tar(tar))
    elif folder.is_dir():
        found = [image for entry in visible(folder) for image in images_of_synset(entry)]
    else:
        raise RawError(f"{raw} has neither {TRAIN_TAR} nor a folder train/ of synsets")
    if not found:
        raise RawError(f"no training images in {tar if tar.is_file() else folder}")
    return unique(found)


def validation_images(raw: Path, labels_file: Path | None = None) -> list[RawImage]:
    """Return every validation image with its synset, sorted by name. Raise RawError.

    For a tar file or a folder of files, a file of labels has the synsets, a line for each image in
    the order of their names. In folders named after synsets, as other tools make them, an image's
    synset is the name of its folder; these images are sorted by synset first.
    """
    tar = raw / VALIDATION_TAR
    folder = next((raw / name for name in VALIDATION_FOLDERS if (raw / name).is_dir()), None)
    if tar.is_file():
        found = unique(images_of_tar(tar))
    elif folder:
        entries = visible(folder)
        if entries and all(entry.is_dir() for entry in entries):
            return unique(image for entry in entries for image in images_of_synset(entry))
        found = unique(file_image(entry, "") for entry in entries if entry.is_file())
    else:
        raise RawError(f"{raw} has neither {VALIDATION_TAR} nor a folder validation/ or val/")
    if not found:
        raise RawError(f"no validation images in {tar if tar.is_file() else folder}")
    path = labels_file or next((raw / name for name in LABELS if (raw / name).is_file()), None)
    if path is None:
        raise RawError(f"{raw} lacks {LABELS[0]}: a synset per line for each validation image")
    synsets = read_text(path).split()
    if len(synsets) != len(found):
        raise RawError(f"{path} has {len(synsets)} labels for {len(found)} validation images")
    return [image._replace(synset=synset) for image, synset in zip(found, synsets)]


def labels_of(synsets: Iterable[str]) -> dict[str, int]:
    """Return the label of each synset: 1, 2, ... in alphabetical order. 0 means "none of them"."""
    ordered = sorted(set(synsets))
    if len(ordered) > CLASSES:
        raise RawError(f"{len(ordered)} folders of classes: the trainers know {CLASSES}")
    return {synset: label for label, synset in enumerate(ordered, start=1)}


def read_image(image: RawImage) -> bytes:
    """Return the bytes of an image file. Raise OSError."""
    # Tar files are not kept open: shuffled images may be in 1,000 of them, and the limit of open
    # files is often 1,024.
    with Path(image.path).open("rb") as file:
        file.seek(image.offset)
        return file.read(image.size if image.offset else -1)


def images_of_synset(entry: Path) -> Iterator[RawImage]:
    """Yield the images of one synset: of a folder, or of a tar file. Other files have none."""
    if entry.is_dir():
        for file in visible(entry):
            if file.is_file():
                yield file_image(file, entry.name)
    elif entry.suffix == ".tar":
        yield from images_of_tar(entry, entry.stem)


def images_of_nested_tar(path: Path) -> Iterator[RawImage]:
    """Yield the images of a tar file that contains a tar file for each synset."""
    with opened(path) as outer:
        for member in members(outer, path):
            name = Path(member.name)
            if name.suffix == ".tar":
                yield from images_of_tar(
                    path, name.stem, outer.extractfile(member), member.offset_data
                )
            else:  # a tar file that was packed by hand has SYNSET/NAME
                yield tar_image(path, name.parent.name, member, 0)


def images_of_tar(
    path: Path, synset: str = "", part: Optional[object] = None, begin: int = 0
) -> Iterator[RawImage]:
    """Yield the images of a tar file, or of `part`, a tar file at offset `begin` in `path`."""
    with opened(path, part) as tar:
        for member in members(tar, path):
            yield tar_image(path, synset, member, begin)


def opened(path: Path, part: Optional[object] = None) -> tarfile.TarFile:
    """Open a tar file, or the inner one `part`. Raise RawError if it is none."""
    try:
        return tarfile.open(path, "r:", fileobj=part)  # type: ignore[call-overload]
    except tarfile.TarError as error:
        raise RawError(
            f"{path} is cut short or no plain tar file ({error}): download it again"
        ) from None


def members(tar: tarfile.TarFile, path: Path) -> Iterator[tarfile.TarInfo]:
    """Yield the files of a tar file, without hidden ones. Raise RawError if it is cut short."""
    try:
        for member in tar:
            if member.isfile() and not Path(member.name).name.startswith("."):
                yield member
    except tarfile.TarError as error:
        raise RawError(f"{path} is cut short or damaged ({error}): download it again") from None


def tar_image(path: Path, synset: str, member: tarfile.TarInfo, begin: int) -> RawImage:
    at = begin + member.offset_data
    return RawImage(synset, Path(member.name).name, str(path), at, member.size, int(member.mtime))


def file_image(file: Path, synset: str) -> RawImage:
    about = file.stat()
    return RawImage(synset, file.name, str(file), 0, about.st_size, int(about.st_mtime))


def visible(folder: Path) -> list[Path]:
    """Return the entries of a folder, sorted and without hidden ones."""
    return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))


def unique(images: Iterable[RawImage]) -> list[RawImage]:
    """Return the images sorted. Raise RawError if two have the same synset and name.

    Reports identify images by these.
    """
    ordered = sorted(images, key=lambda image: (image.synset, image.name))
    for before, after in zip(ordered, ordered[1:]):
        if before[:2] == after[:2]:
            raise RawError(f"{before.path} and {after.path} both hold {after.name}")
    return ordered


def read_text(path: Path) -> str:
    """Return the text of a file. Raise RawError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RawError(f"cannot read {path}: {error}") from None
