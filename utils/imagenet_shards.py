"""Making the shards of a subset of ImageNet: the place of each image, and corrupt images.

All shards but the last must have the same number of records, but a corrupt image is detected only
when it is decoded. So a shard with a corrupt image is not kept. After all shards have been tried,
the last images in the order replace the corrupt ones, and the few affected shards are made again.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from image_record import CorruptImage, image_features
from processes import Count
from raw_images import RawImage, read_image
from records import encode_example, write_record
from shard_jobs import Job, Made, Summary, make_shards
from shards import ShardError, fingerprint, shard_name, shards_in, share_out, write_list

FORMAT = "imagenet records, 1"  # part of every fingerprint: change it when the records change
OVERHEAD_BYTES = 512  # estimate of a record's size without its image


@dataclass(frozen=True)
class Corrupt:
    """An image that cannot be decoded. `stamp` is RawImage.stamp, and `why` the error."""

    synset: str
    stamp: tuple[str, int, int]
    why: str


@dataclass(frozen=True)
class Built:
    """The result of making a subset, with the summaries of the first and the last round."""

    first: Summary
    last: Summary
    corrupt: tuple[Corrupt, ...]
    listed: Path  # the file that lists the corrupt images


def build(
    images: Sequence[RawImage],
    labels: dict[str, int],
    folder: Path,
    subset: str,
    shards: int,
    *,
    processes: int,
    force: bool = False,
) -> Built:
    """Make all shards of a subset. Raise ShardError, OSError or KeyboardInterrupt.

    With `force`, existing shards are replaced and images found corrupt earlier are tried again.
    """
    listed = folder / f"corrupt-images-{subset}.txt"
    known = {} if force else read_corrupt(listed)
    corrupt = {image: known[key] for image in images if (key := key_of(image)) in known}
    ordered = in_order(images, subset)
    folder.mkdir(parents=True, exist_ok=True)
    first: Summary | None = None
    while True:
        kept = without(ordered, set(corrupt))
        jobs = plan(kept, labels, folder, subset, shards)
        summary = make_shards(jobs, make_shard, processes=processes, force=force, title=subset)
        first = first or summary
        new = dict(summary.left_out)
        for image in kept:
            if (why := new.get(title(image))) is not None:
                corrupt[image] = why
        found = tuple(Corrupt(i.synset, i.stamp, why) for i, why in sorted(corrupt.items()))
        write_corrupt(listed, found)
        if not new:
            return Built(first, summary, found, listed)


def in_order(images: Sequence[RawImage], subset: str) -> list[RawImage]:
    """Return training images shuffled, always in the same way, and others by name."""
    ordered = list(images)
    if subset == "train":
        random.Random(0).shuffle(ordered)
    return ordered


def without(ordered: Sequence[RawImage], corrupt: set[RawImage]) -> list[RawImage]:
    """Return `ordered` without the corrupt images.

    The last images take the places of the corrupt ones, so that few shards change.
    """
    good = [image for image in ordered if image not in corrupt]
    if not corrupt:
        return good
    length = len(good)
    spare = iter([image for image in ordered[length:] if image not in corrupt])
    return [next(spare) if image in corrupt else image for image in ordered[:length]]


def plan(
    ordered: Sequence[RawImage], labels: dict[str, int], folder: Path, subset: str, shards: int
) -> list[Job]:
    """Return a job for each shard. `labels` has the label of each synset."""
    jobs, at = [], 0
    for index, count in enumerate(share_out(len(ordered), shards)):
        task = [(image, labels[image.synset]) for image in ordered[at : at + count]]
        at += count
        made_from = fingerprint([(image.synset, *image.stamp, label) for image, label in task])
        shard = folder / shard_name(subset, index, shards)
        jobs.append(Job(shard, count, fingerprint(FORMAT), made_from, task))
    return jobs


def make_shard(task: list[tuple[RawImage, int]], path: Path, count: Count) -> Made:
    """Write the images of `task` to `path`.

    After a corrupt image the others are only checked, since the shard is not kept.
    """
    corrupt = []
    with path.open("wb") as file:
        for image, label in task:
            try:
                if image.problem:
                    raise CorruptImage(image.problem)
                features = image_features(read_image(image), image.name, image.synset, label)
                if not corrupt:
                    write_record(file, encode_example(features))
            except CorruptImage as error:
                corrupt.append((title(image), str(error)))
            count(1)
    return Made(len(task) - len(corrupt), tuple(corrupt), keep=not corrupt)


def title(image: RawImage) -> str:
    return f"{image.synset}/{image.name}"


def key_of(image: RawImage) -> tuple[str, tuple[str, int, int]]:
    """Return the key that identifies an image in the list of corrupt images."""
    return image.synset, image.stamp


def read_corrupt(path: Path) -> dict[tuple[str, tuple[str, int, int]], str]:
    """Return the images that an earlier run found corrupt, with the reasons.

    The key has the image's size and time, so an image that was replaced meanwhile does not match.
    """
    found = {}
    text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    for line in text.splitlines():
        words = line.split("\t")
        if len(words) == 4 and words[1].isdigit() and words[2].isdigit():
            synset, _, name = words[0].partition("/")
            found[synset, (name, int(words[1]), int(words[2]))] = words[3]
    return found


def write_corrupt(path: Path, corrupt: Sequence[Corrupt]) -> None:
    """Write the list of corrupt images, or remove the file if there are none."""
    lines = ["# image\tbytes\tseconds since 1970\twhy it is left out"] if corrupt else []
    for one in corrupt:
        name, size, modified = one.stamp
        why = " ".join(one.why.split())
        lines.append(f"{one.synset}/{name}\t{size}\t{modified}\t{why}")
    write_list(path, lines)


def refuse_full_disk(subsets: Mapping[str, Sequence[RawImage]], folders: Sequence[Path]) -> None:
    """Raise ShardError if the disk has no room for the shards, before hours are spent on them.

    There is one folder for each subset, all on one disk. Existing shards count as room.
    """
    needed = 0
    for (subset, images), folder in zip(subsets.items(), folders):
        there = sum(path.stat().st_size for path in shards_in(folder, subset).values())
        needed += max(0, sum(image.size + OVERHEAD_BYTES for image in images) - there)
    folders[0].mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folders[0]).free
    if free < needed:
        raise ShardError(
            f"{folders[0]} has {free / 1e9:.3g} GB free, and the shards take {needed / 1e9:.3g} GB"
        )
