"""SSH keys: the user's private keys, and the known keys of hosts.

Private keys are parsed once for all connections: parsing an RSA key takes 33 ms of CPU time, which
would be most of a fan-out's time if it was done for each host. An unknown host key is never
accepted.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import os
import shlex
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import paramiko
from paramiko.agent import AgentSSH

from clusterctl.domain.errors import HostError, HostKeyChanged, HostKeyUnknown, UsageError
from clusterctl.transport.dial import Target
from clusterctl.transport.ssh_config import matches_list
from clusterctl.transport.user_config import KeySources

# Files in ~/.ssh whose keys are offered last.
DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


def load_key(path: Path) -> paramiko.PKey:
    """Return the private key in a file. Raise UsageError."""
    try:
        return paramiko.PKey.from_path(path)
    except FileNotFoundError:
        raise UsageError(f"there is no key file {path}") from None
    except OSError as error:
        raise UsageError(f"cannot read the key {path}: {error.strerror}") from None
    except (paramiko.PasswordRequiredException, TypeError):
        raise UsageError(
            f"the key {path} has a passphrase", f"load it into an agent first: ssh-add {path}"
        ) from None
    except Exception:  # for a bad file, cryptography and paramiko raise a dozen types
        if _public_line(path):
            raise UsageError(
                f"{path} is a public key", "load its private key into an agent with ssh-add"
            ) from None
        raise UsageError(f"{path} is not a private key, or is damaged") from None


class KeyRing:
    """The user's private keys: of files and of agents, each read once for all hosts.

    `ssh_folder` is ~/.ssh, which has the DEFAULT_KEYS.
    """

    def __init__(self, ssh_folder: Path) -> None:
        self._folder = ssh_folder
        self._files: dict[Path, paramiko.PKey | None] = {}
        self._agents: dict[str, list[paramiko.PKey]] = {}

    def keys(self, sources: KeySources) -> list[paramiko.PKey]:
        """Return the keys to offer to one host, in this order.

        First those of its own files, in their order, then the agent's others unless only files
        count. Without files of its own, the DEFAULT_KEYS count as such, and come last. A file that
        does not exist or is no key counts as none. The agent signs for a file with a passphrase and
        for a public key. Raises UsageError if nothing is left to offer and one of its own files
        could not be used.
        """
        agent = sources.agent
        others = [] if sources.only_files else self._agent(agent)
        if sources.files is None:
            default = self._of_files([self._folder / name for name in DEFAULT_KEYS], agent, [])
            found = [*others, *default]
        else:
            unusable: list[UsageError] = []
            found = [*self._of_files(sources.files, agent, unusable), *others]
            if unusable and not found:
                raise unusable[0]
        # By the public key, so that none is offered twice: sshd counts each offer.
        keys: dict[bytes, paramiko.PKey] = {}
        for key in found:
            keys.setdefault(key.asbytes(), key)
        return list(keys.values())

    def named(self, path: Path, agent: str) -> paramiko.PKey:
        """Return the key of a file that the user named: if it cannot be used, the agent's with the
        same public key. Raises UsageError if there is none."""
        try:
            return self._file(path) or load_key(path)
        except UsageError:
            blob = public_blob(path)
            held = [key for key in self._agent(agent) if key.asbytes() == blob]
            if not held:
                raise
            return held[0]

    def _of_files(
        self, paths: Iterable[Path], agent: str, unusable: list[UsageError]
    ) -> list[paramiko.PKey]:
        """Return the keys of files. Adds the errors of those that cannot be used to `unusable`."""
        keys = []
        for path in paths:
            try:
                key = self._file(path)
                blob = public_blob(path.with_name(f"{path.name}.pub")) if key is None else b""
            except UsageError as error:
                key, blob = None, public_blob(path)
                unusable.append(error)
            if key is None and blob:
                key = next((one for one in self._agent(agent) if one.asbytes() == blob), None)
            if key is not None:
                keys.append(key)
        return keys

    def _file(self, path: Path) -> paramiko.PKey | None:
        if path not in self._files:
            self._files[path] = load_key(path) if _is_there(path) else None
        return self._files[path]

    def _agent(self, socket_path: str) -> list[paramiko.PKey]:
        if socket_path not in self._agents:
            self._agents[socket_path] = list(agent_keys(socket_path)) if socket_path else []
        return self._agents[socket_path]


# The first bytes of a private key file of OpenSSH, after the header line and base64.
_OPENSSH_KEY = b"openssh-key-v1\0"


def public_blob(path: Path) -> bytes:
    """Return the public key of a key file, as SSH sends it; empty if it cannot be read.

    The file may be a public key. Of a private one, OpenSSH's own format has the public key too,
    also if a passphrase protects it; else the file with `.pub` at the end of its name has it.
    """
    try:
        lines = path.read_text(errors="replace").splitlines()
        data = base64.b64decode("".join(line for line in lines if not line.startswith("-----")))
        if data.startswith(_OPENSSH_KEY):
            message = paramiko.Message(data[len(_OPENSSH_KEY) :])
            for _ in ("cipher", "key derivation", "its options"):
                message.get_binary()
            message.get_int()
            return bytes(message.get_binary())
    except (OSError, ValueError):
        pass
    return _public_line(path) or _public_line(path.with_name(f"{path.name}.pub"))


def _public_line(path: Path) -> bytes:
    """Return the public key in a file of one; empty for any other file."""
    try:
        kind, text = path.read_text(errors="replace").split(maxsplit=2)[:2]
        blob = base64.b64decode(text)
    except (OSError, ValueError):
        return b""
    # As SSH sends it, a key begins with the length of its type, and the type.
    return blob if blob[4:].startswith(kind.encode()) else b""


def _is_there(path: Path) -> bool:
    """Return whether a file exists, as far as this user can see it."""
    try:
        return path.exists()
    except OSError:  # before Python 3.14: no permission to read its folder
        return False


def agent_keys(socket_path: str) -> Iterable[paramiko.PKey]:
    """Return the keys of the ssh-agent that listens at a socket, or none if there is no agent."""
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(socket_path)
        agent = AgentSSH()
        agent._connect(connection)  # type: ignore[attr-defined]
        keys = agent.get_keys()
    except (paramiko.SSHException, OSError):
        connection.close()
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
REVOKED = "@revoked"


class HostKey(NamedTuple):
    """A host key of a known_hosts file: its type, and the key as SSH sends it."""

    kind: str
    blob: bytes

    def __str__(self) -> str:
        """Return the type and the fingerprint as `ssh-keygen -l` prints it: `SHA256:...`."""
        digest = hashlib.sha256(self.blob).digest()
        return f"{self.kind} SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


class KnownHosts:
    """The lines of known_hosts files, with OpenSSH's rules for the names of a line.

    A name may be a pattern, be negated, or be hashed. A host may have several keys of one type.
    Certificate authorities (`@cert-authority`), comments and lines that cannot be read are left
    out.
    """

    def __init__(self) -> None:
        # By name, for lines whose names are all plain. The others are tried one by one.
        self._named: dict[str, list[tuple[bool, HostKey]]] = {}
        self._others: list[tuple[str, bool, HostKey]] = []

    def add(self, line: str) -> None:
        """Add a line of a known_hosts file."""
        words = line.split()
        is_revoked = bool(words) and words[0] == REVOKED
        words = words[1:] if is_revoked else words
        if len(words) < 3 or words[0][0] in "#@":
            return
        names, kind, text = words[:3]
        try:
            entry = is_revoked, HostKey(kind, base64.b64decode(text, validate=True))
        except ValueError:
            return
        if any(char in names for char in "*?!|"):
            self._others.append((names, *entry))
        else:
            for name in names.lower().split(","):
                self._named.setdefault(name, []).append(entry)

    def clear(self) -> None:
        """Remove all lines."""
        self._named.clear()
        self._others.clear()

    def lookup(self, name: str, revoked: bool = False) -> list[HostKey]:
        """Return the keys of a host; those that it must not have if `revoked`."""
        name = name.lower()
        found = [key for is_revoked, key in self._named.get(name, ()) if is_revoked == revoked]
        for names, is_revoked, key in self._others:
            if is_revoked == revoked and key not in found and _names_host(names, name):
                found.append(key)
        return found


def _names_host(names: str, host: str) -> bool:
    """Return whether the first field of a known_hosts line is about a host."""
    if not names.startswith("|1|"):
        return matches_list(host, names.lower())
    try:
        _, _, salt, digest = names.split("|")
        hashed = hmac.new(base64.b64decode(salt), host.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(hashed, base64.b64decode(digest))
    except ValueError:
        return False


class KnownHostKeys:
    """The host keys in some known_hosts files.

    `renew` is the hint for a host whose key is missing or old; empty gives a general one.
    """

    def __init__(self, paths: Iterable[Path], renew: str = "") -> None:
        self.paths = tuple(paths)
        self._renew = renew
        self._keys = KnownHosts()
        for path in self.paths:
            # As for ssh, one that cannot be read has no keys.
            with contextlib.suppress(OSError):
                for line in path.read_text(errors="replace").splitlines():
                    self._keys.add(line)

    def algorithms(self, target: Target) -> tuple[str, ...]:
        """Return the host key algorithms to negotiate, so that the host shows a known key.

        The result is empty for a host without known keys.
        """
        kinds = dict.fromkeys(key.kind for key in self._known(target))
        groups = [_RSA_ALGORITHMS if kind == "ssh-rsa" else (kind,) for kind in kinds]
        return tuple(algorithm for group in groups for algorithm in group)

    def verify(self, target: Target, key: paramiko.PKey) -> None:
        """Raise HostKeyUnknown or HostKeyChanged unless `key` is known and not revoked."""
        shown = HostKey(key.get_name(), key.asbytes())
        if any(shown in self._keys.lookup(name, revoked=True) for name in _names_of(target)):
            raise HostKeyChanged(
                target.host,
                f"its host key is marked as revoked in {self._files}: {shown}",
                "the key must not be used any more: give the host a new one, and remove the "
                f"{REVOKED} line only if it is wrong",
            )
        known = self._known(target)
        if not known:
            raise HostKeyUnknown(
                target.host,
                f"its host key is unknown: {target.known_hosts_name} is not in {self._files}",
                self._renew
                or "log in once with `ssh` and compare the fingerprint, or add it to known_hosts",
            )
        if shown not in known:
            raise self._changed(target, shown, known_like(shown, known))

    def _changed(self, target: Target, shown: HostKey, known: HostKey) -> HostError:
        """Return the error about another key than the known one; a cluster knows more about it."""
        name = self._name_of(target)
        removals = [
            ("" if os.access(path.parent, os.W_OK) else "sudo ")
            + shlex.join(["ssh-keygen", "-R", name, "-f", str(path)])
            for path in self.paths
            if KnownHostKeys([path])._keys.lookup(name)
        ]
        return HostKeyChanged(
            target.host,
            f"its host key is not the one in {self._files}: it shows {shown}, known is {known}",
            "either its address now belongs to another machine, or someone is in between; "
            + (self._renew or f"if you know why, drop the old key: {' && '.join(removals)}"),
        )

    def _known(self, target: Target) -> list[HostKey]:
        name = self._name_of(target)
        return self._keys.lookup(name) if name else []

    def _name_of(self, target: Target) -> str:
        """Return the name by which the host is known; empty if it is not. As in OpenSSH, a host on
        another port may be known by its bare name."""
        return next(filter(self._keys.lookup, _names_of(target)), "")

    @property
    def _files(self) -> str:
        return " or ".join(str(path) for path in self.paths) or "any known_hosts file"


class HostKeysByHost(KnownHostKeys):
    """The host keys of hosts that each have known_hosts files of their own.

    `files` has those of each target. Each combination of files is read once.
    """

    def __init__(self, files: Mapping[Target, tuple[Path, ...]]) -> None:
        super().__init__([])
        known = {paths: KnownHostKeys(paths) for paths in dict.fromkeys(files.values())}
        self._of = {target: known[paths] for target, paths in files.items()}

    def algorithms(self, target: Target) -> tuple[str, ...]:
        return self._of[target].algorithms(target)

    def verify(self, target: Target, key: paramiko.PKey) -> None:
        self._of[target].verify(target, key)


def known_like(shown: HostKey, known: Sequence[HostKey]) -> HostKey:
    """Return the known key that a message compares with the shown one: of its type if possible."""
    return next((key for key in known if key.kind == shown.kind), known[0])


def _names_of(target: Target) -> tuple[str, ...]:
    """Return the names of a host in known_hosts, the one that is tried first before."""
    if target.host_key_alias:
        return (target.host_key_alias,)
    return tuple(dict.fromkeys((target.known_hosts_name, target.address)))


class VerifyKnown(paramiko.MissingHostKeyPolicy):
    """Verifies the host key of every connection.

    paramiko calls it for hosts that are not in its own store of keys, which is always empty here.
    """

    def __init__(self, target: Target, host_keys: KnownHostKeys) -> None:
        self._target = target
        self._host_keys = host_keys

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        self._host_keys.verify(self._target, key)
