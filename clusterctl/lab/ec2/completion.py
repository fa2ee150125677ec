"""Completes moto's classes: replaces one of their methods, or adds one that moto lacks.

The decorators say which method a function becomes, by default the one of its own name. `install`
puts a module's functions in place. Each method may be replaced only once: two replacements would
call each other in the order of their installation, so that this order would matter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])
# Name of a module of the lab -> what `install` does for it.
_pending: dict[str, list[Callable[[], object]]] = {}
_replaced: set[tuple[Any, str]] = set()


@dataclass
class Surroundings:
    """What the modules need of the rest of the lab. `complete` sets it.

    `capacity_left` returns how many more machines there are of a type, in a zone where so many are
    in use, `reserved` how many reserved ones the launch of this thread may use, `quota` a quota's
    value by its code (None for each: as AWS has it). `lag_s` is how late a part is shown.
    `reordered`: half of the reads are in time. `read_console` returns what an instance's host has
    printed. `inside` is the network of the default VPCs. Of the free public `addresses` one that
    is given back is taken again last of all.
    """

    capacity_left: Callable[[str, str, int], int | None] = lambda kind, zone, used: None
    reserved: Callable[[str, str], int] = lambda kind, zone: 0
    quota: Callable[[str], float | None] = lambda code: None
    lag_s: Callable[[str], float] = lambda what: 0.0
    reordered: Callable[[], bool] = lambda: False
    same_index: Callable[[], bool] = lambda: False
    address_changed: Callable[[], None] = lambda: None
    read_console: Callable[[str], str] = lambda id: ""
    inside: IPv4Network = IPv4Network("10.0.0.0/16")
    addresses: deque[str] = field(default_factory=deque)


LAB = Surroundings()


def install(module: Any) -> None:
    """Put a module's functions in place. Raise AttributeError as `replace` does."""
    for act in _pending.pop(module.__name__, []):
        act()


def setup(function: Function) -> Function:
    """Have `install` call the function."""
    _pending.setdefault(function.__module__, []).append(function)
    return function


def override(owner: Any) -> Callable[[Function], Function]:
    """Replace the owner's method."""
    return _put(owner, "", lambda _, new: new)


def around(owner: Any, name: str = "") -> Callable[[Function], Function]:
    """Replace the owner's method. The function gets moto's own as its first argument."""
    return _put(owner, name, lambda own, new: lambda *given, **named: new(own, *given, **named))


def guard(owner: Any, name: str = "") -> Callable[[Function], Function]:
    """Call the function before the owner's method, with the same arguments."""

    def both(own: Any, check: Any) -> Any:
        return lambda *given, **named: (check(*given, **named), own(*given, **named))[1]

    return _put(owner, name, both)


def add(owner: Any) -> Callable[[Function], Function]:
    """Add a method that moto lacks."""
    return _put(owner, "", lambda _, new: new, there=False)


def _put(
    owner: Any, name: str, combine: Callable[[Any, Any], Any], there: bool = True
) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        method = name or function.__name__
        setup_of = _pending.setdefault(function.__module__, [])
        setup_of.append(lambda: replace(owner, method, lambda own: combine(own, function), there))
        return function

    return decorate


def replace(owner: Any, name: str, replacement: Callable[[Any], Any], there: bool = True) -> None:
    """Replace the owner's method by what `replacement` makes of it.

    Raise AttributeError if moto (in another version) does not have it, or has it already where it
    should not be `there`, and if it is replaced twice.
    """
    if hasattr(owner, name) != there:
        raise AttributeError(f"moto's {owner.__name__} has {'no' if there else 'a'} {name} by now")
    if (owner, name) in _replaced:
        raise AttributeError(f"{owner.__name__}.{name} is replaced twice")
    _replaced.add((owner, name))
    method = replacement(getattr(owner, name, None))
    method.__name__ = name
    setattr(owner, name, method)
