"""Records: dataclasses that are written as JSON and read back as the same class.

Requests to nodes, their responses, and the files of jobs and clusters go through this module, on
this machine, the head node and the nodes. Python 3.8 and the standard library only.

A field may be bool, int, float, str, Any, an Enum, another dataclass, Optional[X], tuple[X, ...],
tuple[X, Y], dict[str, X] or frozenset[X].

* A value of the wrong type is an error that names the field: `gpus[1].name: expected a string, got
  7`. It is never replaced by a default, since a wrong number is worse than none. Where one part may
  be wrong and the others are still of use, they are read separately.
* Unknown keys are ignored, and a missing key is the field's default: a file may have been written
  by a version with more fields, or with fewer. A field without a default has to be there.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import sys
import typing
from typing import Any, Callable, TypeVar, Union

T = TypeVar("T")
# Python 3.8 cannot evaluate `tuple[int, ...]` in an annotation, but `typing.Tuple[int, ...]`.
_NAMES = {"tuple": typing.Tuple, "dict": typing.Dict, "frozenset": typing.FrozenSet}
_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    tuple: "an array",
    dict: "an object",
}


class RecordError(ValueError):
    """The data are not those of the record. `path` is the field, such as `gpus[1].name`."""

    def __init__(self, problem: str, path: str = "") -> None:
        self.problem = problem
        self.path = path
        super().__init__(f"{path.lstrip('.')}: {problem}" if path else problem)


def to_json(value: Any) -> str:
    """Return a record as one line of JSON, in ASCII, without a newline."""
    return json.dumps(to_data(value))


def from_json(kind: type[T], text: str | bytes) -> T:
    """Return the value of type `kind` that a JSON text describes. Raises RecordError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        empty = "it is empty" if not text.strip() else str(error)
        raise RecordError(f"not JSON: {empty}") from None
    return from_data(kind, data)


def to_data(value: Any) -> Any:
    """Return the value as data that `json.dumps` can write."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: to_data(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_data(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(map(to_data, value))
    if isinstance(value, dict):
        return {key: to_data(one) for key, one in value.items()}
    return value


def from_data(kind: type[T], data: Any) -> T:
    """Return the value of type `kind` that data of JSON describe. Raises RecordError."""
    return typing.cast("T", _read(kind, data))


@functools.lru_cache(maxsize=None)
def hints_of(described: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, or of a function's parameters and its `return`."""
    return typing.get_type_hints(described, localns=_NAMES)


def _read(kind: Any, data: Any) -> Any:
    if kind is Any:
        return data
    if dataclasses.is_dataclass(kind):
        return _read_record(kind, data)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Union:
        if data is None and type(None) in inner:
            return None
        [kind] = [one for one in inner if one is not type(None)]  # Optional[X], no other Union
        return _read(kind, data)
    if origin in (tuple, frozenset):
        return origin(_items(origin, inner, data))
    if origin is dict:
        if not isinstance(data, dict):
            raise _wrong(dict, data)
        return {key: _below(f".{key}", inner[1], one) for key, one in data.items()}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            known = " or ".join(repr(one.value) for one in kind)
            raise RecordError(f"expected {known}, got {_shown(data)}") from None
    if kind is float:
        # JSON has neither infinity nor NaN, but Python's parser accepts both.
        if type(data) in (int, float) and abs(data) <= sys.float_info.max:
            return float(data)
    # Not isinstance(): True is an int to Python, and not to JSON.
    elif type(data) is kind:
        return data
    raise _wrong(kind, data)


def _items(origin: Any, inner: tuple[Any, ...], data: Any) -> list[Any]:
    if not isinstance(data, (list, tuple)):
        raise _wrong(tuple, data)
    kinds = list(inner)
    if origin is frozenset or inner[1:] == (...,):
        kinds = [inner[0]] * len(data)
    if len(kinds) != len(data):
        raise RecordError(f"expected an array of {len(kinds)}, got {len(data)}")
    return [_below(f"[{at}]", *pair) for at, pair in enumerate(zip(kinds, data))]


def _read_record(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _wrong(dict, data)
    hints, values = hints_of(kind), {}
    for one in dataclasses.fields(kind):
        if one.name in data:
            values[one.name] = _below(f".{one.name}", hints[one.name], data[one.name])
        elif one.default is one.default_factory is dataclasses.MISSING:
            raise RecordError("missing", f".{one.name}")
    return kind(**values)


def _below(name: str, kind: Any, data: Any) -> Any:
    try:
        return _read(kind, data)
    except RecordError as error:
        raise RecordError(error.problem, name + error.path) from None


def _wrong(kind: Any, data: Any) -> RecordError:
    return RecordError(f"expected {_EXPECTED[kind]}, got {_shown(data)}")


def _shown(data: Any) -> str:
    text = ascii(data)  # the data may come from a node, and the message goes to a terminal
    return text if len(text) <= 60 else f"{text[:57]}..."
