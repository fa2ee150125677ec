"""The lab's main process. It serves the API, and has the namespace daemon as its child.

`python -m clusterctl.lab.server OPTIONS REPORT_FD` writes one JSON line to REPORT_FD: `{}` when the
lab is ready, or the error that prevented it. OPTIONS are `LabOptions` in JSON.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import resource
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import moto

from clusterctl.domain.errors import ClusterctlError, LabError
from clusterctl.lab import accounts, addresses, record, requirements
from clusterctl.lab.app import make_api, make_storage
from clusterctl.lab.complete import complete_moto
from clusterctl.lab.hosts import modes, names
from clusterctl.lab.hosts.daemon.network import storage_url
from clusterctl.lab.hosts.metadata import make_metadata_server
from clusterctl.lab.hosts.namespaces import (
    HOSTS_MEMORY,
    Daemon,
    DaemonPlan,
    NetworkTaken,
    remove_dead_links,
)
from clusterctl.lab.hosts.supervisor import Supervisor

# Files in the lab's folder that remain when a lab is killed: patterns of their names.
LEFT_BY_A_DEAD_LAB = ("lab.json", ".lab.json.*", "dial.sock")
# The hard limit of open files on Ubuntu's images.
MOST_FILES = 2**20
# The program that ssh runs as its ProxyCommand.
DIAL = Path(__file__).parent / "hosts" / "dial.py"


def main() -> None:
    """Start the lab, report to the launcher, and serve. Exit with 1 if it cannot start."""
    options, report = record.LabOptions(**json.loads(sys.argv[1])), int(sys.argv[2])
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.INFO)
    problem: dict[str, str] = {}
    serve: Callable[[], None] = functools.partial(sys.exit, 1)
    try:
        serve = _start(options)
    except ClusterctlError as failure:
        problem = {"error": failure.message, "hint": failure.hint}
    except OSError as failure:
        place = record.folder_of(Path(options.home))
        hint = "free some space" if failure.errno == errno.ENOSPC else f"see {place / 'lab.log'}"
        problem = {"error": f"cannot start in {place}: {failure.strerror}", "hint": hint}
    with os.fdopen(report, "w") as line:
        line.write(json.dumps(problem))
    serve()


def _start(options: record.LabOptions) -> Callable[[], None]:
    """Start everything and write the record. Return a function that serves until SIGTERM.

    If the daemon ends, the supervisor ends this process.
    """
    folder = record.folder_of(Path(options.home))
    lock = _lock(folder)
    for left in (path for name in LEFT_BY_A_DEAD_LAB for path in folder.glob(name)):
        left.unlink(missing_ok=True)
    listening = _listen(options.port)
    with contextlib.suppress(OSError, ValueError):  # as high as on EC2's images, where root may
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, max(hard, MOST_FILES)))
    mode = modes.choose_mode(os.geteuid())
    dial = None if mode[0] == "root" else _dial_socket(folder)
    wanted = IPv4Network(options.network) if options.network else None
    daemon, plan = _spawn(*mode, dial, wanted)
    network = plan.network
    complete_moto(network, plan.public, lambda id: str(daemon.call("console", id=id)))
    # Each request has a connection of its own, and one s5cmd makes 256. The limit is raised after
    # the daemon was started, so that its hosts keep the usual one.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    secret = secrets.token_urlsafe(30)
    api = make_api(listening, secret)
    recorded = _record(options, listening, plan, secret)
    memory = HOSTS_MEMORY if daemon.cgroups else 0
    limits: dict[str, Any] = {"cgroups": tuple(map(str, daemon.cgroups)), "memory_bytes": memory}
    record.write_record(replace(recorded, tcp=daemon.tcp, **limits))
    if plan.mode == "root":
        _drop_privileges(plan)
    for server in (make_metadata_server(daemon.metadata), make_storage(daemon.storage)):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=names.serve, args=[daemon.resolver], daemon=True).start()
    supervisor = Supervisor(daemon, network, options.volume_bytes, sys.stderr.fileno())
    threading.Thread(target=supervisor.run, daemon=True).start()

    def serve() -> None:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            api.serve_forever()
        finally:
            daemon.stop()
            os.close(lock)
            os._exit(0)

    return serve


def _drop_privileges(plan: DaemonPlan) -> None:
    """Give up root, so that requests are read by a uid that owns nothing on this machine.

    The uid is that of the hosts' root. With any other one this process could not kill the daemon,
    not even through its own death: the kernel checks the right to send the parent-death signal too.
    If the uid cannot read Python's files, the process stays root and logs a warning.
    """
    with contextlib.suppress(ClusterctlError):
        requirements.check_shaping()  # caches a success: that uid may not be allowed to try
    python = [sys.prefix, sys.base_prefix, *filter(os.path.isdir, sys.path)]
    samples = [Path(file or "") for file in (__file__, os.__file__, moto.__file__)]
    uid = plan.ids.uid
    if not modes.give_up_root(uid, map(Path, python), samples):
        logging.warning("the lab's server stays root: uid %d cannot read %s", uid, samples)


def _lock(folder: Path) -> int:
    """Take the home's lock, which this process keeps as long as it lives. Raise LabError."""
    lock = os.open(folder / "lock", os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LabError("another `clusterctl lab start` is under way", "wait for it") from None
    return lock


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server(("127.0.0.1", port), backlog=128)
    except OSError as refused:
        raise LabError(
            f"cannot listen on 127.0.0.1:{port}: {os.strerror(refused.errno or 0)}",
            "choose another --port, or leave it out to have a free one picked",
        ) from None


def _dial_socket(folder: Path) -> socket.socket:
    """Return the Unix socket at which dial.py requests connections.

    It is bound by a relative name, because the path of a Unix socket is limited to 107 bytes.
    """
    os.chdir(folder)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("dial.sock")
    listening.listen(128)
    return listening


def _spawn(
    mode: str, ids: modes.IdMap, dial: socket.socket | None, wanted: IPv4Network | None
) -> tuple[Daemon, DaemonPlan]:
    """Start the daemon on the wanted network, or on the first free one. Raise LabError for none.

    A network that another lab takes in the meantime is skipped.
    """
    # A user's lab adds no route to this machine, so its networks conflict with nothing.
    if mode == "root":
        remove_dead_links()
    in_use = addresses.networks_in_use() if mode == "root" else []
    for network in addresses.free_networks(in_use, wanted):
        public = addresses.public_network(network, in_use)
        plan = DaemonPlan(mode, ids, network, public, dial)
        try:
            return Daemon(plan), plan
        except NetworkTaken:
            continue
    which = wanted or "every network of the lab"
    raise LabError(f"{which} is taken by another lab", "choose another --network, or stop one")


def _record(
    options: record.LabOptions, listening: socket.socket, plan: DaemonPlan, secret: str
) -> record.LabRecord:
    """Make the accounts' keys, and return the record of this lab."""
    home = Path(options.home)
    started = record.process_started(os.getpid())
    # ssh expands `%` in a ProxyCommand.
    files = (str(one).replace("%", "%%") for one in (DIAL, home / "lab/dial.sock"))
    proxy = ("/usr/bin/python3", "-S", "-E", *files, "%h", "%p")
    return record.LabRecord(
        home=home,
        endpoint_url=f"http://127.0.0.1:{listening.getsockname()[1]}",
        region=options.region,
        pid=os.getpid(),
        pid_started=started or 0,
        mode=plan.mode,
        proxy_command=None if plan.mode == "root" else proxy,
        network=str(plan.network),
        public_network=str(plan.public),
        link=addresses.link_name(plan.network) if plan.mode == "root" else None,
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        keys=tuple(accounts.KEYS.add(accounts.new_key(one)) for one in record.ACCOUNTS),
        secret=secret,
        volume_bytes=options.volume_bytes,
        storage_url=storage_url(plan.network),
    )


if __name__ == "__main__":
    main()
