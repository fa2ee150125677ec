"""The user's keys: parsed once and shared by all connections.

Parsing an RSA key costs 33 ms of CPU; per host, that is most of a fan-out.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import paramiko

from clusterctl.domain.errors import UsageError

DEFAULT_KEYS = ("id_ed25519", "id_ecdsa", "id_rsa")


class LockedKey(UsageError):
    """A key file with a passphrase."""


def load_key(path: Path) -> paramiko.PKey:
    """The private key in a file. Raises UsageError."""
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
    except Exception as error:  # cryptography and paramiko raise a dozen types for a bad file
        reason = str(error).strip() or type(error).__name__
        raise UsageError(f"{path} is not a private key: {reason}") from None


def identity_keys(named: Iterable[Path], ssh_folder: Path) -> list[paramiko.PKey]:
    """The keys in those of the `named` files that there are, the agent's, then those of ~/.ssh that
    need no passphrase. Raises UsageError for a named file that is no key, or has a passphrase and
    no agent's key beside it.
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
    """The keys of a running ssh-agent; none without one."""
    try:
        keys = paramiko.Agent().get_keys()
    except (paramiko.SSHException, OSError):
        return []
    lock = threading.Lock()
    for key in keys:
        _serialise_signing(key, lock)
    return keys


def _serialise_signing(key: Any, lock: threading.Lock) -> None:
    # All threads share the agent's one socket, and paramiko does not lock it.
    sign = key.sign_ssh_data

    def locked(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return sign(*args, **kwargs)

    key.sign_ssh_data = locked
