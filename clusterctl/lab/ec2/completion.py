"""How moto is completed: a method in the place of moto's, or one that moto lacks.

Each method is overridden once, so that the order in which nouns are installed does not matter:
two overrides of one method would see each other in the order of their installation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_overridden: set[tuple[Any, str]] = set()


def override(owner: Any, method: Callable[..., Any]) -> None:
    """Put `method` in the place of the owner's method of the same name.

    Raises AttributeError where moto has none any more, or somebody has overridden it.
    """
    name = method.__name__
    if not hasattr(owner, name):
        raise AttributeError(f"moto's {owner.__name__} has no {name} any more")
    if (owner, name) in _overridden:
        raise AttributeError(f"{owner.__name__}.{name} is overridden twice")
    _overridden.add((owner, name))
    setattr(owner, name, method)


def add(owner: Any, method: Callable[..., Any]) -> None:
    """Give the owner a method that moto does not have. Raises AttributeError where it has one."""
    if hasattr(owner, method.__name__):
        raise AttributeError(f"moto's {owner.__name__} has a {method.__name__} of its own by now")
    setattr(owner, method.__name__, method)
