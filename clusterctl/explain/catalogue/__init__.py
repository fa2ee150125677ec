"""The catalogue: the signatures in this folder's TOML files, and the user's own.

docs/explain.md describes the format.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clusterctl.config import home_folder
from clusterctl.domain.errors import UsageError
from clusterctl.domain.findings import Severity
from clusterctl.explain.failing import FORMS_FILE
from clusterctl.explain.hooks import HOOKS
from clusterctl.explain.signature import UNNAMED, Role, Signature, literals
from clusterctl.toml_file import read_toml

# Kinds of failures for lines that no signature knows.
_WORDS_FILE = Path(__file__).parent / "words.toml"
# Texts of the numbers with which libraries say why something failed.
_CODES_FILE = _WORDS_FILE.with_name("codes.toml")
# The user's files come first, then the shipped ones by their key `order`.
_USERS_ORDER = 0
# The keys of a signature with their types.
_KEYS: Mapping[str, tuple[type, ...]] = {
    "id": (str,),
    "pattern": (str, list),
    "cause": (str,),
    "remedy": (str, dict),
    "source": (str,),
    "role": (str,),
    "severity": (str,),
    "mistaken_for": (str,),
    "lines": (int,),
    "generic": (bool,),
    "near": (str,),
    "retries": (str,),
    "yields_to": (list,),
    "evidence": (dict,),
    "meanings": (dict,),
    "defaults": (dict,),
    "hook": (str,),
    "samples": (list,),
}
_REQUIRED = ("id", "pattern", "cause", "remedy", "source")
_FILE_KEYS: Mapping[str, tuple[type, ...]] = {
    "order": (int,),
    "texts": (dict,),
    "signature": (list,),
}
_WORDS: Mapping[type, str] = {
    str: "a string",
    list: "an array of strings",
    dict: "a table of strings",
    int: "a number",
    bool: "true or false",
}


class _Invalid(ValueError):
    """A fault of a file of signatures; the message begins with the key."""


@functools.lru_cache(maxsize=1)
def catalogue() -> tuple[Signature, ...]:
    """Return all signatures in the order in which they are tried.

    The user's files are `signatures/*.toml` in clusterctl's home folder. Raises UsageError with
    file and key if one of them is wrong.
    """
    shipped = set(_WORDS_FILE.parent.glob("*.toml")) - {_WORDS_FILE, _CODES_FILE, FORMS_FILE}
    return load(shipped, own(home_folder() / "signatures"))


@functools.lru_cache(maxsize=1)
def wordings() -> tuple[Signature, ...]:
    """Return the kinds of failures by the words of their messages, in the order of trying."""
    return tuple(_read(_WORDS_FILE)[1])


@dataclass(frozen=True)
class Library:
    """A library, the form of a message with the number of one of its errors, and their texts.

    `says` is a message with the text in place of `{text}`. `samples` are messages, each with the
    signature that then explains it.
    """

    name: str
    pattern: str
    says: str
    texts: Mapping[str, str]
    samples: Mapping[str, str]


@functools.lru_cache(maxsize=1)
def libraries() -> tuple[Library, ...]:
    """Return the libraries whose numbers of errors are known, in the order of trying."""
    data = read_toml(_CODES_FILE)
    found = []
    for row in data["library"]:
        pattern = "|".join([row["pattern"]] if isinstance(row["pattern"], str) else row["pattern"])
        for name in ("between", "after"):
            pattern = pattern.replace(f"{{{name}}}", data[name])
        found.append(Library(row["name"], pattern, row["says"], row["texts"], row["samples"]))
    return tuple(found)


@functools.lru_cache(maxsize=1)
def settings() -> Mapping[str, str]:
    """Return, by a daemon's name, where its settings are and what tests them."""
    return dict(read_toml(_CODES_FILE)["settings"])


def own(folder: Path) -> list[Path]:
    """Return the files with the user's signatures in `folder`, sorted by name."""
    try:
        return sorted(folder.glob("*.toml"))
    except OSError:
        return []


def load(shipped: Iterable[Path], users: Iterable[Path] = ()) -> tuple[Signature, ...]:
    """Return the signatures of some files in the order in which they are tried.

    An id of a user's file replaces the shipped signature with this id. The patterns of the user's
    files are checked; those of the shipped ones are not, since tests do it. Raises UsageError.
    """
    files: list[tuple[int, str, list[Signature]]] = []
    ids: dict[str, Path] = {}
    for path in users:
        found = _read(path)[1]
        for one in found:
            try:
                if one.id in ids:
                    raise _Invalid(f"id: {one.id} is in {ids[one.id]} too")
                _check(one)
            except _Invalid as error:
                raise _unusable(path, error) from None
            ids[one.id] = path
        files.append((_USERS_ORDER, path.name, found))
    for path in shipped:
        order, found = _read(path)
        files.append((order, path.name, [one for one in found if one.id not in ids]))
    ordered = [one for file in sorted(files, key=lambda file: file[:2]) for one in file[2]]
    return tuple(sorted(ordered, key=lambda one: one.generic))


def _read(path: Path) -> tuple[int, list[Signature]]:
    """Return a file's order and its signatures. Raises UsageError."""
    try:
        data = read_toml(path)
        _typed(data, _FILE_KEYS)
        texts = _strings("texts", data.get("texts", {}))
        found = []
        for number, row in enumerate(data.get("signature", []), 1):
            if not isinstance(row, dict):
                raise _Invalid("signature: not an array of tables: write [[signature]]")
            try:
                found.append(_signature(row, texts))
            except _Invalid as error:
                raise _Invalid(f"[[signature]] {row.get('id', number)}: {error}") from None
    except OSError as error:
        raise _unusable(path, error.strerror or error) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise _unusable(path, error) from None
    return data.get("order", _USERS_ORDER), found


def _unusable(path: Path, error: object) -> UsageError:
    return UsageError(
        f"cannot use {path}: {error}", "correct or remove it; docs/explain.md describes the format"
    )


def _signature(row: Mapping[str, Any], texts: Mapping[str, str]) -> Signature:
    """Return the signature of a table; `texts` are inserted for their names in braces.

    Raises _Invalid.
    """
    _typed(row, _KEYS)
    is_fact = row.get("role") == Role.FACT.value
    for key in _REQUIRED:
        if not row.get(key) and not (is_fact and key == "remedy"):
            raise _Invalid(f"{key}: is missing")

    def text(key: str, value: Any) -> str:
        if not isinstance(value, str):
            raise _Invalid(f"{key}: {value!r} is not a string")
        for name, inserted in texts.items():
            value = value.replace(f"{{{name}}}", inserted)
        return value

    pattern, remedy = row["pattern"], row.get("remedy", "")
    groups = re.findall(r"\(\?P<(\w+?)[2-9]*>", str(pattern))
    if twice := texts.keys() & groups:
        raise _Invalid(f"pattern: {min(twice)} is the name of a text of the file, too")
    alternatives = remedy if isinstance(remedy, dict) else {"": remedy}
    evidence = _strings("evidence", row.get("evidence", {}))
    if unknown := evidence.keys() - alternatives.keys():
        raise _Invalid(f"evidence: the remedy has no alternative {min(unknown)!r}")
    return Signature(
        id=row["id"],
        pattern="|".join(
            text("pattern", one) for one in ([pattern] if isinstance(pattern, str) else pattern)
        ),
        cause=text("cause", row["cause"]),
        remedies=tuple((when, text("remedy", do)) for when, do in alternatives.items()),
        source=text("source", row["source"]),
        role=_one_of("role", row.get("role", "root"), {one.value: one for one in Role}),
        severity=_one_of(
            "severity", row.get("severity", "error"), {one.value: one for one in Severity}
        ),
        mistaken_for=text("mistaken_for", row.get("mistaken_for", "")),
        lines=row.get("lines", 1),
        generic=row.get("generic", False),
        near=text("near", row.get("near", "")),
        retries=text("retries", row.get("retries", "")),
        yields_to=tuple(text("yields_to", one) for one in row.get("yields_to", ())),
        evidence=evidence,
        meanings={
            group: {
                value: text(f"meanings.{group}", word)
                for value, word in _strings(f"meanings.{group}", words).items()
            }
            for group, words in row.get("meanings", {}).items()
        },
        defaults=_strings("defaults", row.get("defaults", {})),
        hook=_one_of("hook", row["hook"], HOOKS) if "hook" in row else None,
        samples=tuple(text("samples", one) for one in row.get("samples", ())),
    )


def _typed(row: Mapping[str, Any], keys: Mapping[str, tuple[type, ...]]) -> None:
    """Raise _Invalid for a key that does not exist or has a value of another type."""
    for key, value in row.items():
        if key not in keys:
            raise _Invalid(f"{key}: no such key; the keys are {', '.join(keys)}")
        if type(value) not in keys[key]:
            raise _Invalid(f"{key}: must be {' or '.join(_WORDS[kind] for kind in keys[key])}")


def _strings(key: str, table: object) -> dict[str, str]:
    if not isinstance(table, dict) or not all(isinstance(one, str) for one in table.values()):
        raise _Invalid(f"{key}: must be {_WORDS[dict]}")
    return table


def _one_of(key: str, name: str, values: Mapping[str, Any]) -> Any:
    if name not in values:
        raise _Invalid(f"{key}: {name!r} is not one of {', '.join(values)}")
    return values[name]


def _check(one: Signature) -> None:
    """Raise _Invalid if a signature's pattern or texts cannot be used."""
    for key, pattern in (("near", one.near), ("pattern", one.pattern)):
        try:
            groups = re.compile(pattern, re.ASCII).groupindex
        except re.error as error:
            raise _Invalid(f"{key} of {one.id}: {error}") from None
    try:
        literals(one.pattern)
    except (ValueError, IndexError) as error:
        raise _Invalid(f"pattern of {one.id}: {error}") from None
    if one.lines < 1:
        raise _Invalid(f"lines of {one.id}: must be 1 or more")
    names = {name.rstrip("23456789") for name in groups}
    if unknown := set(one.meanings) - names:
        raise _Invalid(f"meanings of {one.id}: the pattern has no group {min(unknown)}")
    known = {*names, *(f"{group}_meaning" for group in one.meanings), *one.defaults, *UNNAMED}
    remedies = (("remedy", text) for both in one.remedies for text in both)
    for key, text in (("cause", one.cause), *remedies):
        # Only the hook knows which values it gives.
        values = _Anything() if one.hook else dict.fromkeys(known, "")
        try:
            text.format_map(values)
        except KeyError as error:
            raise _Invalid(f"{key} of {one.id}: the pattern has no group {error.args[0]}") from None
        except (ValueError, IndexError, AttributeError, TypeError) as error:
            raise _Invalid(f"{key} of {one.id}: {error}; write {{{{ for a brace") from None


class _Anything(dict[str, str]):
    def __missing__(self, name: str) -> str:
        return name
