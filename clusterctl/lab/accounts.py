"""Access keys of the lab's accounts: long-lived ones, and temporary ones for hosts and sessions."""

from __future__ import annotations

import secrets
import string
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from clusterctl.lab.record import AccessKey

# Lifetime of the temporary key that a host gets through its instance profile.
ROLE_KEY_LASTS = timedelta(hours=6)
# AWS's key ids are in base32.
_LETTERS = string.ascii_uppercase + "234567"


@dataclass(frozen=True)
class TemporaryKey(AccessKey):
    """A temporary key, valid until `expires` (UTC) and only together with its token.

    `policy` is the IAM policy document that limits the key. An empty one allows everything.
    """

    token: str
    expires: datetime
    policy: str = ""


class Keyring:
    """All access keys of the lab. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._keys: dict[str, AccessKey] = {}
        self._role_keys: dict[str, TemporaryKey] = {}

    def add(self, key: AccessKey) -> AccessKey:
        with self._lock:
            self._keys[key.id] = key
        return key

    def role_key(self, account: str, holder: str) -> TemporaryKey:
        """Return the temporary key of a holder (an instance id).

        It stays the same until half of its lifetime is over. Then the holder gets a new one.
        """
        now = datetime.now(timezone.utc)
        with self._lock:
            held = self._role_keys.get(holder)
            if held and held.account == account and held.expires - now > ROLE_KEY_LASTS / 2:
                return held
            self._role_keys[holder] = key = self.open_session(account, ROLE_KEY_LASTS)
        return key

    def open_session(self, account: str, lasts: timedelta, policy: str = "") -> TemporaryKey:
        """Return a new temporary key that is valid for `lasts`, and drop the expired ones."""
        now, made = datetime.now(timezone.utc), new_key(account, "ASIA")
        token = secrets.token_urlsafe(96)
        key = TemporaryKey(made.account, made.id, made.secret, token, now + lasts, policy)
        with self._lock:
            self._keys = {
                id: key
                for id, key in self._keys.items()
                if not (isinstance(key, TemporaryKey) and key.expires < now)
            }
            self._keys[key.id] = key
        return key

    def find(self, id: str) -> AccessKey | None:
        """Return the key with this id, which may have expired; None if the lab has no such key."""
        with self._lock:
            return self._keys.get(id)


KEYS = Keyring()


def new_key(account: str, kind: str = "AKIA") -> AccessKey:
    """Return a random key. `kind` begins its id: AKIA for long-lived keys, ASIA for temporary."""
    id = kind + "".join(secrets.choice(_LETTERS) for _ in range(16))
    return AccessKey(account, id, secrets.token_urlsafe(30))
