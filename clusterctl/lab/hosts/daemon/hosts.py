"""The hosts of the lab: their folders, their links, their processes."""

from __future__ import annotations

import base64
import functools
import json
import os
import shutil
import signal
import subprocess
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from clusterctl.lab.hosts.daemon import (
    boot,
    cgroups,
    host_faults,
    mounts,
    network,
    template,
    volumes,
)
from clusterctl.lab.hosts.daemon.boot import UBUNTU_UID, HostBase, HostSpec
from clusterctl.lab.hosts.daemon.host_faults import NO_FAULTS, HostState


@dataclass
class Host:
    """A host. `state` is booting, up or off; `why` is the reason for off.

    `link` is the bridge's end of its link, `report` the pipe of `boot.boot` (-1: closed), `ssh`
    whether sshd listens. `faults` are those that are applied.
    """

    spec: HostSpec
    folder: Path
    link: str
    state: str = "off"
    why: str = ""
    pid: int = 0
    report: int = -1
    boots: int = 0
    ssh: bool = False
    faults: dict[str, Any] = field(default_factory=lambda: dict(NO_FAULTS))

    @property
    def view(self) -> dict[str, Any]:
        """The host as `list` returns it."""
        shown = ("state", "why", "boots", "ssh", "faults")
        of_spec = ("id", "public_address", "reaches_storage")
        own = {name: getattr(self.spec, name) for name in of_spec}
        return {**own, **{name: getattr(self, name) for name in shown}}


class Hosts:
    """All hosts of the lab. Their files are in `folder`, a tmpfs that is visible only in here.

    `gateway` is the bridge's address in the lab's own network, with its prefix length. `files` are
    the package's files for hosts, by name.
    """

    def __init__(
        self, folder: Path, base: HostBase, files: Mapping[str, bytes], gateway: str
    ) -> None:
        self._folder, self._base = folder, base
        self._hosts: dict[str, Host] = {}
        self._own_gateway, self._gateways = gateway, {gateway}
        self._links = 0
        self._silent_init = files["silent-init"]
        layer = template.layer_files(files, base.single_uid, base.environment)
        template.build(base.template, layer, base.single_uid, base.alone)

    def create(self, shape: list[int] | None = None, **wanted: Any) -> None:
        """Create a host and boot it. `shape` limits its link from the first packet on.

        `wanted` are the fields of its HostSpec.
        """
        spec = HostSpec(**wanted)
        self._links += 1
        host = Host(spec, self._folder / "hosts" / spec.id, f"h{self._links}")
        host.faults["shape"] = shape
        self._hosts[spec.id] = host
        self._make_folder(host)
        cgroups.make_host(self._base.cgroups, spec.id)
        self._open_subnets()
        if not spec.reaches_storage:
            self._set_rule(spec.address, reached=False)
        self.boot(spec.id)

    def boot(self, id: str, new_console: bool = False) -> None:
        """Boot a host that is off.

        `new_console` is for a host that was stopped: as on EC2, it loses its console and its
        instance store. A reboot keeps both.
        """
        host = self._hosts[id]
        if host.state != "off":
            return
        if new_console:
            boot.console_of(host.folder).unlink(missing_ok=True)
            self._make_store(host)
        # /tmp is empty at every boot. As on the images, it is part of the root volume.
        tmp = host.folder / "tmp"
        # Python's own rmtree recurses, and fails for folders that are nested by the thousand.
        subprocess.run(["rm", "-rf", "--", tmp], check=False)
        tmp.mkdir(exist_ok=True)
        tmp.chmod(0o1777)
        template.write(host.folder / "boot_id", f"{uuid.uuid4()}\n".encode(), 0o444)
        plug = functools.partial(_plug, host)
        host.pid, host.report = boot.boot(host.spec, host.folder, self._base, plug)
        host.state, host.why, host.ssh = "booting", "", False
        host.boots += 1

    def set_public(self, id: str, address: str) -> None:
        """Give a host another public address; none if it is empty."""
        host = self._hosts[id]
        old, host.spec = host.spec, replace(host.spec, public_address=address)
        lines = network.public_lines(old.public_address, address, host.spec.address)
        network.ip_batch(lines, check=False)
        if host.state != "off":
            inside = network.own_public_lines(old.public_address, address)
            network.ip_batch(inside, host.pid, check=False)

    def set_storage(self, id: str, reached: bool) -> None:
        host = self._hosts[id]
        if host.spec.reaches_storage != reached:
            host.spec = replace(host.spec, reaches_storage=reached)
            self._set_rule(host.spec.address, reached)

    def _set_rule(self, address: str, reached: bool) -> None:
        gateway = self._own_gateway.partition("/")[0]
        network.ip_batch(network.storage_lines(address, gateway, reached))

    def apply_fault(self, id: str, **wanted: Any) -> None:
        """Have a host that is up have the wanted faults, and no others."""
        host = self._hosts[id]
        state = HostState(host.pid, host.link, host.folder / "data")
        for what, degree in wanted.items():
            if host.state == "up" and host.faults[what] != degree:
                host_faults.APPLY_FAULT[what](state, degree)
                host.faults[what] = degree

    def power_off(self, id: str) -> None:
        """Power a host off.

        Its link goes down first. So its peers get no reset when the kernel closes its connections,
        as on EC2.
        """
        host = self._hosts[id]
        if host.state == "off":
            host.why = "off"
            return
        host_faults.cut(HostState(host.pid, host.link), True)
        host.why = "off"
        os.kill(host.pid, signal.SIGKILL)

    def remove(self, id: str) -> None:
        """Remove a host that is off, with everything it stored."""
        self.set_public(id, "")
        self.set_storage(id, reached=True)
        host = self._hosts.pop(id)
        neighbour = f"neighbour delete {host.spec.address} dev {network.BRIDGE}"
        network.ip_batch([neighbour, f"link delete {host.link}"], check=False)
        console = boot.console_of(host.folder).parent
        for volume in (host.folder / "data", host.folder / "store", host.folder, console):
            volumes.unmake(volume)
        for folder in (host.folder, console):
            shutil.rmtree(folder, ignore_errors=True)
        cgroups.remove([folder / "hosts" / id for folder in self._base.cgroups])
        self._open_subnets()

    def list(self) -> list[dict[str, Any]]:
        """Update the state of all hosts, and return their views."""
        for host in self._hosts.values():
            _poll(host)
            volumes.bound_console(boot.console_of(host.folder))
        return [host.view for host in self._hosts.values()]

    def console(self, id: str) -> str:
        """Return the end of what a host printed; empty if the host does not exist."""
        log = boot.console_of(self._folder / "hosts" / id)
        return volumes.read_console(log).decode(errors="replace")

    def ended(self, pid: int, status: int) -> None:
        """Handle the end of a child process. If it was a host's PID 1, the host is off."""
        for host in self._hosts.values():
            if host.pid == pid:
                _poll(host)  # reads the reason, if it could not boot
                network.ip_batch([f"link delete {host.link}"], check=False)
                host.why = host.why or boot.ended_by(status)
                host.state, host.pid, host.ssh = "off", 0, False
                host.faults.update(host_faults.CLEARED_AT_POWER_OFF)

    def _open_subnets(self) -> None:
        """Make the bridge the gateway of every subnet that has a host, and of no other."""
        specs = [host.spec for host in self._hosts.values()]
        wanted = {f"{spec.gateway}/{spec.prefix_length}" for spec in specs} | {self._own_gateway}
        network.ip_batch(network.gateway_lines(self._gateways, wanted))
        self._gateways = wanted

    def _make_folder(self, host: Host) -> None:
        spec, folder = host.spec, host.folder
        folder.mkdir(parents=True)
        volumes.make(folder, volumes.ROOT_BYTES, 0o755, flags=0)
        console = boot.console_of(folder).parent
        console.mkdir()
        volumes.make(console, volumes.CONSOLE_BYTES, 0o700)
        for name in (*mounts.COPY_ON_WRITE, mounts.PACKAGES.replace("/", "-")):
            (folder / "upper" / name).mkdir(parents=True)
            (folder / "work" / name).mkdir(parents=True)
        for name in ("root", "data", "root-home"):
            (folder / name).mkdir()
        (folder / "root-home").chmod(0o700)
        volumes.make(folder / "data", spec.volume_bytes, 0o755)
        (folder / "data" / volumes.SHOWN).mkdir()
        (folder / "data" / volumes.SHOWN).chmod(0o1777)
        for path, content, mode in own_files(spec, self._silent_init):
            template.write(folder / "upper" / path, content, mode)
        if spec.gpus:
            smi = (self._base.template / template.TOOLS / "nvidia-smi").read_bytes()
            template.write(folder / "upper/usr/bin/nvidia-smi", smi, 0o755)
        self._make_home(folder / "home/ubuntu", spec.public_key)
        self._make_store(host)

    def _make_store(self, host: Host) -> None:
        """Make an empty instance store, if the type has one."""
        if not host.spec.instance_store:
            return
        store = host.folder / "store"
        volumes.unmake(store)
        for point in (store, host.folder / "upper" / mounts.INSTANCE_STORE):
            point.mkdir(parents=True, exist_ok=True)
        volumes.make(store, host.spec.volume_bytes, 0o755)
        if not self._base.single_uid:
            os.chown(store, UBUNTU_UID, UBUNTU_UID)

    def _make_home(self, home: Path, public_key: str) -> None:
        home.mkdir(parents=True)
        if Path("/etc/skel").is_dir():
            shutil.copytree("/etc/skel", home, symlinks=True, dirs_exist_ok=True)
        template.write(home / ".ssh/authorized_keys", public_key.encode(), 0o600)
        (home / ".ssh").chmod(0o700)
        home.chmod(0o750)
        if not self._base.single_uid:
            for path in (home, *home.rglob("*")):
                os.chown(path, UBUNTU_UID, UBUNTU_UID, follow_symlinks=False)


def _poll(host: Host) -> None:
    """Update a host's state: its report pipe closes when init runs, and later sshd listens."""
    if host.report >= 0:
        try:
            problem = os.read(host.report, 4096).decode(errors="replace")
        except BlockingIOError:
            return
        os.close(host.report)
        host.report = -1
        if problem:
            host.why = f"failed: {problem}"
            return
        host.state = "up"
    if host.state == "up" and not host.ssh:
        host.ssh = _listens_on_22(host.pid)


def _listens_on_22(pid: int) -> bool:
    """Return whether a host's sshd listens, from its table of sockets.

    Connecting would be slow: before eth0 is up, it takes a second of ARP retries.
    """
    try:
        lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()
    except OSError:
        return False
    # 0.0.0.0:22 in the state LISTEN (0A).
    return any(" 00000000:0016 00000000:0000 0A " in line for line in lines)


def _plug(host: Host, pid: int) -> None:
    """Connect a host that boots with the bridge. `pid` is its PID 1."""
    spec = host.spec
    network.ip_batch(
        [
            *network.plug_lines(host.link, spec.address, pid),
            *network.public_lines("", spec.public_address, spec.address),
        ]
    )
    network.pin_to_link(host.link, spec.address)
    if host.faults["shape"]:
        host_faults.shape(HostState(pid, host.link), host.faults["shape"])


def own_files(spec: HostSpec, silent_init: bytes) -> list[tuple[str, bytes, int]]:
    """Return a host's own files: path below its root, content and mode."""
    names = f"{spec.hostname}.{spec.domain} {spec.hostname}"
    texts = {
        "etc/hostname": f"{spec.hostname}\n",
        "var/lib/cloud/data/instance-id": f"{spec.id}\n",
        "etc/hosts": f"127.0.0.1 localhost\n{spec.address} {names}\n",
        "etc/resolv.conf": f"nameserver {network.RESOLVER[0]}\nsearch {spec.domain}\n",
    }
    if spec.user_data_problem:
        texts["var/lib/cloud/instance/problem"] = spec.user_data_problem
    files = [(path, text.encode(), 0o644) for path, text in texts.items()]
    if spec.silent:
        files.append((f"{template.TOOLS}/init", silent_init, 0o755))
    for path, content in spec.user_files:
        files.append((f"var/lib/cloud/{path}", base64.b64decode(content), 0o700))
    if spec.gpus:  # what the simulated nvidia-smi reads
        uuids = [
            f"GPU-{uuid.uuid5(uuid.NAMESPACE_DNS, f'{spec.hostname}/{index}')}"
            for index in range(spec.gpus)
        ]
        gpus = {
            "count": spec.gpus,
            "name": spec.gpu_name,
            "memory_mib": spec.gpu_memory_mib,
            "first_bus": host_faults.FIRST_GPU_BUS,
            "uuids": uuids,
        }
        lines = (f"GPU {n}: {spec.gpu_name} (UUID: {one})\n" for n, one in enumerate(uuids))
        files += [
            ("etc/clusterctl-lab/gpus.json", json.dumps(gpus).encode(), 0o644),
            ("etc/clusterctl-lab/gpus.txt", "".join(lines).encode(), 0o644),
        ]
    return files
