"""What nodes say of themselves, compared: pure tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from clusterctl.copy.verify import Findings, Kind, NodeTotal, compare, compare_rows, grouped, merged


def row(name="f", kind="f", mode=0o644, size=5, mtime=0, link="", sha="", records=-1, **more):
    frame, trouble = more.get("frame", ""), more.get("trouble", "")
    return [name, kind, mode, size, mtime, link, sha, records, frame, trouble]


def total(host: str, digest: str, **more) -> NodeTotal:
    return NodeTotal(host, digest, {"files": 1}, **more)


@dataclass
class Tree:
    """A node's details. After `answers` questions it is lost."""

    content: dict[str, list]
    answers: int = 1000
    lost: bool = False
    asked: list[str] = field(default_factory=list)

    def folders(self) -> Iterator[tuple[str, str]]:
        yield from self._said("", [(path, str(rows)) for path, rows in self.content.items()])

    def rows(self, folder: str) -> Iterator:
        self.asked.append(folder)
        yield from self._said(folder, self.content[folder])

    def _said(self, what, items):
        for item in items:
            self.answers -= 1
            if self.answers < 0:
                self.lost = True
                return
            yield item


@pytest.mark.parametrize(
    ("digests", "reference", "groups"),
    [
        ("aaa", None, ["012"]),
        ("aba", None, ["02", "1"]),
        ("baa", None, ["12", "0"]),
        ("ab", None, ["0", "1"]),
        ("abb", "0", ["0", "12"]),
        ("abc", None, ["0", "1", "2"]),
        ("abba", None, ["03", "12"]),
        ("", None, []),
    ],
)
def test_groups(digests, reference, groups):
    totals = [total(str(number), digest) for number, digest in enumerate(digests)]
    assert ["".join(group.hosts) for group in grouped(totals, reference)] == groups


def test_merged():
    streams = [[("a", 1), ("c", 3), ("\udcff", 9)], [("b", 2), ("c", 4), ("é", 7)], []]
    assert list(merged(streams)) == [
        ("a", [1, None, None]),
        ("b", [None, 2, None]),
        ("c", [3, 4, None]),
        ("é", [None, 7, None]),
        ("\udcff", [9, None, None]),
    ]


@pytest.mark.parametrize(
    ("wanted", "there", "kind", "message"),
    [
        (row(), None, Kind.MISSING, "a file"),
        (row(kind="d"), None, Kind.MISSING, "a folder"),
        (None, row(kind="l"), Kind.EXTRA, "a symbolic link"),
        (row(), row(kind="d"), Kind.DIFFERS, "is a folder instead of a file"),
        (
            row(kind="o"),
            row(kind="l"),
            Kind.DIFFERS,
            "is a symbolic link instead of a special file",
        ),
        (row(), row(size=1), Kind.DIFFERS, "has 1 byte instead of 5"),
        (row(sha="a"), row(sha="b"), Kind.DIFFERS, "has other content"),
        (row(sha="a"), row(sha="b", size=6), Kind.DIFFERS, "has 6 bytes instead of 5"),
        (row(), row(mode=0o4600), Kind.DIFFERS, "has mode 4600 instead of 0644"),
        (row(link="a"), row(link="b\n"), Kind.DIFFERS, r"leads to 'b\n' instead of 'a'"),
        (row(mtime=5), row(mtime=2_000_000_005), Kind.DIFFERS, "is 2 s newer"),
        (row(mtime=5), row(mtime=4), Kind.DIFFERS, "is 1e-09 s older"),
        (row(records=3), row(records=4), Kind.DIFFERS, "has 4 records instead of 3"),
        (row(records=3), row(), Kind.DIFFERS, "has no records instead of 3 records"),
        (row(frame="a", records=1), row(frame="b", records=1), Kind.DIFFERS, "has other content"),
        (row(), row(mode=0, size=1), Kind.DIFFERS, "has 1 byte instead of 5, has mode 0000 inst"),
    ],
)
def test_rows(wanted, there, kind, message):
    [(found, text)] = compare_rows(wanted, there)
    assert found is kind
    assert text.startswith(message)


@pytest.mark.parametrize(
    ("wanted", "there"),
    [
        (row(), row()),
        (None, None),
        # What is the matter with these has been said.
        (row(sha="a"), row(trouble="unreadable")),
        (row(trouble="changed", size=9), row(sha="b")),
        (row(records=5, frame="a"), row(records=3, frame="b", size=1, trouble="corrupt")),
    ],
)
def test_rows_without_a_difference(wanted, there):
    assert list(compare_rows(wanted, there)) == []


def test_only_folders_that_differ_are_asked_for():
    same = {"": [row(".", "d")], ".": [row("a", "d"), row("b", "d")], "a": [row("x")]}
    nodes = [Tree({**same, "b": [row("y")]}), Tree({**same, "b": [row("y", size=6), row("z")]})]
    assert list(compare(nodes)) == [
        (1, Kind.DIFFERS, "b/y", "has 6 bytes instead of 5"),
        (1, Kind.EXTRA, "b/z", "a file"),
    ]
    assert [node.asked for node in nodes] == [["b"], ["b"]]


def test_a_missing_folder_is_one_finding():
    full = {"": [row(".", "d")], ".": [row("a", "d")], "a": [row("b", "d")], "a/b": [row("x")]}
    empty = {"": [row(".", "d")], ".": []}
    assert list(compare([Tree(full), Tree(empty)])) == [(1, Kind.MISSING, "a", "a folder")]
    assert list(compare([Tree(empty), Tree(full)])) == [(1, Kind.EXTRA, "a", "a folder")]


def test_the_path_itself():
    file, folder = {"": [row(".")]}, {"": [row(".", "d")], ".": [row("x")]}
    assert list(compare([Tree(file), Tree(folder)])) == [
        (1, Kind.DIFFERS, "", "is a folder instead of a file")
    ]


def test_each_of_three():
    trees = [Tree({".": [row("a", size=n), row("b")]}) for n in (1, 1, 2, 3)]
    assert [found[0] for found in compare(trees)] == [2, 3]
    assert trees[1].asked == []


@pytest.mark.parametrize("where", [0, 1])
def test_what_cannot_be_listed_is_not_missing(where):
    trees = [Tree({".": [row("a"), row("b")]}), Tree({".": [row("a"), row("b")]})]
    trees[where].content["."] = [row("", "?", trouble="unreadable")]
    assert list(compare(trees)) == []


@pytest.mark.parametrize("answers", range(6))
@pytest.mark.parametrize("who", [0, 1])
def test_a_node_that_is_lost_has_nothing_missing(who, answers):
    rows = [row(str(n)) for n in range(5)]
    trees = [Tree({".": rows}), Tree({".": rows[:4] + [row("4", size=1)]})]
    trees[who].answers = answers
    found = list(compare(trees))
    assert trees[who].lost or answers == 5 and who == 0 or found
    assert all(kind is Kind.DIFFERS for _, kind, _, _ in found)


def test_findings_are_folded_and_counted():
    findings = Findings(most=2)
    findings.add(Kind.MISSING, "b", "a file", ["h2"])
    findings.add(Kind.MISSING, "b", "a file", ["h1", "h2"])
    findings.add(Kind.EXTRA, "a", "a file", ["h1"])
    findings.add(Kind.EXTRA, "c", "a file", ["h1"])
    findings.add_problems(total("h3", "", problems=(("b", "corrupt", "x"),), problem_count=11))
    assert [(f.path, f.hosts) for f in findings.in_order(["h1", "h2"])] == [
        ("a", ("h1",)),
        ("b", ("h1", "h2")),
    ]
    assert findings.more == 12
