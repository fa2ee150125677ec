"""Measures the trainer's input pipeline, in the training environment, and prints facts as JSON.

imagenet_data_facts.py TRAINER works in the current folder.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path.insert(0, str(Path(sys.argv[1]).parent))

import augment  # noqa: E402
import data  # noqa: E402
import numpy as np  # noqa: E402
import records  # noqa: E402
import tensorflow as tf  # noqa: E402
from PIL import Image  # noqa: E402

RNG = np.random.default_rng(1)
COMMON = {"batch_size": 4, "image_size": 32, "threads": 2, "channels_first": False}
TRAINING = {**COMMON, "seed": 3, "color": None, "dtype": tf.uint8}


def jpeg(width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    coarse = RNG.integers(0, 256, (6, 5, 3), np.uint8)
    buffer = io.BytesIO()
    picture = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    picture.convert(mode).save(buffer, "JPEG", quality=90, **options)
    return buffer.getvalue()


def record(encoded: bytes, label: int) -> bytes:
    features = {
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def write(path: Path, examples: list[tuple[bytes, int]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as file:
        for encoded, label in examples:
            file.write(record(encoded, label))


def write_set(folder: Path) -> list[str]:
    """Write four files of 10, 10, 10 and 7 images. Each label is used once."""
    labels = itertools.count(1)
    for index, count in enumerate((10, 10, 10, 7)):
        size = (40 + 5 * index, 50 - 3 * index)
        examples = [(jpeg(*size), next(labels)) for _ in range(count)]
        write(folder / f"train-{index:05}-of-00004", examples)
    return data.files_of(str(folder), "train")


def said(work: Callable[[], Any]) -> str:
    """Return the result of a call, or the text of its error."""
    try:
        return str(work())
    except data.DataError as error:
        return f"DataError: {error}"
    except tf.errors.OpError as error:
        return f"OpError: {data.reason(error)}"


def seen(batches: tf.data.Dataset, count: int) -> list[tuple[str, list[int]]]:
    """Return, for each batch, a digest of its images, and its labels."""
    return [
        (hashlib.sha256(images.numpy().tobytes()).hexdigest(), labels.numpy().tolist())
        for images, labels in batches.take(count)
    ]


def file_sets() -> dict[str, str]:
    """Return what the trainer reports about folders with these files."""
    whole = [f"train-{index:05}-of-00003" for index in range(3)]
    sets = {
        "from 0": whole,
        "from 1": [f"train-{index:05}-of-00003" for index in (1, 2, 3)],
        "with others": [*whole, "train-00000-of-00003.tmp", "xtrain-00000-of-00009", "train-x"],
        "one missing": whole[:2],
        "two missing": whole[1:2],
        "both": [*whole, "train-00003-of-00003"],
        "two sets": [*whole, "train-00000-of-00004"],
        "beyond": [*whole, "train-00007-of-00003"],
        "none": ["validation-00000-of-00001"],
        "a folder of its own": ["train/train-00000-of-00001"],
        "spaces and [*] \u00e9": whole,
    }
    found = {}
    for name, files in sets.items():
        for file in files:
            path = Path("sets", name, file)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        found[name] = said(lambda name=name: len(data.files_of(f"sets/{name}/", "train")))
    found["no folder"] = said(lambda: data.files_of("sets/nowhere", "train"))
    found["no scheme"] = said(lambda: data.files_of("nothing://bucket/data", "train"))
    return found


def counts(files: list[str]) -> dict[str, str]:
    """Return the numbers of records in the set and in damaged files."""
    content = Path(files[0]).read_bytes()
    found = {"set": said(lambda: data.count_records(files))}
    damaged = {
        "empty": b"",
        "cut in the data": content[:-9],
        "cut in a length": content + b"\x07\0\0",
        "no records": b"no records at all, but text",
    }
    for name, damage in damaged.items():
        Path(name).write_bytes(damage)
        found[name] = said(lambda name=name: data.count_records([name]))
    found["missing"] = said(lambda: data.count_records(["missing"]))
    remote = f"file://{Path(files[0]).resolve()}"
    found["remote"] = said(lambda: records.records_in(remote))
    return found


def bilinear(image: np.ndarray, box: list[float], size: int) -> np.ndarray:
    """Return a reference crop in float64: corners rounded, corner pixels on corner pixels."""
    planes = np.asarray(image, np.float64)
    for axis in (0, 1):
        ends = np.rint(np.float32(box)[axis::2] * np.float32(image.shape[axis] - 1))
        at = np.linspace(*ends, size)
        low = np.minimum(np.floor(at).astype(int), image.shape[axis] - 1)
        high = np.minimum(low + 1, image.shape[axis] - 1)
        share = np.expand_dims(at - low, [1 - axis, 2])
        planes = np.take(planes, low, axis) * (1 - share) + np.take(planes, high, axis) * share
    return planes


def crop_errors() -> dict[str, float]:
    """Return the largest differences in levels from NumPy, and from Pillow's decoder.

    If the JPEG's colours have half the resolution, pixels at the edges of a crop lack a neighbour.
    """
    images = {
        "4:2:0": jpeg(101, 67),
        "4:4:4": jpeg(64, 90, subsampling=0),
        "progressive": jpeg(75, 50, progressive=True),
        "grey": jpeg(53, 71, "L"),
    }
    boxes = [[0, 0, 1, 1], [0.1, 0.1, 0.9, 0.9], [0.31, 0.47, 0.99, 0.83], [0.5, 0, 0.51, 0.02]]
    errors: dict[str, float] = {}
    for (name, encoded), box in itertools.product(images.items(), boxes):
        ours = augment.cropped(encoded, tf.constant(box, tf.float32), 24).numpy()
        whole = tf.io.decode_jpeg(encoded, channels=3).numpy()
        apart = np.abs(ours - bilinear(whole, box, 24))
        inside = apart[1:-1, 1:-1].max() if box[3] - box[1] > 0.1 else 0.0
        errors[name] = max(errors.get(name, 0.0), float(inside))
        errors["edges"] = max(errors.get("edges", 0.0), float(apart.max()))
    ours = augment.cropped(images["4:4:4"], augment.central_box(), 24).numpy()
    pillow = np.asarray(Image.open(io.BytesIO(images["4:4:4"])))
    errors["Pillow"] = float(np.abs(ours - bilinear(pillow, [0.1, 0.1, 0.9, 0.9], 24)).max())
    return errors


def color_error() -> float:
    """Return the largest difference in levels from the separate steps in float64."""
    drawn = augment.draw(5, tf.constant([4, 2]), data.Color(40.0, 0.6, 0.6, 0.13))
    images = RNG.uniform(0, 255, (5, 7, 9, 3))
    most = 0.0
    for number, image in enumerate(images):
        one = {name: values[number] for name, values in drawn.items()}
        ours = augment.recolored(
            tf.constant(image, tf.float32), one["matrix"], one["contrast"], one["brightness"]
        )
        plane = np.array(one["matrix"], np.float64)
        yiq = augment.YIQ @ plane @ np.linalg.inv(augment.YIQ)
        saturation = np.hypot(yiq[1, 1], yiq[2, 1])
        turn = np.arctan2(yiq[2, 1], yiq[1, 1])
        assert 0.6 <= saturation <= 1.4
        assert abs(turn) <= 0.13 * np.pi
        bright = image + float(one["brightness"])
        y, i, q = np.moveaxis(bright @ augment.YIQ.T, -1, 0)
        chroma = (i + 1j * q) * saturation * np.exp(1j * turn)
        turned = np.stack([y, chroma.real, chroma.imag], -1) @ np.linalg.inv(augment.YIQ).T
        mean = turned.mean((0, 1))
        expected = ((turned - mean) * float(one["contrast"]) + mean).clip(0, 255)
        most = max(most, float(np.abs(ours.numpy() - expected).max()))
    return most


def crops_drawn() -> dict[str, float]:
    """Return limits and means of crops, and those of TensorFlow's own operation."""
    top, left, bottom, right = np.array(augment.draw(20000, tf.constant([1, 2]), None)["box"]).T
    high, wide = bottom - top, right - left

    def theirs(number: tf.Tensor) -> tf.Tensor:
        return tf.image.stateless_sample_distorted_bounding_box(
            [280, 280, 3],
            [[[0.0, 0.0, 1.0, 1.0]]],
            tf.stack([number, 7]),
            min_object_covered=0.1,
            aspect_ratio_range=(3 / 4, 4 / 3),
            area_range=(0.08, 1.0),
        )[2][0, 0]

    other = np.array(list(tf.data.Dataset.range(6000).map(theirs).as_numpy_iterator()))
    area = (other[:, 2] - other[:, 0]) * (other[:, 3] - other[:, 1])
    return {
        "least": float(min(top.min(), left.min())),
        "most": float(max(bottom.max(), right.max())),
        "least_area": float((high * wide).min()),
        "least_aspect": float((wide / high).min()),
        "most_aspect": float((wide / high).max()),
        "area": float((high * wide).mean()),
        "their_area": float(area.mean()),
        "top": float(top.mean()),
        "their_top": float(other[:, 0].mean()),
    }


def order(files: list[str]) -> dict[str, Any]:
    """Return an uninterrupted run, and whether runs that start later equal the rest of it."""
    data.BLOCK = 8  # so that an epoch has several blocks

    def run(first: int, **changes: Any) -> list[tuple[str, list[int]]]:
        asked = {**TRAINING, "rank": 0, "size": 1, "first_step": first, **changes}
        return seen(data.training_batches(files, **asked), 20 - first)

    whole = run(0)
    tf.random.set_seed(0)
    begun = {first: run(first, threads=1) == whole[first:] for first in (0, 1, 5, 9, 10, 19)}
    colored = run(0, color=data.Color())
    facts: dict[str, Any] = {"begun": begun, "labels": [labels for _, labels in whole]}
    facts["colors_change_images"] = all(a != b for (a, _), (b, _) in zip(whole, colored))
    facts["colors_keep_order"] = [labels for _, labels in colored] == facts["labels"]
    facts["another_seed"] = run(0, seed=4)[0] != whole[0]
    halves = [run(0, rank=rank, size=2) for rank in range(2)]
    facts["halves"] = [sorted({n for _, part in half for n in part}) for half in halves]
    facts["too_few"] = said(lambda: run(0, rank=4, size=5))
    return facts


def streams() -> dict[str, Any]:
    """Return the errors of Order in random cases, and the epochs that a rank needs for all records.

    A case has files with random numbers of records, one of a random number of ranks, and a random
    block size, seed and place of resumption. The content of a record is its name.
    """
    random = np.random.default_rng(20)
    wrong, cases, (block, opened) = [], 8, (data.BLOCK, data.OPEN_FILES)
    for case in range(cases):
        counts = random.integers(0, 14, random.integers(1, 10)).tolist()
        size = int(random.integers(1, len(counts) + 1))
        rank = int(random.integers(size))
        counts[rank] += 1  # because a share without a record is refused
        own = [f"{f}-{n}" for f in range(rank, len(counts), size) for n in range(counts[f])]
        files = named_records(Path("streams", str(case)), counts)
        data.BLOCK, data.OPEN_FILES = map(int, random.integers(1, [20, 9]))
        order = data.Order(files[rank::size], [int(random.integers(99)), rank])
        whole = names(order, 0, 3 * len(own))
        passes = [whole[at : at + len(own)] for at in range(0, len(whole), len(own))]
        first = int(random.integers(1, len(whole)))
        if (
            any(sorted(each) != sorted(own) for each in passes)
            or names(order, first, len(whole) - first) != whole[first:]
            or (min(len(own), data.BLOCK) > 5 and passes[0] == passes[1])
        ):
            wrong.append({"counts": counts, "rank": f"{rank} of {size}", "first": first})
    data.BLOCK, data.OPEN_FILES = block, opened
    imagenet = {str(size): epochs_to_see_all(size) for size in (128, 160, 256)}
    return {"wrong": wrong, "cases": cases, "imagenet": imagenet}


def epochs_to_see_all(size: int) -> int:
    """Return the epochs until rank 0 has seen all records of its share of ImageNet's files."""
    per_epoch = 1_281_167 // (size * 256) * 256
    counts = [1252] * len(range(0, 1024, size))
    order = data.Order(named_records(Path("imagenet", str(size)), counts), [1, 0])
    told = names(order, 0, 3 * per_epoch)
    epochs = [told[:end] for end in range(per_epoch, len(told) + 1, per_epoch)]
    all_seen = (n for n, seen in enumerate(epochs, 1) if len(set(seen)) == sum(counts))
    return next(all_seen, 0)


def named_records(folder: Path, counts: list[int]) -> list[str]:
    """Write files with these numbers of records. A record is its file's number and its own."""
    folder.mkdir(parents=True)
    for index, count in enumerate(counts):
        with tf.io.TFRecordWriter(str(folder / str(index))) as file:
            for number in range(count):
                file.write(f"{index}-{number}")
    return [str(folder / str(index)) for index in range(len(counts))]


def names(order: Any, first: int, count: int) -> list[str]:
    batches = order.records(first).take(count).batch(256)
    return [name.decode() for batch in batches.as_numpy_iterator() for name in batch]


def damage(files: list[str]) -> dict[str, Any]:
    """Return the errors of damaged records, and whether a skipped record is not decoded."""

    def first(name: str, examples: list[tuple[bytes, int]], first_step: int = 0) -> str:
        write(Path(name), examples)
        asked = {**TRAINING, "rank": 0, "size": 1, "batch_size": 1}

        def labels() -> list[list[int]]:
            batches = data.training_batches([name], first_step=first_step, **asked)
            return [labels.numpy().tolist() for _, labels in batches.take(1)]

        return said(labels)

    good, bad = (jpeg(40, 40), 5), (b"\xff\xd8 no JPEG", 6)
    both = [first("bad", [good, bad], step) for step in range(6)]
    facts = {"both": both, "label": first("label", [(jpeg(40, 40), 0)])}
    facts["label_1001"] = first("label", [(jpeg(40, 40), 1001)])
    facts["cut"] = first("cut", [(jpeg(60, 60)[:200], 5)])
    facts["empty"] = first("empty", [])
    content = bytearray(Path(files[0]).read_bytes())
    content[200] ^= 1
    Path("flipped").write_bytes(content)
    asked = {**COMMON, "dtype": tf.uint8, "rank": 0, "size": 1}
    facts["flipped"] = said(lambda: seen(data.evaluation_batches(["flipped"], **asked), 9))
    return facts


def evaluation(files: list[str]) -> dict[str, Any]:
    """Return the labels of all ranks for several sizes, and the shapes and values of batches."""

    def run(**changes: Any) -> tf.data.Dataset:
        asked = {**COMMON, "dtype": tf.uint8, "rank": 0, "size": 1, **changes}
        return data.evaluation_batches(files, **asked)

    facts: dict[str, Any] = {}
    for size in (1, 2, 3, 5):
        parts = [seen(run(rank=rank, size=size), 99) for rank in range(size)]
        facts[str(size)] = sorted(n for part in parts for _, labels in part for n in labels)
    levels = next(iter(run()))[0]
    facts["shapes"] = [images.shape[0] for images, _ in run()]
    facts["static"] = run(dtype=tf.float16, channels_first=True).element_spec[0].shape.as_list()
    for name, dtype in (("float32", tf.float32), ("float16", tf.float16)):
        images = next(iter(run(dtype=dtype, channels_first=True)))[0]
        assert images.dtype == dtype
        expected = (levels.numpy() - np.float64([121, 115, 100])) / [70, 68, 71]
        apart = np.abs(images.numpy() - expected.transpose(0, 3, 1, 2)).max()
        facts[name] = float(apart)
    return facts


def main() -> None:
    tf.get_logger().setLevel("ERROR")
    files = write_set(Path("a data set"))
    facts = {"sets": file_sets(), "counts": counts(files), "crops": crop_errors()}
    facts |= {"color": color_error(), "drawn": crops_drawn(), "evaluation": evaluation(files)}
    facts |= {"damage": damage(files), "order": order(files), "streams": streams()}
    print("FACTS " + json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
