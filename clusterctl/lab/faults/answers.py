"""AWS's error answers in the format of each of its protocols."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from xml.sax.saxutils import escape

from clusterctl.lab.data import table

XML, JSON = "text/xml;charset=UTF-8", "application/x-amz-json-1.1"
SPECIAL = {"'": "&apos;", '"': "&quot;"}

USUAL: dict[str, tuple[int, str]] = table("answers")["usual"]


@dataclass(frozen=True)
class Call:
    """A service and its action, such as `ec2` and `RunInstances`.

    `json`: its protocol is JSON. `dry`: it is only a check whether the call is permitted.
    """

    service: str
    action: str
    json: bool = False
    dry: bool = False


@dataclass(frozen=True)
class Answer:
    status: int
    content_type: str
    body: bytes


def error_answer(call: Call, code: str, message: str = "", status: int = 0) -> Answer:
    """Return an error in the called service's format.

    An empty message and status 0 stand for AWS's own for that code.
    """
    usual_status, usual_message = USUAL.get(code, (400, f"{code}, set with clusterctl lab fault"))
    status, message = status or usual_status, message or usual_message
    if call.json:
        body = json.dumps({"__type": code, "message": message})
        return Answer(status, JSON, body.encode())
    return Answer(status, XML, _xml(call.service, code, message, status).encode())


def send(answer: Answer, start: Callable[..., Any]) -> Iterable[bytes]:
    names = {status.value: status.phrase for status in HTTPStatus}
    phrase = names.get(answer.status, "Error")
    start(f"{answer.status} {phrase}", [("Content-Type", answer.content_type)])
    return [answer.body]


def throttled_answer(call: Call) -> Answer:
    """Return the service's error for requests that come too fast."""
    usual = "ThrottlingException" if call.json else "Throttling"
    return error_answer(call, table("answers")["throttled"].get(call.service, usual))


def _xml(service: str, code: str, message: str, status: int) -> str:
    text, request = escape(message, SPECIAL), uuid.uuid4()
    if service == "ec2":
        inner = f"<Errors><Error><Code>{code}</Code><Message>{text}</Message></Error></Errors>"
        inner = f"<Response>{inner}<RequestID>{request}</RequestID></Response>"
    elif service == "s3":
        inner = f"<Error><Code>{code}</Code><Message>{text}</Message>"
        inner = f"{inner}<RequestId>{request}</RequestId></Error>"
    else:
        kind = "Sender" if status < 500 else "Receiver"
        inner = f"<Error><Type>{kind}</Type><Code>{code}</Code><Message>{text}</Message></Error>"
        inner = f"<ErrorResponse>{inner}<RequestId>{request}</RequestId></ErrorResponse>"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{inner}'
