"""YAML as a tree with line numbers or as plain values, from a file that anybody may have written.

A plain scalar is a number, true, false or null by JSON's grammar (RFC 8259), and text
otherwise. YAML 1.1, which PyYAML reads by itself, takes 1e-5 for text, and 0123, 1:30 and on for
83, 90 and true.

Only PyYAML's parser and composer are used: no object is constructed from a tag, and an alias shares
its node, so that a small file cannot expand into a large value.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, Union

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

# A file of a hundred clusters has a tenth of this size. PyYAML takes a second for all of it.
MAX_BYTES = 256 * 1024
# Levels of nesting, and mappings that `<<` leads through.
MAX_DEPTH = 12

# Values of a file in which aliases are written out: far more than any job or cluster has.
MAX_VALUES = 100_000
MAX_DIGITS = 400  # of a number: a double has at most 309 before the point

_NULL = "tag:yaml.org,2002:null"
_TEXT = "tag:yaml.org,2002:str"
_MERGE = "tag:yaml.org,2002:merge"
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")
)


_PLAIN = tuple(
    (f"tag:yaml.org,2002:{kind}", re.compile(rf"(?:{regex})\Z"), first)
    for kind, regex, first in (
        ("null", "null|", ["n", ""]),
        ("bool", "true|false", ["t", "f"]),
        ("int", "-?(?:0|[1-9][0-9]*)", list("-0123456789")),
        ("float", r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?", list("-0123456789")),
        ("merge", "<<", ["<"]),
    )
)
_RESOLVERS: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
for _tag, _regex, _first in _PLAIN:
    for _character in _first:
        _RESOLVERS.setdefault(_character, []).append((_tag, _regex))


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS


@dataclass(frozen=True)
class Problem:
    """What is wrong and where: a line, counted from 1, and a key such as `clusters.demo.nodes`."""

    line: int
    key: str
    message: str

    def at(self, path: str) -> str:
        """Return it as a line that begins with the file's path."""
        place = f"{path}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class Unreadable(Exception):
    """The file cannot be checked any further. `problem` has the reason."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(line, "", message)


@dataclass(frozen=True)
class Scalar:
    """A single value. `null`: it is a written `null` or left empty. `quoted`: it is in quotes.

    `literal`: it is a number, true or false.
    """

    line: int
    text: str
    quoted: bool
    null: bool
    literal: bool


@dataclass(frozen=True)
class Sequence:
    """A list. `read_tree` reads its items."""

    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Item:
    """An entry of a mapping. `key` is None if it is a list or a mapping."""

    line: int
    key: str | None
    node: Node


@dataclass(frozen=True)
class Mapping:
    """A mapping, with the entries that `<<` merges into it."""

    line: int
    items: tuple[Item, ...]


Tree = Union[Scalar, Sequence, Mapping]


def decode(data: bytes) -> str:
    """Return the text of a file. Raises Unreadable if it is too large or not UTF-8."""
    if len(data) > MAX_BYTES:
        raise Unreadable(1, f"more than {MAX_BYTES // 1024} KiB, which no such file needs")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(line, f"not UTF-8: the byte 0x{data[error.start]:02x}") from None


def compose(text: str) -> Node | None:
    """Return the root node of the only document, None if there is none. Raises Unreadable."""
    try:
        _check_events(text)
        root: Node | None = yaml.compose(text, Loader=_Loader)
        return root
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{ord(text[error.position]):04X}"
        raise Unreadable(line, f"a character that YAML forbids: {character}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(mark.line + 1 if mark else 1, _worded(error)) from None


def _check_events(text: str) -> None:
    """Raise Unreadable for a foreign tag, a zero byte, or nesting deeper than MAX_DEPTH."""
    # Checked before the composer runs: it recurses at each level, and the parser does not.
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        tag = getattr(event, "tag", None)
        if tag and tag not in _TAGS:
            raise Unreadable(line, f"a YAML tag that means nothing here: {tag}")
        if "\0" in getattr(event, "value", ""):
            raise Unreadable(line, "a zero byte, which no path, name or argument can have")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise Unreadable(line, f"more than {MAX_DEPTH} levels deep")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _worded(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or error.context or "not YAML"
    if "'\\t'" in problem:
        return "a tab: YAML is indented with spaces"
    return f"not YAML: {problem}"


def read_tree(node: Node) -> Tree:
    """Return one level of the tree below a node. Raises Unreadable for a wrong `<<`."""
    line = node.start_mark.line + 1
    if isinstance(node, ScalarNode):
        quoted, literal = node.style in ("'", '"'), node.tag not in (_NULL, _TEXT)
        return Scalar(line, node.value, quoted, null=node.tag == _NULL, literal=literal)
    if isinstance(node, MappingNode):
        return Mapping(line, _items(node, {}, 0))
    return Sequence(line, tuple(node.value))


def load(data: bytes) -> Any:
    """Return the value of a file: mappings by their keys' text, lists, and what scalars stand for.

    Raises Unreadable, also for a key that is no text or is there twice.
    """
    root = compose(decode(data))
    return None if root is None else _Values().of(root, 0)


class _Values:
    """Makes values of nodes. They are counted, since aliases can make few nodes many values."""

    def __init__(self) -> None:
        self._count = 0

    def of(self, node: Node, depth: int) -> Any:
        tree = read_tree(node)
        self._count += 1
        if depth > MAX_DEPTH:
            raise Unreadable(tree.line, f"more than {MAX_DEPTH} levels deep, or an alias of itself")
        if self._count > MAX_VALUES:
            raise Unreadable(tree.line, f"more than {MAX_VALUES} values, with all aliases")
        if isinstance(tree, Scalar):
            return _scalar_value(tree, node.tag)
        if isinstance(tree, Sequence):
            return [self.of(item, depth + 1) for item in tree.items]
        found: dict[str, Any] = {}
        for item in tree.items:
            if item.key is None:
                raise Unreadable(item.line, "a key that is no text")
            if item.key in found:
                raise Unreadable(item.line, f"the key {item.key!r} is there twice")
            found[item.key] = self.of(item.node, depth + 1)
        return found


def _scalar_value(scalar: Scalar, its_tag: str) -> Any:
    """Return what a scalar stands for. A tag as in `!!int 8` sets its type."""
    if its_tag == _TEXT:
        return scalar.text
    kind = its_tag.rpartition(":")[2]
    if not any(tag == its_tag and regex.match(scalar.text) for tag, regex, _ in _PLAIN):
        raise Unreadable(scalar.line, f"{scalar.text[:80]!r} is no {kind} as JSON writes it")
    if kind in ("null", "bool"):
        return {"true": True, "false": False}.get(scalar.text)
    if len(scalar.text) > MAX_DIGITS or math.isinf(float(scalar.text)):
        raise Unreadable(scalar.line, f"a number that is too large: {scalar.text[:80]}")
    return int(scalar.text) if kind == "int" else float(scalar.text)


def dump(value: Any) -> str:
    """Return a value as YAML that `load` reads back."""
    text: str = yaml.dump(value, Dumper=_Dumper, sort_keys=False)
    return text


def _items(node: MappingNode, known: dict[int, tuple[Item, ...]], depth: int) -> tuple[Item, ...]:
    """Return the node's own entries, then those that `<<` adds (yaml.org/type/merge.html).

    `known` has the entries of mappings already read, by the node's id.
    """
    line = node.start_mark.line + 1
    if depth > MAX_DEPTH:
        raise Unreadable(line, f"`<<` leads on more than {MAX_DEPTH} times")
    # A mapping may be merged many times: it is read once.
    if id(node) in known:
        return known[id(node)]
    items = [
        Item(key.start_mark.line + 1, _key(key), value)
        for key, value in node.value
        if key.tag != _MERGE
    ]
    keys = {item.key for item in items}
    for key, value in node.value:
        if key.tag != _MERGE:
            continue
        for source in value.value if isinstance(value, SequenceNode) else [value]:
            if not isinstance(source, MappingNode):
                raise Unreadable(key.start_mark.line + 1, "`<<` takes a mapping, or a list of them")
            for item in _items(source, known, depth + 1):
                if item.key not in keys:
                    keys.add(item.key)
                    items.append(item)
    known[id(node)] = tuple(items)
    return known[id(node)]


def _key(node: Node) -> str | None:
    # A plain 1, yes or null is a valid key: a tag may have that name.
    return node.value if isinstance(node, ScalarNode) else None
