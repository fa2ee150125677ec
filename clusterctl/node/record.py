"""Records: dataclasses that are written as JSON and read back as the same class.

Requests to nodes, their responses, and the files of jobs and clusters go through this module, on
this machine, the head node and the nodes. Python 3.8 and the standard library only.

A NamedTuple is a record, too. A field may be bool, int, float, str, Any, an Enum, another record,
Optional[X], tuple[X, ...], tuple[X, Y], dict[str, X], Mapping[str, X], frozenset[X], or a datetime
with a time zone, which is written in ISO 8601.

* A value of the wrong type is an error that names the field: `gpus[1].name: expected a string, got
  7`. It is never replaced by a default, since a wrong number is worse than none. Where one part may
  be wrong and the others are still of use, `salvage` leaves it out, and reports it.
* So is an integer of more than 64 bits, and what is nested so deeply that nobody can walk it.
* Unknown keys are ignored, and a missing key is the field's default: a file may have been written
  by a version with more fields, or with fewer. A field without a default has to be there.
* A ValueError of `__post_init__` refuses the record, with its path.
* A record that is only written may say what of it: `json_names` are the names of fields and
  properties, in place of those of all fields.
* `as_record` of a class returns what is written in its place.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import datetime
import enum
import functools
import json
import sys
import types
import typing
from typing import Any, Callable, Generic, TypeVar, Union

T = TypeVar("T")
# Python 3.8 cannot evaluate `tuple[int, ...]` in an annotation, but `typing.Tuple[int, ...]`.
_NAMES = {
    "tuple": typing.Tuple,
    "dict": typing.Dict,
    "frozenset": typing.FrozenSet,
    "Mapping": typing.Mapping,
}
_EXPECTED: dict[Any, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a string",
    type(None): "null",
    tuple: "an array",
    dict: "an object",
    datetime.datetime: "a time with a time zone, in ISO 8601",
}


MOST_BITS, MOST_LEVELS = 64, 64  # of an integer; of arrays and objects within each other


class RecordError(ValueError):
    """The data are not those of the record. `keys` lead to the part, such as gpus, 1, name: in the
    message it is `gpus[1].name`."""

    def __init__(self, problem: str, *keys: str | int) -> None:
        self.problem = problem
        self.keys = keys
        path = "".join(map(_step, keys)).lstrip(".")
        super().__init__(f"{path}: {problem}" if keys else problem)


def to_json(value: Any) -> str:
    """Return a record as one line of JSON, in ASCII, without a newline. Raises RecordError for a
    number that JSON does not have: NaN, infinity."""
    data = to_data(value)
    try:
        return json.dumps(data, allow_nan=False)
    except ValueError:
        raise RecordError(f"expected {_EXPECTED[float]}", *_not_finite(data)) from None


def from_json(kind: type[T], text: str | bytes) -> T:
    """Return the value of type `kind` that a JSON text describes. Raises RecordError."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        empty = "it is empty" if not text.strip() else str(error)
        raise RecordError(f"not JSON: {empty}") from None
    return from_data(kind, data)


@dataclasses.dataclass(frozen=True)
class Rows(Generic[T]):
    """The rows of a file of JSON lines. `damaged` describes each line that is none: its number and
    what is wrong."""

    rows: tuple[T, ...] = ()
    damaged: tuple[str, ...] = ()


def read_rows(kind: type[T], text: str | bytes, is_whole: bool = False) -> Rows[T]:
    """Return the rows of type `kind` in a text of JSON lines. Empty lines are left out.

    So is a last line that was cut short, since it may be being written. Where none writes it any
    more, the text is whole, and that line is damaged like any other.
    """
    content = text.encode() if isinstance(text, str) else text
    rows, damaged = [], []
    lines = content.split(b"\n")
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                rows.append(from_json(kind, line))
            except RecordError as error:
                if is_whole or number < len(lines):
                    damaged.append(f"line {number}: {error}")
    return Rows(tuple(rows), tuple(damaged))


def to_data(value: Any) -> Any:
    """Return the value as data that `json.dumps` can write."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if hasattr(kind, "as_record"):
        return to_data(value.as_record())
    if _is_record(kind):
        return {name: to_data(getattr(value, name)) for name in written_names(kind)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (tuple, list)):
        return [to_data(one) for one in value]
    if isinstance(value, frozenset):
        return sorted(map(to_data, value))
    if isinstance(value, collections.abc.Mapping):
        return {key: to_data(one) for key, one in value.items()}
    return value.isoformat() if isinstance(value, datetime.datetime) else value


def pick(kind: Callable[..., T], *sources: Any, **given: Any) -> T:
    """Return a record with the fields that are given, and each other from the first of the sources
    that has its name. A field that none of them has keeps its default."""
    for one in dataclasses.fields(typing.cast("Any", kind)):
        for source in sources:
            if one.name not in given and hasattr(source, one.name):
                given[one.name] = getattr(source, one.name)
    return kind(**given)


def finite(data: Any) -> Any:
    """Return data with None for each number that is not finite as a float: a loss may be NaN."""
    if isinstance(data, (int, float)):
        return data if abs(data) <= sys.float_info.max else None
    if isinstance(data, (list, tuple)):
        return [finite(one) for one in data]
    return {key: finite(one) for key, one in data.items()} if isinstance(data, dict) else data


def from_data(kind: type[T], data: Any) -> T:
    """Return the value of type `kind` that data of JSON describe. Raises RecordError."""
    return typing.cast("T", _read(kind, data))


def salvage(kind: type[T], data: Any) -> tuple[T | None, tuple[str, ...]]:
    """Return the value without the parts that are wrong, and what is wrong with each of them.

    A wrong field has its default; a wrong item of an array or an object is left out. The value is
    None if a part without a default is wrong.
    """
    problems: list[RecordError] = []
    value = _salvage(kind, data, (), problems)
    return (None if value is _WRONG else value), tuple(dict.fromkeys(map(str, problems)))


@functools.lru_cache(maxsize=None)
def hints_of(described: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a dataclass's fields, or of a function's parameters and its `return`."""
    return typing.get_type_hints(described, localns=_NAMES)


# Types that are in JSON as they are.
_PLAIN = frozenset((str, int, bool, type(None)))
_EXACT = _PLAIN - {int}
_CONTAINERS = frozenset((dict, list, tuple))


# Python 3.10 has a type of its own for `X | None`.
UNIONS = (Union, getattr(types, "UnionType", Union))


def _is_record(kind: Any) -> bool:
    return dataclasses.is_dataclass(kind) or hasattr(kind, "_field_defaults")


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which a node's agent finds a function: MODULE:FUNCTION."""
    return f"{function.__module__}:{function.__qualname__}"


@functools.lru_cache(maxsize=None)
def written_names(kind: Any) -> tuple[str, ...]:
    """Return the names of a record's values that are written."""
    # Not `_fields_of`: what is only written may have types that Python 3.8 cannot evaluate.
    if dataclasses.is_dataclass(kind):
        own = tuple(one.name for one in dataclasses.fields(kind) if one.init)
    else:
        own = kind._fields
    return getattr(kind, "json_names", own)


@functools.lru_cache(maxsize=None)
def _fields_of(kind: Any) -> tuple[tuple[str, Any, bool], ...]:
    """Return name and type of each field of a record, and whether it has to be there."""
    hints = hints_of(kind)
    if not dataclasses.is_dataclass(kind):
        return tuple((one, hints[one], one not in kind._field_defaults) for one in kind._fields)
    return tuple(
        (one.name, hints[one.name], one.default is one.default_factory is dataclasses.MISSING)
        for one in dataclasses.fields(kind)
        if one.init
    )


def _is_exact(kind: Any, data: Any) -> bool:
    """Return whether the data are the value: a shortcut for what most fields are."""
    # Not isinstance(): True is an int to Python, and not to JSON. JSON has neither infinity nor
    # NaN, but Python's parser accepts both.
    if type(data) is not kind:
        return False
    if kind is int:
        return bool(data.bit_length() <= MOST_BITS)
    return kind in _EXACT or (kind is float and abs(data) <= sys.float_info.max)


def _read(kind: Any, data: Any) -> Any:
    if _is_exact(kind, data):
        return data
    # `dict` without types is an object of any content.
    if kind is Any or type(data) is kind is dict:
        return _walkable(data)
    if _is_record(kind):
        return _read_record(kind, data)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        if data is None and type(None) in inner:
            return None
        [kind] = [one for one in inner if one is not type(None)]  # Optional[X], no other Union
        return _read(kind, data)
    if origin in (tuple, frozenset):
        return origin(_items(origin, inner, data))
    if origin in (dict, collections.abc.Mapping):
        if not isinstance(data, dict):
            raise _wrong(dict, data)
        kind = inner[1]
        return {
            key: one if _is_exact(kind, one) else _below(key, kind, one)
            for key, one in data.items()
        }
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        try:
            return kind(data)
        except ValueError:
            known = " or ".join(repr(one.value) for one in kind)
            raise RecordError(f"expected {known}, got {_shown(data)}") from None
    if kind is float and type(data) is int and abs(data) <= sys.float_info.max:
        return float(data)
    if isinstance(kind, type) and issubclass(kind, datetime.datetime):
        with contextlib.suppress(ValueError, TypeError):
            time = kind.fromisoformat(data)
            if time.tzinfo:
                return time
        kind = datetime.datetime
    raise _wrong(kind, data)


def _walkable(data: Any) -> Any:
    level = [data] if type(data) in _CONTAINERS else []
    for _ in range(MOST_LEVELS):
        if not level:
            return data
        parts = (one.values() if type(one) is dict else one for one in level)
        level = [one for part in parts for one in part if type(one) in _CONTAINERS]
    raise RecordError(f"nested in more than {MOST_LEVELS} levels")


def _items(origin: Any, inner: tuple[Any, ...], data: Any) -> list[Any]:
    if not isinstance(data, (list, tuple)):
        raise _wrong(tuple, data)
    kinds = list(inner)
    if origin is frozenset or inner[1:] == (...,):
        kinds = [inner[0]] * len(data)
    if len(kinds) != len(data):
        raise RecordError(f"expected an array of {len(kinds)}, got {len(data)}")
    return [_below(at, *pair) for at, pair in enumerate(zip(kinds, data))]


def _read_record(kind: Any, data: Any) -> Any:
    if not isinstance(data, dict):
        raise _wrong(dict, data)
    values = {}
    for name, inner, is_needed in _fields_of(kind):
        if name in data:
            one = data[name]
            values[name] = one if _is_exact(inner, one) else _below(name, inner, one)
        elif is_needed:
            raise RecordError("missing", name)
    try:
        return kind(**values)
    except RecordError:
        raise
    except ValueError as error:
        raise RecordError(str(error)) from None


def _step(key: str | int) -> str:
    # As in `_shown`: the key may come from a node, too.
    return f"[{key}]" if isinstance(key, int) else f".{ascii(key)[1:-1][:60]}"


def _below(key: str | int, kind: Any, data: Any) -> Any:
    try:
        return _read(kind, data)
    except RecordError as error:
        raise RecordError(error.problem, key, *error.keys) from None


def _not_finite(data: Any) -> tuple[str | int, ...]:
    """Return the keys of the first number in the data that is not finite."""
    pairs: Any = data.items() if isinstance(data, dict) else ()
    for key, one in enumerate(data) if isinstance(data, list) else pairs:
        if isinstance(one, float) and not abs(one) <= sys.float_info.max:
            return (key,)
        keys = _not_finite(one)
        if keys:
            return (key, *keys)
    return ()


_WRONG = object()  # result of _salvage


def _salvage(kind: Any, data: Any, keys: tuple[str | int, ...], problems: list[RecordError]) -> Any:
    try:
        return _read(kind, data)
    except RecordError as error:
        problem = RecordError(error.problem, *keys, *error.keys)
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        [kind] = [one for one in inner if one is not type(None)]
        return _salvage(kind, data, keys, problems)
    if isinstance(data, (list, tuple)) and (origin is frozenset or inner[1:] == (...,)):
        items = [_salvage(inner[0], one, (*keys, at), problems) for at, one in enumerate(data)]
        return origin(one for one in items if one is not _WRONG)
    is_record = _is_record(kind)
    if isinstance(data, dict) and (is_record or origin in (dict, collections.abc.Mapping)):
        kinds = {name: one for name, one, _ in _fields_of(kind)} if is_record else {}
        found = {
            name: _salvage(kinds[name] if is_record else inner[1], one, (*keys, name), problems)
            for name, one in data.items()
            if name in kinds or not is_record
        }
        kept = {name: one for name, one in found.items() if one is not _WRONG}
        # TypeError: a part without a default is missing. ValueError: `__post_init__` refuses it.
        with contextlib.suppress(TypeError, ValueError):
            return kind(**kept) if is_record else kept
    problems.append(problem)
    return _WRONG


def _wrong(kind: Any, data: Any) -> RecordError:
    if kind is type(data) is int:
        return RecordError(f"expected an integer of at most {MOST_BITS} bits")
    return RecordError(f"expected {_EXPECTED[kind]}, got {_shown(data)}")


def _shown(data: Any) -> str:
    text = ascii(data)  # the data may come from a node, and the message goes to a terminal
    return text if len(text) <= 60 else f"{text[:57]}..."
