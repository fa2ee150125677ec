"""Clients of which one chosen call can be made to fail, below botocore's retries."""

from __future__ import annotations

import functools
import os
import signal
import threading
from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from botocore.awsrequest import AWSResponse
from botocore.exceptions import ConnectionClosedError, ReadTimeoutError
from botocore.httpsession import URLLib3Session

from clusterctl.ec2.session import Clients
from clusterctl.lab.faults.answers import Call, error_answer
from tests import direct
from tests.moto_ec2 import SERVED, clients_of

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
    KILLED_BEFORE = "killed, not carried out"
    KILLED = "carried out, then killed"

    @property
    def effect(self) -> bool:
        return self not in (Mode.REFUSED, Mode.FAILED, Mode.STOPPED, Mode.KILLED_BEFORE)

    @property
    def kills(self) -> bool:
        return self in (Mode.KILLED_BEFORE, Mode.KILLED)


class ApiCall(NamedTuple):
    """The n-th call of an action in one run of a command."""

    action: str
    nth: int = 1

    @property
    def changes(self) -> bool:
        return not self.action.startswith(READS)


ALWAYS = (Mode.FAILED, Mode.BROKEN, Mode.LOST)


class Wire:
    """A layer between botocore and the network that records calls and breaks one of them.

    Commands call from several threads. `_own` has the call of each, which botocore sends from the
    thread that made it.
    """

    def __init__(self) -> None:
        self.calls: list[ApiCall] = []
        self._lock = threading.Lock()
        self._own = threading.local()
        self._http = URLLib3Session()
        self.mend()

    def mend(self) -> None:
        """Break no calls from now on, and count from zero."""
        self._refused: defaultdict[str, list[str]] = defaultdict(list)
        self.break_at(None, Mode.REFUSED)

    def refuse(self, actions: Iterable[str], code: str) -> None:
        """Answer the next call of each action with this error, without carrying it out."""
        self._refused = defaultdict(list, {action: [code] for action in actions})

    def refuse_all(self, code: str, times: int) -> None:
        """Answer the first calls of every action with this error, without carrying them out."""
        self._refused = defaultdict(lambda: [code] * times)

    def break_at(self, target: ApiCall | int | None, mode: Mode) -> None:
        """Break one call from now on: a ApiCall, or one by its number from zero."""
        self.calls = []
        self._asked: tuple[str, str] | None = None
        self._broken: tuple[str, str] | None = None
        self._target, self._mode = target, mode

    def watch(self, client: Any) -> None:
        client.meta.events.register("before-call", self._before_call)
        client.meta.events.register("before-send", self._before_send)

    def _before_call(self, model: Any, params: Any, **_: Any) -> None:
        action = _action(model.name, params["body"])
        asked = (action, _asked(action, params["body"]))
        own = self._own
        own.model, own.action = model, action
        with self._lock:
            own.breaks = self._reached(action, asked)

    def _reached(self, action: str, asked: tuple[str, str]) -> bool:
        """Record a call. Return whether it is broken."""
        # A read that is repeated until a state is reached counts once, since polls are random.
        repeatable = action.startswith(READS) or action == "CreateTags"
        again = repeatable and asked == self._asked
        self._asked = asked
        if not again:
            earlier = sum(call.action == action for call in self.calls)
            call = ApiCall(action, earlier + 1)
            reached = self._target in (call, len(self.calls))
            self.calls.append(call)
            if reached:
                self._broken = asked
                return True
        return asked == self._broken and self._mode in ALWAYS

    def _before_send(self, request: Any, **_: Any) -> AWSResponse | None:
        refusals = self._refused[self._own.action]
        if refusals:
            return self._error(request.url, refusals.pop())
        if not self._own.breaks:
            return self._direct(request)
        mode = self._mode
        self._own.breaks = mode in ALWAYS
        if mode.effect:
            self._direct(request) or self._http.send(request)
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

    def _direct(self, request: Any) -> AWSResponse | None:
        """Return the response of a server in this process, None if it is in another one."""
        url = urlsplit(request.url)
        app = SERVED.get(f"{url.scheme}://{url.netloc}")
        return direct.send(app, request) if app else None

    def _error(self, url: str, code: str) -> AWSResponse:
        model = self._own.model
        service = model.service_model
        call = Call(service.endpoint_prefix, model.name, json=service.protocol == "json")
        answer = error_answer(call, code)
        return AWSResponse(
            url, answer.status, {"content-type": answer.content_type}, direct.Body(answer.body)
        )


def _action(name: str, body: Any) -> str:
    """Return a call's name. A dry run is a read of its own: it changes nothing."""
    dry = isinstance(body, dict) and str(body.get("DryRun")).lower() == "true"
    return f"DescribeDryRunOf{name}" if dry else name


def _asked(action: str, body: Any) -> str:
    """Return what a call asks for, as far as it does not depend on time.

    The costs of nodes are tags. Nodes of the same cost share a call, and which these are depends on
    the second in which each has started and stopped.
    """
    if action == "CreateTags":
        return str([value for key, value in body.items() if key.endswith(".Key")])
    return str(body)


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
