"""JSON Schema (draft 2020-12) of a type, and of clusterctl.yaml."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import typing
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from clusterctl.configuration.options import OPTIONS, Option, ValueKind
from clusterctl.domain.units import DURATION_PATTERN, LASTING_PATTERN
from clusterctl.node.record import UNIONS, hints_of, written_names

DRAFT = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_PLAIN: Mapping[Any, str] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    type(None): "null",
    dict: "object",
}


def schema_of(kind: Any, within: Any = None) -> dict[str, Any]:
    """Return the schema of what `to_data` makes of a value of this type. `within` is the type that
    has it: what contains itself is a reference to its first schema."""
    if kind is within:
        return {"$ref": f"#{kind.__name__}"}
    if kind is Any:
        return {}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin in UNIONS:
        return {"anyOf": [schema_of(one) for one in inner]}
    if origin is typing.Literal:
        return {"enum": list(inner)}
    if origin in (list, Sequence, frozenset) or (origin is tuple and inner[1:] == (...,)):
        return {"type": "array", "items": schema_of(inner[0], within)}
    if origin is tuple:
        fixed = [schema_of(one) for one in inner]
        return {"type": "array", "prefixItems": fixed, "minItems": len(fixed), "items": False}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(inner[1])}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [one.value for one in kind]}
    if kind is datetime:
        return {"type": "string", "format": "date-time"}
    if hasattr(kind, "as_record"):
        return schema_of(hints_of(kind.as_record)["return"])
    if dataclasses.is_dataclass(kind) or hasattr(kind, "_fields"):
        hints = {name: _type_of(kind, name) for name in written_names(kind)}
        required = list(hints)
    else:
        hints = hints_of(kind)
        required = [name for name in hints if name in kind.__required_keys__]
    about = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    return {
        **({"description": about} if about else {}),
        **({"$anchor": kind.__name__} if Sequence[kind] in hints.values() else {}),
        "type": "object",
        "properties": {name: schema_of(one, kind) for name, one in hints.items()},
        "required": required,
        "additionalProperties": False,
    }


def _type_of(kind: Any, name: str) -> Any:
    """Return the type of a field or property of a record."""
    own: Any = getattr(kind, name, None)
    compute = own.fget if isinstance(own, property) else getattr(own, "func", None)
    return hints_of(compute)["return"] if compute else hints_of(kind)[name]


def result_schema(name: str) -> dict[str, Any]:
    """Return the schema of a command's `--json`, by the name of its type in json_types.py."""
    from clusterctl.cli import json_types

    return {**DRAFT, **schema_of(getattr(json_types, name))}


def file_schema() -> dict[str, Any]:
    """Return the schema of clusterctl.yaml, made from the table of options.

    A scalar may be written as any text that the loader takes: `0` for a duration, say.
    """
    settings = {option.key: _setting(option) for option in OPTIONS.values()}
    extends = {"type": "string", "description": "The cluster whose settings hold, too."}
    clusters = {"type": "object", "additionalProperties": _object({"extends": extends, **settings})}
    return {**DRAFT, **_object({"defaults": _object(settings), "clusters": clusters})}


# A tag's value is any scalar.
_LARGE = {"type": ["array", "object"]}


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": ["object", "null"], "properties": properties, "additionalProperties": False}


def _setting(option: Option) -> dict[str, Any]:
    form = f"^({option.form.pattern})$" if option.form else r"\S"
    texts = {"type": "string", "pattern": form}
    lasting = {"type": "string", "pattern": LASTING_PATTERN}
    any_duration = [{"type": "string", "pattern": DURATION_PATTERN}, {"const": 0}]
    schema: dict[ValueKind, dict[str, Any]] = {
        ValueKind.FLAG: {"type": "boolean"},
        ValueKind.WHOLE: {"type": "integer", "minimum": 1, "maximum": 999_999_999},
        ValueKind.LOAD: {
            "anyOf": [{"const": 0}, {"type": "integer", "minimum": 100, "maximum": 300}]
        },
        ValueKind.NUMBER: {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9},
        ValueKind.LIST: {"anyOf": [texts, {"type": "array", "items": texts}]},
        ValueKind.TAGS: {"type": "object", "additionalProperties": {"not": _LARGE}},
        ValueKind.DURATION: {"anyOf": any_duration} if option.zero else lasting,
    }
    return {"description": option.help, "anyOf": [schema.get(option.kind, texts), {"type": "null"}]}
