"""Parts of the preprocess benchmark that need the training environment.

bench_preprocess_peer.py make RAW IMAGES       write JPEGs like photographs as raw ImageNet
bench_preprocess_peer.py original RAW OUT      the original's way: one process, one image at a time
"""

from __future__ import annotations

import io
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

CLASSES = 8
KINDS = 64  # number of different pictures; the files repeat them
WIDTH, HEIGHT = 500, 375
FEATURES_OF_TEXT = {"colorspace": b"RGB", "format": b"JPEG"}


def make(raw: Path, images: int) -> dict[str, float]:
    """Write raw ImageNet with so many training images. Return their bytes."""
    import numpy as np

    rng = np.random.default_rng(0)
    pictures = [picture(rng) for _ in range(KINDS)]
    synsets = [f"n{index:08d}" for index in range(1, CLASSES + 1)]
    for index in range(images):
        folder = raw / "train" / synsets[index % CLASSES]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{folder.name}_{index}.JPEG").write_bytes(pictures[index % KINDS])
    (raw / "validation").mkdir()
    (raw / "validation" / "ILSVRC2012_val_00000001.JPEG").write_bytes(pictures[0])
    (raw / "synset_labels.txt").write_text(f"{synsets[0]}\n")
    return {"bytes": sum(len(pictures[index % KINDS]) for index in range(images))}


def picture(rng: Any) -> bytes:
    """Return a JPEG of about 100 kB: noise of all scales, stronger at coarse ones, as in photos."""
    import numpy as np
    from PIL import Image

    pixels = np.full((HEIGHT, WIDTH, 3), 128.0)
    for cells in (4, 8, 16, 32, 64, 128, 256, 512):
        noise = rng.normal(0, 150 / cells**0.4, (cells * 3 // 4, cells, 3))
        for channel in range(3):
            layer = Image.fromarray(noise[..., channel].astype(np.float32))
            pixels[..., channel] += layer.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
    image.save(buffer, "JPEG", quality=92)
    return buffer.getvalue()


def original(raw: Path, out: Path) -> dict[str, float]:
    """Preprocess the images in the original's way. Return the images/s."""
    import tensorflow as tf

    v1 = tf.compat.v1
    v1.disable_eager_execution()
    encoded = v1.placeholder(tf.string)
    decoded = tf.io.decode_jpeg(encoded, channels=3)
    paths = sorted((raw / "train").glob("*/*.JPEG"))
    random.Random(0).shuffle(paths)
    out.mkdir(parents=True)
    with v1.Session() as session:
        session.run(decoded, {encoded: paths[0].read_bytes()})
        began = time.monotonic()
        each = -(-len(paths) // 8)
        for shard in range(8):
            with tf.io.TFRecordWriter(str(out / f"train-{shard:05d}-of-00008")) as writer:
                for path in paths[shard * each : (shard + 1) * each]:
                    data = path.read_bytes()
                    height, width, _ = session.run(decoded, {encoded: data}).shape
                    writer.write(example(tf, path, data, height, width).SerializeToString())
        took = time.monotonic() - began
    return {"images_per_s": len(paths) / took}


def example(tf: Any, path: Path, data: bytes, height: int, width: int) -> Any:
    label = int(path.parent.name[1:])
    numbers = {"height": height, "width": width, "channels": 3, "class/label": label}
    texts = {
        **FEATURES_OF_TEXT,
        "class/synset": path.parent.name.encode(),
        "filename": path.name.encode(),
        "encoded": data,
    }
    features = {
        f"image/{name}": tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
        for name, value in numbers.items()
    }
    features.update(
        (f"image/{name}", tf.train.Feature(bytes_list=tf.train.BytesList(value=[value])))
        for name, value in texts.items()
    )
    return tf.train.Example(features=tf.train.Features(feature=features))


if __name__ == "__main__":
    part, *rest = sys.argv[1:]
    if part == "make":
        print(json.dumps(make(Path(rest[0]), int(rest[1]))))
    else:
        print(json.dumps(original(Path(rest[0]), Path(rest[1]))))
