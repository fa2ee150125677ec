"""The versions of a trained model: folders MODEL_DIR/1, /2, ..., as for TensorFlow Serving."""

from __future__ import annotations

import json
import os
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np


def save(model: Any, model_dir: str | Path) -> Path:
    """Save a Keras model as the next version. Its folder appears when it is complete.

    The optimizer is not saved: it is Horovod's, and programs that load the model need not have
    Horovod. Raise OSError.
    """
    folder = Path(model_dir).expanduser()
    temporary = folder / f".saving-{os.getpid()}"
    try:
        model.save(temporary, include_optimizer=False, save_format="tf")
        version = folder / str(max(versions(folder), default=0) + 1)
        temporary.rename(version)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return version


def latest(model_dir: str | Path) -> Path | None:
    """Return the folder itself if it is a model, otherwise its newest version, otherwise None."""
    folder = Path(model_dir).expanduser()
    if (folder / "saved_model.pb").exists():
        return folder
    found = [folder / str(n) for n in versions(folder)]
    return max(
        (path for path in found if (path / "saved_model.pb").exists()),
        key=lambda path: int(path.name),
        default=None,
    )


def predict(model: Path, images: Any) -> Any:
    """Return the most probable class of each image."""
    import tensorflow as tf

    loaded = tf.keras.models.load_model(model, compile=False)
    return loaded.predict(images, batch_size=512, verbose=0).argmax(axis=1)


def predict_at(endpoint: str, images: Any, batch: int = 128) -> Any:
    """Return the most probable class of each image, as predicted by a model server.

    `endpoint` is http://HOST:PORT/v1/models/NAME. Raise OSError, or ValueError with the server's
    message.
    """
    classes: list[Any] = []
    for start in range(0, len(images), batch):
        body = json.dumps({"instances": images[start : start + batch].tolist()}).encode()
        try:
            with urllib.request.urlopen(f"{endpoint.rstrip('/')}:predict", body) as answer:
                predictions = json.load(answer)["predictions"]
        except urllib.error.HTTPError as refused:
            raise ValueError(f"{endpoint}: {refused.read().decode(errors='replace')}") from None
        classes += np.argmax(predictions, axis=1).tolist()
    return np.array(classes)


def versions(folder: Path) -> list[int]:
    """Return the numbers of all versions in a folder, in any order."""
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir()]
    return [int(name) for name in names if name.isascii() and name.isdigit() and name[0] != "0"]
