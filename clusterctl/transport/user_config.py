"""What the user's own SSH set-up says about a host: ~/.ssh/config, as `ssh` reads it."""

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

MOST_INCLUDES = 16
_INCLUDE = re.compile(r"\s*include\s", re.IGNORECASE)
_PATTERN = re.compile(r"[*?!\[]")
_HOP = re.compile(r"\[?([^\[\]/]+?)\]?(?::(\d+))?/?")


class UserConfig:
    """A parsed ssh_config; an absent file is an empty one. Each host is looked up once.

    paramiko goes through all blocks for each host. Here a block of plain names is looked at for
    these names alone: with a block for each of 128 hosts that saves half of a fan-out's CPU time.
    """

    def __init__(
        self, config: paramiko.SSHConfig, folder: Path, files: Sequence[Path] = ()
    ) -> None:
        self.folder = folder
        self.files = tuple(files)
        self._blocks: list[dict[str, Any]] = config._config  # type: ignore[attr-defined]
        self._named: dict[str, list[int]] = {}
        self._general: list[int] = []
        # A canonical name is looked up again, under another name.
        canonical = any("canonicalizehostname" in block["config"] for block in self._blocks)
        for position, block in enumerate(self._blocks):
            names = block.get("host", "*")  # a Match block has none
            if canonical or any(_PATTERN.search(name) for name in names):
                self._general.append(position)
            else:
                for name in names:
                    self._named.setdefault(name, []).append(position)
        self._found: dict[str, paramiko.SSHConfigDict] = {}

    def names_any(self, hosts: Sequence[str]) -> bool:
        """Whether one of these hosts has a block by its own name."""
        return not self._named.keys().isdisjoint(hosts)

    def lookup(self, host: str) -> paramiko.SSHConfigDict:
        """The settings of a host, as `ssh -G` has them."""
        if host not in self._found:
            positions = sorted({*self._general, *self._named.get(host, ())})
            config = config_module().SSHConfig()
            config._config = [self._blocks[position] for position in positions]
            self._found[host] = config.lookup(host)
        return self._found[host]

    def target(self, host: str, user: str | None = None) -> Target:
        """How `ssh host` would get there: HostName, User, Port, ProxyCommand, ProxyJump.

        Raises UsageError for a ProxyJump that cannot be read or that leads back to its host.
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
        # The first of the two counts, as in OpenSSH; they are in the order of the file.
        way = next((key for key in found if key in ("proxycommand", "proxyjump")), "")
        given = (found[way] if way else None) or "none"
        if given.lower() == "none":
            return target
        if way == "proxycommand":
            return replace(target, proxy_command=tuple(shlex.split(given)))
        return replace(target, jump=self._jump(given, (*behind, host)))

    def _jump(self, given: str, behind: tuple[str, ...]) -> Target:
        """The last of `[USER@]HOST[:PORT],…`, to be reached through those before it."""
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
        if before:  # these count, and not what the file says of this host
            jump = replace(
                self._target(host, user or None, behind), proxy_command=(), proxy_passes_fd=False
            )
            jump = replace(jump, jump=self._jump(before, (*behind, host)))
        else:
            jump = self._target(host, user or None, behind)
        return replace(jump, port=int(port)) if port else jump

    def identity_files(self, targets: Iterable[Target]) -> list[Path]:
        """The IdentityFile entries of all these and of their jump hosts, each once."""
        names: dict[str, None] = {}
        for host in _names(targets):
            names.update(dict.fromkeys(self.lookup(host).get("identityfile", [])))
        return [Path(name).expanduser() for name in names]

    def known_hosts_files(self, targets: Iterable[Target]) -> list[Path]:
        """Their UserKnownHostsFile entries, else ~/.ssh/known_hosts, and the system's."""
        names: dict[str, None] = {}
        for host in _names(targets):
            given = self.lookup(host).get("userknownhostsfile")
            own = [str(self.folder / "known_hosts"), str(self.folder / "known_hosts2")]
            names.update(dict.fromkeys(_file_names(given) if given else own))
        return [*(Path(name).expanduser() for name in names), Path("/etc/ssh/ssh_known_hosts")]


def _names(targets: Iterable[Target]) -> dict[str, None]:
    names: dict[str, None] = {}
    for target in targets:
        hop: Target | None = target
        while hop and hop.host not in names:
            names[hop.host] = None
            hop = hop.jump
    return names


def read_user_config(folder: Path, name: str = "config") -> UserConfig:
    """The config file in `folder` (~/.ssh). Raises UsageError if it cannot be read."""
    path = folder / name
    try:
        files: list[Path] = []
        lines = _with_includes(path, folder, files) if path.exists() else []
        return UserConfig(config_module().SSHConfig.from_text("\n".join(lines)), folder, files)
    except Exception as error:  # paramiko raises bare Exception for a line it cannot parse
        raise UsageError(f"cannot read {path}: {error}") from None


def _with_includes(path: Path, folder: Path, files: list[Path], depth: int = 0) -> list[str]:
    """The lines of a config with its `Include` files in place, which paramiko skips; all that were
    read are put into `files`.

    As in OpenSSH, relative names are in ~/.ssh, missing files are none, 16 levels at most.
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
    # paramiko has taken the quotes off a single name, so blanks may be part of it.
    return [given] if Path(given).expanduser().exists() else shlex.split(given)
