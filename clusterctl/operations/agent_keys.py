"""The host keys that the nodes' agents tell: one question for all nodes that wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from clusterctl.ec2.host_keys_ssm import HostKeyAnswers, ask_host_keys

if TYPE_CHECKING:
    from mypy_boto3_ssm import SSMClient

# An agent registers some time after the boot, so it is asked for again.
ASK_EVERY_S = 15.0


class AgentHostKeys:
    """Asks Systems Manager for many nodes at once. `client` makes the API's client when needed."""

    def __init__(
        self,
        client: Callable[[], SSMClient],
        ask: Callable[..., HostKeyAnswers] = ask_host_keys,
        every_s: float = ASK_EVERY_S,
    ) -> None:
        self._client = client
        self._ask = ask
        self._every_s = every_s
        self._asking = threading.Lock()
        self._lock = threading.Lock()
        self._waiting: set[str] = set()
        self._next_question = 0.0
        self._keys: dict[str, tuple[str, ...]] = {}
        self._reasons: dict[str, str] = {}

    def expect(self, instance_id: str) -> None:
        """From now on a question is for this instance too."""
        with self._lock:
            self._waiting.add(instance_id)

    def done(self, instance_id: str) -> None:
        """Its keys are known from elsewhere."""
        with self._lock:
            self._waiting.discard(instance_id)

    def look(self, instance_id: str) -> tuple[str, ...]:
        """Its host keys, as far as they are known; may ask for all that wait. Raises nothing."""
        # Whoever comes while another asks goes on looking at the console.
        if self._asking.acquire(blocking=False):
            try:
                self._question()
            finally:
                self._asking.release()
        with self._lock:
            return self._keys.get(instance_id, ())

    def reason(self, instance_id: str) -> str:
        """Why there are none; empty if nobody was asked yet."""
        with self._lock:
            return self._reasons.get(instance_id, "")

    def _question(self) -> None:
        with self._lock:
            waiting = sorted(self._waiting - self._keys.keys())
            if not waiting or time.monotonic() < self._next_question:
                return
        answers = self._ask(self._client(), waiting)
        with self._lock:
            self._keys.update(answers.keys)
            self._reasons.update(answers.reasons)
            self._next_question = time.monotonic() + self._every_s
