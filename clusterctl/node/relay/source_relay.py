"""The relay that has the data, in files of this machine."""

from __future__ import annotations

import base64
import os
import time
from typing import Any

from clusterctl.node.relay.base import Relay, host_identity
from clusterctl.node.relay.hashing import digests_of_files
from clusterctl.node.relay.layout import Layout
from clusterctl.node.relay.ledger import Ledger
from clusterctl.node.relay.manifest import FILE, bytes_of, digest_of, encode, text_of
from clusterctl.node.relay.scan import SourceError, scan
from clusterctl.node.relay.source import Source


class SourceRelay(Relay):
    """Has the data."""

    def start(self) -> None:
        began = time.monotonic()
        sources, names, base = self._asked()
        found = scan(sources, names, base)
        self._roots = [text_of(os.path.realpath(os.path.join(base, one))) for one in sources]
        self._entries, self._paths, single = found.entries, found.paths, found.single
        warnings = found.warnings
        if self.config.get("checksum"):
            self._take_digests()
        if not self._entries and not warnings:
            raise SourceError("there is nothing to copy")
        self._blob = encode(self._entries)
        self.server.have_manifest(self._blob)
        self.emit(
            "manifest",
            digest=digest_of(self._blob),
            files=sum(entry.kind == FILE for entry in self._entries),
            bytes=sum(length for entry in self._entries for _, length in entry.data),
            entries=len(self._entries),
            warnings=warnings[:100],
            left_out=len(warnings),
            single=single,
            host=host_identity(),
            roots=self._roots,
            seconds=round(time.monotonic() - began, 3),
        )

    def _asked(self) -> tuple[list[bytes], list[bytes] | None, bytes]:
        config = self.config
        home = os.path.expanduser("~")
        sources = [
            bytes_of(home + one[1:] if one == "~" or one.startswith("~/") else one)
            for one in config["sources"]
        ]
        names = config.get("names_b64")
        base = bytes_of(config.get("base") or home)
        return sources, None if names is None else [base64.b64decode(n) for n in names], base

    def _take_digests(self) -> None:
        files = [n for n, entry in enumerate(self._entries) if entry.kind == FILE]
        digests = digests_of_files(self._paths[n] for n in files)
        for number, digest in zip(files, digests):
            self._entries[number] = self._entries[number]._replace(digest=digest)

    def on_begin(self, order: dict[str, Any]) -> None:
        layout = Layout(self._entries, order["block_bytes"])
        content = Source(
            self._entries,
            self._paths.__getitem__,
            lambda number: self._entries[number].changed_ns,
            layout,
            self.waits,
        )
        self.server.have_content(Ledger(layout.blocks, b"\1" * layout.blocks), content)
