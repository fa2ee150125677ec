"""Runs on a node: says what is at a path, first as one digest, then in as much detail as asked.

The first line of stdin is the configuration, those after it are orders; each answer is a line of
JSON. See `clusterctl.copy.verify`, which asks.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from clusterctl.node.relay.listing import Listing, Piece
from clusterctl.node.relay.looking import Looker, Wanted, look_at, shown_path
from clusterctl.node.relay.manifest import bytes_of, text_of
from clusterctl.node.relay.places import (
    ITSELF,
    STAGING,
    Nothing,
    Place,
    copied_places,
    named_places,
    path_of,
    place_itself,
    source_places,
)
from clusterctl.node.relay.readers import ReaderLost, Readers

if TYPE_CHECKING:
    from collections.abc import Iterator

REPORT_S = 1.0
MOST_READERS = 32
LEAST_READERS = 4
# The pieces of folders: short while they take long, so that all readers end together.
LEAST_PIECE, MOST_PIECE, PIECE_S = 4, 512, 0.05


def say(event: str, **fields: Any) -> None:
    line = json.dumps({"event": event, **fields}, separators=(",", ":")) + "\n"
    sys.stdout.buffer.write(line.encode("ascii"))
    sys.stdout.buffer.flush()


def places_of(config: dict[str, Any]) -> list[Place]:
    """Raises Nothing, OSError."""
    base = config.get("base", "")
    if "sources" in config:
        if config.get("names") is not None:
            folder = path_of(config["sources"][0], base)
            return named_places(folder, [bytes_of(name) for name in config["names"]])
        return source_places([path_of(source, base) for source in config["sources"]])
    if "copied" in config:
        names = [bytes_of(name) for name in config["copied"]]
        return copied_places(path_of(config["path"]), names, bytes_of(config["file_name"]))
    return place_itself(path_of(config["path"]))


class Walk:
    """Tasks for readers, from the folders below some places; the listing learns of each folder."""

    def __init__(self, places: list[Place], listing: Listing) -> None:
        self._listing = listing
        self._places = [place for place in places if os.path.lexists(place.path)]
        self._size = LEAST_PIECE
        self._handed: dict[tuple[str, int], tuple[float, int]] = {}

    def tasks(self) -> Iterator[list[Any]]:
        places = sorted(self._places)
        yield from self._pieces(b"", [(place.name, place.path) for place in places])
        folders = [place for place in places if _is_folder(place.path)]
        while folders:
            at = folders.pop()
            try:
                with os.scandir(at.path) as listing:
                    children = sorted(
                        (child.name, child.path, child.is_dir(follow_symlinks=False))
                        for child in listing
                        if child.name != STAGING
                    )
            except OSError as error:
                self._listing.unreadable(at.name, error.strerror or str(error))
                continue
            yield from self._pieces(at.name, [(name, path) for name, path, _ in children])
            folders += [
                Place(shown_path(at.name, name), path) for name, path, is_dir in children if is_dir
            ]

    def _pieces(self, folder: bytes, entries: list[tuple[bytes, bytes]]) -> Iterator[list[Any]]:
        self._listing.open(folder)
        first = number = 0
        while first < len(entries):
            places = entries[first : first + self._size]
            task = [text_of(folder), number, [[text_of(n), text_of(p)] for n, p in places]]
            self._handed[(text_of(folder), number)] = (time.monotonic(), len(places))
            yield task
            first, number = first + len(places), number + 1

    def done(self, folder: str, number: int) -> None:
        """A piece came back: the next are larger if that was soon, smaller if it took long."""
        handed_at, size = self._handed.pop((folder, number))
        took_s = time.monotonic() - handed_at
        if took_s < PIECE_S:
            self._size = min(MOST_PIECE, max(self._size, size * 2))
        elif took_s > 4 * PIECE_S:
            self._size = max(LEAST_PIECE, min(self._size, size // 2))


def _is_folder(path: bytes) -> bool:
    return os.path.isdir(path) and not os.path.islink(path)


class Orders:
    """What the other side asks for, as it comes. It ends when nothing comes any more."""

    def __init__(self, readers: Readers, silence_s: float) -> None:
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._readers = readers
        self._silence_s = silence_s
        self._heard_at = time.monotonic()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._heard_at = time.monotonic()
            if line.strip():
                self._lines.put(line)
        self.leave()

    def check(self) -> None:
        if time.monotonic() - self._heard_at > self._silence_s:
            self.leave()

    def leave(self) -> None:
        """The other side is gone, or needs no more."""
        self._readers.end()
        os._exit(0)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            try:
                yield json.loads(self._lines.get(timeout=REPORT_S))
            except queue.Empty:
                self.check()


class Progress:
    def __init__(self) -> None:
        self._began = self._said_at = time.monotonic()
        self._files = self._bytes = 0

    def told(self, read: list[int]) -> None:
        self._files += read[0]
        self._bytes += read[1]

    def say(self) -> None:
        now = time.monotonic()
        if now - self._said_at >= REPORT_S:
            self._said_at = now
            wall = round(now - self._began, 3)
            say("progress", files=self._files, bytes=self._bytes, wall=wall)

    @property
    def fields(self) -> dict[str, Any]:
        return {"read_bytes": self._bytes, "seconds": round(time.monotonic() - self._began, 3)}


def look_everywhere(
    places: list[Place], looker: Looker, readers: Readers, orders: Orders
) -> Listing:
    """Raises ReaderLost."""
    listing, progress = Listing(), Progress()
    walk = Walk(places, listing)

    def turn() -> None:
        progress.say()
        orders.check()

    for folder, number, piece in readers.run(walk.tasks(), progress.told, turn):
        listing.add(bytes_of(folder), number, Piece(*piece))
        walk.done(folder, number)
    listing.close()
    say(
        "total",
        digest=listing.digest(),
        counts=listing.counts,
        problems=listing.problems,
        problem_count=listing.problem_count,
        crc_with=looker.crc_name,
        **progress.fields,
    )
    return listing


def answer(listing: Listing, order: dict[str, Any]) -> None:
    first, number = order["first"], order["number"]
    if order["order"] == "folders":
        say("folders", items=listing.folders(first, number))
    else:
        say("rows", items=listing.rows(bytes_of(order["folder"]), first, number))


def reader_count() -> int:
    """More than cores: they wait for the disk in turn."""
    return max(LEAST_READERS, min(MOST_READERS, len(os.sched_getaffinity(0))))


def main() -> None:
    config = json.loads(sys.stdin.buffer.readline())
    looker = Looker(Wanted(*(bool(config.get(name)) for name in Wanted._fields)))
    readers = Readers(reader_count(), lambda task, tell: look_at(looker, task, tell))
    orders = Orders(readers, float(config.get("silence_s", 60.0)))
    try:
        places = places_of(config)
        if "sources" in config:
            names = [text_of(place.name) for place in places]
            single = names == [text_of(ITSELF)] and not os.path.isdir(places[0].path)
            file_name = os.path.basename(places[0].path) if single else b""
            say("places", names=names, file_name=text_of(file_name))
        listing = look_everywhere(places, looker, readers, orders)
        for order in orders:
            if order["order"] == "stop":
                break
            answer(listing, order)
    except BrokenPipeError:
        pass
    except Nothing:
        say("failed", kind="absent", why="there is nothing at the path")
    except ReaderLost as error:
        say("failed", kind="bug", why=str(error))
    except OSError as error:
        say("failed", kind="permission", why=f"{error.strerror}: {text_of(_name_of(error))}")
    orders.leave()


def _name_of(error: OSError) -> bytes:
    name = error.filename or b""
    return name if isinstance(name, bytes) else os.fsencode(name)
