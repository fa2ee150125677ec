"""The lab's accounts: whose key a request is signed with, and the keys that hosts are lent."""

from __future__ import annotations

import secrets
import string
import threading
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from clusterctl.lab.record import AccessKey

LENT_FOR = timedelta(hours=6)
_LETTERS = string.ascii_uppercase + "234567"


@dataclass(frozen=True)
class LentKey(AccessKey):
    """A key for a while. It is good together with its token only.

    `policy` is a document of IAM that limits it; empty for a key that may do all.
    """

    token: str
    expires: datetime
    policy: str = ""


class Keyring:
    """Every key that the lab knows. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._keys: dict[str, AccessKey] = {}
        self._lent: dict[str, LentKey] = {}

    def add(self, key: AccessKey) -> AccessKey:
        with self._lock:
            self._keys[key.id] = key
        return key

    def lend(self, account: str, holder: str) -> LentKey:
        """The holder's key: the same one as before while half of its time is left."""
        now = datetime.now(timezone.utc)
        with self._lock:
            held = self._lent.get(holder)
            if held and held.account == account and held.expires - now > LENT_FOR / 2:
                return held
            self._lent[holder] = lent = self._make(account, LENT_FOR, "")
        return lent

    def open_session(self, account: str, lasts: timedelta, policy: str = "") -> LentKey:
        """A new key, for as long as it lasts."""
        with self._lock:
            return self._make(account, lasts, policy)

    def _make(self, account: str, lasts: timedelta, policy: str) -> LentKey:
        now = datetime.now(timezone.utc)
        self._keys = {
            id: key
            for id, key in self._keys.items()
            if not (isinstance(key, LentKey) and key.expires < now)
        }
        made = new_key(account, "ASIA")
        token = secrets.token_urlsafe(96)
        lent = LentKey(made.account, made.id, made.secret, token, now + lasts, policy)
        self._keys[lent.id] = lent
        return lent

    def find(self, id: str) -> AccessKey | None:
        with self._lock:
            return self._keys.get(id)


KEYS = Keyring()


def new_key(account: str, kind: str = "AKIA") -> AccessKey:
    """A random key. Of `kind` AKIA are long-lived ones, of ASIA those that come with a token."""
    id = kind + "".join(secrets.choice(_LETTERS) for _ in range(16))
    return AccessKey(account, id, secrets.token_urlsafe(30))
