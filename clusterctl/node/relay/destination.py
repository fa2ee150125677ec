"""The destination on a node: finds out what is missing there, and publishes whole files.

The bytes come from other relays (target), or are downloaded by the node (s3files, webfile).
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from clusterctl.node.relay.base import Failure, host_identity
from clusterctl.node.relay.compare import Plan, compare, destination, place, shown
from clusterctl.node.relay.disks import other_disks
from clusterctl.node.relay.entries import Entries
from clusterctl.node.relay.hashing import Crc32, Gmac
from clusterctl.node.relay.manifest import FILE, FOLDER, LINK, UNKNOWN_MODE, bytes_of, text_of
from clusterctl.node.relay.messages import MOST_WARNINGS, Begin, Done, Gap
from clusterctl.node.relay.protect import protected, read_mount_points, why_needed
from clusterctl.node.relay.publish import Publisher, in_the_way, no_folder
from clusterctl.node.relay.staging import Staging
from clusterctl.node.relay.wire import Waits


def would_remove(source: str) -> tuple[str, str]:
    """Return the error, and what to do, where --delete would remove what is copied."""
    return (
        f"{source} is what is copied, and --delete would remove it",
        "leave out --delete, or choose a destination that SRC is not in",
    )


class Destination:
    """One destination folder.

    Call `prepare` first, give whole files to `publisher`, then call `finish`, and `leave` in any
    case. The configuration has "destination", and may have "several" (more than one source),
    "delete", "checksum" and "dry_run".
    """

    def __init__(self, config: dict[str, Any], waits: Waits) -> None:
        self._config, self._waits = config, waits
        self._finish_lock = threading.Lock()
        self.staging: Staging | None = None
        self.compared = self.complete = False

    def prepare(self, entries: Entries, begin: Begin) -> Gap:
        """Compare, and make ready for what is missing. Raises Failure, OSError, Busy.

        Return what is missing. In a dry run nothing is changed.
        """
        dst = destination(self._config["destination"], os.path.expanduser("~"))
        single = begin.single and not self._config.get("several")
        self.root, self.entries = place(dst, single, entries)
        self._given = dst.rstrip(b"/") or b"/"
        staging = self.staging = Staging(self.root, Gmac if begin.gmac else Crc32)
        dry = self._config.get("dry_run")
        self._delete = bool(self._config.get("delete")) and not single
        self.notes: list[str] = []
        if self._delete and begin.left_out:
            self._delete = False
            self._note_kept("something at the source could not be read")
        self.plan = self._compare()
        if self._delete:
            self._spare_the_node()
            self._spare_source(begin)
        self._made_root = not os.path.isdir(self.root)
        self._may_open_root = any(
            self.entries.path(number) == b"." and self.entries[number].mode != UNKNOWN_MODE
            for number in self.entries.of_kind(FOLDER)
        )
        new = frozenset(self._missing(FOLDER))
        disks = other_disks(self.root, self.entries, new, read_mount_points())
        staging.use_disks(disks)
        # If nothing is missing, what an interrupted copy left is removed all the same.
        if not dry and (self.plan.missing or self.plan.extra or staging.left()):
            self._acquire(staging, disks)
        self.publisher = Publisher(staging, self.entries, self._waits)
        self.publisher.stamps = self.plan.stamps
        self._blocked = self._find_blocked()
        self._staying = self._find_staying() if begin.left_out else {}
        if self._blocked and self.plan.extra:
            self.plan = self.plan._replace(extra=[])
            self._note_kept("a folder is where a file or a link belongs")
        self.open_content(begin)
        self.compared = True
        gap = self._gap()
        if not dry:
            self._check_room(gap)
            self._start_publishing()
        return gap

    def _acquire(self, staging: Staging, disks: dict[bytes, bytes]) -> None:
        """Hold the staging folders, and keep of them what is still missing."""
        # Of folders that the source knows, `finish` sets the mode.
        folders = map(self.entries.__getitem__, self.entries.of_kind(FOLDER))
        ours = {entry.path for entry in folders if entry.mode != UNKNOWN_MODE}
        own = {b".": self.root, **{at: real for at, real in disks.items() if real != self.root}}
        known = {own[path] for path in ours & own.keys()}
        needed = map(self.entries.__getitem__, self._missing(FILE, LINK))
        staging.acquire(needed, known)
        self._compare_again()
        staging.forget_others(map(self.entries.__getitem__, self._missing(FILE)))

    def _start_publishing(self) -> None:
        """Make the missing folders, and publish what is whole already."""
        made = [number for number in self._missing(FOLDER) if number not in self._staying]
        self.publisher.refused.update(self._staying)
        for number in self.plan.retouch:
            # The next node may lack what its mode hides here from its owner.
            if not self.entries[number].mode & stat.S_IRUSR:
                with contextlib.suppress(OSError):
                    self.publisher.retouch(number)
        self.publisher.make_folders(made)
        self.publisher.start()
        self.publish_whole()

    def _missing(self, *kinds: str) -> Iterator[int]:
        """Yield the numbers of missing entries of these kinds."""
        return (number for number in self.plan.missing if self.entries.kind(number) in kinds)

    def _compare(self) -> Plan:
        checksum = self._config.get("checksum", False)
        return compare(self.root, self.entries, checksum, self._delete)

    def _compare_again(self) -> None:
        """Compare what was missing again: until this copy held the folder, another one may have
        delivered it."""
        checksum = self._config.get("checksum", False)
        again = compare(self.root, self.entries, checksum, False, self.plan.missing)
        is_touched = bytearray(len(self.entries))
        for number in chain(self.plan.retouch, again.retouch):
            is_touched[number] = 1
        retouch = array("I", (n for n, one in enumerate(is_touched) if one))
        for number in self.plan.missing:
            self.plan.stamps[number] = again.stamps[number]
        self.plan = self.plan._replace(missing=again.missing, retouch=retouch)

    def _find_blocked(self) -> list[bytes]:
        """Return the paths of missing files and links where a folder with content is."""
        missing = self._missing(FILE, LINK)
        return [path for path in map(self.publisher.path, missing) if _has_content(path)]

    def _find_staying(self) -> dict[int, str]:
        """Return the missing folders that may not take the place of what is there, and why: it may
        be what the source left out. A link to another folder of the copy does not stay: both would
        have the same files."""
        at = {number: self.publisher.path(number) for number in self._missing(FOLDER)}
        return {
            number: no_folder(path)
            for number, path in at.items()
            if os.path.lexists(path) and not os.path.isdir(path)
        }

    def _note_kept(self, why: str) -> None:
        """Note that --delete removes nothing."""
        verb = "would be" if self._config.get("dry_run") else "was"
        self.notes.append(f"nothing {verb} deleted: {why}")

    def _spare_the_node(self) -> None:
        """Raise Failure if --delete could remove what the node needs, or would empty a disk.

        A folder of the copy may be a link, so each folder in which something is extra is checked.
        """
        extra = set(self.plan.extra)
        parents = {os.path.dirname(path) for path in extra}
        folders = sorted(self.root + b"/" + one for one in parents if one and one not in extra)
        guarded = protected(os.fsencode(os.path.expanduser("~")))
        for folder in (self._given, *folders):
            why = why_needed(folder, guarded)
            if why:
                raise Failure(
                    "usage",
                    f"--delete could remove what the node needs: {why}",
                    "copy into a folder of its own, or leave out --delete",
                )
        mounts = self._real_extra() & read_mount_points() if extra else set()
        if mounts:
            raise Failure(
                "usage",
                f"{text_of(min(mounts))} is a mount point, and --delete would empty it",
                "unmount it, choose a destination that it is not in, or leave out --delete",
            )

    def _real_extra(self) -> set[bytes]:
        """Return the real paths of what is extra: a destination may contain links to folders."""
        real: dict[bytes, bytes] = {}
        extra = set()
        for path in self.plan.extra:
            folder, name = os.path.split(self.root + b"/" + path)
            if folder not in real:
                real[folder] = os.path.realpath(folder)
            extra.add(os.path.join(real[folder], name))
        return extra

    def _spare_source(self, begin: Begin) -> None:
        """Raise Failure if --delete would remove what is being copied."""
        if begin.host != host_identity():
            return
        extra = self._real_extra()
        for root in map(bytes_of, begin.roots):
            parts = root.split(b"/")
            if any(b"/".join(parts[:n]) in extra for n in range(2, len(parts) + 1)):
                raise Failure("usage", *would_remove(text_of(root)))

    # What depends on how the bytes come

    def open_content(self, begin: Begin) -> None:
        """Make ready to receive the missing bytes."""

    def bytes_missing(self) -> int:
        """Return the number of bytes that have to come."""
        return sum(self.entries[number].size for number in self.plan.missing)

    def publish_whole(self) -> None:
        """Publish missing entries that need no bytes: empty files."""
        for number in self.plan.missing:
            entry = self.entries[number]
            if entry.kind == FILE and not entry.data:
                self.publisher.put([(number, self.publisher.staging.part(entry), False)])

    def bad(self) -> Iterable[int]:
        """Return the numbers of files that have changed at the source during the copy."""
        return ()

    # What is missing, and whether there is room for it

    def _gap(self) -> Gap:
        free, writable = room_at(self.root)
        writable = writable or (self._may_open_root and _can_be_opened(self.root))
        size = self.bytes_missing()
        elsewhere, full = self._elsewhere()
        # What differs is named before what may be the same.
        missing, unread = self.plan.missing, self.plan.unread
        names = sorted(missing, key=unread.__contains__) if unread else missing
        return Gap(
            files=sum(1 for _ in self._missing(FILE)),
            bytes=size,
            elsewhere=min(elsewhere, size),
            full=full,
            missing=len(missing),
            missing_names=shown(map(self.entries.path, names)),
            delete=len(self.plan.extra),
            delete_names=shown(self.plan.extra),
            free_bytes=free,
            writable=writable or not missing,
            unread=len(unread),
            blocked=len(self._blocked) + len(self._staying),
            warnings=self._warnings_of_dry_run(full),
        )

    def _elsewhere(self) -> tuple[int, str]:
        """Return the bytes that have to come to other disks than ROOT's, and which lacks room."""
        staging = self.publisher.staging
        needs: dict[int, int] = {}
        paths: dict[int, bytes] = {}
        for number in self._missing(FILE) if staging.has_other_disks else ():
            entry = self.entries[number]
            folder = staging.folder_of(entry)
            if folder is staging.main:
                continue
            had = 0
            with contextlib.suppress(FileNotFoundError):
                had = os.stat(staging.part(entry)).st_blocks * 512
            disk = os.stat(folder.parent).st_dev
            paths.setdefault(disk, folder.parent)
            need = max(0, sum(length for _, length in entry.data) - had)
            needs[disk] = needs.get(disk, 0) + need
        lacks = ((paths[disk], need, room_at(paths[disk])[0]) for disk, need in needs.items())
        full = (_lack(path, need, free) for path, need, free in lacks if need > free)
        return sum(needs.values()), next(full, "")

    def _warnings_of_dry_run(self, full: str) -> tuple[str, ...]:
        if not self._config.get("dry_run"):
            return ()  # `Done` has them
        blocked = [*map(in_the_way, self._blocked[:MOST_WARNINGS]), *self._staying.values()]
        return (*([full] if full else []), *blocked[:MOST_WARNINGS], *self.notes)

    def _check_room(self, gap: Gap) -> None:
        if not gap.fits:
            need = gap.bytes - gap.elsewhere
            raise Failure(
                "space",
                gap.full or _lack(self.root, need, gap.free_bytes),
                "make room there, or choose another destination",
            )

    # End

    def finish(self) -> Done:
        """Publish the rest, delete, set modes and times. Raises OSError.

        Nothing is deleted if anything was left out.
        """
        with self._finish_lock:
            self.publisher.finish()
            if self.publisher.error:
                raise self.publisher.error
            names = [text_of(self.entries.path(number)) for number in sorted(self.bad())]
            gone = [f"{name}: it changed at the source, or became unreadable" for name in names]
            refused = list(self.publisher.refused.values())
            whole = not (gone or refused)
            deleted, kept = self.publisher.remove(self.plan.extra) if whole else (0, [])
            if self.plan.extra and not whole:
                self._note_kept("not everything could be put in place")
            refused += kept
            refused += [f"{text_of(name)}: it cannot be listed" for name in self.plan.unlisted]
            # Before the folders get their modes: they may be read-only.
            if self.staging and not refused:
                self.staging.release(clear=True)
            warnings = gone + refused + self.notes + self.publisher.set_metadata(self.plan.retouch)
            self.complete = True
        return Done(
            files=self.publisher.written,
            links=self.publisher.links,
            deleted=deleted,
            left_out=len(gone) + len(refused),
            warnings=tuple(warnings[:MOST_WARNINGS]),
        )

    def leave(self) -> bool:
        """Release the destination. Return whether nothing unpublished is left there."""
        if not self.staging:
            return True
        if self.compared:
            self.publisher.close()
        clear = self.complete or not self.staging.holds_parts()
        self.staging.release(clear)
        if clear and self.compared and self._made_root and not self.complete:
            with contextlib.suppress(OSError):
                os.rmdir(self.root)
        return clear


def _has_content(path: bytes) -> bool:
    """Return whether a path is a folder, and no link to one, with something in it."""
    try:
        return not os.path.islink(path) and bool(os.listdir(path))
    except OSError:  # no folder, or one that cannot be listed
        return False


def room_at(path: bytes) -> tuple[int, bool]:
    """Return the free bytes at a path, and whether it is writable.

    If the path does not exist yet, those of its nearest existing parent folder.
    """
    while not os.path.exists(path):
        path = os.path.dirname(path) or b"."
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, os.access(path, os.W_OK | os.X_OK)


def _can_be_opened(folder: bytes) -> bool:
    """Return whether this user may make a read-only folder writable."""
    try:
        read_only = os.statvfs(folder).f_flag & os.ST_RDONLY
        return not read_only and os.stat(folder).st_uid == os.geteuid()
    except OSError:
        return False


def _lack(path: bytes, need: int, free: int) -> str:
    return f"{text_of(path)} needs {_size(need)}, {_size(free)} are free"


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
