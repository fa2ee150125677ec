"""EC2's errors with an HTTP status of their own; moto answers all of them with 400."""

from __future__ import annotations

from typing import Any

from werkzeug.exceptions import HTTPException

from clusterctl.lab.faults.answers import Call, error_answer


class EC2ServerError(HTTPException):
    """What EC2 says with a status of 500 and above."""

    def __init__(self, code: str, message: str, status: int = 500) -> None:
        said = error_answer(Call("ec2", ""), code, message, status)
        super().__init__(said.body.decode())
        self.error_code = code
        self.code = status
        self._content_type = said.content_type

    def get_headers(self, *_: Any, **__: Any) -> list[tuple[str, str]]:
        return [("Content-Type", self._content_type)]
