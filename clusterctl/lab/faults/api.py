"""The faults of API calls: requests are throttled, delayed, refused, or never answered."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import parse_qs

from clusterctl.lab.faults.answers import Call, error_answer, send, throttled_answer
from clusterctl.lab.faults.kinds import ApiError
from clusterctl.lab.faults.store import Faults
from clusterctl.lab.wsgi import SERVICE, Wsgi, is_form, read_body

log = logging.getLogger(__name__)


def with_api_faults(api: Wsgi, faults: Faults) -> Wsgi:
    """Return `api` behind the faults that are set. They apply to every service but S3."""

    def answer(environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        call = read_call(environ)
        if call is None:
            return api(environ, start)
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
    """Call the API. Turn its exceptions into AWS's errors: werkzeug would send a page of HTML."""
    try:
        return api(environ, start)
    except NotImplementedError as missing:
        text = f"{call.action} is more than the lab can do: {missing!s:.200}"
        return send(error_answer(call, "InvalidAction", text), start)
    except Exception:
        log.exception("%s %s", call.service, call.action)
        return send(error_answer(call, "InternalError"), start)


def read_call(environ: dict[str, Any]) -> Call | None:
    """Return the service and action that a request calls; None for S3, and if it names none."""
    service = environ[SERVICE]
    if service == "s3":
        return None
    target = environ.get("HTTP_X_AMZ_TARGET", "")
    if target:
        return Call(service, target.rpartition(".")[2], json=True)
    form = (read_body(environ) or b"").decode(errors="replace") if is_form(environ) else ""
    asked = {**parse_qs(form), **parse_qs(environ.get("QUERY_STRING", ""))}
    dry = asked.get("DryRun", [""])[0].lower() == "true"
    return Call(service, asked["Action"][0], dry=dry) if "Action" in asked else None


def _carry_out(api: Wsgi, environ: dict[str, Any]) -> None:
    """Have the API carry out the request, and drop its answer."""
    said = api(environ, lambda *_: lambda _: None)
    for _ in said:
        pass
    getattr(said, "close", lambda: None)()
