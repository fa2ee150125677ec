"""Pictures and records for the resizer's tests, and a slow reference of its scaling in float64."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def pixels(width: int, height: int, seed: int = 0, cell: int = 8) -> np.ndarray:
    """Return smooth colours with some noise, as in a photograph: (height, width, 3), uint8."""
    random = np.random.default_rng(seed)
    cells = (max(2, height // cell), max(2, width // cell), 3)
    coarse = random.integers(0, 256, cells, dtype=np.uint8)
    smooth = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    noisy = np.asarray(smooth).astype(float) + random.normal(0, 4, (height, width, 3))
    return noisy.clip(0, 255).astype(np.uint8)


def coded(image: Any, kind: str = "JPEG", **options: Any) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, kind, **options)
    return out.getvalue()


def decoded(encoded: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


def weights(source: int, target: int) -> np.ndarray:
    """Return weights (target, source): a triangle as wide as the ratio, at least one pixel.

    Rows sum to 1.
    """
    scale = source / target
    support = max(scale, 1.0)
    centres = (np.arange(target) + 0.5) * scale
    distance = np.abs(np.arange(source)[None, :] + 0.5 - centres[:, None]) / support
    triangle = np.maximum(0.0, 1.0 - distance)
    return triangle / triangle.sum(axis=1, keepdims=True)


def reference(image: np.ndarray, target: tuple[int, int]) -> np.ndarray:
    """Scale `image` to (width, height) with these weights in float64."""
    rows, columns = weights(image.shape[0], target[1]), weights(image.shape[1], target[0])
    return np.einsum("yh,hwc,xw->yxc", rows, image.astype(np.float64), columns, optimize=True)


def luma(image: np.ndarray) -> np.ndarray:
    """Return only the brightness: a JPEG halves the resolution of colours in any case."""
    return image.astype(float) @ np.array([0.299, 0.587, 0.114])


def psnr(one: np.ndarray, other: np.ndarray) -> float:
    """Return the PSNR in decibels, 99 for equal images."""
    error = np.mean((one.astype(float) - other.astype(float)) ** 2)
    return 99.0 if error == 0 else float(10 * np.log10(255**2 / error))


def record(encoded: bytes | None, **features: Any) -> bytes:
    """Return a serialized Example as of preprocess_imagenet.py, with `features` changed."""
    from tensorflow.core.example import example_pb2

    values: dict[str, Any] = {
        "image/height": 1,
        "image/width": 1,
        "image/channels": 3,
        "image/class/label": 7,
        "image/colorspace": b"RGB",
        "image/class/synset": b"n00000007",
        "image/format": b"JPEG",
        "image/filename": b"n00000007_1.JPEG",
        **({} if encoded is None else {"image/encoded": encoded}),
        **{key.replace("__", "/"): value for key, value in features.items()},
    }
    example = example_pb2.Example()
    for key, value in values.items():
        feature = example.features.feature[key]
        items = value if isinstance(value, list) else [value]
        if isinstance(items[0], bytes):
            feature.bytes_list.value.extend(items)
        elif isinstance(items[0], float):
            feature.float_list.value.extend(items)
        else:
            feature.int64_list.value.extend(items)
    return example.SerializeToString()


def features(record: bytes) -> dict[str, list[Any]]:
    from tensorflow.core.example import example_pb2

    found = {}
    for key, feature in example_pb2.Example.FromString(record).features.feature.items():
        kind = feature.WhichOneof("kind")
        found[key] = list(getattr(feature, kind).value) if kind else []
    return found
