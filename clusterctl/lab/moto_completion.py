"""How the lab completes moto: one method in the place of another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace(owner: Any, method: Callable[..., Any]) -> None:
    """Put `method` in the place of the owner's method of the same name."""
    if not hasattr(owner, method.__name__):
        raise AttributeError(f"moto's {owner.__name__} has no {method.__name__} any more")
    setattr(owner, method.__name__, method)
