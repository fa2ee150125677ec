"""`clusterctl.yaml`: its defaults and named clusters, read with a list of all its problems."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yaml.nodes import Node

from clusterctl.configuration import yaml_tree
from clusterctl.configuration.options import (
    OPTIONS,
    TAG,
    Option,
    ValueKind,
    Values,
    check_tag,
    merged,
    parse_value,
)
from clusterctl.configuration.yaml_tree import Problem, Scalar, Sequence, Unreadable, read_tree
from clusterctl.domain.cluster import check_cluster_name
from clusterctl.domain.errors import UsageError, did_you_mean

_SECTIONS = ("defaults", "clusters")
# The kinds of settings that stand without quotes.
LITERAL = (ValueKind.FLAG, ValueKind.WHOLE, ValueKind.LOAD, ValueKind.NUMBER)


@dataclass(frozen=True)
class ClusterEntry:
    """A cluster of the file: its own settings, and the cluster whose settings it extends.

    Lines count from 1; `extends_line` is 0 without `extends`.
    """

    line: int
    values: Values
    extends: str | None = None
    extends_line: int = 0


@dataclass(frozen=True)
class SpecFile:
    """The content of a settings file. `path` is as the user wrote it."""

    path: Path
    defaults: Values = field(default_factory=dict)
    clusters: Mapping[str, ClusterEntry] = field(default_factory=dict)

    def values(self, name: str | None) -> Values:
        """Return a cluster's settings: its entry over those it extends, over the defaults.

        Without a name, or for a cluster that the file does not have: the defaults.
        """
        ancestors = [self.clusters[one].values for one in reversed(self.lineage(name))]
        return merged(self.defaults, *ancestors)

    def lineage(self, name: str | None) -> list[str]:
        """Return the cluster and those it extends, nearest first. A cycle is followed once."""
        line: list[str] = []
        while name is not None and name in self.clusters and name not in line:
            line.append(name)
            name = self.clusters[name].extends
        return line


def parse_spec_file(data: bytes, path: Path) -> tuple[SpecFile, tuple[Problem, ...]]:
    """Return what could be read of the file, and all its problems."""
    reader = _Reader(path)
    try:
        return reader.file(yaml_tree.compose(yaml_tree.decode(data))), reader.sorted_problems()
    except Unreadable as error:
        return SpecFile(path), (*reader.sorted_problems(), error.problem)


class _Reader:
    """Reads the tree of one file and collects its problems."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []

    def sorted_problems(self) -> tuple[Problem, ...]:
        return tuple(sorted(set(self.problems), key=lambda problem: (problem.line, problem.key)))

    def file(self, root: Node | None) -> SpecFile:
        """Read the whole file from its root node; None is an empty file."""
        if root is None:
            self._wrong(1, "", "nothing is in it; it needs `defaults:` or `clusters:`")
            return SpecFile(self.path)
        defaults: Values = {}
        clusters: dict[str, ClusterEntry] = {}
        for line, key, node in self._mapping(root, ""):
            if key == "defaults":
                defaults = self._settings(node, key)[0]
            elif key == "clusters":
                clusters = self._clusters(node)
            elif key in OPTIONS:
                self._wrong(line, key, "belongs under `defaults:`, or under a name in `clusters:`")
            else:
                what = "no such section: a file has `defaults:` and `clusters:`"
                self._wrong(line, key, what + did_you_mean(key, _SECTIONS))
        self._check_extends(clusters)
        return SpecFile(self.path, defaults, clusters)

    def _clusters(self, node: Node) -> dict[str, ClusterEntry]:
        entries = {}
        for line, name, inner in self._mapping(node, "clusters"):
            try:
                check_cluster_name(name)
            except UsageError as error:
                self._wrong(line, "clusters", f"{error.message}; {error.hint}")
                continue
            values, extends, extends_line = self._settings(inner, f"clusters.{name}", True)
            entries[name] = ClusterEntry(line, values, extends, extends_line)
        return entries

    def _settings(
        self, node: Node, where: str, extendable: bool = False
    ) -> tuple[Values, str | None, int]:
        values: dict[str, Any] = {}
        extends, extends_line = None, 0
        keys = [*OPTIONS, *(["extends"] if extendable else [])]
        for line, key, inner in self._mapping(node, where):
            place = f"{where}.{key}"
            if key == "extends" and extendable:
                named = self._scalar(inner, place, "the name of a cluster")
                extends, extends_line = named.text if named else None, line
            elif key not in OPTIONS:
                self._unknown(line, place, keys)
            else:
                values.update(self._option(OPTIONS[key], inner, place))
        return values, extends, extends_line

    def _option(self, option: Option, node: Node, place: str) -> Values:
        tree = read_tree(node)
        # A written `null` restores the built-in value; `_scalar` reports a value left empty.
        if isinstance(tree, Scalar) and tree.null and tree.text:
            return {option.key: None}
        if option.kind is ValueKind.TAGS:
            return self._tags(node, place)
        if option.kind is ValueKind.LIST:
            items = tree.items if isinstance(tree, Sequence) else (node,)
            parts = [self._parsed(option, item, place) for item in items]
            return {option.key: tuple(part for part in parts if part)}
        value = self._parsed(option, node, place)
        if value is None:
            return {}
        # Relative paths start at the file's folder, not at the current one.
        if option.kind is ValueKind.PATH:
            value = self.path.parent / Path(str(value)).expanduser()
        return {option.key: value}

    def _tags(self, node: Node, place: str) -> Values:
        found = {}
        for line, key, inner in self._mapping(node, place):
            value = self._scalar(inner, f"{place}.{key}", "text", empty=True)
            if value is None:
                continue
            try:
                check_tag(key, value.text)
            except UsageError as error:
                self._wrong(line, place, error.message)
                continue
            # As in `_option`: null restores, an empty value is the empty text, which EC2 allows.
            found[TAG + key] = None if value.null and value.text else value.text
        return found

    def _parsed(self, option: Option, node: Node, place: str) -> object:
        found = self._scalar(node, place, option.kind.value)
        if found is None:
            return None
        line, text = found.line, found.text
        literal = option.kind in LITERAL
        if literal and found.quoted:
            self._wrong(
                line, place, f"not {option.kind.value}: the text {text!r}; leave out the quotes"
            )
            return None
        truth = text in ("true", "false")
        if literal and not (found.literal and truth == (option.kind is ValueKind.FLAG)):
            self._wrong(line, place, f"not {option.kind.value}: {text[:80]!r}")
            return None
        if found.literal and option.kind not in (*LITERAL, ValueKind.DURATION):
            self._wrong(line, place, f"not text: {text[:80]}; put it in quotes")
            return None
        try:
            value: object = parse_value(option, text)
        except UsageError as error:
            self._wrong(line, place, error.message)
            return None
        return value

    def _scalar(self, node: Node, place: str, wanted: str, empty: bool = False) -> Scalar | None:
        tree = read_tree(node)
        if not isinstance(tree, Scalar):
            what = "a list" if isinstance(tree, Sequence) else "a mapping"
            self._wrong(tree.line, place, f"not {wanted}: {what}")
        elif tree.null and not empty:
            self._wrong(tree.line, place, "has no value; write one, or leave the key out")
        else:
            return tree
        return None

    def _mapping(self, node: Node, place: str) -> Iterable[tuple[int, str, Node]]:
        """Yield line, key and value node of each entry of a mapping.

        A node that is no mapping, a key that is no text, and a repeated key are reported.
        """
        tree = read_tree(node)
        if not isinstance(tree, yaml_tree.Mapping):
            if not (isinstance(tree, Scalar) and tree.null):
                self._wrong(tree.line, place, "not a mapping of keys to values")
            return
        lines: dict[str, int] = {}
        for item in tree.items:
            if item.key is None:
                self._wrong(item.line, place, "a key that is no text")
            elif item.key in lines:
                where = f"{place}.{item.key}" if place else item.key
                self._wrong(item.line, where, f"is there twice, first on line {lines[item.key]}")
            else:
                lines[item.key] = item.line
                yield item.line, item.key, item.node

    def _check_extends(self, clusters: Mapping[str, ClusterEntry]) -> None:
        parts = SpecFile(self.path, {}, clusters)
        for name, entry in clusters.items():
            place = f"clusters.{name}.extends"
            if entry.extends is None:
                continue
            if entry.extends not in clusters:
                what = f"there is no cluster {entry.extends!r} in this file"
                self._wrong(entry.extends_line, place, what + did_you_mean(entry.extends, clusters))
                continue
            line = parts.lineage(name)
            # Members of the cycle are reported; clusters that only extend one of them are not.
            if clusters[line[-1]].extends == name:
                circle = " extends ".join([*line, name])
                self._wrong(entry.extends_line, place, f"a circle: {circle}")

    def _unknown(self, line: int, place: str, known: Iterable[str]) -> None:
        self._wrong(line, place, "no such key" + did_you_mean(place.rpartition(".")[2], known))

    def _wrong(self, line: int, key: str, message: str) -> None:
        self.problems.append(Problem(line, key, message))
