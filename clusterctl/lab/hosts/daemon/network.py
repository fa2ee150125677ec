"""The lab's network: a bridge that is the gateway of all subnets, and routes public addresses."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Collection, Sequence
from ipaddress import IPv4Network
from pathlib import Path

BRIDGE, UPLINK = "br0", "up0"
TCP_SETTINGS = "/proc/sys/net/ipv4"
# That of EC2's instances. The bridge's own would be the least of its ports'.
MTU = 9001
METADATA, RESOLVER = ("169.254.169.254", 80), ("169.254.169.253", 53)
STORAGE_PORT = 80
# Preferences of routing rules: those that keep hosts from S3, and the one for local addresses,
# which Linux has at 0.
_CLOSED, _LOCAL = 50, 100
# No ICMP redirects: with them hosts would learn to reach a public address directly, and go on after
# the bridge has taken it from its host.
SETTINGS = {"ip_forward": "1", "conf/all/send_redirects": "0", f"conf/{BRIDGE}/send_redirects": "0"}


def build(network: IPv4Network, public: IPv4Network) -> None:
    """Make the bridge, with this machine's link as a port if there is one.

    Raise OSError, or CalledProcessError if `ip` fails.
    """
    # Without a fixed hardware address the bridge takes that of a port, which may go.
    hardware = hardware_address(str(network[1]))
    lines = [
        "link set lo up",
        f"link add {BRIDGE} mtu {MTU} address {hardware} type bridge forward_delay 0",
        f"address add {network[1]}/{network.prefixlen} dev {BRIDGE}",
        *(f"address add {own[0]}/32 dev {BRIDGE}" for own in (METADATA, RESOLVER)),
        f"link set {BRIDGE} up",
        # Nothing answers for a public address that no host has, as on EC2.
        f"route add blackhole {public}",
        # Move the rule for local addresses behind those of `storage_lines`: at 0 it would come
        # first, and S3's address is local.
        f"rule add pref {_LOCAL} lookup local",
        "rule delete pref 0",
    ]
    if UPLINK in {name for _, name in socket.if_nameindex()}:
        lines.append(f"link set {UPLINK} mtu {MTU} master {BRIDGE} up")
    ip_batch(lines)
    for name, value in SETTINGS.items():
        Path("/proc/sys/net/ipv4", name).write_text(value)


def tcp_of_hosts() -> str:
    """Return the TCP congestion control of hosts: cubic if it is allowed, else the machine's.

    Cubic is Linux's default and that of EC2's images. Another one, such as BBR, reacts differently
    to the shaping of links than nodes on EC2 do. A network namespace begins with the machine's, and
    may choose only those in `tcp_allowed_congestion_control`, even if others are available.
    """
    allowed = Path(TCP_SETTINGS, "tcp_allowed_congestion_control").read_text().split()
    own = Path(TCP_SETTINGS, "tcp_congestion_control").read_text().strip()
    return "cubic" if "cubic" in allowed else own


def set_congestion_control() -> None:
    """Set the congestion control of this network namespace, a host's, to `tcp_of_hosts`."""
    Path(TCP_SETTINGS, "tcp_congestion_control").write_text(tcp_of_hosts())


def service_sockets(network: IPv4Network) -> tuple[socket.socket, socket.socket, socket.socket]:
    """Return the sockets of the metadata service, of S3 and of the hosts' DNS."""
    resolver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    resolver.bind(RESOLVER)
    metadata, storage = (
        socket.create_server(address, backlog=128)
        for address in (METADATA, (str(network[1]), STORAGE_PORT))
    )
    return metadata, storage, resolver


def storage_url(network: IPv4Network) -> str:
    """Return the URL of S3 and the other services for the hosts of all subnets."""
    return f"http://{network[1]}"


def gateway_lines(open_: Collection[str], wanted: Collection[str]) -> list[str]:
    """Return the lines that make the bridge the gateway of the wanted subnets only.

    `open_` are the present ones. Each is `ADDRESS/LENGTH`.
    """
    gone = [f"address delete {one} dev {BRIDGE}" for one in sorted(set(open_) - set(wanted))]
    return gone + [f"address add {one} dev {BRIDGE}" for one in sorted(set(wanted) - set(open_))]


def storage_lines(address: str, gateway: str, reached: bool) -> list[str]:
    """Return the lines that let a host reach S3, or drop its packets as if no route led there.

    The rule names S3's port, because logins from this machine come from the same address, and the
    host has to answer them.
    """
    act = "delete" if reached else "add"
    what = f"from {address} to {gateway} ipproto tcp dport {STORAGE_PORT}"
    return [f"rule {act} pref {_CLOSED} {what} blackhole"]


def hardware_address(address: str) -> str:
    """Return the hardware address for an IP address.

    It is always the same, because peers may remember it longer than a host lives.
    """
    return "02:00:" + ":".join(f"{int(part):02x}" for part in address.split("."))


def plug_lines(link: str, address: str, pid: int) -> list[str]:
    """Return the lines that connect the host with PID 1 `pid` by an eth0 with the bridge.

    A permanent neighbour entry saves the bridge ARP requests. Without it the kernel would report a
    host that is gone as unreachable. On EC2 packets for it are lost in silence.
    """
    hardware = hardware_address(address)
    peer = f"peer name eth0 mtu {MTU} address {hardware} netns {pid}"
    return [
        f"link add {link} mtu {MTU} master {BRIDGE} up type veth {peer}",
        f"link set {link} type bridge_slave learning off",
        f"neighbour replace {address} lladdr {hardware} dev {BRIDGE} nud permanent",
    ]


def pin_to_link(link: str, address: str) -> None:
    """Have the bridge send a host's packets into this link only.

    If the bridge learned links from the packets that hosts send, a host could take the address of
    another one, and read that one's metadata.
    """
    entry = [hardware_address(address), "dev", link, "master", "static"]
    subprocess.run(["bridge", "fdb", "replace", *entry], check=True)


def public_lines(old: str, new: str, private: str) -> list[str]:
    """Return the lines that route a host's new public address to it, in place of the old one.

    Either may be empty.
    """
    lines = [f"route delete {old} via {private} dev {BRIDGE}"] if old and old != new else []
    return lines + ([f"route replace {new} via {private} dev {BRIDGE}"] if new else [])


def own_public_lines(old: str, new: str) -> list[str]:
    """Return the lines that have a host take packets for its public address, in its own namespace.

    As on EC2, its interface does not show the address.
    """
    lines = [f"route delete local {old} dev lo"] if old and old != new else []
    return lines + ([f"route replace local {new} dev lo"] if new else [])


def ip_batch(lines: Sequence[str], inside: int = 0, check: bool = True) -> None:
    """Run lines with `ip -batch`, in the network namespace of the process `inside` if it is given.

    Without `check`, the lines after one that fails are run too, and nothing is raised.
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
