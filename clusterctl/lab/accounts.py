"""The lab's accounts: whose key a request is signed with, and the keys that hosts are lent."""

from __future__ import annotations

import re
import secrets
import string
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import parse_qs

from clusterctl.lab.record import ACCOUNTS, AccessKey

Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]

LENT_FOR = timedelta(hours=6)
_LETTERS = string.ascii_uppercase + "234567"
_SIGNER = re.compile(r"Credential=([^/,\s]+)/|AWS ([^:\s]+):")


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


def with_accounts(api: Wsgi, keys: Keyring = KEYS) -> Wsgi:
    """moto's API, told whose account each request is in."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        key = keys.find(_signer(environ))
        # moto believes this header.
        environ["HTTP_X_MOTO_ACCOUNT_ID"] = key.account if key else ACCOUNTS[0]
        return api(environ, start)

    return answer


def _signer(environ: dict[str, Any]) -> str:
    """The id of the key that the request names; empty if it names none."""
    found = _SIGNER.match(environ.get("HTTP_AUTHORIZATION", "").replace("AWS4-HMAC-SHA256 ", ""))
    if found:
        return found[1] or found[2]
    query = parse_qs(environ.get("QUERY_STRING", ""))
    named = query.get("X-Amz-Credential") or query.get("AWSAccessKeyId") or [""]
    return named[0].partition("/")[0]
