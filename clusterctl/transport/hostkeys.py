"""Host keys: read once, looked up per connection, never accepted unseen."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from clusterctl.domain.errors import HostError, HostKeyChanged, HostKeyUnknown
from clusterctl.transport.target import Target

# An RSA key is kept as ssh-rsa and shown under its signature algorithms.
_RSA_ALGORITHMS = ("rsa-sha2-512", "rsa-sha2-256")


class PinnedHostKeys:
    """The keys of some known_hosts files. `renew` says how to get keys that are missing or old."""

    def __init__(self, paths: Iterable[Path], renew: str = "") -> None:
        self.paths = tuple(paths)
        self._renew = renew
        self._keys = HostKeys()
        for path in self.paths:
            if path.exists():
                for line in path.read_text(errors="replace").splitlines():
                    add_line(self._keys, line)

    def algorithms(self, target: Target) -> tuple[str, ...]:
        """The key algorithms that the target may show, so that it shows one we know."""
        known = self._keys.lookup(target.known_hosts_name)
        if known is None:
            return ()
        kinds = [_RSA_ALGORITHMS if kind == "ssh-rsa" else (kind,) for kind in known]
        return tuple(algorithm for group in kinds for algorithm in group)

    def verify(self, target: Target, key: paramiko.PKey) -> None:
        """Raises HostKeyUnknown or HostKeyChanged unless `key` is the one pinned."""
        known = self._keys.lookup(target.known_hosts_name)
        if not known:
            raise HostKeyUnknown(
                target.host,
                f"its host key is unknown: {target.known_hosts_name} is not in {self._files}",
                self._renew
                or "log in once with `ssh` and compare the fingerprint, or add it to known_hosts",
            )
        pinned = known.get(key.get_name())
        if pinned is None or pinned.asbytes() != key.asbytes():
            raise self._changed(target, key, pinned or next(iter(known.values())))

    def _changed(self, target: Target, shown: paramiko.PKey, pinned: paramiko.PKey) -> HostError:
        """The error for a host that shows another key than the pinned one."""
        return HostKeyChanged(
            target.host,
            f"its host key is not the one pinned in {self._files}: "
            f"it shows {described(shown)}, pinned is {described(pinned)}",
            "either its address now belongs to another machine, or someone is in between; "
            + (self._renew or f"if you know why, drop the old key: {self._drop(target)}"),
        )

    @property
    def _files(self) -> str:
        return " or ".join(str(path) for path in self.paths) or "any known_hosts file"

    def _drop(self, target: Target) -> str:
        files = [str(path) for path in self.paths[:1]]
        return shlex.join(["ssh-keygen", "-R", target.known_hosts_name, *("-f", *files)])


def add_line(keys: HostKeys, line: str) -> None:
    """A line of a known_hosts file; what is no key, or none that paramiko knows, is left out."""
    line = line.strip()
    if not line or line.startswith("#"):
        return
    try:
        entry = HostKeyEntry.from_line(line)
    except (InvalidHostKey, paramiko.SSHException, ValueError):
        return
    if entry and entry.key:
        # HostKeys.load stops at the first broken line, and HostKeys.add looks at all there are.
        keys._entries.append(entry)  # type: ignore[attr-defined]


def fingerprint(key: paramiko.PKey) -> str:
    """`SHA256:...`, as ssh-keygen -l prints it."""
    return str(key.fingerprint)


def described(key: paramiko.PKey) -> str:
    """The key's type and fingerprint."""
    return f"{key.get_name()} {fingerprint(key)}"


class VerifyPinned(paramiko.MissingHostKeyPolicy):
    """Called by paramiko for every connection, since its own store stays empty."""

    def __init__(self, target: Target, host_keys: PinnedHostKeys) -> None:
        self._target = target
        self._host_keys = host_keys

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        self._host_keys.verify(self._target, key)
