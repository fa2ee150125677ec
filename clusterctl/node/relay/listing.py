"""Everything that was seen on a node, folder by folder, and the digests that tell nodes apart."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from clusterctl.node.relay.manifest import text_of

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_PROBLEMS = 1000
# A row of a folder: what is compared.
NAME, KIND, MODE, SIZE, MTIME, LINK, SHA256, RECORDS, FRAME, TROUBLE = range(10)
NOT_RECORDS = -1
_SHARD = re.compile(r"\d{5}-of-\d{5}")
_RECORD_NAME = re.compile(r"\.tfrecords?$")


class Problem(NamedTuple):
    """What is wrong with one file by itself: `unreadable`, `changed`, `vanished`, `corrupt`."""

    path: str
    kind: str
    text: str


class Piece(NamedTuple):
    """Some entries of one folder, in the order of their names: a line of JSON for each.

    `shards` are the sets that the TFRecord files among them belong to, `not_shards` the names
    that look so and are none.
    """

    text: str
    counts: dict[str, int]
    problems: Sequence[Sequence[str]]
    shards: Sequence[str]
    not_shards: Sequence[str]


class _Folder:
    def __init__(self) -> None:
        self.pieces: dict[int, bytes] = {}
        self.shards: set[str] = set()
        self.not_shards: list[str] = []


class Listing:
    """Takes pieces in any order. Rows are kept as text, about 100 bytes each."""

    def __init__(self) -> None:
        self._folders: dict[bytes, _Folder] = {}
        self._texts: dict[bytes, bytes] = {}
        self._paths: list[bytes] = []
        self._last: tuple[bytes, list[bytes]] = (b"", [])
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.counts = no_counts()

    def open(self, folder: bytes) -> None:
        """Also a folder in which nothing is, is one."""
        self._folders.setdefault(folder, _Folder())

    def add(self, folder: bytes, number: int, piece: Piece) -> None:
        """Piece number `number` of a folder."""
        at = self._folders[folder]
        at.pieces[number] = piece.text.encode("ascii")
        at.shards.update(piece.shards)
        at.not_shards.extend(piece.not_shards)
        for name, number_of in piece.counts.items():
            self.counts[name] += number_of
        for path, kind, text in piece.problems:
            self.add_problem(path, kind, text)

    def unreadable(self, folder: bytes, why: str) -> None:
        """A folder whose entries nobody can say. It has one row, which no name of a file has."""
        row = ["", "?", 0, 0, 0, "", "", NOT_RECORDS, "", "unreadable"]
        self._folders[folder] = _Folder()
        self._folders[folder].pieces[0] = text_of_rows([row]).encode("ascii")
        self.add_problem(text_of(folder), "unreadable", why)

    def add_problem(self, path: str, kind: str, text: str) -> None:
        self.problem_count += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(Problem(path, kind, text))

    def close(self) -> None:
        """All is there."""
        for path, folder in sorted(self._folders.items()):
            self._texts[path] = b"".join(text for _, text in sorted(folder.pieces.items()))
            for name in folder.not_shards:
                if _RECORD_NAME.search(name) or shard_of(name) in folder.shards:
                    shown = f"{text_of(path)}/{name}" if path not in (b"", b".") else name
                    self.add_problem(shown, "corrupt", "does not begin as a TFRecord file")
        self._folders.clear()
        self._paths = list(self._texts)
        self.problems.sort()

    def digest(self) -> str:
        """Of everything: the same on two nodes that have the same."""
        total = hashlib.sha256()
        for path in self._texts:
            total.update(b"%d " % len(path) + path + self._digest_of(path).encode())
        return total.hexdigest()

    def _digest_of(self, folder: bytes) -> str:
        return hashlib.sha256(self._texts[folder]).hexdigest()

    def folders(self, first: int, number: int) -> list[list[str]]:
        """(path, digest) of some folders, in the order of their paths' bytes."""
        paths = self._paths[first : first + number]
        return [[text_of(path), self._digest_of(path)] for path in paths]

    def rows(self, folder: bytes, first: int, number: int) -> list[Any]:
        """Some rows of a folder, in the order of their names' bytes."""
        if self._last[0] != folder or not self._last[1]:
            self._last = (folder, self._texts.get(folder, b"").splitlines())
        return [json.loads(line) for line in self._last[1][first : first + number]]


def no_counts() -> dict[str, int]:
    names = ("files", "folders", "links", "others", "bytes", "tfrecords", "records")
    return dict.fromkeys(names, 0)


def count_row(row: Sequence[Any], counts: dict[str, int]) -> None:
    counts[{"f": "files", "d": "folders", "l": "links"}.get(row[KIND], "others")] += 1
    counts["bytes"] += row[SIZE]
    if row[RECORDS] != NOT_RECORDS:
        counts["tfrecords"] += 1
        counts["records"] += row[RECORDS]


def text_of_rows(rows: Sequence[Sequence[Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def looks_like_records(name: str) -> bool:
    """Whether a name is one that TFRecord files usually have; others' files may have it too."""
    return bool(_SHARD.search(name) or _RECORD_NAME.search(name))


def shard_of(name: str) -> str:
    """`train-#-of-#` for `train-00001-of-01024`: what the files of one set have in common."""
    return _SHARD.sub("#", name)
