"""YAML as a tree that knows its lines, from a file that anybody may have written.

Only PyYAML's parser and composer are used: no object is ever made from a tag, and an alias costs
nothing, as nothing is copied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

# A file of a hundred clusters has a tenth of it. PyYAML takes a second for so much.
MAX_BYTES = 256 * 1024
MAX_DEPTH = 12

_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")
)


@dataclass(frozen=True)
class Problem:
    """What is wrong, and where: a line counted from 1, a key as `clusters.demo.nodes`."""

    line: int
    key: str
    message: str

    def at(self, path: str) -> str:
        place = f"{path}:{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class Unreadable(Exception):
    """The text is no tree that could be checked further. `problem` says why."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(line, "", message)


@dataclass(frozen=True)
class Scalar:
    """One value: `null` is written out or left empty, `quoted` says it was in quotes."""

    line: int
    text: str
    quoted: bool
    null: bool


@dataclass(frozen=True)
class Sequence:
    line: int
    items: tuple[Node, ...]


@dataclass(frozen=True)
class Item:
    """A key of a mapping. `key` is None where it is no text."""

    line: int
    key: str | None
    node: Node


@dataclass(frozen=True)
class Mapping:
    line: int
    items: tuple[Item, ...]


Tree = Union[Scalar, Sequence, Mapping]


def decode(data: bytes) -> str:
    """The text of a file. Raises Unreadable."""
    if len(data) > MAX_BYTES:
        raise Unreadable(1, f"more than {MAX_BYTES // 1024} KiB, which no such file needs")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(line, f"not UTF-8: the byte 0x{data[error.start]:02x}") from None


def compose(text: str) -> Node | None:
    """The root of the only document; None where there is none. Raises Unreadable."""
    try:
        _check_events(text)
        root: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
        return root
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        character = f"U+{ord(text[error.position]):04X}"
        raise Unreadable(line, f"a character that YAML forbids: {character}") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Unreadable(mark.line + 1 if mark else 1, _worded(error)) from None


def _check_events(text: str) -> None:
    # The composer calls itself for each level; the parser below it does not.
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        line = event.start_mark.line + 1 if event.start_mark else 1
        tag = getattr(event, "tag", None)
        if tag and tag not in _TAGS:
            raise Unreadable(line, f"a YAML tag that means nothing here: {tag}")
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
    """One level of what is there. Raises Unreadable."""
    line = node.start_mark.line + 1
    if isinstance(node, MappingNode):
        return Mapping(line, _items(node, {}, 0))
    if isinstance(node, SequenceNode):
        return Sequence(line, tuple(node.value))
    assert isinstance(node, ScalarNode)
    quoted = node.style in ("'", '"')
    return Scalar(line, node.value, quoted, null=node.tag == _NULL)


def _items(node: MappingNode, known: dict[int, tuple[Item, ...]], depth: int) -> tuple[Item, ...]:
    """Its own keys, then what `<<` brings and they do not say, as YAML has it."""
    line = node.start_mark.line + 1
    if depth > MAX_DEPTH:
        raise Unreadable(line, f"`<<` leads on more than {MAX_DEPTH} times")
    # What is merged again and again is read once.
    if id(node) in known:
        return known[id(node)]
    items = [
        Item(key.start_mark.line + 1, _key(key), value)
        for key, value in node.value
        if key.tag != _MERGE
    ]
    said = {item.key for item in items}
    for key, value in node.value:
        if key.tag != _MERGE:
            continue
        for source in value.value if isinstance(value, SequenceNode) else [value]:
            if not isinstance(source, MappingNode):
                raise Unreadable(key.start_mark.line + 1, "`<<` takes a mapping, or a list of them")
            for item in _items(source, known, depth + 1):
                if item.key not in said:
                    said.add(item.key)
                    items.append(item)
    known[id(node)] = tuple(items)
    return known[id(node)]


def _key(node: Node) -> str | None:
    # A plain 1, yes or null is a key all the same: a tag may be called so.
    return node.value if isinstance(node, ScalarNode) else None
