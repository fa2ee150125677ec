"""The user's own SSH configuration, ~/.ssh/config, read as `ssh` reads it."""

from __future__ import annotations

import getpass
import glob
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterctl.domain.errors import UsageError
from clusterctl.transport import config_module
from clusterctl.transport.target import Target

if TYPE_CHECKING:
    import paramiko

# Depth of nested Include lines, as in OpenSSH.
MOST_INCLUDES = 16
_INCLUDE = re.compile(r"\s*include\s", re.IGNORECASE)
_PATTERN = re.compile(r"[*?!\[]")
# HOST or HOST:PORT of a ProxyJump.
_HOP = re.compile(r"\[?([^\[\]/]+?)\]?(?::(\d+))?/?")


class UserConfig:
    """A parsed ssh_config. A missing file counts as empty. Each host is looked up once.

    paramiko tests all blocks for each host. Here an index finds the blocks with plain host names,
    so that only blocks with patterns are tested for every host. With a block for each of 128 hosts
    this saves half of a fan-out's CPU time.
    """

    def __init__(
        self, config: paramiko.SSHConfig, folder: Path, files: Sequence[Path] = ()
    ) -> None:
        self.folder = folder
        self.files = tuple(files)
        self._blocks: list[dict[str, Any]] = config._config  # type: ignore[attr-defined]
        self._named: dict[str, list[int]] = {}
        self._general: list[int] = []
        # With CanonicalizeHostname, paramiko looks up a second name that is not known beforehand.
        # The index cannot be used then.
        canonical = any("canonicalizehostname" in block["config"] for block in self._blocks)
        for position, block in enumerate(self._blocks):
            names = block.get("host", "*")  # a Match block has none
            plain = not any(_PATTERN.search(name) for name in names)
            if canonical or not plain:
                self._general.append(position)
            for name in names if plain else ():
                self._named.setdefault(name, []).append(position)
        self._found: dict[str, paramiko.SSHConfigDict] = {}

    def names_any(self, hosts: Sequence[str]) -> bool:
        """Return whether one of these hosts has a block with its own name, not only a pattern."""
        return not self._named.keys().isdisjoint(hosts)

    def lookup(self, host: str) -> paramiko.SSHConfigDict:
        """Return the settings of a host, as `ssh -G` prints them."""
        if host not in self._found:
            positions = sorted({*self._general, *self._named.get(host, ())})
            config = config_module().SSHConfig()
            config._config = [self._blocks[position] for position in positions]
            self._found[host] = config.lookup(host)
        return self._found[host]

    def target(self, host: str, user: str | None = None) -> Target:
        """Return the way that `ssh host` takes: HostName, User, Port, ProxyCommand, ProxyJump.

        `user` overrides the configured one. Raises UsageError for a ProxyJump that cannot be parsed
        or that leads back to its own host.
        """
        return self._target(host, user, ())

    def _target(self, host: str, user: str | None, behind: tuple[str, ...]) -> Target:
        found = self.lookup(host)
        target = Target(
            host=host,
            address=found.get("hostname", host),
            user=user or found.get("user") or getpass.getuser(),
            port=int(found.get("port", 22)),
            proxy_passes_fd=str(found.get("proxyusefdpass", "no")).lower() == "yes",
        )
        # Of ProxyCommand and ProxyJump the first in the file counts, as in OpenSSH. `found` is in
        # the order of the file.
        way = next((key for key in found if key in ("proxycommand", "proxyjump")), "")
        given = (found[way] if way else None) or "none"
        if given.lower() == "none":
            return target
        if way == "proxycommand":
            return replace(target, proxy_command=tuple(shlex.split(given)))
        return replace(target, jump=self._jump(given, (*behind, host)))

    def _jump(self, given: str, behind: tuple[str, ...]) -> Target:
        """Return the last host of a ProxyJump list `[USER@]HOST[:PORT],…`.

        It is reached through the hosts before it. `behind` has the hosts that this one leads to.
        """
        before, _, last = given.rpartition(",")
        user, _, where = last.strip().removeprefix("ssh://").rpartition("@")
        matched = _HOP.fullmatch(where)
        if not matched:
            raise UsageError(f"cannot read `ProxyJump {given}` of {behind[-1]}")
        host, port = matched.groups()
        if host in behind:
            raise UsageError(
                f"{self.folder / 'config'} reaches {host} through itself",
                f"begin the file with `Host {host}` and `ProxyJump none` below it",
            )
        if before:  # the hosts before it count, not the proxy that the file has for this host
            jump = replace(
                self._target(host, user or None, behind), proxy_command=(), proxy_passes_fd=False
            )
            jump = replace(jump, jump=self._jump(before, (*behind, host)))
        else:
            jump = self._target(host, user or None, behind)
        return replace(jump, port=int(port)) if port else jump

    def identity_files(self, targets: Iterable[Target]) -> list[Path]:
        """Return the IdentityFile entries of all targets and their jump hosts, each once."""
        names: dict[str, None] = {}
        for host in _names(targets):
            names.update(dict.fromkeys(self.lookup(host).get("identityfile", [])))
        return [Path(name).expanduser() for name in names]

    def known_hosts_files(self, targets: Iterable[Target]) -> list[Path]:
        """Return the known_hosts files of all targets and their jump hosts, each once.

        These are their UserKnownHostsFile entries, or else ~/.ssh/known_hosts and known_hosts2, and
        at the end the system's file.
        """
        names: dict[str, None] = {}
        for host in _names(targets):
            given = self.lookup(host).get("userknownhostsfile")
            own = [str(self.folder / "known_hosts"), str(self.folder / "known_hosts2")]
            names.update(dict.fromkeys(_file_names(given) if given else own))
        return [*(Path(name).expanduser() for name in names), Path("/etc/ssh/ssh_known_hosts")]


def _names(targets: Iterable[Target]) -> dict[str, None]:
    """Return the hosts of all targets and of their jump hosts, in order and each once."""
    names: dict[str, None] = {}
    for target in targets:
        hop: Target | None = target
        while hop and hop.host not in names:
            names[hop.host] = None
            hop = hop.jump
    return names


def read_user_config(folder: Path, name: str = "config") -> UserConfig:
    """Read the config file in `folder` (~/.ssh). Raise UsageError if it cannot be read."""
    path = folder / name
    try:
        files: list[Path] = []
        lines = _with_includes(path, folder, files) if path.exists() else []
        return UserConfig(config_module().SSHConfig.from_text("\n".join(lines)), folder, files)
    except Exception as error:  # paramiko raises bare Exception for a line it cannot parse
        raise UsageError(f"cannot read {path}: {error}") from None


def _with_includes(path: Path, folder: Path, files: list[Path], depth: int = 0) -> list[str]:
    """Return the lines of a config with the lines of `Include` files in their place.

    paramiko does not support Include. The names of all files that are read are added to `files`. As
    in OpenSSH, relative names are in ~/.ssh, missing files are ignored, and the depth is limited.
    """
    lines: list[str] = []
    files.append(path)
    for line in path.read_text(errors="replace").splitlines():
        words = shlex.split(line, comments=True) if _INCLUDE.match(line) else []
        for pattern in words[1:]:
            name = Path(pattern).expanduser()
            found = sorted(glob.glob(str(folder / name)))  # noqa: PTH207
            if depth < MOST_INCLUDES:
                for included in found:
                    lines += _with_includes(Path(included), folder, files, depth + 1)
        if not words:
            lines.append(line)
    return lines


def _file_names(given: str) -> list[str]:
    # paramiko removes the quotes around a single name, so its blanks may be part of the name.
    return [given] if Path(given).expanduser().exists() else shlex.split(given)
