"""Completes moto's classes: replaces one of their methods, or adds one that moto lacks.

Each method may be replaced only once. Two replacements would call each other in the order of their
installation, so that this order would matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_overridden: set[tuple[Any, str]] = set()


def override(owner: Any, method: Callable[..., Any]) -> None:
    """Replace the owner's method of the same name.

    Raise AttributeError if moto (in another version) has no such method, or if it is replaced
    already.
    """
    name = method.__name__
    if not hasattr(owner, name):
        raise AttributeError(f"moto's {owner.__name__} has no {name} any more")
    if (owner, name) in _overridden:
        raise AttributeError(f"{owner.__name__}.{name} is overridden twice")
    _overridden.add((owner, name))
    setattr(owner, name, method)


def add(owner: Any, method: Callable[..., Any]) -> None:
    """Add a method that moto lacks. Raise AttributeError if moto (in another version) has one."""
    if hasattr(owner, method.__name__):
        raise AttributeError(f"moto's {owner.__name__} has a {method.__name__} of its own by now")
    setattr(owner, method.__name__, method)
