"""The relay of a node that downloads the data itself: from S3, or a file from a web server.

It reports the node's tools for S3 (Tools) and begins with the order Fetch: the client may send a
tool first. copy/fetch.py starts it.
"""

from __future__ import annotations

import os
import resource
import signal
import threading
from typing import Any

from clusterctl.node.relay.base import Relay, Stopped, run_relay
from clusterctl.node.relay.messages import Fetch, Order, Progress, Tools
from clusterctl.node.relay.s3files import TOOLS, Download, ObjectDownload, tool_at
from clusterctl.node.relay.webfile import WebFile

# How long an interrupted download may take to remove what is not whole.
REMOVED_WITHIN_S = 8.0
SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class FetchRelay(Relay):
    """A relay whose main thread downloads: a signal interrupts only that one, also while it waits
    for the tool. The orders are read by another thread.

    The configuration has "destination", and in "fetch" what ObjectDownload or WebFile reads. It may
    contain keys. They are in no file, on no command line, and in no environment but the tool's.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._download: Download | None = None
        self._tool = ""
        self._ordered, self._over = threading.Event(), threading.Event()
        self._is_leaving = False

    def run(self) -> None:
        # A core file would contain the keys.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for number in SIGNALS:
            signal.signal(number, self._interrupt)
        self.guarded(super().run)
        error: BaseException | None = None
        try:
            try:
                self._fetch()
            finally:
                self._is_leaving = True
        except BaseException as problem:  # noqa: BLE001 - reported below
            error = problem
        self._over.set()
        if isinstance(error, Exception):
            self.fail(error)
        if error and not self._stopping:
            self.end(code=1)
        threading.Event().wait()  # the order to stop ends the process

    def _interrupt(self, *_: object) -> None:
        """Interrupt the download once: what it does then must not be interrupted."""
        if self._over.is_set():
            os._exit(1)
        if not self._is_leaving:
            self._is_leaving = True
            raise Stopped

    def _fetch(self) -> None:
        config = self.config["fetch"]
        is_web = bool(config.get("url"))
        here = () if is_web else tuple(name for name in TOOLS if tool_at(name))
        self.emit(Tools(here, os.uname().machine))
        self._ordered.wait()
        kind = WebFile if is_web else ObjectDownload
        config = {**config, "tool": self._tool}
        self._download = kind(config, self.config["destination"], self.emit)
        self._download.run()

    def handle(self, order: Order) -> None:
        if isinstance(order, Fetch):
            self._tool = order.tool
            self._ordered.set()

    def figures(self) -> Progress:
        if self._download is None:
            return Progress()
        done = self._download.progress
        return Progress(bytes=done.bytes, files=done.files)

    def end(self, code: int) -> None:
        if threading.current_thread() is threading.main_thread() and not self._is_leaving:
            self._is_leaving = True
            raise Stopped  # the client is gone
        super().end(code)

    def leave(self) -> bool:
        """Interrupt the download, and wait until it has removed what is not whole."""
        main = threading.main_thread()
        if threading.current_thread() is not main and not self._over.is_set() and main.ident:
            signal.pthread_kill(main.ident, signal.SIGTERM)
            self._over.wait(REMOVED_WITHIN_S)
        return self._over.is_set()


def main() -> None:
    run_relay(FetchRelay)
