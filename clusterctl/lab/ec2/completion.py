"""Completes moto's classes: replaces one of their methods, or adds one that moto lacks.

Each method may be replaced only once. Two replacements would call each other in the order of their
installation, so that this order would matter.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_overridden: set[tuple[Any, str]] = set()


def override(owner: Any, *methods: Callable[..., Any]) -> None:
    """Replace the owner's methods of the same names.

    Raise AttributeError if moto (in another version) has no such method, or if it is replaced
    already.
    """
    for method in methods:
        name = method.__name__
        if not hasattr(owner, name):
            raise AttributeError(f"moto's {owner.__name__} has no {name} any more")
        if (owner, name) in _overridden:
            raise AttributeError(f"{owner.__name__}.{name} is overridden twice")
        _overridden.add((owner, name))
        setattr(owner, name, method)


def guard(owner: Any, *checks: Callable[..., object]) -> None:
    """Call each check before the owner's method of the same name, with the same arguments."""
    override(owner, *(_guarded(getattr(owner, check.__name__, None), check) for check in checks))


def _guarded(method: Any, check: Callable[..., object]) -> Callable[..., Any]:
    @functools.wraps(check)
    def checked(*given: Any, **named: Any) -> Any:
        check(*given, **named)
        return method(*given, **named)

    return checked


def add(owner: Any, *methods: Callable[..., Any]) -> None:
    """Add methods that moto lacks. Raise AttributeError if moto (in another version) has one."""
    for method in methods:
        name = method.__name__
        if hasattr(owner, name):
            raise AttributeError(f"moto's {owner.__name__} has a {name} of its own by now")
        setattr(owner, name, method)
