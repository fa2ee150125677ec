"""The entries of a data set in arrays: about 35 bytes each, and their paths."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, overload

from clusterctl.node.relay.manifest import Entry

# Python 3.8 cannot subscript the class of collections.abc.
if TYPE_CHECKING:
    _Sequence = Sequence[Entry]
else:
    _Sequence = Sequence

# Numbers beyond these do not fit into the arrays.
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


class Entries(_Sequence):
    """Entries by number. An `Entry` is made when it is needed: an object takes 400 bytes.

    One with segments, with a NUL in its path, or with a number of more than 64 bits, is kept as an
    object: there are few.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        # By entry its path; if it has a link or a digest: path, NUL, link, NUL, digest.
        self._texts, self._ends = bytearray(), array("Q")
        self._kinds, self._modes = bytearray(), array("h")
        self._times, self._sizes, self._changes = array("q"), array("q"), array("q")
        self._objects: dict[int, Entry] = {}
        for entry in entries:
            self.append(entry)

    def append(self, entry: Entry) -> None:
        """Add an entry at the end."""
        text = entry.path
        if entry.link or entry.digest:
            text = b"\0".join((text, entry.link, entry.digest))
        numbers = (entry.mtime_ns, entry.size, entry.changed_ns)
        is_odd = min(numbers) < _LEAST or max(numbers) > _MOST
        if is_odd or entry.segments is not None or b"\0" in entry.path or b"\0" in entry.link:
            self._objects[len(self._kinds)] = entry
            text, numbers = b"", (0, 0, 0)
        self._texts += text
        self._ends.append(len(self._texts))
        self._modes.append(entry.mode)
        self._times.append(numbers[0])
        self._sizes.append(numbers[1])
        self._changes.append(numbers[2])
        self._kinds.append(ord(entry.kind))

    def __len__(self) -> int:
        return len(self._kinds)

    @overload
    def __getitem__(self, number: int) -> Entry: ...

    @overload
    def __getitem__(self, number: slice) -> list[Entry]: ...

    def __getitem__(self, number: int | slice) -> Entry | list[Entry]:
        if isinstance(number, slice):
            return [self[one] for one in range(len(self))[number]]
        if not 0 <= number < len(self._kinds):
            number = range(len(self._kinds))[number]
        if number in self._objects:
            return self._objects[number]
        path, link, digest = self._text(number), b"", b""
        if b"\0" in path:
            path, link, digest = path.split(b"\0", 2)
        return Entry(
            path,
            chr(self._kinds[number]),
            self._modes[number],
            self._times[number],
            self._sizes[number],
            link,
            None,
            digest,
            self._changes[number],
        )

    def __iter__(self) -> Iterator[Entry]:
        # Faster than one by one; most uses of a table go through all of it.
        columns = zip(self._ends, self._kinds, self._modes, self._times, self._sizes, self._changes)
        objects, begin = self._objects, 0
        for number, (end, kind, mode, mtime_ns, size, changed_ns) in enumerate(columns):
            path, link, digest = bytes(self._texts[begin:end]), b"", b""
            begin = end
            if number in objects:
                yield objects[number]
                continue
            if b"\0" in path:
                path, link, digest = path.split(b"\0", 2)
            yield Entry(path, chr(kind), mode, mtime_ns, size, link, None, digest, changed_ns)

    def path(self, number: int) -> bytes:
        """Return the path of an entry."""
        if number in self._objects:
            return self._objects[number].path
        return self._text(number).partition(b"\0")[0]

    def kind(self, number: int) -> str:
        """Return the kind of an entry."""
        return chr(self._kinds[number])

    def of_kind(self, kind: str) -> Iterator[int]:
        """Yield the numbers of the entries of a kind."""
        number = self._kinds.find(ord(kind))
        while number >= 0:
            yield number
            number = self._kinds.find(ord(kind), number + 1)

    def set_time(self, number: int, mtime_ns: int) -> None:
        """Change the time of an entry."""
        if number in self._objects:
            self._objects[number] = self._objects[number]._replace(mtime_ns=mtime_ns)
        else:
            self._times[number] = mtime_ns

    def _text(self, number: int) -> bytes:
        begin = self._ends[number - 1] if number else 0
        return bytes(self._texts[begin : self._ends[number]])
