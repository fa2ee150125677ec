"""Image preprocessing: crop, mirror, change colours, and normalize for the model.

The random numbers of a batch are drawn at once, and depend on a seed alone. A step of a run
therefore gets the same images each time it is repeated.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

# Mean and standard deviation of all training pixels, in levels of 0..255: red, green, blue.
MEAN = np.array([121, 115, 100], np.float32)
DEVIATION = np.array([70, 68, 71], np.float32)

CENTRAL = 0.8  # share of each side that evaluation uses
LEAST_AREA = 0.1  # smallest training crop, as a share of the image
ASPECTS = (3 / 4, 4 / 3)  # range of width / height of a training crop

# RGB to YIQ (FCC NTSC, https://en.wikipedia.org/wiki/YIQ): brightness, and two axes of colour.
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclasses.dataclass(frozen=True)
class Color:
    """The limits of random colour changes (`--increased_aug`).

    Brightness: levels of 255 that are added or subtracted. The original program's 0.3, kept here,
    is invisible. Contrast and saturation: a value c gives a factor from c to 2 - c. Hue: a rotation
    of up to hue x pi.
    """

    brightness: float = 0.3
    contrast: float = 0.6
    saturation: float = 0.6
    hue: float = 0.13


def draw(count: int, seed: Any, color: Color | None) -> dict[str, Any]:
    """Draw the random changes of `count` images. Return tensors whose first axis is the image.

    "box" [count, 4]: top, left, bottom, right as shares of the image. "mirrored" [count]: booleans.
    With `color` also "matrix" [count, 3, 3], "contrast" [count] and "brightness" [count], which
    `recolored` applies.
    """
    columns = tf.unstack(tf.random.stateless_uniform([9, count], seed))
    drawn = {"box": boxes(*columns[:4]), "mirrored": columns[4] < 0.5}
    if color:
        turn = between(columns[5], -color.hue * math.pi, color.hue * math.pi)
        saturation = between(columns[6], color.saturation, 2 - color.saturation)
        drawn["matrix"] = color_matrices(turn, saturation)
        drawn["contrast"] = between(columns[7], color.contrast, 2 - color.contrast)
        drawn["brightness"] = between(columns[8], -color.brightness, color.brightness)
    return drawn


def boxes(aspect: Any, height: Any, top: Any, left: Any) -> Any:
    """Return crops [n, 4], computed from random numbers of 0..1 in four tensors of shape [n].

    Aspect and height are uniform over the values that fit, as in
    tf.image.sample_distorted_bounding_box. Both refer to the image stretched to a square, because
    evaluation stretches it as well.
    """
    aspect = between(aspect, *ASPECTS)
    height = between(height, tf.sqrt(LEAST_AREA / aspect), tf.minimum(1.0, 1 / aspect))
    width = height * aspect
    top, left = top * (1 - height), left * (1 - width)
    return tf.stack([top, left, top + height, left + width], axis=1)


def central_box() -> Any:
    """Return the crop for evaluation: top, left, bottom, right as shares of the image."""
    margin = (1 - CENTRAL) / 2
    return tf.constant([margin, margin, 1 - margin, 1 - margin])


def color_matrices(turn: Any, saturation: Any) -> Any:
    """Return matrices [n, 3, 3] that rotate hues (radians) and scale saturations, both [n].

    In YIQ, hue is a rotation of the plane of the two colour axes, and saturation scales this plane.
    Greys do not change.
    """
    cosine, sine = saturation * tf.cos(turn), saturation * tf.sin(turn)
    one, zero = tf.ones_like(turn), tf.zeros_like(turn)
    rows = [[one, zero, zero], [zero, cosine, -sine], [zero, sine, cosine]]
    turned = tf.stack([tf.stack(row, axis=-1) for row in rows], axis=-2)
    to_yiq = tf.constant(YIQ, tf.float32)
    from_yiq = tf.constant(np.linalg.inv(YIQ), tf.float32)
    return from_yiq @ turned @ to_yiq


def cropped(jpeg: Any, box: Any, size: int) -> Any:
    """Return the box of a JPEG as [size, size, 3] float32 levels of 0..255, resized bilinearly.

    Only the box is decoded. Its corners are rounded to whole pixels.
    """
    # The size comes from the JPEG: a record's image/height and image/width may be out of date.
    last = tf.image.extract_jpeg_shape(jpeg)[:2] - 1
    corners = tf.round(box * tf.cast(tf.tile(last, [2]), tf.float32))
    corners = tf.cast(corners, tf.int32)
    window = tf.concat([corners[:2], corners[2:] - corners[:2] + 1], axis=0)
    image = tf.io.decode_and_crop_jpeg(jpeg, window, channels=3)
    # Corner pixels are mapped to corner pixels, as by tf.image.crop_and_resize, in half the time.
    return tf.raw_ops.ResizeBilinear(images=image[None], size=[size, size], align_corners=True)[0]


def recolored(image: Any, matrix: Any, contrast: Any, brightness: Any) -> Any:
    """Return the image [h, w, 3] after the colour matrix, then brightness, then contrast.

    Contrast scales the distance of levels from the mean of their channel. All three changes are
    linear, so one matrix and one offset apply them together. The result is clipped to 0..255.
    """
    pixels = tf.reshape(image, [-1, 3])
    mean = tf.linalg.matvec(matrix, tf.reduce_mean(pixels, axis=0))
    offset = (1 - contrast) * mean + brightness
    moved = tf.matmul(pixels, contrast * matrix, transpose_b=True) + offset
    return tf.reshape(tf.clip_by_value(moved, 0.0, 255.0), tf.shape(image))


def altered(jpeg: Any, drawn: dict[str, Any], size: int) -> Any:
    """Return one training image [size, size, 3] (uint8) with the changes from `draw`."""
    image = cropped(jpeg, drawn["box"], size)
    if "matrix" in drawn:
        image = recolored(image, drawn["matrix"], drawn["contrast"], drawn["brightness"])
    image = levels(image)
    return tf.cond(drawn["mirrored"], lambda: tf.reverse(image, axis=[1]), lambda: image)


def levels(image: Any) -> Any:
    """Round numbers of 0..255 to uint8."""
    return tf.cast(image + 0.5, tf.uint8)


def normalized(images: Any, channels_first: bool, dtype: Any) -> Any:
    """Convert a batch [n, h, w, 3] of levels to model input: mean 0, deviation 1 per channel."""
    # Rows as a whole: a broadcast over the 3 channels alone would not use the vector units.
    width = images.shape[2]
    rows = tf.reshape(tf.cast(images, tf.float32), [-1, width * 3])
    rows = (rows - np.tile(MEAN, width)) * np.tile(1 / DEVIATION, width)
    batch = tf.cast(tf.reshape(rows, tf.shape(images)), dtype)
    batch.set_shape(images.shape)  # reshape to a tensor's shape forgets the static one
    return tf.transpose(batch, [0, 3, 1, 2]) if channels_first else batch


def between(share: Any, low: Any, high: Any) -> Any:
    return low + share * (high - low)
