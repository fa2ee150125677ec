"""A BitTorrent swarm on lab hosts. Each host has this file. Making the torrent is not timed.

bench_swarm.py torrent SOURCE                                 make the torrent, on the source
bench_swarm.py lead ENGINE SOURCE DESTINATION HOST...         seed, start members, wait for all
bench_swarm.py member ENGINE DESTINATION                      fetch, print `done`, seed until EOF
"""

from __future__ import annotations

import base64
import json
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.parse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TORRENT = Path("/tmp/bench.torrent")
# aria2c runs HOOK when it has everything, and HOOK makes the file WHOLE.
HOOK, WHOLE = Path("/tmp/bench.hook"), Path("/tmp/bench.whole")
PIECE_BYTES = 1 << 20
PORT, TRACKER_PORT = 6881, 6969
POLL_S, RECONNECT_S = 0.05, 1.0
V1_ONLY = 64
TUNED = {
    "listen_interfaces": f"0.0.0.0:{PORT}",
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_outgoing_utp": False,
    "enable_incoming_utp": False,
    "unchoke_slots_limit": -1,
    "connections_limit": 1000,
    "min_reconnect_time": 1,
    "max_failcount": 100,
}


def main() -> None:
    word, *rest = sys.argv[1:]
    words: dict[str, Any] = {"torrent": make_torrent, "lead": lead, "member": member}
    words[word](*rest)


def make_torrent(source: str) -> None:
    """Write the torrent of a folder to TORRENT."""
    import libtorrent  # type: ignore[import-not-found]

    files = libtorrent.file_storage()
    libtorrent.add_files(files, source)
    torrent = libtorrent.create_torrent(files, PIECE_BYTES, V1_ONLY)
    libtorrent.set_piece_hashes(torrent, str(Path(source).parent))
    TORRENT.write_bytes(libtorrent.bencode(torrent.generate()))


def lead(engine: str, source: str, destination: str, *hosts: str) -> None:
    """Seed the torrent and wait until every member has everything."""
    own = socket.gethostbyname(socket.gethostname())
    addresses = [own, *(socket.gethostbyname(host) for host in hosts)]
    tracker = start_tracker(own)
    first = {
        "torrent": base64.b64encode(TORRENT.read_bytes()).decode(),
        "peers": addresses,
        "tracker": tracker,
    }
    with ENGINES[engine](str(Path(source).parent), first, seeding=True):
        members = [start_member(engine, destination, host, first) for host in hosts]
        lacking = [host for host, one in zip(hosts, members) if one.stdout.readline() != "done\n"]
        for one in members:
            one.stdin.close()
        for one in members:
            one.wait()
    if lacking:
        sys.exit(f"not whole: {' '.join(lacking)}")


def start_member(engine: str, destination: str, host: str, first: object) -> Any:
    """Start a member on a host, and send it the torrent and the addresses."""
    command = [sys.executable, __file__, "member", engine, destination]
    pipe = subprocess.PIPE
    started = subprocess.Popen(["ssh", host, *command], stdin=pipe, stdout=pipe, text=True)
    assert started.stdin
    started.stdin.write(json.dumps(first) + "\n")
    started.stdin.flush()
    return started


def member(engine: str, destination: str) -> None:
    """Fetch everything, print `done`, and seed until stdin ends."""
    first = json.loads(sys.stdin.readline())
    TORRENT.write_bytes(base64.b64decode(first["torrent"]))
    Path(destination).mkdir(parents=True, exist_ok=True)
    with ENGINES[engine](destination, first, seeding=False) as swarm:
        swarm.wait_until_whole()
        print("done", flush=True)
        sys.stdin.read()


class Libtorrent:
    """A member of the swarm by libtorrent, which connects to all other members directly."""

    def __init__(self, folder: str, first: dict[str, Any], seeding: bool) -> None:
        import libtorrent

        self.peers = first["peers"]
        self.session = libtorrent.session(TUNED)
        wanted = libtorrent.add_torrent_params()
        wanted.ti = libtorrent.torrent_info(str(TORRENT))
        wanted.save_path = folder
        if seeding:
            wanted.flags |= libtorrent.torrent_flags.seed_mode
        self.handle = self.session.add_torrent(wanted)
        self.own = socket.gethostbyname(socket.gethostname())

    def __enter__(self) -> Libtorrent:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.pause()

    def wait_until_whole(self) -> None:
        """Wait until this member has everything; connect to the others again and again."""
        next_s = 0.0
        while not self.handle.status().is_seeding:
            if time.monotonic() >= next_s:
                next_s = time.monotonic() + RECONNECT_S
                for peer in self.peers:
                    if peer != self.own:
                        self.handle.connect_peer((peer, PORT))
            time.sleep(POLL_S)


class Aria2:
    """A member of the swarm by aria2c, which finds the others by the tracker."""

    def __init__(self, folder: str, first: dict[str, Any], seeding: bool) -> None:
        WHOLE.unlink(missing_ok=True)
        HOOK.write_text(f"#!/bin/sh\n: >{WHOLE}\n")
        HOOK.chmod(0o755)
        command = ["aria2c", *aria2_options(folder, first["tracker"], seeding), str(TORRENT)]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Aria2:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def wait_until_whole(self) -> None:
        """Wait until this member has everything."""
        while not WHOLE.exists():
            if self.process.poll() is not None:
                sys.exit("aria2c ended before it had everything")
            time.sleep(POLL_S)


def aria2_options(folder: str, tracker: str, seeding: bool) -> Sequence[str]:
    return [
        f"--dir={folder}",
        f"--listen-port={PORT}",
        f"--bt-tracker={tracker}",
        "--bt-tracker-interval=1",
        "--enable-dht=false",
        "--bt-max-peers=0",
        "--bt-request-peer-speed-limit=1000M",
        "--max-overall-upload-limit=0",
        "--seed-ratio=0.0",
        "--file-allocation=none",
        "--allow-overwrite=true",
        "--quiet",
        f"--on-bt-download-complete={HOOK}",
        "--summary-interval=0",
        *(["--bt-seed-unverified=true"] if seeding else []),
    ]


ENGINES: dict[str, Any] = {"libtorrent": Libtorrent, "aria2": Aria2}


class Tracker(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """A minimal tracker for aria2: every client that announces itself is in the swarm."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: str, port: int) -> None:
        self.peers: dict[bytes, None] = {}
        super().__init__((address, port), Announcement)


class Announcement(socketserver.StreamRequestHandler):
    """The answer to one announcement: all members so far, in the compact form of BEP 23."""

    server: Tracker

    def handle(self) -> None:
        query = urllib.parse.urlsplit(self.rfile.readline().split()[1].decode()).query
        port = int(urllib.parse.parse_qs(query, encoding="latin-1")["port"][0])
        while self.rfile.readline().strip():
            pass
        self.server.peers[socket.inet_aton(self.client_address[0]) + port.to_bytes(2, "big")] = None
        peers = b"".join(self.server.peers)
        body = b"d8:intervali1e12:min intervali1e5:peers%d:%se" % (len(peers), peers)
        self.wfile.write(b"HTTP/1.0 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)


def start_tracker(address: str) -> str:
    """Start the tracker in a thread, and return its URL."""
    server = Tracker(address, TRACKER_PORT)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{address}:{TRACKER_PORT}/announce"


if __name__ == "__main__":
    main()
