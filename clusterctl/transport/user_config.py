"""What the user's own SSH set-up says about a host: ~/.ssh/config, as `ssh` reads it."""

from __future__ import annotations

import getpass
import glob
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import paramiko

from clusterctl.domain.errors import UsageError
from clusterctl.transport.target import Target

MOST_INCLUDES = 16
_INCLUDE = re.compile(r"\s*include\s", re.IGNORECASE)


@dataclass(frozen=True)
class UserConfig:
    """A parsed ssh_config; an absent file is an empty one."""

    config: paramiko.SSHConfig
    folder: Path

    def target(self, host: str, user: str | None = None) -> Target:
        """How `ssh host` would get there: HostName, User, Port, ProxyCommand, ProxyJump."""
        found = self.config.lookup(host)
        return Target(
            host=host,
            address=found.get("hostname", host),
            user=user or found.get("user") or getpass.getuser(),
            port=int(found.get("port", 22)),
            proxy_command=_proxy(found),
            proxy_passes_fd=str(found.get("proxyusefdpass", "no")).lower() == "yes",
        )

    def identity_files(self, hosts: list[str]) -> list[Path]:
        """The IdentityFile entries of all these hosts, each once."""
        names: dict[str, None] = {}
        for host in hosts:
            names.update(dict.fromkeys(self.config.lookup(host).get("identityfile", [])))
        return [Path(name).expanduser() for name in names]

    def known_hosts_files(self, hosts: list[str]) -> list[Path]:
        """UserKnownHostsFile of these hosts, else ~/.ssh/known_hosts, and the system's."""
        names: dict[str, None] = {}
        for host in hosts:
            given = self.config.lookup(host).get("userknownhostsfile")
            names.update(dict.fromkeys(_file_names(given) if given else []))
        own = [Path(name).expanduser() for name in names] or [
            self.folder / "known_hosts",
            self.folder / "known_hosts2",
        ]
        return [*own, Path("/etc/ssh/ssh_known_hosts")]


def read_user_config(folder: Path, name: str = "config") -> UserConfig:
    """The config file in `folder` (~/.ssh). Raises UsageError if it cannot be read."""
    path = folder / name
    try:
        lines = _with_includes(path, folder) if path.exists() else []
        return UserConfig(paramiko.SSHConfig.from_text("\n".join(lines)), folder)
    except Exception as error:  # paramiko raises bare Exception for a line it cannot parse
        raise UsageError(f"cannot read {path}: {error}") from None


def _with_includes(path: Path, folder: Path, depth: int = 0) -> list[str]:
    """The lines of a config with its `Include` files in place, which paramiko skips.

    As in OpenSSH, relative names are in ~/.ssh, missing files are none, 16 levels at most.
    """
    lines: list[str] = []
    for line in path.read_text(errors="replace").splitlines():
        words = shlex.split(line, comments=True) if _INCLUDE.match(line) else []
        for pattern in words[1:]:
            name = Path(pattern).expanduser()
            found = sorted(glob.glob(str(folder / name)))  # noqa: PTH207
            if depth < MOST_INCLUDES:
                for included in found:
                    lines += _with_includes(Path(included), folder, depth + 1)
        if not words:
            lines.append(line)
    return lines


def _file_names(given: str) -> list[str]:
    # paramiko has taken the quotes off a single name, so blanks may be part of it.
    return [given] if Path(given).expanduser().exists() else shlex.split(given)


def _proxy(found: paramiko.SSHConfigDict) -> tuple[str, ...]:
    command = found.get("proxycommand")
    if command and command.lower() != "none":
        return tuple(shlex.split(command))
    jump = found.get("proxyjump")
    if jump and jump.lower() != "none":
        *before, last = jump.split(",")
        through = ("-J", ",".join(before)) if before else ()
        return ("ssh", *through, "-W", "[%h]:%p", last)
    return ()
