"""What is done to an image: the crop, the mirror, the colours, and the numbers a model takes.

Everything random is drawn for a whole batch at once and from a seed alone, so that the same step
of the same run sees the same images however often it is repeated.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import tensorflow as tf

# Of all pixels of the training set, in levels of 0..255: red, green, blue.
MEAN = np.array([121, 115, 100], np.float32)
DEVIATION = np.array([70, 68, 71], np.float32)

CENTRAL = 0.8  # the share of each side that evaluation looks at
LEAST_AREA = 0.1  # of the whole image, for training
ASPECTS = (3 / 4, 4 / 3)

# https://en.wikipedia.org/wiki/YIQ (FCC NTSC): brightness, and the two axes of colour.
YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])


@dataclasses.dataclass(frozen=True)
class Color:
    """How far colours move at most (`--increased_aug`).

    Brightness: levels of 255 added or taken, as in the original program, whose 0.3 no eye sees.
    Contrast and saturation c: a factor of c to 2 - c. Hue: a turn of up to hue x pi.
    """

    brightness: float = 0.3
    contrast: float = 0.6
    saturation: float = 0.6
    hue: float = 0.13


def draw(count: int, seed: Any, color: Color | None) -> dict[str, Any]:
    """What happens to each of `count` images: tensors whose first axis is the image.

    "box" [count, 4]: top, left, bottom, right as shares of the image. "mirrored" [count].
    With `color` also "matrix" [count, 3, 3], "contrast" [count] and "brightness" [count].
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
    """Crops [n, 4] from four random numbers of 0..1 each, all of shape [n].

    Aspect and height are even over what fits, as tf.image.sample_distorted_bounding_box has it.
    Both count in a square that the image is stretched to, since evaluation stretches it as well.
    """
    aspect = between(aspect, *ASPECTS)
    height = between(height, tf.sqrt(LEAST_AREA / aspect), tf.minimum(1.0, 1 / aspect))
    width = height * aspect
    top, left = top * (1 - height), left * (1 - width)
    return tf.stack([top, left, top + height, left + width], axis=1)


def central_box() -> Any:
    margin = (1 - CENTRAL) / 2
    return tf.constant([margin, margin, 1 - margin, 1 - margin])


def color_matrices(turn: Any, saturation: Any) -> Any:
    """Matrices [n, 3, 3] that turn hues by radians and scale saturations, both of shape [n].

    In YIQ both are one turned and scaled plane; greys stay as they are.
    """
    cosine, sine = saturation * tf.cos(turn), saturation * tf.sin(turn)
    one, zero = tf.ones_like(turn), tf.zeros_like(turn)
    rows = [[one, zero, zero], [zero, cosine, -sine], [zero, sine, cosine]]
    turned = tf.stack([tf.stack(row, axis=-1) for row in rows], axis=-2)
    to_yiq = tf.constant(YIQ, tf.float32)
    from_yiq = tf.constant(np.linalg.inv(YIQ), tf.float32)
    return from_yiq @ turned @ to_yiq


def cropped(jpeg: Any, box: Any, size: int) -> Any:
    """The box of a JPEG as [size, size, 3] float32 levels of 0..255, bilinear.

    Only the box is decoded; its corners are rounded to whole pixels.
    """
    # The features image/height and image/width may be older than the image: ask the image itself.
    last = tf.image.extract_jpeg_shape(jpeg)[:2] - 1
    corners = tf.round(box * tf.cast(tf.tile(last, [2]), tf.float32))
    corners = tf.cast(corners, tf.int32)
    window = tf.concat([corners[:2], corners[2:] - corners[:2] + 1], axis=0)
    image = tf.io.decode_and_crop_jpeg(jpeg, window, channels=3)
    # Corner pixels onto corner pixels, as tf.image.crop_and_resize has it, at half of its time.
    return tf.raw_ops.ResizeBilinear(images=image[None], size=[size, size], align_corners=True)[0]


def recolored(image: Any, matrix: Any, contrast: Any, brightness: Any) -> Any:
    """The image [h, w, 3] with its colours changed: matrix, brightness, and then contrast.

    Contrast moves levels away from the mean of their channel. All three are linear: one matrix
    and one offset do them. What then lies outside of 0..255 is cut off.
    """
    pixels = tf.reshape(image, [-1, 3])
    mean = tf.linalg.matvec(matrix, tf.reduce_mean(pixels, axis=0))
    offset = (1 - contrast) * mean + brightness
    moved = tf.matmul(pixels, contrast * matrix, transpose_b=True) + offset
    return tf.reshape(tf.clip_by_value(moved, 0.0, 255.0), tf.shape(image))


def altered(jpeg: Any, drawn: dict[str, Any], size: int) -> Any:
    """One training image [size, size, 3] in whole levels (uint8), as `draw` has it."""
    image = cropped(jpeg, drawn["box"], size)
    if "matrix" in drawn:
        image = recolored(image, drawn["matrix"], drawn["contrast"], drawn["brightness"])
    image = levels(image)
    return tf.cond(drawn["mirrored"], lambda: tf.reverse(image, axis=[1]), lambda: image)


def levels(image: Any) -> Any:
    """Numbers of 0..255 rounded to uint8."""
    return tf.cast(image + 0.5, tf.uint8)


def normalized(images: Any, channels_first: bool, dtype: Any) -> Any:
    """A batch [n, h, w, 3] of levels as a model takes it: mean 0 and deviation 1 per channel."""
    # Whole rows at once: a broadcast over 3 numbers alone would not use the vector units.
    width = images.shape[2]
    rows = tf.reshape(tf.cast(images, tf.float32), [-1, width * 3])
    rows = (rows - np.tile(MEAN, width)) * np.tile(1 / DEVIATION, width)
    batch = tf.cast(tf.reshape(rows, tf.shape(images)), dtype)
    batch.set_shape(images.shape)  # the batch size may be unknown, the rest is not
    return tf.transpose(batch, [0, 3, 1, 2]) if channels_first else batch


def between(share: Any, low: Any, high: Any) -> Any:
    return low + share * (high - low)
