"""Verification of a set of shards: CRCs, labels and image headers of all records, and counts."""

from __future__ import annotations

import io
import os
import warnings
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image
from processes import Count, each_done
from progress import Progress
from records import RecordError, count_records, decode_example, read_records
from shards import CLASSES, ShardError, shards_there

warnings.filterwarnings("ignore", module="PIL")  # warnings about EXIF data, which is not used

MOST_SHOWN = 10  # problems that are printed


@dataclass
class Checked:
    """The content of one shard or of all, and the problems in it. `is_whole`: it was read to its
    end, so `records` are all that it has."""

    records: int = 0
    is_whole: bool = True
    labels: Counter[int] = field(default_factory=Counter)
    names: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        text = f"{self.records:,} images of {len(self.labels)} classes"
        if not self.problems:
            return f"{text}: all is well"
        shown = "".join(f"\n  {problem}" for problem in self.problems[:MOST_SHOWN])
        more = len(self.problems) - MOST_SHOWN
        return f"{text}; problems:{shown}" + (f"\n  and {more} more" if more > 0 else "")


def verify(folder: Path, subset: str, processes: int = 1) -> Checked:
    """Read every record of a subset, and return what is wrong in the result's `problems`.

    Raises ShardError only if a process dies.
    """
    whole = Checked()
    try:
        found, missing = shards_there(folder, subset)
    except ShardError as error:
        whole.problems.append(str(error))
        return whole
    if missing:
        whole.problems.append(missing)
    paths = [path for path in found if path]
    progress = Progress(estimate(paths), f"{subset}: checking")
    parts: dict[int, Checked] = {}
    try:
        for index, part in each_done(
            check_shard, [str(path) for path in paths], processes, progress
        ):
            parts[index] = part
    finally:
        progress.close()
    for _, part in sorted(parts.items()):
        whole.records += part.records
        whole.labels += part.labels
        whole.problems += part.problems
    # Only the last shard of the set may differ, and it may be the missing one.
    alike = paths[:-1] if found[-1] else paths
    counted = [index for index in range(len(alike)) if parts[index].is_whole]
    whole.problems += uneven([parts[n].records for n in counted], [paths[n] for n in counted])
    names = Counter(name for part in parts.values() for name in part.names)
    whole.problems += [f"{name} is there {n} times" for name, n in names.items() if n > 1]
    return whole


def check_shard(path: str, count: Count) -> Checked:
    """Check every record of a shard. Damage is in the result's `problems`."""
    found = Checked()

    def counted(why: str) -> None:
        if why:
            found.problems.append(why)
        found.records += 1
        count(1)

    try:
        for record in read_records(Path(path), counted):
            why = check_record(record, found)
            counted(why and f"{path}, record {found.records}: {why}")
    except (RecordError, OSError) as error:
        found.problems.append(str(error))
        found.is_whole = False
    return found


def check_record(record: bytes, found: Checked) -> str:
    """Return what is wrong with a record, or "". Its name and label are added to `found`."""
    try:
        features = decode_example(record)
    except RecordError as error:
        return str(error)
    label, name = (features.get(f"image/{key}", []) for key in ("class/label", "filename"))
    encoded = features.get("image/encoded", [])
    if len(name) == 1 and isinstance(name[0], bytes) and name[0]:
        found.names.append(os.fsdecode(name[0]))
    if len(label) != 1 or not isinstance(label[0], int) or not 1 <= label[0] <= CLASSES:
        return f"its label is {label}, not 1 to {CLASSES}"
    found.labels[label[0]] += 1
    if len(encoded) != 1 or not isinstance(encoded[0], bytes):
        return "it has no image/encoded"
    return check_image(encoded[0], features)


def check_image(encoded: bytes, features: dict) -> str:
    """Compare an image's header with the features. Return what is wrong, or "".

    Pixels are not decoded: that was done when the shard was made.
    """
    try:
        with Image.open(io.BytesIO(encoded)) as image:
            kind, size, mode = image.format, image.size, image.mode
    except Exception:  # for a damaged file, decoders raise errors of any kind
        return "image/encoded is no image"
    if kind not in ("JPEG", "MPO") or mode not in ("RGB", "L"):
        return f"image/encoded is {kind} {mode}, not a JPEG of colours"
    said = [features.get("image/width"), features.get("image/height")]
    if said != [[size[0]], [size[1]]]:
        return f"the image is {size[0]}x{size[1]}, its features say {said[0]}x{said[1]}"
    return ""


def uneven(counts: list[int], paths: list[Path]) -> list[str]:
    """Return a problem for each of these shards with another count than the first of them.

    Trainers compute the total as records(first) x (shards - 1) + records(last).
    """
    return [
        f"{path} has {count} records, {paths[0].name} {counts[0]}: all but the last must be equal"
        for count, path in zip(counts, paths)
        if count != counts[0]
    ]


def estimate(paths: list[Path]) -> int:
    """Return the number of records for the progress line, from the first and the last shard."""
    if not paths:
        return 0
    try:
        return count_records(paths[0]) * (len(paths) - 1) + count_records(paths[-1])
    except (RecordError, OSError):
        return 0
