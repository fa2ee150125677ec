"""SSH keys: the user's private keys, and the pinned keys of hosts.

Private keys are parsed once for all connections: parsing an RSA key takes 33 ms of CPU time, which
would be most of a fan-out's time if it was done for each host. A host key that is not pinned is
never accepted.
"""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import paramiko
from paramiko.hostkeys import HostKeyEntry, HostKeys, InvalidHostKey

from clusterctl.domain.errors import HostError, HostKeyChanged, HostKeyUnknown, UsageError
from clusterctl.transport.target import Target

# Files in ~/.ssh whose keys are offered last.
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


class LockedKey(UsageError):
    """A key file with a passphrase."""


def load_key(path: Path) -> paramiko.PKey:
    """Return the private key in a file. Raise UsageError, or LockedKey if it has a passphrase."""
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise UsageError(f"there is no key file {path}") from None
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from None
    except (paramiko.PasswordRequiredException, TypeError):
        raise LockedKey(
            f"the key {path} has a passphrase", f"load it into an agent first: ssh-add {path}"
        ) from None
    except Exception as error:  # for a bad file, cryptography and paramiko raise a dozen types
        reason = str(error).strip() or type(error).__name__
        raise UsageError(f"{path} is not a private key: {reason}") from None


def identity_keys(named: Iterable[Path], ssh_folder: Path) -> list[paramiko.PKey]:
    """Return the keys to offer to hosts, in this order.

    First those in the `named` files, if they exist, then the agent's, then the DEFAULT_KEYS in
    `ssh_folder` that have no passphrase. Raises UsageError for a named file that is no private key,
    and for one with a passphrase if the agent has no keys.
    """
    agents = list(agent_keys())
    keys: list[paramiko.PKey] = []
    for path in named:
        try:
            keys += [load_key(path)] if path.exists() else []
        except LockedKey:
            if not agents:
                raise
    keys += agents
    for name in DEFAULT_KEYS:
        with contextlib.suppress(UsageError):
            keys += [load_key(ssh_folder / name)] if (ssh_folder / name).exists() else []
    return keys


def agent_keys() -> Iterable[paramiko.PKey]:
    """Return the keys of the running ssh-agent, or none if there is no agent."""
    try:
        keys = paramiko.Agent().get_keys()
    except (paramiko.SSHException, OSError):
        return []
    lock = threading.Lock()
    for key in keys:
        _serialise_signing(key, lock)
    return keys


def _serialise_signing(key: Any, lock: threading.Lock) -> None:
    """Make the agent's key sign under `lock`: paramiko does not lock the agent's only socket."""
    sign = key.sign_ssh_data

    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return sign(*args, **kwargs)

    key.sign_ssh_data = locked


# In known_hosts an RSA key has the type ssh-rsa. In the key exchange it has these names (RFC 8332).
_RSA_ALGORITHMS = ("rsa-sha2-512", "rsa-sha2-256")


class PinnedHostKeys:
    """The host keys in some known_hosts files.

    `renew` is the hint for a host whose key is missing or old; empty gives a general one.
    """

    def __init__(self, paths: Iterable[Path], renew: str = "") -> None:
        self.paths = tuple(paths)
        self._renew = renew
        self._keys = HostKeys()
        for path in self.paths:
            if path.exists():
                for line in path.read_text(errors="replace").splitlines():
                    add_line(self._keys, line)

    def algorithms(self, target: Target) -> tuple[str, ...]:
        """Return the host key algorithms to negotiate, so that the host shows a key that is pinned.

        The result is empty for a host without pinned keys.
        """
        known = self._keys.lookup(target.known_hosts_name)
        if known is None:
            return ()
        kinds = [_RSA_ALGORITHMS if kind == "ssh-rsa" else (kind,) for kind in known]
        return tuple(algorithm for group in kinds for algorithm in group)

    def verify(self, target: Target, key: paramiko.PKey) -> None:
        """Raise HostKeyUnknown or HostKeyChanged unless `key` is the pinned key of its type."""
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
    """Add a line of a known_hosts file to `keys`.

    Comments, broken lines and key types that paramiko does not support are left out.
    """
    line = line.strip()
    if not line or line.startswith("#"):
        return
    try:
        entry = HostKeyEntry.from_line(line)
    except (InvalidHostKey, paramiko.SSHException, ValueError):
        return
    if entry and entry.key:
        # HostKeys.load stops at the first broken line. HostKeys.add searches all entries each time.
        keys._entries.append(entry)  # type: ignore[attr-defined]


def described(key: paramiko.PKey) -> str:
    """Return the key's type and its fingerprint as `ssh-keygen -l` prints it: `SHA256:...`."""
    return f"{key.get_name()} {key.fingerprint}"


class VerifyPinned(paramiko.MissingHostKeyPolicy):
    """Verifies the host key of every connection.

    paramiko calls it for hosts that are not in its own store of keys, which is always empty here.
    """

    def __init__(self, target: Target, host_keys: PinnedHostKeys) -> None:
        self._target = target
        self._host_keys = host_keys

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        self._host_keys.verify(self._target, key)
