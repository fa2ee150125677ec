"""Colours changed at random, for very large batches (`--increased_aug`)."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Color:
    """How far colours move: brightness up to +- this, the others as factors, hue x pi."""

    brightness: float = 0.3
    contrast: float = 0.6
    saturation: float = 0.6
    hue: float = 0.13
