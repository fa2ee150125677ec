"""Translation of botocore's errors into AwsError, with hints; calls that are repeated or paged."""

from __future__ import annotations

import functools
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from clusterctl.domain.errors import AwsError
from clusterctl.domain.timeouts import Polling

Answer = TypeVar("Answer")


@functools.cache
def codes() -> dict[str, Any]:
    """Return the content of codes.toml: what error codes of AWS mean, and call for."""
    # Imported here: few commands meet an error.
    from clusterctl.toml_file import read_toml

    return read_toml(Path(__file__).with_name("codes.toml"))


# After these errors EC2 may have carried out the request all the same.
_OUTCOME_UNKNOWN = (
    *("ReadTimeoutError", "ConnectionClosedError", "HTTPClientError", "RequestTimeout"),
    "ResponseParserError",
)
# EC2 sends refusals for want of room with HTTP 500 or 503 too, under "Server error codes" in
# docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html.
_REFUSED_WITH_5XX = re.compile(
    r"(Insufficient|Unfulfillable).*|.*(LimitExceeded|CapacityExceeded)|EC2ThrottledException"
)


def outcome_unknown(error: AwsError) -> bool:
    """Return whether EC2 may have carried out the request although it failed."""
    response = getattr(error.__cause__, "response", None) or {}
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if status >= 500:
        return not _REFUSED_WITH_5XX.fullmatch(error.code)
    return error.code in _OUTCOME_UNKNOWN


def throttled(error: AwsError) -> bool:
    """Return whether EC2 is throttling: the same request may succeed later."""
    return error.code in ("RequestLimitExceeded", "EC2ThrottledException", "Throttling")


@contextmanager
def translated() -> Iterator[None]:
    """Raise AwsError for any botocore exception inside the `with` block."""
    try:
        yield
    except Exception as error:
        failure = aws_error(error)
        if failure is None:
            raise
        raise failure from error


def retried(
    call: Callable[[], Answer],
    is_temporary: Callable[[AwsError], bool],
    polling: Polling,
    on_wait: Callable[[AwsError, float], object] = lambda error, left_s: None,
) -> Answer:
    """Return the answer to a call, which is repeated while its error is temporary.

    `on_wait` receives the error before each retry, and the seconds left. Raises AwsError.
    """
    while True:
        try:
            with translated():
                return call()
        except AwsError as error:
            if polling.left_s < 0 or not is_temporary(error):
                raise
            on_wait(error, polling.left_s)
        polling.wait()


def paged(client: Any, operation: str, key: str, **arguments: Any) -> list[Any]:
    """Return what a call lists under `key`, on all pages. Raises AwsError."""
    with translated():
        pages = client.get_paginator(operation).paginate(**arguments)
        return [one for page in pages for one in page[key]]


def aws_error(error: Exception) -> AwsError | None:
    """Return the AwsError for an exception that comes out of botocore; None for any other one.

    botocore has classes of its own for what AWS and the network do. What the user's files and
    programs provoke while it reads settings and credentials may be of any class.
    """
    # By the classes' names: an import of botocore here would slow the start of every command.
    names = [kind.__name__ for kind in type(error).__mro__ if "botocore" in kind.__module__]
    response = getattr(error, "response", None)
    if names and isinstance(response, dict) and "Error" in response:
        details = response["Error"]
        code = str(details.get("Code") or "Unknown")
        message = str(details.get("Message") or "AWS gave no reason")
        return _worded(code, [code], message) or AwsError(code, f"AWS refused: {message} ({code})")
    frames = traceback.walk_tb(error.__traceback__)
    modules = {frame.f_globals.get("__name__") for frame, _ in frames}
    code, message = type(error).__name__, str(error)
    if isinstance(error, OSError) and error.filename:
        message = f"{error.filename}: {error.strerror}"
    elif not names:
        message = f"{code}: {message}" if message else code
    if not modules.isdisjoint({"botocore.credentials", "botocore.tokens"}):
        return _worded(code, [*names, code, "(credentials)"], message)
    if "botocore.session" in modules:
        return _worded(code, [*names, "(settings)"], message)
    return _worded(code, names, message) or AwsError(code, message) if names else None


def _worded(code: str, names: list[str], message: str) -> AwsError | None:
    """Return the error in the words of the first name that codes.toml has; None if it has none."""
    for name in names:
        for pattern, (wording, hint) in codes()["errors"].items():
            if name == pattern or (pattern.endswith("*") and name.startswith(pattern[:-1])):
                # Not str.format: a message from AWS may contain braces.
                text = wording.replace("{message}", message) or message
                return AwsError(code, f"{text} ({code})" if "." in code else text, hint)
    return None
