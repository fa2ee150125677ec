"""The lab's network: one bridge that is every subnet's gateway and routes the public addresses."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Collection, Sequence
from ipaddress import IPv4Network
from pathlib import Path

BRIDGE, UPLINK = "br0", "up0"
TCP_SETTINGS = "/proc/sys/net/ipv4"
METADATA = ("169.254.169.254", 80)
STORAGE_PORT = 80
# The preferences of rules: who is kept from S3, and what Linux has first by itself.
_CLOSED, _LOCAL = 50, 100
# A host has its public address no longer than the bridge says so. Redirects would teach its peers
# the way past the bridge.
SETTINGS = {
    "ip_forward": "1",
    "conf/all/send_redirects": "0",
    f"conf/{BRIDGE}/send_redirects": "0",
}


def build(network: IPv4Network, public: IPv4Network) -> None:
    """The bridge, with the caller's link in it where there is one. Raises OSError."""
    # Else the bridge takes a port's address, and another one when that port goes.
    own = hardware_address(str(network[1]))
    lines = [
        "link set lo up",
        f"link add {BRIDGE} address {own} type bridge forward_delay 0",
        f"address add {network[1]}/{network.prefixlen} dev {BRIDGE}",
        f"address add {METADATA[0]}/32 dev {BRIDGE}",
        f"link set {BRIDGE} up",
        # A public address that nobody has answers with silence, as on EC2.
        f"route add blackhole {public}",
        # Behind the rules of `storage_lines`, which the kernel would not ask otherwise.
        f"rule add pref {_LOCAL} lookup local",
        "rule delete pref 0",
    ]
    if UPLINK in {name for _, name in socket.if_nameindex()}:
        lines.append(f"link set {UPLINK} master {BRIDGE} up")
    ip_batch(lines)
    for name, value in SETTINGS.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def tcp_of_hosts() -> str:
    """The congestion control of hosts: Linux's default, which images on EC2 keep, where it may be.

    Another one, such as BBR, takes the links' shaping otherwise than nodes on EC2 take theirs. But
    a network namespace may choose only what the machine's administrator allows to everybody
    (`tcp_allowed_congestion_control`), however much is available; it starts with the machine's.
    """
    allowed = Path(TCP_SETTINGS, "tcp_allowed_congestion_control").read_text().split()
    return "cubic" if "cubic" in allowed else _tcp_setting().read_text().strip()


def be_as_images_are() -> None:
    """Have this network namespace, a host's, choose what `tcp_of_hosts` says."""
    _tcp_setting().write_text(tcp_of_hosts())


def _tcp_setting() -> Path:
    return Path(TCP_SETTINGS, "tcp_congestion_control")


def metadata_socket() -> socket.socket:
    """Where the hosts ask for their metadata."""
    return socket.create_server(METADATA, backlog=128)


def storage_url(network: IPv4Network) -> str:
    """S3 as the hosts of every subnet reach it."""
    return f"http://{network[1]}"


def storage_environment(network: IPv4Network) -> dict[str, str]:
    """By which programs on hosts find S3: AWS's own, and s5cmd."""
    url = storage_url(network)
    return {"AWS_ENDPOINT_URL_S3": url, "S3_ENDPOINT_URL": url}


def storage_socket(network: IPv4Network) -> socket.socket:
    """Where the hosts ask for S3's objects."""
    return socket.create_server((str(network[1]), STORAGE_PORT), backlog=128)


def gateway_lines(open_: Collection[str], wanted: Collection[str]) -> list[str]:
    """Have the bridge be the gateway of the wanted subnets, each as `ADDRESS/LENGTH`, alone."""
    gone = [f"address delete {one} dev {BRIDGE}" for one in sorted(set(open_) - set(wanted))]
    return gone + [f"address add {one} dev {BRIDGE}" for one in sorted(set(wanted) - set(open_))]


def storage_lines(address: str, gateway: str, reached: bool) -> list[str]:
    """Let the host of that address reach S3, or nobody answer it there, as where no route leads.

    A port's number is all that tells S3 from the answers to the logins of this machine.
    """
    act = "delete" if reached else "add"
    what = f"from {address} to {gateway} ipproto tcp dport {STORAGE_PORT}"
    return [f"rule {act} pref {_CLOSED} {what} blackhole"]


def hardware_address(address: str) -> str:
    """The same for the same address: peers remember it longer than a host lives."""
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def plug_lines(link: str, address: str, pid: int) -> list[str]:
    """Give the host of `pid` an eth0 whose other end is in the bridge.

    The bridge never asks for it: packets for a host that is gone are lost, as on EC2, where
    nobody says that there is no such host.
    """
    hardware = hardware_address(address)
    peer = f"peer name eth0 address {hardware} netns {pid}"
    return [
        f"link add {link} master {BRIDGE} up type veth {peer}",
        f"link set {link} type bridge_slave learning off",
        f"neighbour replace {address} lladdr {hardware} dev {BRIDGE} nud permanent",
    ]


def know(link: str, address: str) -> None:
    """Have the bridge send what is for the host into this link alone.

    Were it to learn that from what hosts send, one could take another's address, and be told at
    the metadata service what is the other's.
    """
    entry = [hardware_address(address), "dev", link, "master", "static"]
    subprocess.run(["bridge", "fdb", "replace", *entry], check=True)


def unplug_lines(link: str, address: str) -> list[str]:
    return [f"neighbour delete {address} dev {BRIDGE}", f"link delete {link}"]


def public_lines(old: str, new: str, private: str) -> list[str]:
    """Lead the public address of a host to it; either may be empty."""
    lines = [f"route delete {old} via {private} dev {BRIDGE}"] if old and old != new else []
    return lines + ([f"route replace {new} via {private} dev {BRIDGE}"] if new else [])


def own_public_lines(old: str, new: str) -> list[str]:
    """The same inside the host: it takes what comes for the address, and does not show it."""
    lines = [f"route delete local {old} dev lo"] if old and old != new else []
    return lines + ([f"route replace local {new} dev lo"] if new else [])


def ip_batch(lines: Sequence[str], inside: int = 0, check: bool = True) -> None:
    """Carry the lines out, in the network namespace of the process `inside` if that is given.

    Unchecked, a line that fails keeps no later one from being carried out.
    """
    if not lines:
        return
    enter = ["nsenter", f"--net=/proc/{inside}/ns/net"] if inside else []
    force = [] if check else ["-force"]
    subprocess.run(
        [*enter, "ip", *force, "-batch", "-"],
        input="".join(f"{line}\n" for line in lines),
        text=True,
        check=check,
        stderr=None if check else subprocess.DEVNULL,
    )
