"""Clients of which one chosen call can be made to fail, below botocore's retries."""

from __future__ import annotations

import functools
import io
import os
import signal
from collections.abc import Iterable
from enum import Enum
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from botocore.httpsession import URLLib3Session

from clusterctl.ec2.session import Clients
from clusterctl.lab.faults.answers import Call, error_answer
from tests.moto_ec2 import clients_of

READS = ("Describe", "Get", "List")


class Mode(Enum):
    """The fault of one call. `always`: repetitions of the request fail as well."""

    REFUSED = "403, not carried out"
    FAILED = "500 always, never carried out"
    BROKEN = "500 always, each time carried out"
    LOST = "no answer in time, always, each time carried out"
    LOST_ONCE = "carried out, connection closed; the repetition is answered"
    STOPPED = "interrupted, not carried out"
    INTERRUPTED = "carried out, then interrupted"
    SLAIN = "killed, not carried out"
    KILLED = "carried out, then killed"

    @property
    def effect(self) -> bool:
        return self not in (Mode.REFUSED, Mode.FAILED, Mode.STOPPED, Mode.SLAIN)

    @property
    def kills(self) -> bool:
        return self in (Mode.SLAIN, Mode.KILLED)


ALWAYS = (Mode.FAILED, Mode.BROKEN, Mode.LOST)


class Wire:
    """A layer between botocore and the network that records calls and breaks number `at`."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._http = URLLib3Session()
        self.mend()

    def mend(self) -> None:
        """Break no calls from now on, and count from zero."""
        self._refused: dict[str, list[str]] = {}
        self.break_at(-1, Mode.REFUSED)

    def refuse(self, actions: Iterable[str], code: str, times: int = 1) -> None:
        """Answer each of these calls with this error a number of times, without carrying it out."""
        self._refused = {action: [code] * times for action in actions}

    def break_at(self, number: int, mode: Mode) -> None:
        self.calls = []
        self._asked: tuple[str, str] | None = None
        self._broken: tuple[str, str] | None = None
        self._number, self._mode = number, mode
        self._breaks = False

    def watch(self, client: Any) -> None:
        client.meta.events.register("before-call", self._before_call)
        client.meta.events.register("before-send", self._before_send)

    def _before_call(self, model: Any, params: Any, **_: Any) -> None:
        asked = (model.name, str(params["body"]))
        # A read that is repeated until a state is reached counts once, since polls are random.
        again = asked == self._asked and model.name.startswith(READS)
        if not again:
            self.calls.append(model.name)
        self._model = model
        self._asked = asked
        if not again and len(self.calls) - 1 == self._number:
            self._broken = asked
            self._breaks = True
        else:
            self._breaks = asked == self._broken and self._mode in ALWAYS

    def _before_send(self, request: Any, **_: Any) -> AWSResponse | None:
        refusals = self._refused.get(self._model.name)
        if refusals:
            return self._error(request.url, refusals.pop())
        if not self._breaks:
            return None
        mode = self._mode
        self._breaks = mode in ALWAYS
        if mode.effect:
            self._http.send(request)
        if mode is Mode.LOST:
            raise ReadTimeoutError(endpoint_url=request.url)
        if mode is Mode.LOST_ONCE:
            raise ConnectionClosedError(endpoint_url=request.url)
        if mode in (Mode.STOPPED, Mode.INTERRUPTED):
            raise KeyboardInterrupt
        if mode.kills:
            os.kill(os.getpid(), signal.SIGKILL)
        refused = mode is Mode.REFUSED
        return self._error(request.url, "UnauthorizedOperation" if refused else "InternalError")

    def _error(self, url: str, code: str) -> AWSResponse:
        service = self._model.service_model
        call = Call(service.endpoint_prefix, self._model.name, json=service.protocol == "json")
        answer = error_answer(call, code)
        return AWSResponse(
            url, answer.status, {"content-type": answer.content_type}, _Body(answer.body)
        )


class _Body(io.BytesIO):
    def stream(self) -> list[bytes]:
        return [self.read()]


class WiredClients(Clients):
    """All clients over one wire. Each is made once."""

    def __init__(self, origin: Clients) -> None:
        super().__init__(origin.account)
        self._origin = origin
        self._made: dict[str, Any] = {}
        self.wire = Wire()

    def _make(self, service: str, *arguments: Any, **named: Any) -> Any:
        key = repr((service, arguments, named))
        if key not in self._made:
            self._made[key] = super()._make(service, *arguments, **named)
            self.wire.watch(self._made[key])
        return self._made[key]


@functools.lru_cache
def wired(endpoint_url: str) -> WiredClients:
    return WiredClients(clients_of(endpoint_url))
