"""What EC2 tells a machine of itself: its region, and the keys of its instance profile (IMDSv2)."""

from __future__ import annotations

import calendar
import json
import os
import threading
import time
from collections.abc import Callable

from clusterctl.node.relay.httpget import Broken, SourceError, Wire, place_of
from clusterctl.node.relay.sigv4 import Keys

ADDRESS = "http://169.254.169.254"
TOKEN_S = 21_600
# New keys are there well before the old ones end; a transfer must not meet that moment.
REFRESH_BEFORE_S = 600.0
# A machine that has no metadata service drops what is sent there.
TIMEOUT_S = 2.0
ATTEMPTS = 3
ROLES = "/latest/meta-data/iam/security-credentials/"
NO_PROFILE = "give the nodes an instance profile, or lend them your keys: --credentials mine"


class NoCredentials(SourceError):
    """The machine has no keys for S3."""

    def __init__(self, why: str) -> None:
        super().__init__("denied", why, NO_PROFILE)


class Metadata:
    """The instance metadata service. Safe in threads."""

    def __init__(self, address: str | None = None, clock: Callable[[], float] = time.time) -> None:
        named = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "").rstrip("/")
        self._place = place_of(address or named or ADDRESS)
        self._wire = Wire(TIMEOUT_S, connect_timeout_s=TIMEOUT_S)
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._keys: Keys | None = None
        self._fresh_until = 0.0

    def keys(self, renew: bool = False) -> Keys:
        """The instance profile's keys, new ones before they expire. Raises NoCredentials."""
        with self._lock:
            if self._keys is None or renew or self._clock() >= self._fresh_until:
                self._keys, expires = self._read_keys()
                # Where new ones are late, the old ones are asked for again in a while.
                self._fresh_until = max(expires - REFRESH_BEFORE_S, self._clock() + 5.0)
            return self._keys

    def region(self) -> str:
        """Where the machine is; empty where nobody says."""
        try:
            with self._lock:
                status, text = self._get("/latest/meta-data/placement/region")
        except NoCredentials:
            return ""
        return text.strip() if status == 200 else ""

    def _read_keys(self) -> tuple[Keys, float]:
        status, roles = self._get(ROLES)
        role = (roles.split() or [""])[0]
        if status != 200 or not role:
            raise NoCredentials("there are no credentials for S3: no instance profile")
        status, text = self._get(ROLES + role)
        try:
            told = json.loads(text)
            keys = Keys(told["AccessKeyId"], told["SecretAccessKey"], told.get("Token") or "")
            expires = calendar.timegm(time.strptime(told["Expiration"], "%Y-%m-%dT%H:%M:%SZ"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise NoCredentials(f"the instance profile's role {role} gives no keys") from None
        return keys, float(expires)

    def _get(self, path: str) -> tuple[int, str]:
        for attempt in range(ATTEMPTS):
            try:
                if not self._token:
                    self._token = self._new_token()
                headers = {"host": self._place.header, "x-aws-ec2-metadata-token": self._token}
                answer = self._wire.ask(self._place, "GET", path, headers)
                if answer.status == 401:
                    # The token is over, or the machine was stopped in the meantime.
                    self._token = ""
                elif answer.status < 500:
                    return answer.status, answer.body.decode("utf-8", "replace")
            except Broken as error:
                if attempt + 1 == ATTEMPTS:
                    raise NoCredentials(
                        f"there are no credentials for S3: no metadata service ({error})"
                    ) from error
        raise NoCredentials("there are no credentials for S3: the metadata service gives none")

    def _new_token(self) -> str:
        headers = {
            "host": self._place.header,
            "content-length": "0",
            "x-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S),
        }
        answer = self._wire.ask(self._place, "PUT", "/latest/api/token", headers)
        if answer.status != 200:
            raise NoCredentials(
                f"there are no credentials for S3: the metadata service refuses ({answer.status})"
            )
        return answer.body.decode("ascii", "replace").strip()
