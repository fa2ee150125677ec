"""A node's side of a copy: compare, receive, pass on, publish, settle."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from clusterctl.node.relay.base import Failure, Relay, host_identity
from clusterctl.node.relay.compare import Plan, compare, destination, place, shown
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.manifest import FILE, bytes_of, decode, text_of
from clusterctl.node.relay.messages import Begin, Done, Gap, Lost, Order, Progress, PullFrom
from clusterctl.node.relay.publish import Publisher
from clusterctl.node.relay.pull import AGAIN_S, Caller, Puller, Upstream, fetch_manifest
from clusterctl.node.relay.staging import Staging
from clusterctl.node.relay.store import Store
from clusterctl.node.relay.wire import PeerError, Waits

MOST_WARNINGS = 100


class Target:
    """One destination folder. `prepare` first; then blocks may come; `finish` when all are here."""

    def __init__(self, config: dict[str, Any], waits: Waits) -> None:
        self._config, self._waits = config, waits
        self._settled = threading.Lock()
        self.staging: Staging | None = None
        self.compared = self.complete = False

    def prepare(self, blob: bytes, begin: Begin) -> Gap:
        """Look at what is there. Raises Failure, OSError, Busy."""
        dst = destination(self._config["destination"], os.path.expanduser("~"))
        single = begin.single and not self._config.get("several")
        self.root, self.entries = place(dst, single, decode(blob))
        self.layout = Layout(self.entries, begin.block_bytes)
        staging = self.staging = Staging(self.root)
        dry = self._config.get("dry_run")
        self._delete = bool(self._config.get("delete")) and not single
        self.notes: list[str] = []
        if self._delete and begin.left_out:
            self._delete = False
            self.notes.append("nothing was deleted: something at the source could not be read")
        self.plan = self._compare()
        self._spare_source(begin)
        self._made_root = not os.path.isdir(self.root)
        # What an interrupted copy left goes, too, where nothing is missing any more.
        left = os.path.lexists(staging.folder)
        if not dry and (self.plan.missing or self.plan.extra or left):
            staging.acquire()
            self._compare_again()
            files = [self.entries[n] for n in self.plan.missing if self.entries[n].kind == FILE]
            staging.forget_others(files)
        self._publisher = Publisher(staging, self.entries, self._waits)
        self._publisher.stamps = self.plan.stamps
        self.store = Store(
            staging,
            self.entries,
            self.layout,
            self.plan.missing,
            self._publisher,
            self._waits,
            begin.streams,
        )
        self.wanted = self.store.wanted
        self.compared = True
        gap = self._gap()
        if not dry:
            self._check_room(gap)
            self._publisher.make_folders(self.plan.missing)
            self._publisher.start()
            self.store.publish_whole(self.plan.missing)
        return gap

    def _compare(self) -> Plan:
        checksum = self._config.get("checksum", False)
        return compare(self.root, self.entries, checksum, self._delete)

    def _compare_again(self) -> None:
        """Now that nobody else works here: what was missing may have come meanwhile."""
        checksum = self._config.get("checksum", False)
        again = compare(self.root, self.entries, checksum, False, self.plan.missing)
        retouch = sorted({*self.plan.retouch, *again.retouch})
        for number in self.plan.missing:
            self.plan.stamps[number] = again.stamps[number]
        self.plan = self.plan._replace(missing=again.missing, retouch=retouch)

    def _spare_source(self, begin: Begin) -> None:
        """Raises Failure where --delete would remove what is being copied."""
        if begin.host != host_identity():
            return
        extra = [self.root + b"/" + name for name in self.plan.extra]
        for root in map(bytes_of, begin.roots):
            if any(root == path or root.startswith(path + b"/") for path in extra):
                raise Failure(
                    "usage",
                    f"{text_of(root)} is what is copied, and --delete would remove it",
                    "leave out --delete, or choose a destination that SRC is not in",
                )

    def _gap(self) -> Gap:
        missing = self.store.ledger.missing()
        return Gap(
            files=sum(self.entries[n].kind == FILE for n in self.plan.missing),
            bytes=sum(map(self.layout.length, missing)),
            blocks=len(missing),
            missing=len(self.plan.missing),
            missing_names=shown(self.entries[n].path for n in self.plan.missing),
            delete=len(self.plan.extra),
            delete_names=shown(self.plan.extra),
            free_bytes=_free_bytes(self.root),
            writable=not self.plan.missing or _is_writable(self.root),
        )

    def _check_room(self, gap: Gap) -> None:
        if not gap.fits:
            raise Failure(
                "space",
                f"{text_of(self.root)} needs {_size(gap.bytes)}, {_size(gap.free_bytes)} are free",
                "make room there, or choose another destination",
            )

    def puller(
        self,
        caller: Caller,
        streams: int,
        lost: Callable[[Upstream, PeerError], None],
        broken: Callable[[BaseException], None],
    ) -> Puller:
        return Puller(
            caller,
            self.store,
            self.layout,
            self.wanted,
            streams,
            lost,
            broken,
        )

    @property
    def problem(self) -> Exception | None:
        """Why nothing can be published any more."""
        return self._publisher.error

    def finish(self) -> Done:
        """Publish the rest, settle folders, delete. Raises OSError."""
        with self._settled:
            self._publisher.finish()
            if self._publisher.error:
                raise self._publisher.error
            bad = [text_of(self.entries[number].path) for number in sorted(self.store.bad)]
            refused = list(self._publisher.refused.values())
            whole = not bad and not refused
            deleted, kept = self._publisher.remove(self.plan.extra) if whole else (0, [])
            kept += [f"{text_of(name)}: it cannot be listed" for name in self.plan.unlisted]
            refused += kept
            warnings = [f"{name}: not the same any more at the source" for name in bad] + refused
            warnings += self.notes + self._retouch()
            self.complete = True
            if self.staging and not refused:
                self.staging.release(clear=True)
        return Done(
            files=self._publisher.written,
            bytes=self.store.received,
            deleted=deleted,
            left_out=len(bad) + len(refused),
            warnings=tuple(warnings[:MOST_WARNINGS]),
        )

    def _retouch(self) -> list[str]:
        refused = []
        for number in self.plan.retouch:
            try:
                self._publisher.retouch(number)
            except OSError as error:
                name = text_of(self.entries[number].path)
                refused.append(f"{name}: mode and time not set: {error.strerror}")
        return refused + self._publisher.settle_folders()

    def leave(self) -> bool:
        """Let go of the destination. True when nothing is left there that is not published."""
        if not self.staging:
            return True
        if self.compared:
            self._publisher.close()
        clear = self.complete or not self.staging.holds_parts()
        self.staging.release(clear)
        if clear and self.compared and self._made_root and not self.complete:
            with contextlib.suppress(OSError):
                os.rmdir(self.root)
        return clear


def _free_bytes(path: bytes) -> int:
    status = os.statvfs(_nearest(path))
    return status.f_bavail * status.f_frsize


def _is_writable(path: bytes) -> bool:
    return os.access(_nearest(path), os.W_OK | os.X_OK)


def _nearest(path: bytes) -> bytes:
    """The folder, or the nearest one above it that is there."""
    while not os.path.exists(path):
        path = os.path.dirname(path) or b"."
    return path


def _size(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


CHECK_EVERY_S = 0.25
# When a block that was passed on is checked here at last; and where no more are to come.
CONFIRMED_WITHIN_S, LAST_CONFIRMED_WITHIN_S = 2.0, 0.5


class TargetRelay(Relay):
    """Gets the data, and passes it on."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.target = Target(config, self.waits)
        self.caller = Caller(self.secret, self.caller_tls)
        self._lock = threading.Lock()
        self._orders = 0
        self._upstream: Upstream | None = None
        self._blamed: set[int] = set()
        self._begin = Begin()
        self._has_manifest = False
        self._prepared = threading.Event()

    def obey(self, order: Order) -> None:
        if isinstance(order, Begin):
            self._begin = order
        elif isinstance(order, PullFrom):
            self._pull_from(order)

    def _pull_from(self, order: PullFrom) -> None:
        with self._lock:
            self._orders += 1
            upstream = Upstream(*order, self._orders) if order.name else None
            self._upstream = upstream
            self.caller.turn_to(upstream)
        if upstream and self._prepared.is_set():
            self._follow(upstream)
        elif upstream:
            self.guarded(self._get_manifest, self.caller, upstream)

    def _get_manifest(self, caller: Caller, upstream: Upstream) -> None:
        while caller.current == upstream and not self._has_manifest:
            try:
                blob = fetch_manifest(caller, upstream, self._begin.digest)
            except PeerError as error:
                self._lost(upstream, error)
                time.sleep(AGAIN_S)
                continue
            with self._lock:
                mine, self._has_manifest = not self._has_manifest, True
            if mine:
                self._prepare(blob)

    def _prepare(self, blob: bytes) -> None:
        self.server.have_manifest(blob)
        self.emit(self.target.prepare(blob, self._begin))
        if self.config.get("dry_run"):
            return
        store = self.target.store
        self._puller = self.target.puller(self.caller, self._begin.streams, self._lost, self.fail)
        self.server.have_content(store.ledger, store)
        with self._lock:
            self._prepared.set()
            upstream = self._upstream
        if upstream:
            self._follow(upstream)
        while not store.wanted.wait(CHECK_EVERY_S):
            store.check_waiting(
                LAST_CONFIRMED_WITHIN_S if store.wanted.all_arrived else CONFIRMED_WITHIN_S
            )
        self.emit(self.target.finish())

    def _follow(self, upstream: Upstream) -> None:
        if self.target.wanted.left:
            self._puller.follow(upstream)

    def _lost(self, upstream: Upstream, error: PeerError) -> None:
        with self._lock:
            first = upstream.order not in self._blamed
            self._blamed.add(upstream.order)
        if first:
            self.emit(Lost(upstream.name, str(error), error.kind))

    def figures(self) -> Progress:
        if not self.target.compared:
            return super().figures()
        if self.target.problem:
            raise self.target.problem
        store = self.target.store
        behind = self.target.wanted.behind(self._upstream)
        return Progress(store.ledger.count, store.received, behind)

    def leave(self) -> bool:
        return self.target.leave()
