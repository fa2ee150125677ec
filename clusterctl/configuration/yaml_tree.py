"""YAML as a tree with line numbers, from a file that anybody may have written.

Only PyYAML's parser and composer are used: no object is constructed from a tag, and an alias shares
its node, so that a small file cannot expand into a large value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

# A file of a hundred clusters has a tenth of this size. PyYAML takes a second for all of it.
MAX_BYTES = 256 * 1024
# Levels of nesting, and mappings that `<<` leads through.
MAX_DEPTH = 12

_NULL = "tag:yaml.org,2002:null"
_MERGE = "tag:yaml.org,2002:merge"
_TAGS = frozenset(
    f"tag:yaml.org,2002:{kind}" for kind in ("str", "int", "float", "bool", "null", "map", "seq")
)


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
    """A single value. `null`: it is a written `null` or left empty. `quoted`: it is in quotes."""

    line: int
    text: str
    quoted: bool
    null: bool


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
    """Raise Unreadable for a foreign tag, or for nesting deeper than MAX_DEPTH."""
    # Checked before the composer runs: it recurses at each level, and the parser does not.
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
    """Return one level of the tree below a node. Raises Unreadable for a wrong `<<`."""
    line = node.start_mark.line + 1
    if isinstance(node, MappingNode):
        return Mapping(line, _items(node, {}, 0))
    if isinstance(node, SequenceNode):
        return Sequence(line, tuple(node.value))
    assert isinstance(node, ScalarNode)
    quoted = node.style in ("'", '"')
    return Scalar(line, node.value, quoted, null=node.tag == _NULL)


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
    # A plain 1, yes or null is a valid key: a tag may have that name.
    return node.value if isinstance(node, ScalarNode) else None
