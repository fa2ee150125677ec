"""Reads our records by TensorFlow, and its records by ours: records_facts.py SHARDS RAW SCRATCH."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.append(str(Path(__file__).parents[2] / "utils"))

import numpy as np
import tensorflow as tf
from google_crc32c import value as crc32c
from records import decode_example, encode_example, read_records, write_record

SPEC = {
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
    "image/channels": tf.io.FixedLenFeature([], tf.int64),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/colorspace": tf.io.FixedLenFeature([], tf.string),
    "image/class/synset": tf.io.FixedLenFeature([], tf.string),
    "image/format": tf.io.FixedLenFeature([], tf.string),
    "image/filename": tf.io.FixedLenFeature([], tf.string),
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
}
FEATURES: dict[str, Any] = {
    "ints": [0, 1, -1, 127, 128, 2**63 - 1, -(2**63)],
    "floats": [0.0, -1.5, 3.25, float("inf")],
    "bytes": [b"", b"\x00\xff", "ü".encode(), b"x" * 70_000],
    "none": [],
    "ü name": [b"1"],
}


def main() -> None:
    shards, raw, scratch = map(Path, sys.argv[1:])
    facts = {
        "images": images(shards, raw),
        "ours_read_by_them": ours_read_by_them(scratch),
        "theirs_read_by_us": theirs_read_by_us(scratch),
        "crc": [crc32c(b"123456789"), crc32c(b""), crc32c(bytes(32)), crc32c(b"\xff" * 32)],
    }
    print("FACTS " + json.dumps(facts))


def images(shards: Path, raw: Path) -> list[dict[str, Any]]:
    """Return the features of every record, and the difference of its pixels from the raw file's."""
    found = []
    for path in sorted(shards.glob("*-of-*")):
        for record in tf.data.TFRecordDataset(str(path)):
            parsed = tf.io.parse_single_example(record, SPEC)
            row = {key: value.numpy() for key, value in parsed.items()}
            encoded = row.pop("image/encoded")
            texts = {key: value.decode() for key, value in row.items() if isinstance(value, bytes)}
            numbers = {key: int(value) for key, value in row.items() if key not in texts}
            pixels = decode(encoded)
            source = next(raw.rglob(texts["image/filename"])).read_bytes()
            distance = np.abs(decode(source).astype(int) - pixels).mean()
            found.append(
                {
                    **texts,
                    **numbers,
                    "file": path.name,
                    "shape": pixels.shape,
                    "same bytes": source == encoded,
                    "distance": float(distance),
                }
            )
    return found


def decode(data: bytes) -> Any:
    if data[1:4] == b"PNG":
        return tf.io.decode_png(data, channels=3).numpy()
    # The fast method has errors of 4 levels at quality 100.
    return tf.io.decode_jpeg(data, channels=3, dct_method="INTEGER_ACCURATE").numpy()


def ours_read_by_them(scratch: Path) -> bool:
    """Read records of all sizes. A wrong CRC would raise DataLossError."""
    rng = np.random.default_rng(0)
    records = [rng.bytes(n) for n in (0, 1, 3, 4, 63, 64, 65, 255, 256, 257, 1000, 70_001)]
    records.append(encode_example(FEATURES))
    path = scratch / "ours"
    with path.open("wb") as file:
        for record in records:
            write_record(file, record)
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(path))] == records
    assert list(read_records(path)) == records
    example = tf.train.Example.FromString(records[-1])
    return all(list_of(example, name) == values for name, values in FEATURES.items())


def list_of(example: Any, name: str) -> list[Any]:
    feature = example.features.feature[name]
    kind = feature.WhichOneof("kind")
    return list(getattr(feature, kind).value) if kind else []


def theirs_read_by_us(scratch: Path) -> bool:
    example = tf.train.Example()
    for name, values in FEATURES.items():
        feature = example.features.feature[name]
        kind = {int: "int64_list", float: "float_list", bytes: "bytes_list"}
        if values:
            getattr(feature, kind[type(values[0])]).value.extend(values)
    path = str(scratch / "theirs")
    with tf.io.TFRecordWriter(path) as writer:
        writer.write(example.SerializeToString())
    (record,) = read_records(Path(path))
    return decode_example(record) == FEATURES


if __name__ == "__main__":
    main()
