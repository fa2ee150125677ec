"""The raw images of ImageNet: in folders, or in its tar files, which are read without unpacking."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from shards import CLASSES, DataError

TRAIN_TAR = "ILSVRC2012_img_train.tar"
VALIDATION_TAR = "ILSVRC2012_img_val.tar"
LABELS = ("synset_labels.txt", "imagenet_2012_validation_synset_labels.txt")
VALIDATION_FOLDERS = ("validation", "val")
# Folders that systems make, and that are no classes.
NO_CLASSES = ("__MACOSX", "lost+found")
# The numbers of images of ILSVRC2012 (Russakovsky et al. 2015, table 2).
IMAGENET = {"train": 1_281_167, "validation": 50_000}
BLOCK = tarfile.BLOCKSIZE
END_MARK = 2 * BLOCK
MOST_PADDING = 1 << 20  # bytes: a larger record of tar than users choose with --blocking-factor
CHUNK_BYTES = 1 << 20


class RawError(DataError):
    """Raw data that is missing or not laid out as ImageNet's."""


class RawImage(NamedTuple):
    """An image file, or the part of a tar file with one. `synset` is "" if it is not known.

    `offset` and `size` are in bytes; `offset` is 0 for a file of its own. `problem` is the reason
    why it cannot be read, as for a link that leads nowhere; such an image counts as corrupt.
    """

    synset: str
    name: str
    path: str
    offset: int
    size: int
    modified: int  # seconds since 1970
    problem: str = ""

    @property
    def stamp(self) -> tuple[str, int, int]:
        """Name, size and time, which differ if another image of this name replaces it."""
        return self.name, self.size, self.modified


def train_images(raw: Path) -> list[RawImage]:
    """Return every training image, sorted by synset and name. Raise RawError.

    They are in the downloaded tar file of tar files, in `train/SYNSET.tar` or in `train/SYNSET/`.
    A class without images is refused: it would have no label, and each class after it another one.
    """
    tar, folder = raw / TRAIN_TAR, raw / "train"
    if tar.is_file():
        found = list(images_of_nested_tar(tar))
    elif folder.is_dir():
        found = images_of_classes(folder)
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
        if entries and all(entry.is_dir() or leads_nowhere(entry) for entry in entries):
            return unique(images_of_classes(folder))
        found = unique(file_image(entry, "") for entry in entries)
    else:
        raise RawError(f"{raw} has neither {VALIDATION_TAR} nor a folder validation/ or val/")
    if not found:
        raise RawError(f"no validation images in {tar if tar.is_file() else folder}")
    path = labels_file or next((raw / name for name in LABELS if (raw / name).is_file()), None)
    if path is None:
        raise RawError(f"{raw} lacks {LABELS[0]}: a synset per line for each validation image")
    synsets = read_synsets(path, len(found))
    return [image._replace(synset=synset) for image, synset in zip(found, synsets)]


def labels_of(synsets: Iterable[str]) -> dict[str, int]:
    """Return the label of each synset: 1, 2, ... in alphabetical order. 0 means "none of them"."""
    ordered = sorted(set(synsets))
    if len(ordered) > CLASSES:
        raise RawError(f"{len(ordered)} folders of classes: the trainers know {CLASSES}")
    return {synset: label for label, synset in enumerate(ordered, start=1)}


def unlike_imagenet(images: Mapping[str, list[RawImage]], classes: int) -> str:
    """Return how 1000 classes of images differ from ImageNet's in number; "" if they do not.

    A tar file whose end is missing may look complete: only the number shows it.
    """
    counts = {subset: len(found) for subset, found in images.items()}
    if classes != CLASSES or counts == IMAGENET:
        return ""
    told = (f"{counts[subset]:,} of {number:,} {subset}" for subset, number in IMAGENET.items())
    return f"ImageNet has another number of images: here are {' and '.join(told)} images"


def read_image(image: RawImage) -> bytes:
    """Return the bytes of an image file. Raise OSError."""
    # Tar files are not kept open: shuffled images may be in 1,000 of them, and the limit of open
    # files is often 1,024.
    with Path(image.path).open("rb") as file:
        file.seek(image.offset)
        return file.read(image.size if image.offset else -1)


def images_of_classes(folder: Path) -> list[RawImage]:
    """Return the images of every class in a folder. Raise RawError if a class has none."""
    entries = [entry for entry in visible(folder) if entry.name not in NO_CLASSES]
    found = {entry: list(images_of_synset(entry)) for entry in entries if is_class(entry)}
    refuse_empty([str(entry) for entry, images in found.items() if not images])
    other = [entry.name for entry in entries if entry not in found]
    if other:
        print(f"{folder}: left out, since neither a folder nor a tar file: {few(other)}")
    return [image for images in found.values() for image in images]


def is_class(entry: Path) -> bool:
    """Return whether an entry is a class: a folder, a tar file, or a link that leads nowhere."""
    return entry.is_dir() or entry.suffix == ".tar" or leads_nowhere(entry)


def refuse_empty(classes: list[str]) -> None:
    """Raise RawError if `classes`, the names of classes without images, are any."""
    if classes:
        text = "a class has no images" if len(classes) == 1 else f"{len(classes)} classes have none"
        raise RawError(
            f"{text}: {few(classes)}. Get its images, or remove it; the labels are the ranks of "
            "the classes that are left"
        )


def images_of_synset(entry: Path) -> Iterator[RawImage]:
    """Yield the images of one synset: of a folder, or of a tar file."""
    if entry.is_dir():
        for file in visible(entry):
            if file.name not in NO_CLASSES:
                yield file_image(file, entry.name)
    elif entry.is_file():
        yield from images_of_tar(entry, entry.stem)


def images_of_nested_tar(path: Path) -> Iterator[RawImage]:
    """Yield the images of a tar file that contains a tar file for each synset."""
    empty = []
    with opened(path, str(path)) as outer:
        for member in members(outer, str(path)):
            name = Path(member.name)
            if name.suffix != ".tar":  # a tar file that was packed by hand has SYNSET/NAME
                yield tar_image(path, name.parent.name, member, 0)
            elif member.isreg() and not member.issparse():
                part = outer.extractfile(member)
                images = list(images_of_tar(path, name.stem, part, member))
                empty += [] if images else [f"{name.name} in {path}"]
                yield from images
            else:
                raise RawError(f"{name} in {path} is {unread(member)}")
    refuse_empty(empty)


def images_of_tar(
    path: Path, synset: str = "", part: object | None = None, inner: tarfile.TarInfo | None = None
) -> Iterator[RawImage]:
    """Yield the images of a tar file, or of `part`, the tar file that is the member `inner`."""
    called = f"{inner.name} in {path}" if inner else str(path)
    with opened(path, called, part) as tar:
        for member in members(tar, called):
            yield tar_image(path, synset, member, inner.offset_data if inner else 0)


def opened(path: Path, called: str, part: object | None = None) -> tarfile.TarFile:
    """Open a tar file, or the inner one `part`. Raise RawError, which names `called`."""
    try:
        return tarfile.open(path, "r:", fileobj=part)  # type: ignore[call-overload]
    except tarfile.TarError as error:
        raise RawError(
            f"{called} is cut short or no plain tar file ({error}): download it again"
        ) from None


def members(tar: tarfile.TarFile, called: str) -> Iterator[tarfile.TarInfo]:
    """Yield what a tar file has beside folders and hidden files. Raise RawError if it is damaged.

    tarfile ends at the first block that is no header, without an error. So whatever is there must
    be the end mark.
    """
    try:
        for member in tar:
            if not member.isdir() and not Path(member.name).name.startswith("."):
                yield member
        problem = ending_problem(tar)
    except (tarfile.TarError, ValueError, OverflowError) as error:
        raise RawError(f"{called} is cut short or damaged ({error}): download it again") from None
    if problem:
        raise RawError(f"{called} is {problem}: download it again")


def ending_problem(tar: tarfile.TarFile) -> str:
    """Return what is wrong with the end of a tar file that was read, or "".

    The end is at least two blocks of zeros. More zeros pad the file to records of 10 KiB, or of
    another length that the user chose (info tar, "Blocking Factor").
    """
    file = tar.fileobj
    assert file is not None
    file.seek(tar.offset)
    zeros = 0
    while chunk := file.read(CHUNK_BYTES):
        if chunk.count(0) != len(chunk):
            where = tar.offset + zeros + len(chunk) - len(chunk.lstrip(b"\0"))
            return f"damaged (byte {where:,} is neither a file's nor the end mark's)"
        zeros += len(chunk)
    if zeros < END_MARK:
        return f"cut short (no end mark at byte {tar.offset:,})"
    size = tar.offset + zeros
    if size % BLOCK:
        return f"cut short or damaged ({size:,} bytes are no whole blocks)"
    if zeros > max(tarfile.RECORDSIZE, min(MOST_PADDING, size & -size)) + END_MARK:
        return f"damaged (there are only zeros from byte {tar.offset:,} to its end, {size:,})"
    return ""


def tar_image(path: Path, synset: str, member: tarfile.TarInfo, begin: int) -> RawImage:
    at = begin + member.offset_data
    name, modified = Path(member.name).name, max(0, int(member.mtime))
    return RawImage(synset, name, str(path), at, member.size, modified, unread(member))


def unread(member: tarfile.TarInfo) -> str:
    """Return why the member of a tar file cannot be read in place, or ""."""
    if member.islnk() or member.issym():
        return "a link in a tar file, which is read without unpacking"
    if member.issparse():
        return "a sparse file in a tar file, which is read without unpacking"
    return "" if member.isreg() else "no file"


def file_image(file: Path, synset: str) -> RawImage:
    """Return the image that is a file of its own, with its `problem` if it is no file."""
    problem = ""
    if leads_nowhere(file):
        problem = "a link that leads nowhere"
    elif file.is_dir():
        problem = "a folder where an image is wanted"
    elif not file.is_file():
        problem = "no file"
    about = file.lstat() if problem else file.stat()
    modified = max(0, int(about.st_mtime))
    return RawImage(synset, file.name, str(file), 0, about.st_size, modified, problem)


def leads_nowhere(path: Path) -> bool:
    return path.is_symlink() and not path.exists()


def few(names: list[str]) -> str:
    """Return the first three names, and how many more there are."""
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


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


def read_synsets(path: Path, wanted: int) -> list[str]:
    """Return the `wanted` synsets in a file of one synset per line. Raise RawError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise RawError(f"cannot read {path}: {error}") from None
    synsets = [word for line in lines for word in line.split()]
    if len(synsets) != wanted:
        text = f"{path} has {len(synsets)} labels for {wanted} validation images"
        for number, line in enumerate(lines, start=1):
            if len(line.split()) > 1:
                text += f"; line {number} is no single synset: {line[:60]!r}"
                break
        raise RawError(text)
    return synsets
