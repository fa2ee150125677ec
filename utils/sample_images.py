"""Made-up images whose class can be learnt: a shape in a colour on a noisy background."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Floats = NDArray[np.float32]

QUALITY = 90  # of JPEGs
NOISE = 25.0  # standard deviation, on a scale of 255
TRAIN, VALIDATION = 0, 1

# The kinds of odd files among the training images; there is one of each.
CMYK, PNG, CUT_SHORT, GREY = range(4)

# For each shape, the distance from its edge in units of its radius, negative inside. x grows to the
# right, y downwards.
SHAPES: tuple[Callable[[Floats, Floats], Floats], ...] = (
    lambda x, y: np.hypot(x, y) - 1,  # disc
    lambda x, y: np.maximum(abs(x), abs(y)) - 0.85,  # square
    lambda x, y: np.maximum(0.87 * abs(x) - 0.5 * y, y) - 0.55,  # triangle
    lambda x, y: abs(np.hypot(x, y) - 0.75) - 0.25,  # ring
    lambda x, y: np.minimum(  # cross
        np.maximum(abs(x) - 1, abs(y) - 0.3), np.maximum(abs(y) - 1, abs(x) - 0.3)
    ),
    lambda x, y: np.maximum(  # bars
        np.maximum(abs(x), abs(y)) - 1, 0.25 - abs((y * 1.25 + 9) % 1 - 0.5)
    ),
)


@dataclass(frozen=True)
class Sample:
    """A made-up data set: numbers of classes and images, the shorter side in pixels, the seed.

    The same values give the same images.
    """

    classes: int
    images: int
    validation_images: int
    size: int
    seed: int

    def synsets(self) -> list[str]:
        """Return made-up synset ids in the form of ImageNet's."""
        return [f"n{1_440_764 + 7_919 * index:08d}" for index in range(self.classes)]

    def training_counts(self) -> list[int]:
        """Return the number of images of each class. The largest is about twice the smallest."""
        weights = 0.7 + 0.6 * np.random.default_rng([self.seed, 2]).random(self.classes)
        ends = np.rint(np.cumsum(weights) / weights.sum() * self.images).astype(int)
        return np.diff(ends, prepend=0).tolist()

    def validation_classes(self) -> list[int]:
        """Return the class of each validation image in random order, all about equally often."""
        order = np.arange(self.validation_images) % self.classes
        return np.random.default_rng([self.seed, 3]).permutation(order).tolist()

    def training_images(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield synset, name and content of each training file, synset by synset."""
        place = 0
        for label, (synset, count) in enumerate(zip(self.synsets(), self.training_counts())):
            for index in range(count):
                pixels = self.draw(label, TRAIN, place)
                yield synset, f"{synset}_{index + 1}.JPEG", encode(pixels, self.odd(place))
                place += 1

    def odd(self, place: int) -> int | None:
        """Return the kind of odd file that the training image at `place` is, or None.

        They are spread over the classes.
        """
        every = self.images // 4
        return place // every if place % every == every // 2 and place // every < 4 else None

    def validation_files(self) -> Iterator[tuple[str, str, bytes]]:
        """Yield synset, name and content of each validation file."""
        for place, label in enumerate(self.validation_classes()):
            name = f"ILSVRC2012_val_{place + 1:08d}.JPEG"
            yield self.synsets()[label], name, encode(self.draw(label, VALIDATION, place))

    def draw(self, label: int, subset: int, place: int) -> NDArray[np.uint8]:
        """Return the pixels of the image at `place` of a subset, of shape (height, width, 3)."""
        random = np.random.default_rng([self.seed, subset, place])
        sides = [self.size, round(self.size * random.uniform(1, 1.5))]
        height, width = sides if random.random() < 0.7 else sides[::-1]
        ground = random.uniform(40, 215, 3)  # a random colour, independent of the class
        pixels = np.broadcast_to(ground, (height, width, 3)).astype(np.float32)
        radius = self.size * random.uniform(0.3, 0.5)
        middle = [side / 2 + random.uniform(-0.25, 0.25) * side for side in (height, width)]
        y, x = np.ogrid[:height, :width]
        distance = SHAPES[label % len(SHAPES)](
            ((x - middle[1]) / radius).astype(np.float32),
            ((y - middle[0]) / radius).astype(np.float32),
        )
        pixels[distance < 0] = self.color(label, random)
        pixels += random.normal(0, NOISE, pixels.shape).astype(np.float32)
        return pixels.clip(0, 255).astype(np.uint8)

    def color(self, label: int, random: np.random.Generator) -> tuple[float, ...]:
        """Return a colour for a class. The classes' hues are evenly spaced, and vary a little."""
        hue = (label + random.uniform(-0.2, 0.2)) / self.classes
        value = random.uniform(0.75, 1)
        return tuple(255 * part for part in colorsys.hsv_to_rgb(hue, 0.9, value))


def encode(pixels: NDArray[np.uint8], odd: int | None = None) -> bytes:
    """Return the content of an image file: a JPEG, or the given kind of odd file."""
    image = Image.fromarray(pixels)
    if odd == PNG:
        return saved(image, "PNG")
    if odd in (CMYK, GREY):
        return saved(image.convert("CMYK" if odd == CMYK else "L"), "JPEG")
    data = saved(image, "JPEG")
    return data[: len(data) * 2 // 3] if odd == CUT_SHORT else data


def saved(image: Image.Image, kind: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **({"quality": QUALITY} if kind == "JPEG" else {}))
    return buffer.getvalue()
