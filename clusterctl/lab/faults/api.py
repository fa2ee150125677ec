"""The faults of API calls: requests are throttled, delayed, refused, or never answered."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from clusterctl.lab import forms
from clusterctl.lab.faults.answers import Call, error_answer, send, throttled_answer
from clusterctl.lab.faults.kinds import ApiError
from clusterctl.lab.faults.store import Faults
from clusterctl.lab.wsgi import SERVICE, Wsgi, is_form, read_body

log = logging.getLogger(__name__)


def with_api_faults(api: Wsgi, faults: Faults) -> Wsgi:
    """Return `api` behind the faults that are set. They apply to every service but S3."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        call = read_call(environ)
        if call is None and environ[SERVICE] != "s3":
            text = "The request is missing an action"
            return send(error_answer(Call(environ[SERVICE], ""), "MissingAction", text), start)
        if call is None:
            return _answered(api, environ, start, Call("s3", environ["REQUEST_METHOD"]))
        if not faults.take_token(call.action):
            return send(throttled_answer(call), start)
        time.sleep(faults.delay_s(call.action))
        fault = faults.dry_answer(call.action) if call.dry else faults.take_answer(call.action)
        if fault is None:
            return _answered(api, environ, start, call)
        if not isinstance(fault, ApiError):
            _carry_out(api, environ)
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            # werkzeug takes this for a client that closed the connection, and logs nothing.
            raise ConnectionAbortedError
        if fault.after:
            _carry_out(api, environ)
        return send(error_answer(call, fault.code, fault.message, fault.status), start)

    return answer


def _answered(
    api: Wsgi, environ: dict[str, Any], start: Callable[..., Any], call: Call
) -> Iterable[bytes]:
    """Call the API if the request is well formed. Turn what moto raises into an error of AWS's."""
    try:
        wrong = forms.problem_of(call, environ)
        return send(error_answer(call, *wrong), start) if wrong else api(environ, start)
    except Exception as failure:
        if call.service != "s3":
            environ["wsgi.input"].seek(0)
        problem, unexpected = forms.beyond(call, failure, environ)
        if unexpected:
            log.exception("%s %s", call.service, call.action)
        return send(error_answer(call, *problem), start)


def read_call(environ: dict[str, Any]) -> Call | None:
    """Return the service and action that a request calls; None for S3, and if it names none."""
    service = environ[SERVICE]
    if service == "s3":
        return None
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return Call(service, target.rpartition(".")[2], json=True)
    form = (read_body(environ) or b"").decode(errors="replace") if is_form(environ) else ""
    fields = {**parse_qs(form), **parse_qs(environ.get("QUERY_STRING", ""))}
    dry = fields.get("DryRun", [""])[0].lower() == "true"
    return Call(service, fields["Action"][0], dry=dry) if "Action" in fields else None


def _carry_out(api: Wsgi, environ: dict[str, Any]) -> None:
    """Have the API carry out the request, and drop its answer."""
    chunks = api(environ, lambda *_: lambda _: None)
    for _ in chunks:
        pass
    getattr(chunks, "close", lambda: None)()
