"""The user's own SSH configuration, ~/.ssh/config: the way to each host, its keys and host keys."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from clusterctl.domain.errors import UsageError
from clusterctl.transport.dial import Target
from clusterctl.transport.ssh_config import PROXY_TOKENS, HostSettings, SshConfig, expand_home

# The system's configuration file, which `ssh` reads after the user's, and its known_hosts files.
SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
# HOST or HOST:PORT of a ProxyJump.
MOST_JUMPS = 16
_HOP = re.compile(r"\[?([^\[\]/]+?)\]?(?::(\d+))?/?")


@dataclass(frozen=True)
class KeySources:
    """The keys that the configuration has for a host.

    `files` are its IdentityFile entries, None if it has none, so that the default keys count.
    `agent` is the socket of its agent, empty for no agent. With `only_files` (IdentitiesOnly) the
    agent's other keys are not offered.
    """

    files: tuple[Path, ...] | None
    agent: str
    only_files: bool


class UserConfig:
    """The ssh_config files of a user. Each host is read once."""

    def __init__(self, config: SshConfig, folder: Path) -> None:
        self.folder = folder
        self._config = config
        self._names = frozenset(config.names())
        self._settings: dict[tuple[str, str | None, int | None], HostSettings] = {}
        self._of: dict[Target, HostSettings] = {}

    def names_any(self, hosts: Sequence[str]) -> bool:
        """Return whether one of these hosts has a block with its own name, not only a pattern."""
        return not self._names.isdisjoint(hosts)

    def lookup(self, host: str, user: str | None = None, port: int | None = None) -> HostSettings:
        """Return the settings of `ssh [-l USER] [-p PORT] HOST`, before any expansion.

        Raises UsageError.
        """
        wanted = (host, user, port)
        if wanted not in self._settings:
            self._settings[wanted] = self._config.lookup(*wanted)
        return self._settings[wanted]

    def target(
        self,
        host: str,
        user: str | None = None,
        port: int | None = None,
        behind: tuple[str, ...] = (),
        through: str | None = None,
    ) -> Target:
        """Return the way that `ssh host` takes: HostName, User, Port, ProxyCommand, ProxyJump.

        `user` and `port` override the configured ones. A jump host leads to the hosts `behind` it,
        and is reached `through` those before it, whatever its own proxy is. Raises UsageError for a
        setting that is not supported, a ProxyJump that cannot be parsed, and one that leads back to
        its own host.
        """
        found = self.lookup(host, user, port)
        command, jump = found.get("proxycommand"), found.get("proxyjump")
        if through is not None:
            command, jump = "", through
        if jump.lower() in ("", "none"):
            jump = ""
        if jump or command.lower() == "none":
            command = ""
        if command == "-":
            raise UsageError(f"`ProxyCommand -` of {host} is not supported")
        target = Target(
            host=host,
            address=found.address,
            user=found.user,
            port=found.port,
            proxy_command=found.expand(command, "ProxyCommand", PROXY_TOKENS),
            proxy_passes_fd=bool(command) and found.is_set("proxyusefdpass"),
            jump=self._jump(found.expand(jump, "ProxyJump", PROXY_TOKENS), (*behind, host)),
            host_key_alias=found.get("hostkeyalias"),
        )
        self._of[target] = found
        return target

    def _jump(self, given: str, behind: tuple[str, ...]) -> Target | None:
        """Return the last host of a ProxyJump list `[USER@]HOST[:PORT],…`; None for an empty list.

        It is reached through the hosts before it.
        """
        if not given:
            return None
        before, _, last = given.rpartition(",")
        user, _, where = last.strip().removeprefix("ssh://").rpartition("@")
        matched = _HOP.fullmatch(where)
        if not matched:
            raise UsageError(f"cannot read `ProxyJump {given}` of {behind[-1]}")
        host, port = matched.groups()
        if host in behind or len(behind) > MOST_JUMPS:
            raise UsageError(
                f"{self.folder / 'config'} reaches {host} through itself",
                f"begin the file with `Host {host}` and `ProxyJump none` below it",
            )
        return self.target(host, user or None, int(port or 0) or None, behind, before or None)

    def key_sources(self, target: Target) -> KeySources:
        """Return the keys for a host that `target` returned. Raise UsageError."""
        found = self._of[target]
        named = found.values.get("identityfile")
        files = None
        if named is not None:
            files = tuple(
                Path(found.expand(expand_home(name), "IdentityFile", variables=True))
                for name in named
                if name.lower() != "none"
            )
        agent = found.get("identityagent", "SSH_AUTH_SOCK")
        if agent == "SSH_AUTH_SOCK":
            agent = os.environ.get("SSH_AUTH_SOCK", "")
        elif agent.startswith("$") and not agent.startswith("${"):
            agent = os.environ.get(agent[1:], "")
        elif agent.lower() == "none":
            agent = ""
        else:
            agent = found.expand(expand_home(agent), "IdentityAgent", variables=True)
        return KeySources(files, agent, found.is_set("identitiesonly"))

    def known_hosts_files(self, target: Target) -> tuple[Path, ...]:
        """Return the known_hosts files for a host that `target` returned. Raise UsageError.

        These are its UserKnownHostsFile entries, or else ~/.ssh/known_hosts and known_hosts2, then
        its GlobalKnownHostsFile entries, or else the system's files.
        """
        found = self._of[target]
        own = [str(self.folder / name) for name in ("known_hosts", "known_hosts2")]
        users = found.values.get("userknownhostsfile", own)
        systems = found.values.get("globalknownhostsfile", list(SYSTEM_KNOWN_HOSTS))
        names = [
            found.expand(expand_home(name), "UserKnownHostsFile", variables=True)
            for name in users
            if name.lower() != "none"
        ]
        names += [expand_home(name) for name in systems if name.lower() != "none"]
        return tuple(dict.fromkeys(map(Path, names)))


def with_jumps(targets: Sequence[Target]) -> list[Target]:
    """Return all targets and their jump hosts, in order and each once."""
    found: dict[Target, None] = {}
    for target in targets:
        hop: Target | None = target
        while hop and hop not in found:
            found[hop] = None
            hop = hop.jump
    return list(found)


def read_user_config(folder: Path, name: str = "config", system: Path | None = None) -> UserConfig:
    """Read the config file in `folder` (~/.ssh), and the `system`'s if one is given.

    Raises UsageError if one cannot be read.
    """
    config = SshConfig()
    config.read(folder / name, folder)
    if system:
        config.read(system, system.parent)
    return UserConfig(config, folder)
