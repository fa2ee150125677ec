"""How the lab completes moto: one method in the place of another, or one that moto lacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def replace(owner: Any, method: Callable[..., Any]) -> None:
    """Put `method` in the place of the owner's method of the same name."""
    if not hasattr(owner, method.__name__):
        raise AttributeError(f"moto's {owner.__name__} has no {method.__name__} any more")
    setattr(owner, method.__name__, method)


def add(owner: Any, method: Callable[..., Any]) -> None:
    """Give the owner a method that moto does not have."""
    if hasattr(owner, method.__name__):
        raise AttributeError(f"moto's {owner.__name__} has a {method.__name__} of its own by now")
    setattr(owner, method.__name__, method)
